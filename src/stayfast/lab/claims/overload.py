"""Five times an engine's capacity: the premium tier is served as in calm times, with and without a queue.

The engine has a fixed number of slots. The gateway has as many places. Three tenants send requests: premium, standard and
batch, for answers as long as those in Azure's conversation trace. First the capacity is measured with as many closed-loop
callers as there are places. Then SHARES of it are sent, PEAKS for two minutes, and SHARES again. Goodput counts the complete
answers within the peak. Recovery ends with the last second after it in which a request was rejected, or more than one in ten
waited longer than the goal for premium requests.

    no queue         `max_queue: 0`. A rejection is a decision, and takes no time. But a burst of premium requests beyond
                     the places that are reserved for them is rejected, too
    default queue    only `max_in_flight` is set, so 1,000 requests may wait. The bands below premium wait, or are rejected
                     after `target_wait_s`; only a queue that was empty grants `max_wait_s`

In virtual time the whole is repeated with other draws, and goodput is the mean of the rounds: the capacity of one run is
known to some percent, as answers are of very different lengths. Over sockets its interval is that of the rates in parts of
BATCH_S.

When wrong: the engine's prefill is quick, so only its slots are scarce. Where prefill is scarce, a full engine is slower
for all requests. Over sockets load, gateway and engine share this machine's cores: late rejections are invalid if the
client's own event loop was late, too.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan, sqrt
from statistics import fmean, stdev
from typing import Any, Final, NamedTuple

from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure, Sense, mark_invalid
from stayfast.lab.harness.intervals import mean_interval, quantile_interval, ratio_interval, student_t
from stayfast.lab.harness.load import LoadSpec, run_load, simulated_gateway, spoil_reason
from stayfast.lab.harness.processes import create_keys
from stayfast.lab.harness.virtual import run_load_virtual, run_virtual_in_thread, virtual_system
from stayfast.lab.load.arrivals import Ramp, RateStage
from stayfast.lab.load.lengths import CONV_OUTPUT
from stayfast.lab.load.result import Result
from stayfast.lab.load.schedule import Prompts
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.simulated import EngineModel, GapConfig, Mixture, ProviderConfig
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.priority import TenantTier
from stayfast.policy.admission.queue import QueueConfig
from stayfast.testing.simloop import SimLoop

TIMES, SENT_TIMES = 5.0, 5.3  # of the capacity: claimed, and sent, as the capacity is measured
P99_GOAL, RECOVERS_GOAL_S = 1.3, 10.0
GOODPUT_GOAL, GOODPUT_SOCKETS_GOAL = 0.8, 0.75  # shares of the capacity; one run over sockets is less certain
N_PLACES = 128
TTFT = Mixture(0.2, 0.25)
N_CHUNK = 10  # tokens; large chunks would hide a wait for the first one
STEP_S = 0.02  # so slow that over sockets two cores can generate five times the load
WARMUP_S = 5.0
BATCH_S = 5.0
# shares of the capacity in calm times, and at the peak
SHARES = {TenantTier.PREMIUM: 0.25, TenantTier.STANDARD: 0.25, TenantTier.BATCH: 0.1}
_REST = (SENT_TIMES - SHARES[TenantTier.PREMIUM]) / 2
PEAKS = {TenantTier.PREMIUM: SHARES[TenantTier.PREMIUM], TenantTier.STANDARD: _REST, TenantTier.BATCH: _REST}
PROVIDER = ProviderConfig(ttft=TTFT, fills_max_tokens=True, gaps=GapConfig(0.0, 0.0, N_CHUNK),
                          engine=EngineModel(max_running=N_PLACES, decode_step_s=STEP_S))
BIN_S = 1.0
SHED_STATUS = 503
ROUND_STEP: Final = 1_000  # between the seeds of two rounds


@dataclass(frozen=True, slots=True)
class OverloadCase:
    """Admission settings and their goals. lost: share of the premium requests. shed_ms: of the quantile shed_q of the
    rejections' times. last_shed_ms: of the longest; None: no goal.
    """

    name: str
    admission: AdmissionConfig
    lost: float
    shed_q: float
    shed_ms: float
    last_shed_ms: float | None = None


NO_QUEUE: Final = OverloadCase("no queue", AdmissionConfig(N_PLACES, QueueConfig(max_queue=0)), 0.01, 0.99, 5.0)
DEFAULT_QUEUE: Final = OverloadCase("default queue", AdmissionConfig(N_PLACES), 0.0, 0.9, 200.0, 2200.0)


@dataclass(frozen=True, slots=True)
class OverloadPhases:
    """Seconds of each phase. n_rounds: repetitions with other draws."""

    capacity_s: float = 60.0
    calm_s: float = 120.0
    peak_s: float = 120.0
    after_s: float = 30.0
    n_rounds: int = 1

    @property
    def seconds(self) -> float:
        return self.calm_s + self.peak_s + self.after_s

    @property
    def capacity_since_s(self) -> float:
        """From then on all places are occupied, by answers of all lengths."""
        return self.capacity_s / 3

    def stages(self, tier: TenantTier, capacity_rps: float) -> Ramp:
        calm, peak = SHARES[tier] * capacity_rps, PEAKS[tier] * capacity_rps
        return Ramp((RateStage(WARMUP_S + self.calm_s, calm, calm), RateStage(self.peak_s, peak, peak),
                     RateStage(self.after_s, calm, calm)))


@dataclass(frozen=True, slots=True)
class Overload:
    full: OverloadPhases = OverloadPhases()
    quick: OverloadPhases = OverloadPhases(12.0, 10.0, 12.0, 8.0)
    virtual: OverloadPhases = OverloadPhases(n_rounds=10)
    quick_virtual: OverloadPhases = OverloadPhases(30.0, 30.0, 30.0, 10.0)
    cases: Sequence[OverloadCase] = field(default=(NO_QUEUE, DEFAULT_QUEUE))

    name = "overload"
    statement = (
        f"At {TIMES:g} times an engine's capacity for two minutes, the premium tier's p99 to the first token is at most "
        f"{P99_GOAL:g} times normal, goodput is at least {GOODPUT_GOAL:.0%} of the capacity ({GOODPUT_SOCKETS_GOAL:.0%} "
        f"over sockets), and all is normal again within {RECOVERS_GOAL_S:g} s. With the default queue no premium request is "
        f"lost, {DEFAULT_QUEUE.shed_q:.0%} of the rejections come within {DEFAULT_QUEUE.shed_ms / 1000:g} s, and all within "
        f"2.2 s. Without a queue at most {NO_QUEUE.lost:.0%} of the premium requests are lost, and {NO_QUEUE.shed_q:.0%} of "
        f"the rejections take less than {NO_QUEUE.shed_ms:g} ms.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        figures: list[Figure] = []
        spoiled = None
        for case in self.cases:
            phases = conditions.choose(self.virtual, self.quick_virtual)
            conditions.report_progress(f"{case.name}: {phases.n_rounds} times {phases.seconds:g} s in virtual time")
            rounds = [await run_virtual_in_thread(run_in_virtual_time, phases, case.admission,
                                                  conditions.seed + ROUND_STEP * number)
                      for number in range(phases.n_rounds)]
            figures += make_figures(f"{case.name}, virtual time", rounds, phases, case, GOODPUT_GOAL)
            phases = conditions.choose(self.full, self.quick)
            conditions.report_progress(f"{case.name}: {phases.seconds:g} s over sockets")
            real = await run_over_sockets(phases, case.admission, conditions.seed)
            of_case = make_figures(f"{case.name}, sockets", [real], phases, case, GOODPUT_SOCKETS_GOAL)
            reason = spoil_reason(real.by_tier) or late_reason(real, of_case)
            figures += mark_invalid(of_case, reason)
            spoiled = spoiled or reason
        return ClaimResult(tuple(figures), spoiled=spoiled)


@dataclass(frozen=True, slots=True)
class OverloadRun:
    """capacity_at: when the answers of the closed loop ended, in seconds from its warm-up."""

    capacity_rps: float
    capacity_at: Sequence[float]
    by_tier: Mapping[str, Result]


async def _run_phases(phases: OverloadPhases, seed: int,
                      run_tier: Callable[[TenantTier, LoadSpec, int], Coroutine[Any, Any, Result]]) -> OverloadRun:
    """Measure the capacity with the standard tenant, then run the load of all three."""
    load = LoadSpec(phases.capacity_s, n_concurrent=N_PLACES, n_output=CONV_OUTPUT, warmup_s=WARMUP_S)
    alone = await run_tier(TenantTier.STANDARD, load, seed + list(TenantTier).index(TenantTier.STANDARD))
    since_s, ended_s = phases.capacity_since_s, alone.samples.floats["ended_s"]
    capacity_at = [at_s for at_s, error in zip(ended_s, alone.samples.errors, strict=True)
                   if not error and since_s <= at_s < phases.capacity_s]
    capacity_rps = len(capacity_at) / (phases.capacity_s - since_s)
    async with asyncio.TaskGroup() as group:
        tasks = {tier: group.create_task(run_tier(tier, replace(
            load, seconds=phases.seconds, n_concurrent=0, arrivals=phases.stages(tier, capacity_rps)), seed + number))
            for number, tier in enumerate(TenantTier)}
    return OverloadRun(capacity_rps, capacity_at, {tier.value: task.result() for tier, task in tasks.items()})


async def run_in_virtual_time(loop: SimLoop, phases: OverloadPhases, admission: AdmissionConfig, seed: int) -> OverloadRun:
    tenants = {tier.value: TenantConfig(tier) for tier in TenantTier}
    system = virtual_system(loop, {"engine": replace(PROVIDER, seed=seed)}, seed,
                            settings={"admission": admission, "tenants": tenants})
    prompts = Prompts(seed)

    async def run_tier(tier: TenantTier, load: LoadSpec, seed: int) -> Result:
        return await run_load_virtual(system, load, loop, seed, tenant=tier.value, prompts=prompts)

    return await _run_phases(phases, seed, run_tier)


async def run_over_sockets(phases: OverloadPhases, admission: AdmissionConfig, seed: int) -> OverloadRun:
    keys, digests = create_keys(tier.value for tier in TenantTier)
    prompts = Prompts(seed)
    settings = {
        "server": {"keys": digests},
        "tenants": {tier.value: {"tier": tier.value} for tier in TenantTier},
        "admission": {"max_in_flight": admission.max_in_flight, "reserved_share": admission.reserved_share,
                      "max_queue": admission.queue.max_queue}}
    async with simulated_gateway({"engine": replace(PROVIDER, seed=seed)}, seed, settings) as (_, url):

        async def run_tier(tier: TenantTier, load: LoadSpec, seed: int) -> Result:
            return await run_load(replace(load, key=keys[tier.value]), url, seed, prompts)

        return await _run_phases(phases, seed, run_tier)


class OverloadRow(NamedTuple):
    """One request. Times in seconds from the end of the warm-up; NaN for an event that did not happen."""

    tier: str
    at_s: float
    sent_s: float
    first_s: float
    ended_s: float
    is_good: bool
    is_shed: bool

    @property
    def wait_s(self) -> float:
        """Seconds to the first token; infinite without one."""
        return inf if isnan(self.first_s) else self.first_s - self.at_s

    @property
    def refused_after_ms(self) -> float:
        return (self.ended_s - self.sent_s) * 1e3


def _read_rows(run: OverloadRun) -> list[OverloadRow]:
    """The requests of a run, by their intended start."""
    return sorted((OverloadRow(tier, at_s, sent_s, first_s, ended_s, not error, status == SHED_STATUS)
                   for tier, result in run.by_tier.items() for at_s, sent_s, first_s, ended_s, error, status in zip(
                       *(result.samples.floats[name] for name in ("at_s", "sent_s", "first_s", "ended_s")),
                       result.samples.errors, result.samples.ints["status"], strict=True)), key=lambda row: row.at_s)


def make_figures(where: str, runs: Sequence[OverloadRun], phases: OverloadPhases, case: OverloadCase,
                 goodput: float) -> list[Figure]:
    """The figures of one case, from one or more rounds. goodput: its goal."""
    peak_at, calm_at = phases.calm_s, phases.calm_s + phases.peak_s
    rounds = [_read_rows(run) for run in runs]
    peaks = [[row for row in rows if peak_at <= row.at_s < calm_at] for rows in rounds]
    premium = [row for rows in rounds for row in rows if row.tier == TenantTier.PREMIUM]
    calm_s = [row.wait_s for row in premium if 0.0 <= row.at_s < peak_at]
    peak_s = [row.wait_s for row in premium if peak_at <= row.at_s < calm_at]
    normal_s = ExactDistribution(calm_s).quantile(0.99)
    times = [len(peak) / phases.peak_s / run.capacity_rps for peak, run in zip(peaks, runs, strict=True)]
    recovered_s = [_recovery_s(rows, calm_at, phases, normal_s * P99_GOAL) for rows in rounds]
    low, high = ratio_interval(peak_s, calm_s, 0.99, is_paired=False)
    return [
        Figure(f"{where}: what the engine can do", fmean(run.capacity_rps for run in runs), "requests/s"),
        Figure.exact(f"{where}: requests that arrive in the peak, over that", fmean(times), "x", TIMES, Sense.AT_LEAST),
        Figure(f"{where}: premium: TTFT p99 in calm times", normal_s, "s"),
        Figure(f"{where}: premium: TTFT p99 under overload, over that (n={len(peak_s)})",
               _infinite_if_nan(ExactDistribution(peak_s).quantile(0.99)) / normal_s, "x", P99_GOAL, low=low, high=high),
        _lost_figure(f"{where}: premium: requests without an answer under overload",
                     [row for row in premium if peak_at <= row.at_s < calm_at], case.lost),
        _goodput_figure(f"{where}: goodput under overload, of what the engine can do", runs, rounds, phases, goodput),
        *_shed_figures(where, [row.refused_after_ms for peak in peaks for row in peak if row.is_shed], case),
        Figure.count(f"{where}: premium: requests without an answer in calm times",
                     sum(not row.is_good for row in premium if row.at_s < peak_at)),
        Figure.count(f"{where}: neither served nor refused",
                     sum(not row.is_good and not row.is_shed for rows in rounds for row in rows)),
        Figure.exact(f"{where}: recovered after", max(recovered_s), "s", RECOVERS_GOAL_S),
    ]


def _lost_figure(name: str, rows: Sequence[OverloadRow], goal: float) -> Figure:
    n_lost = sum(not row.is_good for row in rows)
    return Figure.share(name, n_lost, len(rows), goal) if goal else Figure.count(name, n_lost)


def _shed_figures(where: str, shed_ms: Sequence[float], case: OverloadCase) -> list[Figure]:
    exact, (low, high) = ExactDistribution(shed_ms), quantile_interval(shed_ms, case.shed_q)
    return [Figure(f"{where}: refusals (n={exact.n}): p50", exact.quantile(0.5), "ms"),
            Figure(f"{where}: refusals: p{case.shed_q * 100:.0f}", exact.quantile(case.shed_q), "ms", case.shed_ms,
                   low=low, high=high),
            Figure.exact(f"{where}: refusals: the latest", exact.quantile(1.0), "ms", case.last_shed_ms)]


def _goodput_figure(name: str, runs: Sequence[OverloadRun], rounds: Sequence[Sequence[OverloadRow]], phases: OverloadPhases,
                    goal: float) -> Figure:
    """The mean over the rounds. The interval of a single one is that of a ratio of two means, of parts of BATCH_S."""
    since, until = phases.calm_s, phases.calm_s + phases.peak_s
    ended_s = [[row.ended_s for row in rows if row.is_good and since <= row.ended_s < until] for rows in rounds]
    shares = [len(ends) / phases.peak_s / run.capacity_rps for ends, run in zip(ended_s, runs, strict=True)]
    if len(runs) > 1:
        interval = mean_interval(shares)
    else:
        peak, capacity = (_counts(ends, begin, end) for ends, begin, end in (
            (ended_s[0], since, until), (runs[0].capacity_at, phases.capacity_since_s, phases.capacity_s)))
        spread = sqrt(sum((stdev(counts) / fmean(counts))**2 / len(counts) if len(counts) > 1 and fmean(counts) else inf
                          for counts in (peak, capacity)))
        half = shares[0] * spread * student_t(max(1, min(len(peak), len(capacity)) - 1))
        interval = (shares[0] - half, shares[0] + half)
    return Figure.percent(name, fmean(shares), goal, Sense.AT_LEAST, interval)


def _counts(instants: Iterable[float], since: float, until: float) -> list[int]:
    """How many instants are in each part of BATCH_S."""
    counts = [0] * int((until - since) / BATCH_S)
    for at_s in instants:
        part = int((at_s - since) / BATCH_S)
        if part < len(counts):
            counts[part] += 1
    return counts


def late_reason(run: OverloadRun, figures: Iterable[Figure]) -> str | None:
    """The reason why late rejections may be this machine's fault: the client's own event loop was late, too."""
    is_late = any(figure.unit == "ms" and not figure.holds for figure in figures)
    lag_ms = max(result.health.loop_lag_p99_s for result in run.by_tier.values()) * 1e3
    return f"the client's own loop was {lag_ms:.1f} ms late at p99" if is_late and lag_ms > NO_QUEUE.shed_ms / 4 else None


def _infinite_if_nan(value: float) -> float:
    """Quantiles interpolate, and infinity minus infinity is NaN."""
    return inf if isnan(value) else value


def _recovery_s(rows: Sequence[OverloadRow], calm_at: float, phases: OverloadPhases, max_wait_s: float) -> float:
    """Seconds after `calm_at` until the last bin of BIN_S in which a request was not served or p90 exceeded max_wait_s."""
    bad_until = calm_at
    for n in range(int(phases.after_s / BIN_S)):
        since = calm_at + n * BIN_S
        recent = [row for row in rows if since <= row.at_s < since + BIN_S]
        p90_s = ExactDistribution([row.wait_s for row in recent]).quantile(0.9)
        if any(not row.is_good for row in recent) or p90_s > max_wait_s:
            bad_until = since + BIN_S
    return bad_until - calm_at
