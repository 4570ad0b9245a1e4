"""A sweep: the load is raised step by step, and the knee is the last step that was worth it.

The rule. Step i is past the knee if
  goodput_i < goodput_(i-1) * (1 + 0.25 * (load_i / load_(i-1) - 1)): under a quarter of the added load was good, or
  p99_i > 3 * p99_1: the p99 of `ttft_sched` (failures count as infinitely slow) is three times that of the first step,
and the next step is past it too, or nothing was good in step i. The knee is the step before; a single step past it is noise.
The load is the offered rate as measured, or the number of callers. p99_1 is the upper end of its confidence interval, so a
lucky first step does not make the second look bad. Steps with under `MIN_STEP_REQUESTS` requests are ignored, as their p99
rests on one or two of them; so are invalid steps, whose figures are the client's. `auto` doubles the load from 1 until the
knee is found, a step is invalid, or `MAX_AUTO_STEPS` are done. Wrong if the first step already loads the target.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isinf, isnan, sqrt

from stayfast.lab.load.arrivals import ConstantArrivals, Gamma
from stayfast.lab.load.measure import MeasurePlan
from stayfast.lab.load.schedule import MIN_STEP_REQUESTS
from stayfast.lab.load.stats import MeasuredRun, quantile_of_offered

DEFAULT_STEP_S = 10.0
GAIN_SHARE = 0.25
P99_FACTOR = 3.0
MAX_AUTO_STEPS = 15
_SIGMAS = 1.96  # for an interval of 95 %


@dataclass(frozen=True, slots=True)
class Sweep:
    """The steps of a sweep. Empty `loads`: auto."""

    is_closed: bool  # of concurrency, else of rates
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
    """The figures of one step."""

    load: float
    goodput_rps: float
    p99_s: float  # of ttft_sched; infinite if over 1 % failed
    p99_high_s: float  # upper end of its 95 % interval
    offered: float  # requests/s as measured; in a closed loop the callers
    n_offered: int
    is_valid: bool = True

    @property
    def can_be_judged(self) -> bool:
        return self.is_valid and self.n_offered >= MIN_STEP_REQUESTS


def parse_sweep(text: str) -> Sweep:
    """Read 1,2,4 or auto (both of concurrency), concurrency=... or rate=... Raises ValueError with the expected form."""
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


def plan_at_load(sweep: Sweep, plan: MeasurePlan, load: float, *, has_length: bool) -> MeasurePlan:
    """The plan of one step. Without a configured length, a slow step lasts until it has enough requests to be judged."""
    if sweep.is_closed:
        return replace(plan, n_concurrent=int(load))
    arrivals = plan.workload.arrivals
    assert isinstance(arrivals, ConstantArrivals | Gamma)
    limit = plan.limit
    if not has_length and load * DEFAULT_STEP_S < 1.5 * MIN_STEP_REQUESTS:  # 1.5: arrivals vary
        limit = replace(limit, until_s=None, n_requests=max(MIN_STEP_REQUESTS, round(load * DEFAULT_STEP_S)))
    return replace(plan, limit=limit, workload=replace(plan.workload, arrivals=replace(arrivals, rate_rps=load)))


def make_step(sweep: Sweep, load: float, run: MeasuredRun) -> SweepStep:
    spread, n_failed = run.distributions["ttft_sched"], run.n_offered - run.n_succeeded
    p99_s = quantile_of_offered(spread, n_failed, 0.99)
    high_share = min(1.0, 0.99 + _SIGMAS * sqrt(0.99 * 0.01 / max(1, spread.n)))
    return SweepStep(load, run.per_second(run.goodput.n_good), inf if isnan(p99_s) else p99_s, spread.quantile(high_share),
                     load if sweep.is_closed else run.per_second(run.n_offered), run.n_offered, run.result.health.is_valid)


def should_stop(steps: Sequence[SweepStep]) -> bool:
    """Whether `auto` ends here: the knee is found, or the next step would measure the client."""
    return bool(steps) and (not steps[-1].is_valid or not steps[-1].goodput_rps > 0 or _first_past(steps) is not None)


def find_knee(steps: Sequence[SweepStep]) -> SweepStep | None:
    """The last step that was worth it; None if all were, or none."""
    first = _first_past(steps)
    return _only_judged(steps)[first - 1] if first else None


def _only_judged(steps: Sequence[SweepStep]) -> list[SweepStep]:
    return [step for step in steps if step.can_be_judged]


def _is_past(steps: Sequence[SweepStep]) -> bool:
    """Whether the last of these steps is past the knee, regardless of the next."""
    first, last = steps[0], steps[-1]
    if isinf(last.p99_s) or last.p99_s > P99_FACTOR * first.p99_high_s:
        return True
    if len(steps) == 1:
        return False
    before = steps[-2]
    return last.goodput_rps < before.goodput_rps * (1 + GAIN_SHARE * (last.offered / before.offered - 1))


def _first_past(steps: Sequence[SweepStep]) -> int | None:
    """The index of the first judged step past the knee."""
    judged = _only_judged(steps)
    past = [_is_past(judged[: n + 1]) for n in range(len(judged))]
    for n, step in enumerate(judged):
        if past[n] and (not step.goodput_rps > 0 or (n + 1 < len(judged) and past[n + 1])):
            return n
    return None


def format_sweep(sweep: Sweep, steps: Sequence[SweepStep]) -> str:
    """The knee, and the steps that were ignored, one line each."""
    lines = [_describe_knee(sweep, steps)]
    few = [sweep.label(step.load) for step in steps if step.is_valid and not step.can_be_judged]
    if few:
        lines.append(f"not judged: {', '.join(few)}, with less than {MIN_STEP_REQUESTS} requests; give a longer --duration")
    invalid = [sweep.label(step.load) for step in steps if not step.is_valid]
    if invalid:
        lines.append(f"not judged: {', '.join(invalid)}, invalid: the client reached its limit before the target"
                     + " (auto stops there)" * (not sweep.loads))
    return "\n".join(lines)


def _describe_knee(sweep: Sweep, steps: Sequence[SweepStep]) -> str:
    judged, found = _only_judged(steps), find_knee(steps)
    if found is not None:
        return (f"knee: {sweep.label(found.load)} with {found.goodput_rps:.1f} good requests/s and a p99 of ttft_sched of "
                f"{found.p99_s * 1e3:.0f} ms; in the next two steps the p99 is over {P99_FACTOR:g} times the first step's, "
                f"or less than {GAIN_SHARE:.0%} of the added load is good")
    if _first_past(steps) == 0:
        return "knee: below the first step, which already fails more than 1 %"
    if not judged:
        return "knee: unknown: no step can be judged"
    if _is_past(judged):
        before = sweep.label(judged[-2].load) if len(judged) > 1 else "below the first step"
        return (f"knee: perhaps {before}: {sweep.label(judged[-1].load)} looks past it, but one step may be noise; add one "
                "more")
    return "knee: not reached"
