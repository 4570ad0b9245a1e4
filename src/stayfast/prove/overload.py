"""Five times as much as the engine can do, for a minute: who must be served is served as if nothing were the matter.

An engine with so many slots, behind a gateway that gives it as many places, and keeps a twentieth of them for each band
above. Three tenants ask it: one of the premium tier, one standard, one batch, for answers as long as those of Azure's
conversation trace. All the while the premium one sends 15 % of what the engine can do. The other two send 45 %; for a
minute, all three together five times what it can do; and then 45 % again. What it can do is taken first, by as many
callers as there are places, each asking again at once. Goodput is what came back whole in the minute. Recovered is the
end of the last second after it in which anybody was turned away or more than one in ten waited longer than the premium
ones may.

Nobody queues (`max_queue: 0`): whoever finds no place is told so at once, and at five times the load places are filled at
once as well. With a queue goodput is some per cent higher, and whoever is pushed out of it has waited for nothing.

When wrong: the engine's time to the first token is drawn, and its prefill is quick, so that only its slots are scarce; where
prefill is, a full engine is slower for everybody. Over sockets load, gateway and engine share this machine's cores; refusals
that were late while the client's own loop was prove nothing.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf, isnan
from typing import Any, NamedTuple

from stayfast.bench.arrivals import Arrivals, Ramp, Stage
from stayfast.bench.asking import AskingConfig
from stayfast.bench.client import HttpConfig, HttpTarget
from stayfast.bench.lengths import CONV_OUTPUT, Constant
from stayfast.bench.perform import Origin, Plan, perform
from stayfast.bench.pipeline import PipelineTarget
from stayfast.bench.result import Result, Subject
from stayfast.bench.schedule import Limit, Prompts, Workload
from stayfast.bench.stats import Exact
from stayfast.bench.target import Target
from stayfast.compose.virtual import virtual
from stayfast.core.clock import Clock, SystemClock
from stayfast.core.types import Api
from stayfast.policy.admission import AdmissionConfig, TenantConfig
from stayfast.policy.priority import Tier
from stayfast.policy.queue import QueueConfig
from stayfast.prove.claim import Conditions, Figure, Finding, Sense
from stayfast.prove.load import MODEL, why_spoiled
from stayfast.prove.rig import Rig, gateway_settings
from stayfast.server.auth import new_key
from stayfast.settings import Route, Settings
from stayfast.testing.simloop import SimLoop, run
from stayfast.upstreams.simulated import EngineModel, Gaps, Mixture, ProviderConfig
from stayfast.upstreams.simulated.settings import SimulatedUpstream

TIMES = 5.0
P99_GOAL, GOODPUT_GOAL, SHED_GOAL_MS, RECOVERS_GOAL_S = 1.3, 0.9, 5.0, 5.0
N_PLACES = 128
TTFT = Mixture(0.2, 0.25)
N_INPUT, N_CHUNK = 20, 50
STEP_S = 0.02  # so that over sockets five times what it can do, in chunks of a second, is no load for two cores
WARMUP_S = 5.0
SHARES = {Tier.PREMIUM: 0.15, Tier.STANDARD: 0.3, Tier.BATCH: 0.15}  # of what the engine can do, in calm times
PEAKS = {Tier.PREMIUM: 0.15, Tier.STANDARD: (TIMES - 0.15) / 2, Tier.BATCH: (TIMES - 0.15) / 2}
PROVIDER = ProviderConfig(ttft=TTFT, fills_max_tokens=True, gaps=Gaps(0.0, 0.0, N_CHUNK),
                          engine=EngineModel(max_running=N_PLACES, decode_step_s=STEP_S))
SETTINGS: Mapping[str, Any] = {"ttft": asdict(TTFT), "fills_max_tokens": True,
                               "gaps": {"median_s": 0.0, "sigma": 0.0, "tokens_per_chunk": N_CHUNK},
                               "engine": {"max_running": N_PLACES, "decode_step_s": STEP_S}}
ADMISSION = AdmissionConfig(N_PLACES, QueueConfig(max_queue=0), hold_back=0.05)
PATIENCE_S = 30.0
BIN_S = 1.0
SHED_STATUS = 503


@dataclass(frozen=True, slots=True)
class Extent:
    """Seconds of each part. `slack`: of what chance moves."""

    capacity_s: float = 30.0
    calm_s: float = 60.0
    peak_s: float = 60.0
    after_s: float = 30.0
    slack: float = 1.0

    @property
    def seconds(self) -> float:
        """Of all but the first."""
        return self.calm_s + self.peak_s + self.after_s

    def stages(self, tier: Tier, capacity_rps: float) -> Ramp:
        """What a tenant sends."""
        calm, peak = SHARES[tier] * capacity_rps, PEAKS[tier] * capacity_rps
        return Ramp((Stage(WARMUP_S + self.calm_s, calm, calm), Stage(self.peak_s, peak, peak),
                     Stage(self.after_s, calm, calm)))


@dataclass(frozen=True, slots=True)
class Overload:
    """See the module. `admission` is the gateway's."""

    full: Extent = Extent()
    quick: Extent = Extent(12.0, 10.0, 12.0, 8.0, 1.5)
    virtual: Extent = Extent(60.0, 600.0, 60.0, 60.0)
    quick_virtual: Extent = Extent(40.0, 120.0, 30.0, 30.0, 1.15)
    admission: AdmissionConfig = ADMISSION

    name = "overload"
    says = (f"At {TIMES:g} times what an engine can do, p99 to the first token of the premium tier is at most {P99_GOAL:g} "
            f"times that of calm times, goodput at least {GOODPUT_GOAL:.0%} of what it can do, p99 of refusals below "
            f"{SHED_GOAL_MS:g} ms, and all is as before within {RECOVERS_GOAL_S:g} s.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        is_quick, seed = conditions.is_quick, conditions.seed
        extent = self.quick_virtual if is_quick else self.virtual
        conditions.say(f"{extent.seconds:g} s in virtual time")
        twin = await asyncio.to_thread(in_virtual_time, extent, self.admission, seed)
        figures = judge("virtual time", twin, extent)
        extent = self.quick if is_quick else self.full
        conditions.say(f"{extent.seconds:g} s over sockets")
        real = await over_sockets(extent, self.admission, seed)
        found = judge("sockets", real, extent)
        return Finding((*figures, *found), spoiled=why_spoiled(real.by_tier) or _why_late(real, found))


@dataclass(frozen=True, slots=True)
class Run:
    """What the engine can do, and what came of each tenant's requests."""

    capacity_rps: float
    by_tier: Mapping[str, Result]


async def perform_all(extent: Extent, targets: Mapping[Tier, Callable[[], Target]], clock: Clock, seed: int, *,
                      is_virtual: bool) -> Run:
    """What it can do, taken by the standard tenant alone; then all three at once."""
    async def one(tier: Tier, arrivals: Arrivals | None, seconds: float) -> Result:
        plan = Plan(Workload(input=Constant(N_INPUT), output=CONV_OUTPUT, arrivals=arrivals),
                    Limit(seconds, None, WARMUP_S), seed + list(Tier).index(tier), 0 if arrivals else N_PLACES, PATIENCE_S)
        subjects = [(Subject(tier.value, "", "chat", MODEL), targets[tier]())]
        [found] = await perform(plan, subjects, clock, Origin(), is_virtual=is_virtual)
        return found

    alone = await one(Tier.STANDARD, None, extent.capacity_s)
    began_s = extent.capacity_s / 3  # all places are taken by answers of all lengths
    capacity_rps = sum(began_s <= at_s < extent.capacity_s for at_s in alone.samples.floats["ended_s"]) / (
        extent.capacity_s - began_s)
    async with asyncio.TaskGroup() as group:
        asking = {tier: group.create_task(one(tier, extent.stages(tier, capacity_rps), extent.seconds)) for tier in Tier}
    return Run(capacity_rps, {tier.value: task.result() for tier, task in asking.items()})


def in_virtual_time(extent: Extent, admission: AdmissionConfig, seed: int) -> Run:
    """Through the pipeline on a virtual loop."""
    async def main(loop: SimLoop) -> Run:
        settings = Settings(upstreams={"engine": SimulatedUpstream(provider=PROVIDER, probe=False)},
                            routes={MODEL: Route(("engine",))}, admission=admission,
                            tenants={tier.value: TenantConfig(tier) for tier in Tier})
        gateway = virtual(settings, loop, seed).gateway
        asking = AskingConfig(Api.CHAT, MODEL)
        return await perform_all(extent, {tier: partial(PipelineTarget, gateway, asking, Prompts(seed), loop, tier.value)
                                          for tier in Tier}, loop, seed, is_virtual=True)

    return run(main)


async def over_sockets(extent: Extent, admission: AdmissionConfig, seed: int) -> Run:
    """At a gateway in front of the simulator."""
    clock = SystemClock()
    keys = {tier: new_key(os.urandom(24)) for tier in Tier}
    async with Rig() as rig:
        sim = await rig.simulator({"engine": SETTINGS}, seed)
        settings = gateway_settings({"engine": f"{sim.url}/engine/v1"})
        settings["server"] = {"keys": {tier.value: digest for tier, (_, digest) in keys.items()}}
        settings["tenants"] = {tier.value: {"tier": tier.value} for tier in Tier}
        settings["admission"] = {"max_in_flight": admission.max_in_flight, "hold_back": admission.hold_back,
                                 "max_queue": admission.queue.max_queue}
        gateway = await rig.gateway(settings)
        return await perform_all(extent, {tier: partial(HttpTarget, tier.value, HttpConfig(f"{gateway.url}/v1", AskingConfig(
            Api.CHAT, MODEL, key=key)), Prompts(seed), clock) for tier, (key, _) in keys.items()}, clock, seed,
            is_virtual=False)


class Row(NamedTuple):
    """One request. Seconds from the end of the warm-up; NaN where it did not happen."""

    tier: str
    at_s: float
    sent_s: float
    first_s: float
    ended_s: float
    is_good: bool
    is_shed: bool


def judge(where: str, run: Run, extent: Extent) -> list[Figure]:
    """What the answers say."""
    rows = [Row(tier, at_s, sent_s, first_s, ended_s, not error, status == SHED_STATUS)
            for tier, result in run.by_tier.items() for at_s, sent_s, first_s, ended_s, error, status in zip(
                *(result.samples.floats[name] for name in ("at_s", "sent_s", "first_s", "ended_s")), result.samples.errors,
                result.samples.ints["status"], strict=True)]
    peak_at, calm_at = extent.calm_s, extent.calm_s + extent.peak_s
    peak = [row for row in rows if peak_at <= row.at_s < calm_at]
    normal_s, high_s = (_ttft(row for row in rows if row.tier == Tier.PREMIUM and since <= row.at_s < until).at(0.99)
                        for since, until in ((0.0, peak_at), (peak_at, calm_at)))
    n_good = sum(row.is_good and peak_at <= row.ended_s < calm_at for row in rows)
    shed = Exact((row.ended_s - row.sent_s) * 1e3 for row in peak if row.is_shed)
    return [
        Figure(f"{where}: what the engine can do", run.capacity_rps, "requests/s"),
        Figure(f"{where}: what it was asked in the minute, over that", len(peak) / extent.peak_s / run.capacity_rps, "x",
               TIMES * 0.9, Sense.AT_LEAST),
        Figure(f"{where}: premium: TTFT p99 in calm times", normal_s, "s"),
        Figure(f"{where}: premium: TTFT p99 under overload, over that (n={sum(row.tier == Tier.PREMIUM for row in peak)})",
               high_s / normal_s, "x", P99_GOAL * extent.slack),
        Figure(f"{where}: premium: requests without an answer",
               float(sum(row.tier == Tier.PREMIUM and not row.is_good for row in rows)), "", 0.0),
        Figure(f"{where}: goodput under overload, of what the engine can do",
               n_good / extent.peak_s / run.capacity_rps * 100, "%", GOODPUT_GOAL * 100, Sense.AT_LEAST),
        Figure(f"{where}: refusals (n={shed.n}): p50", shed.at(0.5), "ms"),
        Figure(f"{where}: refusals: p99", shed.at(0.99), "ms", SHED_GOAL_MS),
        Figure(f"{where}: neither served nor refused",
               float(sum(not row.is_good and not row.is_shed for row in rows)), "", 0.0),
        Figure(f"{where}: recovered after", _recovered_s(rows, calm_at, extent, normal_s * P99_GOAL), "s", RECOVERS_GOAL_S),
    ]


def _why_late(run: Run, figures: Iterable[Figure]) -> str | None:
    """Why refusals that were late may have been kept waiting by this machine: so was the client's own loop."""
    is_late = any(figure.unit == "ms" and not figure.holds for figure in figures)
    lag_ms = max(result.health.loop_lag_p99_s for result in run.by_tier.values()) * 1e3
    return f"the client's own loop was {lag_ms:.1f} ms late at p99" if is_late and lag_ms > SHED_GOAL_MS / 4 else None


def _ttft(rows: Iterable[Row]) -> Exact:
    """Infinite where none came."""
    return Exact(inf if isnan(row.first_s) else row.first_s - row.at_s for row in rows)


def _recovered_s(rows: Sequence[Row], calm_at: float, extent: Extent, normal_s: float) -> float:
    """From when on all was served, and of no second's requests more than one in ten waited longer than `normal_s`."""
    bad_until = calm_at
    for n in range(int(extent.after_s / BIN_S)):
        since = calm_at + n * BIN_S
        of = [row for row in rows if since <= row.at_s < since + BIN_S]
        if any(not row.is_good for row in of) or _ttft(of).at(0.9) > normal_s:
            bad_until = since + BIN_S
    return bad_until - calm_at
