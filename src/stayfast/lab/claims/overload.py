"""Five times an engine's capacity for a minute: the premium tier is served as in calm times.

The engine has a fixed number of slots. The gateway has as many places, and reserves a twentieth of them for each priority
band above. Three tenants send requests: premium, standard and batch, for answers as long as those in Azure's conversation
trace. First the capacity is measured with as many closed-loop callers as there are places. Then SHARES of it are sent,
PEAKS for a minute, and SHARES again. Goodput counts the complete answers within that minute. Recovery ends with the last
second after it in which a request was rejected, or more than one in ten waited longer than the goal for premium requests.

There is no queue (`max_queue: 0`): at five times the load free places are taken at once. With a queue goodput is some
percent higher, and a request that is evicted from the queue has waited in vain.

When wrong: the engine's prefill is quick, so only its slots are scarce. Where prefill is scarce, a full engine is slower
for all requests. Over sockets load, gateway and engine share this machine's cores: a run with late refusals is invalid if
the client's own event loop was late, too.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import Any, NamedTuple

from stayfast.lab.harness.claim import Conditions, Figure, Finding, Sense
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

TIMES = 5.0
P99_GOAL, GOODPUT_GOAL, SHED_GOAL_MS, RECOVERS_GOAL_S = 1.3, 0.9, 5.0, 5.0
N_PLACES = 128
TTFT = Mixture(0.2, 0.25)
N_CHUNK = 50
STEP_S = 0.02  # so slow that over sockets two cores can generate five times the load
WARMUP_S = 5.0
# shares of the capacity in calm times, and at the peak
SHARES = {TenantTier.PREMIUM: 0.15, TenantTier.STANDARD: 0.3, TenantTier.BATCH: 0.15}
PEAKS = {TenantTier.PREMIUM: 0.15, TenantTier.STANDARD: (TIMES - 0.15) / 2, TenantTier.BATCH: (TIMES - 0.15) / 2}
PROVIDER = ProviderConfig(ttft=TTFT, fills_max_tokens=True, gaps=GapConfig(0.0, 0.0, N_CHUNK),
                          engine=EngineModel(max_running=N_PLACES, decode_step_s=STEP_S))
ADMISSION = AdmissionConfig(N_PLACES, QueueConfig(max_queue=0), reserved_share=0.05)
BIN_S = 1.0
SHED_STATUS = 503


@dataclass(frozen=True, slots=True)
class OverloadPhases:
    """Seconds of each phase. slack: multiplies the goal for p99."""

    capacity_s: float = 30.0
    calm_s: float = 60.0
    peak_s: float = 60.0
    after_s: float = 30.0
    slack: float = 1.0

    @property
    def seconds(self) -> float:
        return self.calm_s + self.peak_s + self.after_s

    def stages(self, tier: TenantTier, capacity_rps: float) -> Ramp:
        calm, peak = SHARES[tier] * capacity_rps, PEAKS[tier] * capacity_rps
        return Ramp((RateStage(WARMUP_S + self.calm_s, calm, calm), RateStage(self.peak_s, peak, peak),
                     RateStage(self.after_s, calm, calm)))


@dataclass(frozen=True, slots=True)
class Overload:
    """admission: the gateway's."""

    full: OverloadPhases = OverloadPhases()
    quick: OverloadPhases = OverloadPhases(12.0, 10.0, 12.0, 8.0, 1.5)
    virtual: OverloadPhases = OverloadPhases(60.0, 600.0, 60.0, 60.0)
    quick_virtual: OverloadPhases = OverloadPhases(40.0, 120.0, 30.0, 30.0, 1.15)
    admission: AdmissionConfig = ADMISSION

    name = "overload"
    statement = (f"At {TIMES:g} times an engine's capacity, the premium tier's p99 to the first token is at most "
                 f"{P99_GOAL:g} "
            f"times normal, goodput is at least {GOODPUT_GOAL:.0%} of the capacity, p99 of rejections is below "
            f"{SHED_GOAL_MS:g} ms, and all is normal again within {RECOVERS_GOAL_S:g} s.")

    async def run(self, conditions: Conditions) -> Finding:
        phases = conditions.choose(self.virtual, self.quick_virtual)
        conditions.report_progress(f"{phases.seconds:g} s in virtual time")
        virtual = await run_virtual_in_thread(run_in_virtual_time, phases, self.admission, conditions.seed)
        figures = make_figures("virtual time", virtual, phases)
        phases = conditions.choose(self.full, self.quick)
        conditions.report_progress(f"{phases.seconds:g} s over sockets")
        real = await run_over_sockets(phases, self.admission, conditions.seed)
        real_figures = make_figures("sockets", real, phases)
        return Finding((*figures, *real_figures), spoiled=spoil_reason(real.by_tier) or late_reason(real, real_figures))


@dataclass(frozen=True, slots=True)
class OverloadRun:
    capacity_rps: float
    by_tier: Mapping[str, Result]


async def _run_phases(phases: OverloadPhases, seed: int,
                      run_tier: Callable[[TenantTier, LoadSpec, int], Coroutine[Any, Any, Result]]) -> OverloadRun:
    """Measure the capacity with the standard tenant, then run the load of all three."""
    load = LoadSpec(phases.capacity_s, n_concurrent=N_PLACES, n_output=CONV_OUTPUT, warmup_s=WARMUP_S)
    alone = await run_tier(TenantTier.STANDARD, load, seed + list(TenantTier).index(TenantTier.STANDARD))
    since_s = phases.capacity_s / 3  # from then on all places are occupied, by answers of all lengths
    capacity_rps = sum(since_s <= at_s < phases.capacity_s for at_s in alone.samples.floats["ended_s"]) / (
        phases.capacity_s - since_s)
    async with asyncio.TaskGroup() as group:
        tasks = {tier: group.create_task(run_tier(tier, replace(
            load, seconds=phases.seconds, n_concurrent=0, arrivals=phases.stages(tier, capacity_rps)), seed + number))
            for number, tier in enumerate(TenantTier)}
    return OverloadRun(capacity_rps, {tier.value: task.result() for tier, task in tasks.items()})


async def run_in_virtual_time(loop: SimLoop, phases: OverloadPhases, admission: AdmissionConfig, seed: int) -> OverloadRun:
    tenants = {tier.value: TenantConfig(tier) for tier in TenantTier}
    system = virtual_system(loop, {"engine": PROVIDER}, seed, settings={"admission": admission, "tenants": tenants})
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


def make_figures(where: str, run: OverloadRun, phases: OverloadPhases) -> list[Figure]:
    rows = [OverloadRow(tier, at_s, sent_s, first_s, ended_s, not error, status == SHED_STATUS)
            for tier, result in run.by_tier.items() for at_s, sent_s, first_s, ended_s, error, status in zip(
                *(result.samples.floats[name] for name in ("at_s", "sent_s", "first_s", "ended_s")), result.samples.errors,
                result.samples.ints["status"], strict=True)]
    peak_at, calm_at = phases.calm_s, phases.calm_s + phases.peak_s
    peak = [row for row in rows if peak_at <= row.at_s < calm_at]
    premium = [row for row in rows if row.tier == TenantTier.PREMIUM]
    premium_peak = [row for row in premium if peak_at <= row.at_s < calm_at]
    normal_s = _ttft(row for row in premium if 0.0 <= row.at_s < peak_at).quantile(0.99)
    n_good = sum(row.is_good and peak_at <= row.ended_s < calm_at for row in rows)
    shed = ExactDistribution((row.ended_s - row.sent_s) * 1e3 for row in peak if row.is_shed)
    return [
        Figure(f"{where}: what the engine can do", run.capacity_rps, "requests/s"),
        Figure(f"{where}: requests that arrive in the minute, over that", len(peak) / phases.peak_s / run.capacity_rps, "x",
               TIMES * 0.9, Sense.AT_LEAST),
        Figure(f"{where}: premium: TTFT p99 in calm times", normal_s, "s"),
        Figure(f"{where}: premium: TTFT p99 under overload, over that (n={len(premium_peak)})",
               _ttft(premium_peak).quantile(0.99) / normal_s, "x", P99_GOAL * phases.slack),
        Figure.count(f"{where}: premium: requests without an answer", sum(not row.is_good for row in premium)),
        Figure(f"{where}: goodput under overload, of what the engine can do",
               n_good / phases.peak_s / run.capacity_rps * 100, "%", GOODPUT_GOAL * 100, Sense.AT_LEAST),
        Figure(f"{where}: refusals (n={shed.n}): p50", shed.quantile(0.5), "ms"),
        Figure(f"{where}: refusals: p99", shed.quantile(0.99), "ms", SHED_GOAL_MS),
        Figure.count(f"{where}: neither served nor refused", sum(not row.is_good and not row.is_shed for row in rows)),
        Figure(f"{where}: recovered after", _recovery_s(rows, calm_at, phases, normal_s * P99_GOAL), "s", RECOVERS_GOAL_S),
    ]


def late_reason(run: OverloadRun, figures: Iterable[Figure]) -> str | None:
    """The reason why late rejections may be this machine's fault: the client's own event loop was late, too."""
    is_late = any(figure.unit == "ms" and not figure.holds for figure in figures)
    lag_ms = max(result.health.loop_lag_p99_s for result in run.by_tier.values()) * 1e3
    return f"the client's own loop was {lag_ms:.1f} ms late at p99" if is_late and lag_ms > SHED_GOAL_MS / 4 else None


def _ttft(rows: Iterable[OverloadRow]) -> ExactDistribution:
    """Seconds to the first token; infinite without one."""
    return ExactDistribution(inf if isnan(row.first_s) else row.first_s - row.at_s for row in rows)


def _recovery_s(rows: Sequence[OverloadRow], calm_at: float, phases: OverloadPhases, max_wait_s: float) -> float:
    """Seconds after `calm_at` until the last bin of BIN_S in which a request was not served or p90 exceeded max_wait_s."""
    bad_until = calm_at
    for n in range(int(phases.after_s / BIN_S)):
        since = calm_at + n * BIN_S
        recent = [row for row in rows if since <= row.at_s < since + BIN_S]
        if any(not row.is_good for row in recent) or _ttft(recent).quantile(0.9) > max_wait_s:
            bad_until = since + BIN_S
    return bad_until - calm_at
