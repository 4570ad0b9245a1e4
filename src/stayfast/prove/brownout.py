"""A provider's bad minutes do not become its clients'.

Two providers serve one route; one of them turns ten times slower, then answers nothing but errors, then is well again. The
load goes on at one rate all the while. Times are from the intended start. No request may fail, as the other provider was
there. What is compared is p99 of the requests that began 3 s after the start of the brown-out or later, against p99 of the
same run before it. On its return the provider must not be met by a herd: the most that it has running at once from then
on is held against the most it had while all was well.

The same is run in virtual time, over many more requests, and there without hedges: they would hide what breakers do.
When wrong: p99 of a short run rests on few requests; a machine that is late makes both sides late, and the run says so.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stayfast.bench.perform import Origin, perform
from stayfast.bench.pipeline import PipelineTarget
from stayfast.bench.result import Result, Subject
from stayfast.bench.schedule import Prompts
from stayfast.bench.stats import Exact
from stayfast.compose.virtual import virtual as system_in_virtual_time
from stayfast.policy.breaker import BreakerConfig
from stayfast.policy.hedge import HedgeConfig
from stayfast.prove.claim import Conditions, Figure, Finding, Sense
from stayfast.prove.load import MODEL, Load, ask, why_spoiled
from stayfast.prove.rig import Rig, gateway_settings
from stayfast.settings import Route, Settings
from stayfast.testing.simloop import SimLoop, run
from stayfast.upstreams.simulated import Gaps, Mixture, ProviderConfig, Regime, Regimes, Simulated, Weather
from stayfast.upstreams.simulated.settings import SimulatedUpstream

RATE_RPS = 40.0
VIRTUAL_RPS = 100.0
SLOWER = 10.0
WITHIN_S = 3.0
P99_GOAL = 1.5
HERD_GOAL = 1.5
N_OUTPUT = 4
WARMUP_S = 3.0
BAD, GOOD = "bad", "good"
CALM_S = 1e9
PROVIDER: Mapping[str, Any] = {
    "ttft": {"median_s": 0.2, "sigma": 0.3}, "gaps": {"median_s": 0.005, "sigma": 0.0}, "fills_max_tokens": True,
    "regimes": {"normal": {"mean_s": CALM_S}, "brownout": {"ttft_factor": SLOWER}, "outage": {"error_rate": 1.0}},
}


@dataclass(frozen=True, slots=True)
class Extent:
    """Seconds of each part. `open_s`: the breakers' own; 0: the default."""

    normal_s: float = 30.0
    brownout_s: float = 120.0
    outage_s: float = 20.0
    return_s: float = 100.0
    open_s: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.normal_s + self.brownout_s + self.outage_s + self.return_s

    @property
    def breaker(self) -> dict[str, float]:
        """What the settings say of breakers."""
        return {"open_s": self.open_s} if self.open_s else {}


@dataclass(frozen=True, slots=True)
class Brownout:
    """See the module."""

    full: Extent = Extent()
    quick: Extent = Extent(8.0, 6.0, 3.0, 10.0, open_s=6.0)  # a probe in so short a time would be its p99
    virtual: Extent = Extent()
    quick_virtual: Extent = Extent(10.0, 20.0, 5.0, 20.0, open_s=10.0)
    breaker: Mapping[str, Any] = field(default_factory=dict)  # other settings of the breakers

    name = "brownout"
    says = (f"When one of two providers turns {SLOWER:g} times slower, p99 is below {P99_GOAL:g} times normal within "
            f"{WITHIN_S:g} s, and no herd meets it on its return.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        extent = self.quick if conditions.is_quick else self.full
        async with Rig() as rig:
            sim = await rig.simulator({BAD: PROVIDER, GOOD: PROVIDER}, conditions.seed)
            settings = gateway_settings({name: f"{sim.url}/{name}/v1" for name in (BAD, GOOD)})
            settings["defaults"] = {"breaker": {**extent.breaker, **self.breaker}}
            gateway = await rig.gateway(settings)
            conditions.say(f"{extent.seconds:g} s at {RATE_RPS:g} requests/s")
            load = Load(extent.seconds, RATE_RPS, n_output=N_OUTPUT, warmup_s=WARMUP_S)

            async def hold(weather: Weather | None) -> int:
                counts = await sim.get("/_sim/counts")
                await sim.get("/_sim/regime", "POST", {"provider": BAD, "regime": weather})
                return int(counts["providers"][BAD]["n_running_peak"])

            async with asyncio.TaskGroup() as group:
                asking = group.create_task(ask(load, {"gateway": f"{gateway.url}/v1"}, conditions.seed))
                await asyncio.sleep(WARMUP_S + extent.normal_s)
                peak_before = await hold(Weather.BROWNOUT)
                await asyncio.sleep(extent.brownout_s)
                await hold(Weather.OUTAGE)
                await asyncio.sleep(extent.outage_s)
                await sim.get("/_sim/reset", "POST")
            peak_after = (await sim.get("/_sim/counts"))["providers"][BAD]["n_running_peak"]
            results = asking.result()
        conditions.say("the same in virtual time")
        extent_in_virtual_time = self.quick_virtual if conditions.is_quick else self.virtual
        twin, *peaks = await asyncio.to_thread(in_virtual_time, extent_in_virtual_time, conditions.seed, self.breaker)
        return Finding((*judge("sockets", results["gateway"], extent, peak_before, peak_after),
                        *judge("virtual time", twin, extent_in_virtual_time, *peaks)), spoiled=why_spoiled(results))


def in_virtual_time(extent: Extent, seed: int, breaker: Mapping[str, Any]) -> tuple[Result, int, int]:
    """The same through the pipeline on a virtual loop: the result, and the bad provider's peaks before and after."""
    regimes = Regimes(normal=Regime(CALM_S), brownout=Regime(ttft_factor=SLOWER), outage=Regime(error_rate=1.0))
    provider = ProviderConfig(seed=seed, ttft=Mixture(0.2, 0.3), gaps=Gaps(0.005, 0.0), fills_max_tokens=True,
                              regimes=regimes)
    upstream = SimulatedUpstream(provider=provider, probe=False, breaker=BreakerConfig(**{**extent.breaker, **breaker}))
    route = Route((BAD, GOOD), hedge=HedgeConfig(mode="off"))
    settings = Settings(upstreams={BAD: upstream, GOOD: upstream}, routes={MODEL: route})
    load = Load(extent.seconds, VIRTUAL_RPS, n_output=N_OUTPUT)

    async def main(loop: SimLoop) -> tuple[Result, int, int]:
        system = system_in_virtual_time(settings, loop, seed)
        bad = system.registry[BAD].upstream
        assert isinstance(bad, Simulated)
        peaks: list[int] = []

        def hold(weather: Weather | None) -> None:
            bad.provider.set_regime(weather)
            peaks.append(bad.counts.n_running_peak)
            bad.provider.reset_counts()

        at_s = 0.0
        for seconds, weather in ((extent.normal_s, Weather.BROWNOUT), (extent.brownout_s, Weather.OUTAGE),
                                 (extent.outage_s, None)):
            at_s += seconds
            loop.call_at(at_s, hold, weather)
        target = PipelineTarget(system.gateway, load.asking(), Prompts(seed), loop)
        found = await perform(load.plan(seed), [(Subject("virtual", "virtual:", "chat", MODEL), target)], loop, Origin(),
                              is_virtual=True)
        return found[0], peaks[0], bad.counts.n_running_peak

    return run(main)


def judge(where: str, result: Result, extent: Extent, peak_before: int, peak_after: int) -> Sequence[Figure]:
    """What the answers say."""
    slow_at, down_at = extent.normal_s, extent.normal_s + extent.brownout_s
    back_at = down_at + extent.outage_s
    normal = _ttft(result, 0.0, slow_at)
    normal_p99_s = normal.at(0.99)
    n_failed = sum(1 for error in result.samples.errors if error)
    figures = [
        Figure(f"{where}: TTFT p99 before (n={normal.n})", normal_p99_s, "s"),
        Figure(f"{where}: TTFT p99 in the first {WITHIN_S:g} s", _ttft(result, slow_at, slow_at + WITHIN_S).at(0.99), "s"),
    ]
    for part, since, until in ((f"from {WITHIN_S:g} s on", slow_at + WITHIN_S, down_at), ("in the outage", down_at, back_at),
                               ("after its return", back_at, extent.seconds)):
        ttft = _ttft(result, since, until)
        figures.append(Figure(f"{where}: TTFT p99 {part}, over normal (n={ttft.n})", ttft.at(0.99) / normal_p99_s, "x",
                              P99_GOAL))
    return (
        *figures,
        Figure(f"{where}: requests that failed", float(n_failed), "", 0.0),
        Figure(f"{where}: most running at the provider after its return, over the most before", peak_after / peak_before,
               "x", HERD_GOAL),
        Figure(f"{where}: calls running at it again", float(peak_after), "", 1.0, Sense.AT_LEAST),
    )


def _ttft(result: Result, since: float, until: float) -> Exact:
    """Of the requests that were to begin in this part of the run; a failed one has none and is counted apart."""
    floats = result.samples.floats
    return Exact([first - at for at, first in zip(floats["at_s"], floats["first_s"], strict=True) if since <= at < until])
