"""Five times as much as the engine can do, for a minute: the premium tier is served as if nothing were the matter.

An engine with so many slots, behind a gateway that gives it as many places, and keeps a twentieth of them for each band
above. Three tenants ask it: one of the premium tier, one standard, one batch, for answers as long as those of Azure's
conversation trace. What it can do is taken first, by as many callers as there are places, each asking again at once; then
SHARES of it are sent, for a minute PEAKS, and SHARES again. Goodput is what came back whole in the minute. Recovered is the
end of the last second after it in which a request was turned away or more than one in ten waited longer than the premium
ones may.

Nobody queues (`max_queue: 0`): at five times the load places are filled at once as well. With a queue goodput is some per
cent higher, and a request that is pushed out of it has waited for nothing.

When wrong: the engine's prefill is quick, so that only its slots are scarce; where prefill is, a full engine is slower for
everybody. Over sockets load, gateway and engine share this machine's cores; refusals that were late while the client's own
loop was prove nothing.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import NamedTuple

from stayfast.lab.harness.claim import Conditions, Figure, Finding, Sense
from stayfast.lab.harness.load import LoadSpec, ask, simulated_gateway, why_spoiled
from stayfast.lab.harness.virtual import ask_pipeline, run_virtual_in_thread, virtual_system
from stayfast.lab.load.arrivals import Ramp, RateStage
from stayfast.lab.load.lengths import CONV_OUTPUT
from stayfast.lab.load.result import Result
from stayfast.lab.load.schedule import Prompts
from stayfast.lab.load.stats import Exact
from stayfast.lab.simulated import EngineModel, GapConfig, Mixture, ProviderConfig
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.priority import TenantTier
from stayfast.policy.admission.queue import QueueConfig
from stayfast.server.auth import new_key
from stayfast.testing.simloop import SimLoop

TIMES = 5.0
P99_GOAL, GOODPUT_GOAL, SHED_GOAL_MS, RECOVERS_GOAL_S = 1.3, 0.9, 5.0, 5.0
N_PLACES = 128
TTFT = Mixture(0.2, 0.25)
N_CHUNK = 50
STEP_S = 0.02  # so that over sockets five times what it can do, in chunks of a second, is no load for two cores
WARMUP_S = 5.0
# of what the engine can do, in calm times
SHARES = {TenantTier.PREMIUM: 0.15, TenantTier.STANDARD: 0.3, TenantTier.BATCH: 0.15}
PEAKS = {TenantTier.PREMIUM: 0.15, TenantTier.STANDARD: (TIMES - 0.15) / 2, TenantTier.BATCH: (TIMES - 0.15) / 2}
PROVIDER = ProviderConfig(ttft=TTFT, fills_max_tokens=True, gaps=GapConfig(0.0, 0.0, N_CHUNK),
                          engine=EngineModel(max_running=N_PLACES, decode_step_s=STEP_S))
ADMISSION = AdmissionConfig(N_PLACES, QueueConfig(max_queue=0), reserved_share=0.05)
BIN_S = 1.0
SHED_STATUS = 503


@dataclass(frozen=True, slots=True)
class OverloadPhases:
    """Seconds of each part. `slack`: of what chance moves."""

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
    full: OverloadPhases = OverloadPhases()
    quick: OverloadPhases = OverloadPhases(12.0, 10.0, 12.0, 8.0, 1.5)
    virtual: OverloadPhases = OverloadPhases(60.0, 600.0, 60.0, 60.0)
    quick_virtual: OverloadPhases = OverloadPhases(40.0, 120.0, 30.0, 30.0, 1.15)
    admission: AdmissionConfig = ADMISSION  # the gateway's

    name = "overload"
    says = (f"At {TIMES:g} times what an engine can do, p99 to the first token of the premium tier is at most {P99_GOAL:g} "
            f"times that of calm times, goodput at least {GOODPUT_GOAL:.0%} of what it can do, p99 of refusals below "
            f"{SHED_GOAL_MS:g} ms, and all is as before within {RECOVERS_GOAL_S:g} s.")

    async def run(self, conditions: Conditions) -> Finding:
        phases = conditions.choose(self.virtual, self.quick_virtual)
        conditions.report_progress(f"{phases.seconds:g} s in virtual time")
        twin = await run_virtual_in_thread(in_virtual_time, phases, self.admission, conditions.seed)
        figures = judge("virtual time", twin, phases)
        phases = conditions.choose(self.full, self.quick)
        conditions.report_progress(f"{phases.seconds:g} s over sockets")
        real = await over_sockets(phases, self.admission, conditions.seed)
        found = judge("sockets", real, phases)
        return Finding((*figures, *found), spoiled=why_spoiled(real.by_tier) or _why_late(real, found))


@dataclass(frozen=True, slots=True)
class Run:
    capacity_rps: float
    by_tier: Mapping[str, Result]


async def _ask_all(phases: OverloadPhases, seed: int, put: Callable[[TenantTier, LoadSpec, int], Awaitable[Result]]) -> Run:
    """Take the capacity by the standard tenant alone; then all three at once."""
    load = LoadSpec(phases.capacity_s, n_concurrent=N_PLACES, n_output=CONV_OUTPUT, warmup_s=WARMUP_S)
    alone = await put(TenantTier.STANDARD, load, seed + list(TenantTier).index(TenantTier.STANDARD))
    began_s = phases.capacity_s / 3  # all places are taken by answers of all lengths
    capacity_rps = sum(began_s <= at_s < phases.capacity_s for at_s in alone.samples.floats["ended_s"]) / (
        phases.capacity_s - began_s)

    async def one(number: int, tier: TenantTier) -> Result:
        ramp = phases.stages(tier, capacity_rps)
        return await put(tier, replace(load, seconds=phases.seconds, n_concurrent=0, arrivals=ramp), seed + number)

    async with asyncio.TaskGroup() as group:
        asking = {tier: group.create_task(one(number, tier)) for number, tier in enumerate(TenantTier)}
    return Run(capacity_rps, {tier.value: task.result() for tier, task in asking.items()})


async def in_virtual_time(loop: SimLoop, phases: OverloadPhases, admission: AdmissionConfig, seed: int) -> Run:
    tenants = {tier.value: TenantConfig(tier) for tier in TenantTier}
    system = virtual_system(loop, {"engine": PROVIDER}, seed, settings={"admission": admission, "tenants": tenants})
    prompts = Prompts(seed)

    async def put(tier: TenantTier, load: LoadSpec, seed: int) -> Result:
        return await ask_pipeline(system, load, loop, seed, tenant=tier.value, prompts=prompts)

    return await _ask_all(phases, seed, put)


async def over_sockets(phases: OverloadPhases, admission: AdmissionConfig, seed: int) -> Run:
    keys, prompts = {tier: new_key(os.urandom(24)) for tier in TenantTier}, Prompts(seed)
    settings = {
        "server": {"keys": {tier.value: digest for tier, (_, digest) in keys.items()}},
        "tenants": {tier.value: {"tier": tier.value} for tier in TenantTier},
        "admission": {"max_in_flight": admission.max_in_flight, "reserved_share": admission.reserved_share,
                      "max_queue": admission.queue.max_queue}}
    async with simulated_gateway({"engine": replace(PROVIDER, seed=seed)}, seed, settings) as (_, url):

        async def put(tier: TenantTier, load: LoadSpec, seed: int) -> Result:
            return (await ask(replace(load, key=keys[tier][0]), {tier.value: url}, seed, prompts))[tier.value]

        return await _ask_all(phases, seed, put)


class OverloadRow(NamedTuple):
    """One request. Seconds from the end of the warm-up; NaN where it did not happen."""

    tier: str
    at_s: float
    sent_s: float
    first_s: float
    ended_s: float
    is_good: bool
    is_shed: bool


def judge(where: str, run: Run, phases: OverloadPhases) -> list[Figure]:
    rows = [OverloadRow(tier, at_s, sent_s, first_s, ended_s, not error, status == SHED_STATUS)
            for tier, result in run.by_tier.items() for at_s, sent_s, first_s, ended_s, error, status in zip(
                *(result.samples.floats[name] for name in ("at_s", "sent_s", "first_s", "ended_s")), result.samples.errors,
                result.samples.ints["status"], strict=True)]
    peak_at, calm_at = phases.calm_s, phases.calm_s + phases.peak_s
    peak = [row for row in rows if peak_at <= row.at_s < calm_at]
    normal_s, high_s = (_ttft(row for row in rows if row.tier == TenantTier.PREMIUM and since <= row.at_s < until).at(0.99)
                        for since, until in ((0.0, peak_at), (peak_at, calm_at)))
    n_good = sum(row.is_good and peak_at <= row.ended_s < calm_at for row in rows)
    shed = Exact((row.ended_s - row.sent_s) * 1e3 for row in peak if row.is_shed)
    return [
        Figure(f"{where}: what the engine can do", run.capacity_rps, "requests/s"),
        Figure(f"{where}: what it was asked in the minute, over that", len(peak) / phases.peak_s / run.capacity_rps, "x",
               TIMES * 0.9, Sense.AT_LEAST),
        Figure(f"{where}: premium: TTFT p99 in calm times", normal_s, "s"),
        Figure(f"{where}: premium: TTFT p99 under overload, over that "
               f"(n={sum(row.tier == TenantTier.PREMIUM for row in peak)})",
               high_s / normal_s, "x", P99_GOAL * phases.slack),
        Figure(f"{where}: premium: requests without an answer",
               float(sum(row.tier == TenantTier.PREMIUM and not row.is_good for row in rows)), "", 0.0),
        Figure(f"{where}: goodput under overload, of what the engine can do",
               n_good / phases.peak_s / run.capacity_rps * 100, "%", GOODPUT_GOAL * 100, Sense.AT_LEAST),
        Figure(f"{where}: refusals (n={shed.n}): p50", shed.at(0.5), "ms"),
        Figure(f"{where}: refusals: p99", shed.at(0.99), "ms", SHED_GOAL_MS),
        Figure(f"{where}: neither served nor refused",
               float(sum(not row.is_good and not row.is_shed for row in rows)), "", 0.0),
        Figure(f"{where}: recovered after", _recovered_s(rows, calm_at, phases, normal_s * P99_GOAL), "s", RECOVERS_GOAL_S),
    ]


def _why_late(run: Run, figures: Iterable[Figure]) -> str | None:
    """Why refusals that were late may have been kept waiting by this machine: so was the client's own loop."""
    is_late = any(figure.unit == "ms" and not figure.holds for figure in figures)
    lag_ms = max(result.health.loop_lag_p99_s for result in run.by_tier.values()) * 1e3
    return f"the client's own loop was {lag_ms:.1f} ms late at p99" if is_late and lag_ms > SHED_GOAL_MS / 4 else None


def _ttft(rows: Iterable[OverloadRow]) -> Exact:
    """Infinite where none came."""
    return Exact(inf if isnan(row.first_s) else row.first_s - row.at_s for row in rows)


def _recovered_s(rows: Sequence[OverloadRow], calm_at: float, phases: OverloadPhases, normal_s: float) -> float:
    """From when on all was served, and of no second's requests more than one in ten waited longer than `normal_s`."""
    bad_until = calm_at
    for n in range(int(phases.after_s / BIN_S)):
        since = calm_at + n * BIN_S
        recent = [row for row in rows if since <= row.at_s < since + BIN_S]
        if any(not row.is_good for row in recent) or _ttft(recent).at(0.9) > normal_s:
            bad_until = since + BIN_S
    return bad_until - calm_at
