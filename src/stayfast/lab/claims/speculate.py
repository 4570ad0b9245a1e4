"""Speculation by a controller: what it does where guessing pays, and where it does not.

    real engine     the shipped model on this CPU, in turn with constant arms (`lab.speculation.engine_arms`): ordinary
                    questions, and answers that copy a text of their prompt. The controller's arm must be as fast as the
                    fastest constant one
    simulated one   speculation pays 1.5 times with one caller, and costs 30 % with eight (`lab.speculation.simulated_arms`),
                    so that a controller which is always off, or always on, falls short

When wrong: with 4 million parameters, a check of guesses costs more than on a model of billions; the real part shows what
holds on this machine with this model, not that speculation never pays.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, Final

from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense, ratio
from stayfast.lab.harness.intervals import mean_interval
from stayfast.lab.harness.processes import Processes, ServerProcess
from stayfast.lab.speculation.engine_arms import (
    CONSTANT,
    LEARNING,
    ArmMeter,
    ArmRounds,
    ArmTotals,
    arm_settings,
    copy_bodies,
    question_bodies,
    read_totals,
)
from stayfast.lab.speculation.simulated_arms import Controller, constant_arm, learning, run_phases
from stayfast.policy.speculation.config import AUTO, DRAFT, OFF
from stayfast.policy.speculation.controller import MAX_EXTRA

PHASES: Final = (1, 8, 1, 8)  # callers
N_CELLS: Final = 4  # batches of 1, 2 to 3, 4 to 7, 8: a phase of eight begins and ends with fewer
N_IN_PHASE: Final = 1500
OF_BEST: Final = 0.95
WITH_TRIES: Final = 0.98
EXPLORED: Final = 0.02
N_CONSTANT: Final = 5
N_PARTS: Final = 8


@dataclass(frozen=True, slots=True)
class SpeculateClaim:
    """n of an extent: requests to the controller in a round; n_rounds: of each workload."""

    full: Extent = Extent(n=25, n_rounds=60)
    quick: Extent = Extent(n=25, n_rounds=24)
    controller: Controller = learning  # of the simulated engine

    name = "speculate"
    statement = (f"A controller decides about speculation by speed. On the shipped model its arm has at least {OF_BEST:g} "
                 "of the tokens a second of each constant arm (median of rounds), for questions and for copied text. Tries "
                 f"are judged after {LEARNING} requests of a route, which spend the allowance of its beginning: from then "
                 f"on all its tokens, tries included, come at {WITH_TRIES:g} of the speed of that arm or faster (95 % "
                 f"interval from parts of the run). It tries at most {EXPLORED:.0%} of the requests and {MAX_EXTRA:g} more "
                 "for each route and batch size. Greedy answers of all arms are equal. On a simulated engine, where "
                 "guessing is 1.5 times as fast for one caller and 30 % slower for eight, it has at least "
                 f"{OF_BEST:g} of the better constant arm at both loads.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        conditions.report_progress("simulated engine")
        figures = await asyncio.to_thread(simulated_figures, self.controller, conditions.seed)
        extent = conditions.choose(self.full, self.quick)
        notes: list[str] = []
        async with Processes() as processes:
            gateway = await processes.start_gateway(arm_settings(("questions", "copy")))
            for workload, bodies in (("questions", question_bodies()), ("copy", copy_bodies())):
                found, note = await _measure(gateway, workload, bodies, extent, conditions)
                figures += found
                notes.append(note)
        return ClaimResult(tuple(figures), tuple(notes))


def simulated_figures(controller: Controller, seed: int) -> list[Figure]:
    """The controller and both constant arms, at each load."""
    run = run_phases(controller, PHASES, N_IN_PHASE, seed)
    constants = {arm: run_phases(partial(constant_arm, arm), PHASES, N_IN_PHASE, seed) for arm in (OFF, DRAFT)}
    figures = []
    for n_callers in sorted(set(PHASES)):
        best = max(constants, key=lambda arm: constants[arm].mean_at(n_callers))
        over = run.mean_at(n_callers) / constants[best].mean_at(n_callers)
        callers = f"simulated, {n_callers} at a time"
        figures.append(Figure.exact(f"{callers}: tokens/s over the better constant arm, {best}", over, "x", OF_BEST,
                                    Sense.AT_LEAST))
        figures += [Figure.exact(f"{callers}: tokens/s, always {arm}", result.mean_at(n_callers), "")
                    for arm, result in constants.items()]
    return [*figures, Figure.exact("simulated: tried requests", run.n_tried, "",
                                   EXPLORED * run.n_requests + MAX_EXTRA * N_CELLS)]


async def _measure(gateway: ServerProcess, workload: str, bodies: Sequence[dict[str, Any]], extent: Extent,
                   conditions: Conditions) -> tuple[list[Figure], str]:
    meter = ArmMeter(gateway, workload, bodies)
    rounds = meter.rounds
    later: list[ArmTotals] = []  # after each round, from the end of the learning on
    for number in range(extent.n_rounds):
        conditions.report_progress(f"{workload}, round {number + 1} of {extent.n_rounds}")
        await meter.run_round(number, n_auto=extent.n, n_constant=N_CONSTANT)
        if extent.n * (number + 1) >= LEARNING:
            later.append(await read_totals(gateway, workload))
    totals, settled = later[-1], later[-1].since(later[0])
    used = settled.used
    figures = [
        *(Figure.of_rounds(f"{workload}: tokens/s of the chosen arm, {used}, over always {arm}",
                      [ours / other for ours, other in zip(rounds.speeds[used], rounds.speeds[arm], strict=True)], "x",
                      OF_BEST, Sense.AT_LEAST) for arm in CONSTANT if arm != used),
        figure_with_tries(workload, later),
        Figure.exact(f"{workload}: the same from the first request on", totals.speed_with_tries, "x"),
        Figure.exact(f"{workload}: tried requests, of {totals.n}", totals.n_tried, "",
                     EXPLORED * totals.n + MAX_EXTRA),
        Figure.of_rounds(f"{workload}: tokens/s with the controller over always off, in turn",
                    [ours / other for ours, other in zip(rounds.speeds[AUTO], rounds.speeds[OFF], strict=True)], "x"),
        Figure.count(f"{workload}: prompts with different greedy answers", rounds.n_differing),
    ]
    shown = "; ".join(_describe(arm, rounds) for arm in (*CONSTANT, AUTO))
    return figures, f"{workload}: {shown}."


def figure_with_tries(workload: str, later: Sequence[ArmTotals]) -> Figure:
    """The speed of all tokens over that of the arm in use, with an interval from parts of the run, one after the other.

    later: totals after each round. A round has half a try on average, so parts have several rounds.
    """
    n_parts = min(N_PARTS, len(later) - 1)
    ends = [later[round(n * (len(later) - 1) / n_parts)] for n in range(n_parts + 1)]
    low, high = mean_interval([end.since(begin).speed_with_tries for begin, end in pairwise(ends)])
    return Figure(f"{workload}: tokens/s with tries over those of the chosen arm, after {LEARNING} requests",
                  later[-1].since(later[0]).speed_with_tries, "x", WITH_TRIES, Sense.AT_LEAST, low, high)


def _describe(arm: str, rounds: ArmRounds) -> str:
    accepted, guessed = rounds.drafts[arm]
    speed = median(rounds.speeds[arm])
    guesses = f", {ratio(accepted, guessed):.0%} of {guessed} guesses accepted" if guessed else ""
    return f"{arm} {speed:.0f} tokens/s{guesses}"
