"""Load raised step by step, and the knee: the last step that was worth it.

The rule. Step i is past the knee when either
  goodput_i < goodput_(i-1) * (1 + 0.25 * (load_i / load_(i-1) - 1)): less than a quarter of the added load came out good, or
  p99_i > 3 * p99_1: the 99th percentile of `ttft_sched` (failures count as slower than any) is three times the first step's.
The knee is the step before the first such one; there is none when no step is past it, or the first fails more than 1 %.
`auto` doubles the load from 1 until a step is past the knee, or there were `MAX_AUTO_STEPS`.
Wrong when the first step is not idle, or steps are so short that p99 rests on a handful of requests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isinf, isnan

from stayfast.bench.stats import Measured, of_offered

GAIN_SHARE = 0.25
P99_FACTOR = 3.0
MAX_AUTO_STEPS = 15


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
        """The loads in turn."""
        return iter(self.loads or tuple(2.0**n for n in range(MAX_AUTO_STEPS)))

    def label(self, load: float) -> str:
        """A step's name."""
        return f"c={load:.0f}" if self.is_closed else f"{load:g}/s"


@dataclass(frozen=True, slots=True)
class Step:
    """What a step gave."""

    load: float
    goodput_rps: float
    p99_s: float  # of ttft_sched; infinite where more than 1 % failed


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


def step_of(load: float, run: Measured) -> Step:
    """The figures that the rule needs."""
    p99_s = of_offered(run.spreads["ttft_sched"], run.n_offered - run.n_whole, 0.99)
    return Step(load, run.rate(run.goodput.n_good), inf if isnan(p99_s) else p99_s)


def is_past_knee(steps: Sequence[Step]) -> bool:
    """Whether the last of these steps is past the knee, by the rule above."""
    if not steps:
        return False
    first, last = steps[0], steps[-1]
    if isinf(last.p99_s) or last.p99_s > P99_FACTOR * first.p99_s:
        return True
    if len(steps) == 1:
        return False
    before = steps[-2]
    return last.goodput_rps < before.goodput_rps * (1 + GAIN_SHARE * (last.load / before.load - 1))


def knee(steps: Sequence[Step]) -> Step | None:
    """The last step that was worth it, None where every one was, or none."""
    for n in range(len(steps)):
        if is_past_knee(steps[: n + 1]):
            return steps[n - 1] if n else None
    return None


def told(sweep: Sweep, steps: Sequence[Step]) -> str:
    """One line for people."""
    found = knee(steps)
    if found is not None:
        return (f"knee: {sweep.label(found.load)} with {found.goodput_rps:.1f} good requests/s and a p99 of ttft_sched of "
                f"{found.p99_s * 1e3:.0f} ms; past it the p99 is over {P99_FACTOR:g} times the first step's, or less than "
                f"{GAIN_SHARE:.0%} of the added load comes out good")
    if steps and is_past_knee(steps[:1]):
        return "knee: below the first step, which already fails more than 1 %"
    return "knee: not reached"
