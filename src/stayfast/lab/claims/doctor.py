"""The doctor names planted faults, and nothing else.

Each scene is a gateway of the production code with simulated providers in virtual time (`lab.doctor`), at whose end a
snapshot is taken. What virtual time does not have (processors, memory, connections, stores) is planted in the snapshot
itself. A fault is named if its check finds it, also where another finding explains and hides it. Pairs are drawn by seed
from faults that do not change the same thing. False is every shown finding, "info" aside, that is neither a planted fault
nor listed with the plant as correct there.

When wrong: plants are our own picture of each fault; a real one may be weaker or have other consequences. Pairs are those of
the seed. With seeds 2 and 3, an overload covered the other fault in 3 of 40 pairs: where all requests wait or are shed, a
tail or refused calls behind the queue are too few to count.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from stayfast.core.findings import Finding
from stayfast.core.snapshot import Snapshot
from stayfast.lab.doctor.healthy import healthy_mixes
from stayfast.lab.doctor.plants import decoys, faults
from stayfast.lab.doctor.run import SceneRunner
from stayfast.lab.doctor.scene import Plant, Scene, healthy_scene
from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure
from stayfast.policy.findings.diagnose import diagnose, shown

MAX_FALSE = 1
N_PAIRS, N_MIXES = 20, 6
Doctor = Callable[[Snapshot], list[Finding]]


@dataclass(frozen=True, slots=True)
class DoctorExtent:
    """Most scenes of each kind; None: all."""

    n_alone: int | None = None
    n_pairs: int = N_PAIRS
    n_mixes: int = N_MIXES


class _Case(NamedTuple):
    name: str
    scene: Scene
    planted: frozenset[str]
    also: frozenset[str]
    denied: frozenset[str]  # what a look-alike must not be found as


@dataclass(slots=True)
class _Tally:
    n: int = 0
    missed: int = 0
    false: int = 0


@dataclass(frozen=True, slots=True)
class DoctorClaim:
    """doctor: from a snapshot to findings."""

    full: DoctorExtent = DoctorExtent()
    quick: DoctorExtent = DoctorExtent(12, 6, 3)
    doctor: Doctor = diagnose

    name = "doctor"
    statement = (f"`stayfast doctor` names each planted fault alone, and both of {N_PAIRS} random pairs (or the cause that "
                 f"explains the other); on look-alikes and {N_MIXES} healthy traffic mixes it is silent: at most "
                 f"{MAX_FALSE} "
                 "false finding in all. Virtual time.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent, rng, runner = conditions.choose(self.full, self.quick), Random(conditions.seed), SceneRunner(conditions.seed)
        kinds = {
            "faults alone": list(_alone(_sample(faults(), extent.n_alone, rng), is_fault=True)),
            "pairs of faults": list(_pairs(faults(), extent.n_pairs, rng)),
            "look-alikes": list(_alone(_sample(decoys(), extent.n_alone, rng), is_fault=False)),
            "healthy mixes": [_Case(name, scene, frozenset(), frozenset(), frozenset())
                              for name, scene in list(healthy_mixes().items())[:extent.n_mixes]]}
        tallies, notes = {kind: _Tally() for kind in kinds}, []
        for kind, cases in kinds.items():
            conditions.report_progress(f"{len(cases)} {kind}")
            for case in cases:
                found = self.doctor(await asyncio.to_thread(runner.observe, case.scene))
                notes += _judge(case, found, tallies[kind])
        figures = [Figure.exact(f"{kind}: scenes", tally.n, "") for kind, tally in tallies.items()]
        figures += [Figure.count(f"{kind}: faults not named", tallies[kind].missed)
                    for kind in ("faults alone", "pairs of faults")]
        figures += [Figure.count(f"{kind}: false findings", tally.false, None) for kind, tally in tallies.items()]
        figures.append(Figure.count("false findings in all", sum(tally.false for tally in tallies.values()), MAX_FALSE))
        return ClaimResult(tuple(figures), tuple(notes))


def _judge(case: _Case, found: Sequence[Finding], tally: _Tally) -> list[str]:
    """Count what is missing and what is false. Returns a note for each."""
    missing = sorted(case.planted - {finding.id for finding in found})
    false = sorted({finding.id for finding in shown(found) if finding.severity != "info"} - case.planted - case.also
                   | {finding.id for finding in found} & case.denied)
    tally.n += 1
    tally.missed += len(missing)
    tally.false += len(false)
    return [*(f"{case.name}: {one} is not named" for one in missing), *(f"{case.name}: {one} is false" for one in false)]


def _sample(plants: Sequence[Plant], n: int | None, rng: Random) -> list[Plant]:
    return list(plants) if n is None or n >= len(plants) else rng.sample(plants, n)


def _alone(plants: Iterable[Plant], *, is_fault: bool) -> Iterator[_Case]:
    for plant in plants:
        check, none = frozenset({plant.check}), frozenset[str]()
        yield _Case(plant.name, plant.change(healthy_scene()), check if is_fault else none, plant.also,
                    none if is_fault else check)


def _pairs(plants: Sequence[Plant], n: int, rng: Random) -> Iterator[_Case]:
    """Random pairs that change different things."""
    candidates = [(one, other) for number, one in enumerate(plants) for other in plants[number + 1:]
                  if not one.touches & other.touches and one.check != other.check]
    for one, other in rng.sample(candidates, min(n, len(candidates))):
        yield _Case(f"{one.name} + {other.name}", other.change(one.change(healthy_scene())),
                    frozenset({one.check, other.check}), one.also | other.also, frozenset())
