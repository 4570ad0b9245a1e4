"""A provider's bad minutes do not become its clients'.

One of two providers of a route turns ten times slower, then answers nothing but errors, then is well again; the load goes on
at one rate. Times are from the intended start. No request may fail, as the other provider was there. p99 of the requests
that began WITHIN_S after the start of the brown-out or later is held against p99 of the same run before it, and the most
that the provider has running at once from its return on, against the most it had while all was well: no herd.

In virtual time there are many more requests, and no hedges: they would hide what breakers do. When wrong: p99 of a short run
rests on few requests; a machine that is late makes both sides late, and the run says so.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stayfast.lab.harness.claim import Conditions, Figure, Finding, Sense
from stayfast.lab.harness.load import LoadSpec, ask, n_failed, simulated_gateway, since_start_s, why_spoiled
from stayfast.lab.harness.virtual import ask_pipeline, run_virtual_in_thread, simulated, virtual_system
from stayfast.lab.load.result import Result
from stayfast.lab.load.stats import Exact
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig, Regime, Regimes, RegimeState
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.testing.simloop import SimLoop

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


@dataclass(frozen=True, slots=True)
class BrownoutPhases:
    """Seconds of each part. `open_s`: the breakers' own; 0: the default."""

    normal_s: float = 30.0
    brownout_s: float = 120.0
    outage_s: float = 20.0
    return_s: float = 100.0
    open_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.normal_s + self.brownout_s + self.outage_s + self.return_s

    @property
    def breaker(self) -> dict[str, float]:
        return {"open_s": self.open_s} if self.open_s else {}


@dataclass(frozen=True, slots=True)
class Brownout:
    full: BrownoutPhases = BrownoutPhases()
    quick: BrownoutPhases = BrownoutPhases(8.0, 6.0, 3.0, 10.0, open_s=6.0)  # a probe in so short a time would be its p99
    virtual: BrownoutPhases = BrownoutPhases()
    quick_virtual: BrownoutPhases = BrownoutPhases(10.0, 20.0, 5.0, 20.0, open_s=10.0)
    breaker: Mapping[str, Any] = field(default_factory=dict)  # other settings of the breakers

    name = "brownout"
    says = (f"When one of two providers turns {SLOWER:g} times slower, p99 is below {P99_GOAL:g} times normal within "
            f"{WITHIN_S:g} s, and no herd meets it on its return.")

    async def run(self, conditions: Conditions) -> Finding:
        phases, seed = conditions.choose(self.full, self.quick), conditions.seed
        conditions.report_progress(f"{phases.seconds:g} s at {RATE_RPS:g} requests/s")
        real, *peaks = await over_sockets(phases, seed, self.breaker)
        figures = judge("sockets", real, phases, *peaks)
        conditions.report_progress("the same in virtual time")
        phases = conditions.choose(self.virtual, self.quick_virtual)
        twin, *twin_peaks = await run_virtual_in_thread(in_virtual_time, phases, seed, self.breaker)
        return Finding((*figures, *judge("virtual time", twin, phases, *twin_peaks)), spoiled=why_spoiled({"gateway": real}))


def provider(seed: int) -> ProviderConfig:
    regimes = Regimes(normal=Regime(CALM_S), brownout=Regime(ttft_factor=SLOWER), outage=Regime(error_rate=1.0))
    return ProviderConfig(seed=seed, ttft=Mixture(0.2, 0.3), gaps=GapConfig(0.005, 0.0), fills_max_tokens=True,
                          regimes=regimes)


async def over_sockets(phases: BrownoutPhases, seed: int, breaker: Mapping[str, Any]) -> tuple[Result, int, int]:
    """The result, and the bad provider's peaks before and after."""
    load = LoadSpec(phases.seconds, RATE_RPS, n_output=N_OUTPUT, warmup_s=WARMUP_S)
    settings = {"defaults": {"breaker": {**phases.breaker, **breaker}}}
    async with simulated_gateway(dict.fromkeys((BAD, GOOD), provider(seed)), seed, settings) as (sim, url):

        async def peak() -> int:
            return int((await sim.get("/_sim/counts"))["providers"][BAD]["n_running_peak"])

        async def hold(weather: RegimeState) -> None:
            await sim.get("/_sim/regime", "POST", {"provider": BAD, "regime": weather})

        async with asyncio.TaskGroup() as group:
            asking = group.create_task(ask(load, {"gateway": url}, seed))
            await asyncio.sleep(WARMUP_S + phases.normal_s)
            peak_before = await peak()
            await hold(RegimeState.BROWNOUT)
            await asyncio.sleep(phases.brownout_s)
            await hold(RegimeState.OUTAGE)
            await asyncio.sleep(phases.outage_s)
            await sim.get("/_sim/reset", "POST")
        return asking.result()["gateway"], peak_before, await peak()


async def in_virtual_time(loop: SimLoop, phases: BrownoutPhases, seed: int, breaker: Mapping[str, Any]) -> tuple[Result, int,
                                                                                                                 int]:
    system = virtual_system(loop, dict.fromkeys((BAD, GOOD), provider(seed)), seed, {"breaker": BreakerConfig(**{
        **phases.breaker, **breaker})}, hedge=HedgeConfig(mode="off"))
    bad = simulated(system, BAD)
    peaks: list[int] = []

    def hold(weather: RegimeState | None) -> None:
        bad.provider.set_regime(weather)
        peaks.append(bad.counts.n_running_peak)
        bad.provider.reset_counts()

    at_s = 0.0
    for seconds, weather in ((phases.normal_s, RegimeState.BROWNOUT), (phases.brownout_s, RegimeState.OUTAGE),
                             (phases.outage_s, None)):
        at_s += seconds
        loop.call_at(at_s, hold, weather)
    result = await ask_pipeline(system, LoadSpec(phases.seconds, VIRTUAL_RPS, n_output=N_OUTPUT), loop, seed)
    return result, peaks[0], bad.counts.n_running_peak


def judge(where: str, result: Result, phases: BrownoutPhases, peak_before: int, peak_after: int) -> Sequence[Figure]:
    slow_at, down_at = phases.normal_s, phases.normal_s + phases.brownout_s
    back_at = down_at + phases.outage_s
    normal = Exact(since_start_s(result, "first_s", 0.0, slow_at))  # a failed request has none and is counted apart
    normal_p99_s = normal.at(0.99)
    first = Exact(since_start_s(result, "first_s", slow_at, slow_at + WITHIN_S))
    figures = [Figure(f"{where}: TTFT p99 before (n={normal.n})", normal_p99_s, "s"),
               Figure(f"{where}: TTFT p99 in the first {WITHIN_S:g} s", first.at(0.99), "s")]
    for part, since, until in ((f"from {WITHIN_S:g} s on", slow_at + WITHIN_S, down_at), ("in the outage", down_at, back_at),
                               ("after its return", back_at, phases.seconds)):
        ttft = Exact(since_start_s(result, "first_s", since, until))
        figures.append(Figure(f"{where}: TTFT p99 {part}, over normal (n={ttft.n})", ttft.at(0.99) / normal_p99_s, "x",
                              P99_GOAL))
    return (
        *figures,
        Figure(f"{where}: requests that failed", float(n_failed(result)), "", 0.0),
        Figure(f"{where}: most running at the provider after its return, over the most before", peak_after / peak_before,
               "x", HERD_GOAL),
        Figure(f"{where}: calls running at it again", float(peak_after), "", 1.0, Sense.AT_LEAST),
    )
