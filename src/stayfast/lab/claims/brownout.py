"""One of two providers turns slow, then fails, then recovers, and clients hardly notice.

One of a route's two providers gets ten times slower, then returns only errors, then is healthy again; the load stays the
same. Times count from the intended start. No request may fail, as the other provider is healthy. The p99 of requests that
start WITHIN_S or more after the begin of the brownout is compared with the p99 before it. The maximum concurrency at the
provider after its return is compared with the maximum before: there must be no herd.

In virtual time there are many more requests and no hedges, which would hide the effect of breakers. When wrong: the p99 of a
short run rests on few requests. A slow machine delays both sides, and the run reports it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any, NamedTuple

from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure, Sense, mark_invalid
from stayfast.lab.harness.intervals import ratio_interval
from stayfast.lab.harness.load import LoadSpec, n_failed, run_load, simulated_gateway, since_start_s, spoil_reason
from stayfast.lab.harness.virtual import run_load_virtual, run_virtual_in_thread, simulated_upstream, virtual_system
from stayfast.lab.load.result import Result
from stayfast.lab.load.stats import ExactDistribution
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
    """Seconds of each phase. open_s: of the breakers; 0: the default."""

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
    """breaker: additional settings of the breakers."""

    full: BrownoutPhases = BrownoutPhases()
    quick: BrownoutPhases = BrownoutPhases(8.0, 6.0, 3.0, 10.0, open_s=6.0)  # probes in so short a run would decide its p99
    virtual: BrownoutPhases = BrownoutPhases()
    quick_virtual: BrownoutPhases = BrownoutPhases(10.0, 20.0, 5.0, 20.0, open_s=10.0)
    breaker: Mapping[str, Any] = field(default_factory=dict)

    name = "brownout"
    statement = (f"When one of two providers gets {SLOWER:g} times slower, p99 is below {P99_GOAL:g} times normal within "
            f"{WITHIN_S:g} s, in the outage that follows, and on its return. The provider then runs at most "
            f"{HERD_GOAL:g} times as many requests as before. No request fails.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        phases, seed = conditions.choose(self.full, self.quick), conditions.seed
        conditions.report_progress(f"{phases.seconds:g} s at {RATE_RPS:g} requests/s")
        real = await run_over_sockets(phases, seed, self.breaker)
        spoiled = spoil_reason({"gateway": real.result})
        figures = mark_invalid(make_figures("sockets", real, phases), spoiled)
        conditions.report_progress("the same in virtual time")
        phases = conditions.choose(self.virtual, self.quick_virtual)
        virtual = await run_virtual_in_thread(run_in_virtual_time, phases, seed, self.breaker)
        return ClaimResult((*figures, *make_figures("virtual time", virtual, phases)), spoiled=spoiled)


class BrownoutRun(NamedTuple):
    """The result, and the bad provider's maximum concurrency before the brownout and after its return."""

    result: Result
    peak_before: int
    peak_after: int


def make_provider(seed: int) -> ProviderConfig:
    regimes = Regimes(normal=Regime(CALM_S), brownout=Regime(ttft_factor=SLOWER), outage=Regime(error_rate=1.0))
    return ProviderConfig(seed=seed, ttft=Mixture(0.2, 0.3), gaps=GapConfig(0.005, 0.0), fills_max_tokens=True,
                          regimes=regimes)


async def run_over_sockets(phases: BrownoutPhases, seed: int, breaker: Mapping[str, Any]) -> BrownoutRun:
    load = LoadSpec(phases.seconds, RATE_RPS, n_output=N_OUTPUT, warmup_s=WARMUP_S)
    settings = {"defaults": {"breaker": {**phases.breaker, **breaker}}}
    async with simulated_gateway(dict.fromkeys((BAD, GOOD), make_provider(seed)), seed, settings) as (sim, url):

        async def read_peak() -> int:
            return int((await sim.get("/_sim/counts"))["providers"][BAD]["n_running_peak"])

        async def set_regime(regime: RegimeState) -> None:
            await sim.get("/_sim/regime", "POST", {"provider": BAD, "regime": regime})

        async with asyncio.TaskGroup() as group:
            running = group.create_task(run_load(load, url, seed))
            await asyncio.sleep(WARMUP_S + phases.normal_s)
            peak_before = await read_peak()
            await set_regime(RegimeState.BROWNOUT)
            await asyncio.sleep(phases.brownout_s)
            await set_regime(RegimeState.OUTAGE)
            await asyncio.sleep(phases.outage_s)
            await sim.get("/_sim/reset", "POST")
        return BrownoutRun(running.result(), peak_before, await read_peak())


async def run_in_virtual_time(loop: SimLoop, phases: BrownoutPhases, seed: int, breaker: Mapping[str, Any]) -> BrownoutRun:
    upstream = {"breaker": BreakerConfig(**{**phases.breaker, **breaker})}
    system = virtual_system(loop, dict.fromkeys((BAD, GOOD), make_provider(seed)), seed, upstream,
                            hedge=HedgeConfig(mode="off"))
    bad = simulated_upstream(system, BAD)
    peaks: list[int] = []

    def set_regime(regime: RegimeState | None) -> None:
        bad.provider.set_regime(regime)
        peaks.append(bad.counts.n_running_peak)
        bad.provider.reset_counts()

    at_s = 0.0
    for seconds, regime in ((phases.normal_s, RegimeState.BROWNOUT), (phases.brownout_s, RegimeState.OUTAGE),
                            (phases.outage_s, None)):
        at_s += seconds
        loop.call_at(at_s, set_regime, regime)
    result = await run_load_virtual(system, LoadSpec(phases.seconds, VIRTUAL_RPS, n_output=N_OUTPUT), loop, seed)
    return BrownoutRun(result, peaks[0], bad.counts.n_running_peak)


def make_figures(where: str, run: BrownoutRun, phases: BrownoutPhases) -> Sequence[Figure]:
    slow_at, down_at = phases.normal_s, phases.normal_s + phases.brownout_s
    back_at = down_at + phases.outage_s

    def ttft_s(since: float, until: float) -> list[float]:  # failed requests are counted below
        return [wait_s for wait_s in since_start_s(run.result, "first_s", since, until) if not isnan(wait_s)]

    normal_s = ttft_s(0.0, slow_at)
    normal_p99_s = ExactDistribution(normal_s).quantile(0.99)
    first = ExactDistribution(ttft_s(slow_at, slow_at + WITHIN_S))
    figures = [Figure(f"{where}: TTFT p99 before (n={len(normal_s)})", normal_p99_s, "s"),
               Figure(f"{where}: TTFT p99 in the first {WITHIN_S:g} s", first.quantile(0.99), "s")]
    for phase, since, until in ((f"from {WITHIN_S:g} s on", slow_at + WITHIN_S, down_at),
                                ("in the outage", down_at, back_at), ("after its return", back_at, phases.seconds)):
        waits_s = ttft_s(since, until)
        low, high = ratio_interval(waits_s, normal_s, 0.99, is_paired=False)
        figures.append(Figure(f"{where}: TTFT p99 {phase}, over normal (n={len(waits_s)})",
                              ExactDistribution(waits_s).quantile(0.99) / normal_p99_s, "x", P99_GOAL, low=low, high=high))
    return (
        *figures,
        Figure.count(f"{where}: requests that failed", n_failed(run.result)),
        Figure.exact(f"{where}: most running at the provider after its return, over the most before",
               run.peak_after / run.peak_before, "x", HERD_GOAL),
        Figure.count(f"{where}: calls running at it again", run.peak_after, 1.0, Sense.AT_LEAST),
    )
