"""Load raised step by step, and the knee: the last step that was worth it.

The rule. Step i is past the knee when either
  goodput_i < goodput_(i-1) * (1 + 0.25 * (load_i / load_(i-1) - 1)): less than a quarter of the added load came out good, or
  p99_i > 3 * p99_1: the 99th percentile of `ttft_sched` (failures count as slower than any) is three times the first step's,
and so is the step after it, or nothing of it was good. The knee is the step before them; without two in a row there is none.
A load is what was offered in fact (of a closed loop: its callers). p99_1 is the upper end of the interval that the first
step's requests leave it, so that a lucky first step does not make the second look bad. Left out are steps with less than
`N_LEAST` requests, whose p99 is one or two of them, and invalid ones, whose figures are the client's own.
`auto` doubles the load from 1 until the knee is behind it, a step is invalid, or there were `MAX_AUTO_STEPS`.
Wrong when the first step is not idle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isinf, isnan, sqrt

from stayfast.lab.load.stats import Measured, of_offered

GAIN_SHARE = 0.25
P99_FACTOR = 3.0
MAX_AUTO_STEPS = 15
N_LEAST = 200  # requests of a step that is judged
_SIGMAS = 1.96  # of an interval of 95 %


@dataclass(frozen=True, slots=True)
class Sweep:
    """What to step through. `loads` empty: auto."""

    is_closed: bool  # concurrency, else rate
    loads: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if any(not 0 < load <= 1e6 for load in self.loads):
            raise ValueError("the loads of a sweep must be above 0 and at most 1000000")
        if list(self.loads) != sorted(set(self.loads)):
            raise ValueError("the loads of a sweep must rise")
        if self.is_closed and any(load != int(load) for load in self.loads):
            raise ValueError("a concurrency is a whole number")

    def steps(self) -> Iterator[float]:
        return iter(self.loads or tuple(2.0**n for n in range(MAX_AUTO_STEPS)))

    def label(self, load: float) -> str:
        return f"c={load:.0f}" if self.is_closed else f"{load:g}/s"


@dataclass(frozen=True, slots=True)
class SweepStep:
    load: float
    goodput_rps: float
    p99_s: float  # of ttft_sched; infinite where more than 1 % failed
    p99_high_s: float  # what it can be at most, by 95 %
    offered: float  # requests a second in fact; of a closed loop its callers
    n_offered: int
    is_valid: bool = True

    @property
    def can_be_judged(self) -> bool:
        """Whether its figures are the target's, and enough."""
        return self.is_valid and self.n_offered >= N_LEAST


def parse_sweep(text: str) -> Sweep:
    """Read 1,2,4 or auto (both of concurrency), concurrency=... or rate=...; ValueError says what is expected."""
    kind, has_kind, rest = text.partition("=")
    if not has_kind:
        kind, rest = "concurrency", text
    if kind not in ("concurrency", "rate"):
        raise ValueError(f"--sweep {text}: a sweep is of concurrency=... or rate=...")
    if rest == "auto":
        return Sweep(kind == "concurrency")
    try:
        loads = tuple(float(part) for part in rest.split(","))
    except ValueError:
        raise ValueError(f"--sweep {text}: write auto, or loads that rise, such as {kind}=1,2,4,8") from None
    return Sweep(kind == "concurrency", loads)


def step_of(sweep: Sweep, load: float, run: Measured) -> SweepStep:
    spread, n_failed = run.spreads["ttft_sched"], run.n_offered - run.n_whole
    p99_s = of_offered(spread, n_failed, 0.99)
    high_share = min(1.0, 0.99 + _SIGMAS * sqrt(0.99 * 0.01 / max(1, spread.n)))
    return SweepStep(load, run.rate(run.goodput.n_good), inf if isnan(p99_s) else p99_s, spread.at(high_share),
                load if sweep.is_closed else run.rate(run.n_offered), run.n_offered, run.result.health.is_valid)


def is_enough(steps: Sequence[SweepStep]) -> bool:
    """Whether `auto` ends here: the knee is behind it, or what comes next would measure the client."""
    return bool(steps) and (not steps[-1].is_valid or not steps[-1].goodput_rps > 0 or _first_past(steps) is not None)


def knee(steps: Sequence[SweepStep]) -> SweepStep | None:
    """The last step that was worth it, None where every one was, or none."""
    first = _first_past(steps)
    return _judged(steps)[first - 1] if first else None


def _judged(steps: Sequence[SweepStep]) -> list[SweepStep]:
    return [step for step in steps if step.can_be_judged]


def _is_past(steps: Sequence[SweepStep]) -> bool:
    """Whether the last of these looks past the knee, by itself."""
    first, last = steps[0], steps[-1]
    if isinf(last.p99_s) or last.p99_s > P99_FACTOR * first.p99_high_s:
        return True
    if len(steps) == 1:
        return False
    before = steps[-2]
    return last.goodput_rps < before.goodput_rps * (1 + GAIN_SHARE * (last.offered / before.offered - 1))


def _first_past(steps: Sequence[SweepStep]) -> int | None:
    """The first of the judged steps that is past the knee."""
    judged = _judged(steps)
    past = [_is_past(judged[: n + 1]) for n in range(len(judged))]
    for n, step in enumerate(judged):
        if past[n] and (not step.goodput_rps > 0 or (n + 1 < len(judged) and past[n + 1])):
            return n
    return None


def as_text(sweep: Sweep, steps: Sequence[SweepStep]) -> str:
    """What was found, a line each, for people."""
    return "\n".join([_knee_text(sweep, steps), *_left_out(sweep, steps)])


def _knee_text(sweep: Sweep, steps: Sequence[SweepStep]) -> str:
    judged, first = _judged(steps), _first_past(steps)
    if first:
        found = judged[first - 1]
        return (f"knee: {sweep.label(found.load)} with {found.goodput_rps:.1f} good requests/s and a p99 of ttft_sched of "
                f"{found.p99_s * 1e3:.0f} ms; past it the p99 is over {P99_FACTOR:g} times the first step's, or less than "
                f"{GAIN_SHARE:.0%} of the added load comes out good, in two steps in a row")
    if first == 0:
        return "knee: below the first step, which already fails more than 1 %"
    if not judged:
        return "knee: not looked for: no step can be judged"
    if _is_past(judged):
        before = sweep.label(judged[-2].load) if len(judged) > 1 else "below the first step"
        return (f"knee: perhaps {before}: {sweep.label(judged[-1].load)} looks past it, but one step may be noise; add one "
                "more")
    return "knee: not reached"


def _left_out(sweep: Sweep, steps: Sequence[SweepStep]) -> Iterator[str]:
    few = [step for step in steps if step.is_valid and not step.can_be_judged]
    if few:
        yield (f"not judged: {', '.join(sweep.label(step.load) for step in few)}, with less than {N_LEAST} requests; give a "
               "longer --duration")
    invalid = [step for step in steps if not step.is_valid]
    if invalid:
        yield (f"not judged: {', '.join(sweep.label(step.load) for step in invalid)}, invalid: the client's own end was "
               "reached, not the target's" + " (auto stops there)" * (not sweep.loads))
