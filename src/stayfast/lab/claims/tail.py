"""The gain of second attempts with default settings, over sockets and in virtual time, and the bound on their number.

tail: two providers with a heavy tail. 93.2 % of the times to the first token are lognormal with a median of 191 ms and a
sigma of 0.5, 6.8 % with a median of 3.66 s and a sigma of 0.745. Asked directly, p99 is 8 s. The rivals are constant delays
tuned to this mixture (`DELAYS_S`, for each of TRIES): of those with at most as many calls as the gateway, the one with the
best p99. That rival is the optimum for its number of calls, as the mixture does not change, and as its user knows it.

surge: the same providers at SURGE_RPS, where for some minutes SURGE_SHARE of the calls are slow. The plan of a minute ago
then hedges every slow call; only the budget bounds the calls. They are counted at the providers, in every minute.

hangs: two providers of which one call in twenty hangs. Healthy calls take milliseconds, so a timeout of 1 s has a p99 of at
least 1.0 s. A hanging call must be repeated: 5.3 % more calls, as some second attempts hang, too. One request in 8,000
meets three hanging calls and waits for its timeout; hedging does not fix that.

hedge: one provider that is hedged to itself, the preset `gpt-4o-mini-like` (median 0.53 s, 3 % of the answers at 3.7 s).
Spend is counted in calls, which overstates it: most second attempts end before their answer is paid for. The claim includes
a provider without a tail (lognormal, sigma 0.25), on which every hedge is wasted, and a surge with a budget of SELF_BUDGET.

When wrong: draws are independent. A provider whose delays stick to a session gains less (`tail_correlation`). Over sockets
there are few requests: 1 % of them is past p99. So a goal there is larger, and is stated.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense
from stayfast.lab.harness.fixed_policy import FixedPolicy, FixedPolicyRun
from stayfast.lab.harness.intervals import mean_interval, quantile_interval
from stayfast.lab.harness.load import LoadSpec, run_load, simulated_gateway, spoil_reason
from stayfast.lab.harness.virtual import (
    HEAVY_TAIL,
    run_load_virtual,
    run_virtual_in_thread,
    simulated_upstream,
    virtual_system,
)
from stayfast.lab.harness.waits import WaitSeries, batch_means, most_extra_calls, read_waits
from stayfast.lab.load.result import Result
from stayfast.lab.load.runner import LEAD_S
from stayfast.lab.simulated import FaultKind, FaultRule, GapConfig, Mixture, ProviderConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import Call

NAMES: Final = ("a", "b")
TAIL_RPS, HANGS_RPS, HEDGE_RPS = 100.0, 40.0, 60.0
NARROW: Final = Mixture(0.2, 0.25)
HANG_SHARE: Final = 0.05
MIN_RIVAL_N, MAX_RIVAL_N = 20_000, 100_000
DELAYS_S: Final = (0.25, 0.28, 0.3, 0.32, 0.35, 0.38, 0.4, 0.42, 0.44, 0.46, 0.48, 0.49, 0.5, 0.51, 0.52, 0.54, 0.56, 0.6,
                   0.7, 0.85, 1.0, 1.5, 2.0, 3.0)
TRIES: Final = ((2, True), (3, True), (2, False), (6, False))  # number of tries, and whether they are hedges
SURGE_RPS, SURGE_SHARE, SURGE_LATE_S = 10.0, 0.4, 3.66
SURGE_BEGINS_S, SURGE_ENDS_S, SURGE_RUN_S = 180.0, 420.0, 480.0
LEAST_SLOW: Final = 0.35  # of the surge's requests, which shows that there was one
SELF_BUDGET: Final = 0.05
MINUTE_CALLS, SELF_MINUTE_CALLS = 0.15, 0.09
WARMUP_S: Final = 10.0

Goals = Mapping[str, float]
DEFAULT, LARGER = "defaults", "budget 25 %"


@dataclass(frozen=True, slots=True)
class TailCase:
    """goals, socket_goals: of `WaitSeries.figures`. share: of the extent. rival_goal: p99 as a multiple of the rival's."""

    hedge: Mapping[str, Any]
    goals: Goals
    socket_goals: Goals
    rival_goal: float
    share: float = 1.0


TAIL: Final[Mapping[str, TailCase]] = {
    DEFAULT: TailCase({}, {"p95_s": 0.68, "p99_s": 0.92, "past_5_s": 0.0001, "calls": 1.10},
                      {"p95_s": 0.71, "p99_s": 0.98, "past_5_s": 0.0004, "calls": 1.11}, 1.05),
    LARGER: TailCase({"budget": 0.25}, {"p95_s": 0.52, "p99_s": 0.72, "calls": 1.25},
                     {"p95_s": 0.55, "p99_s": 0.80, "calls": 1.27}, 1.05, 0.3),
}
HANGS_GOALS: Final[Goals] = {"p99_s": 0.1, "calls": 1.07}
LESS_P99, MORE_CALLS, P50_WITHIN, NARROW_CALLS = 0.65, 0.055, 0.01, 0.02
SOCKETS_LESS_P99, SOCKETS_MORE_CALLS, SOCKETS_P50_WITHIN = 0.60, 0.06, 0.03


def heavy_tailed(seed: int) -> dict[str, ProviderConfig]:
    return {name: ProviderConfig(seed=2 * seed + number, ttft=HEAVY_TAIL, gaps=GapConfig(0.0, 0.0), fills_max_tokens=True)
            for number, name in enumerate(NAMES)}


def hanging(seed: int) -> dict[str, ProviderConfig]:
    return {name: ProviderConfig(seed=2 * seed + number, ttft=Mixture(0.002, 0.4), gaps=GapConfig(0.0, 0.0),
                                 fills_max_tokens=True, faults=(FaultRule(FaultKind.HANG, HANG_SHARE),))
            for number, name in enumerate(NAMES)}


def hosted(seed: int) -> dict[str, ProviderConfig]:
    return {"a": ProviderConfig("gpt-4o-mini-like", seed, fills_max_tokens=True)}


def narrow(seed: int) -> dict[str, ProviderConfig]:
    return {"a": ProviderConfig(seed=seed, ttft=NARROW, gaps=GapConfig(0.0, 0.0), fills_max_tokens=True)}


def add_surge(providers: Mapping[str, ProviderConfig], tail_share: float) -> dict[str, ProviderConfig]:
    """The same, where SURGE_SHARE of the calls are slow from SURGE_BEGINS_S to SURGE_ENDS_S. tail_share: that always are."""
    zero_s = LEAD_S + WARMUP_S
    late = FaultRule(FaultKind.SLOW_HEADERS, (SURGE_SHARE - tail_share) / (1 - tail_share), from_s=zero_s + SURGE_BEGINS_S,
                     until_s=zero_s + SURGE_ENDS_S, seconds=SURGE_LATE_S)
    return {name: replace(provider, faults=(late,)) for name, provider in providers.items()}


async def run_over_sockets(providers: Mapping[str, Any], hedge: Mapping[str, Any], load: LoadSpec, seed: int) -> Result:
    async with simulated_gateway(providers, seed, hedge=dict(hedge)) as (_, url):
        return await run_load(load, url, seed)


async def run_in_virtual_time(loop: SimLoop, providers: Mapping[str, ProviderConfig], hedge: HedgeConfig, load: LoadSpec,
                              seed: int) -> Result:
    return await run_load_virtual(virtual_system(loop, providers, seed, hedge=hedge), load, loop, seed)


async def _simulate(providers: Mapping[str, ProviderConfig], hedge: HedgeConfig, load: LoadSpec, seed: int) -> WaitSeries:
    return read_waits(await run_virtual_in_thread(run_in_virtual_time, providers, hedge, load, seed))


async def measure_surge(loop: SimLoop, providers: Mapping[str, ProviderConfig], hedge: HedgeConfig,
                        seed: int) -> tuple[float, float]:
    """A run with a surge: the extra calls per request in the worst minute, and the share of slow requests in the surge."""
    system = virtual_system(loop, providers, seed, hedge=hedge)
    calls_at: list[float] = []
    for name in providers:
        simulated_upstream(system, name).number_of = _CallTimes(loop, calls_at).number_of
    zero_at = loop.now() + LEAD_S + WARMUP_S
    series = read_waits(await run_load_virtual(system, LoadSpec(SURGE_RUN_S, SURGE_RPS, n_output=2, warmup_s=WARMUP_S), loop,
                                               seed))
    waits_s = [wait_s for at_s, wait_s in zip(series.at_s, series.waits_s, strict=True)
               if SURGE_BEGINS_S <= at_s < SURGE_ENDS_S]
    return (most_extra_calls(series.at_s, [at - zero_at for at in calls_at]),
            sum(wait_s > SURGE_LATE_S / 2 for wait_s in waits_s) / len(waits_s))


class _CallTimes:
    """Numbers the calls of one provider, and adds the instant of each to a list."""

    def __init__(self, loop: SimLoop, calls_at: list[float]) -> None:
        self._loop = loop
        self._calls_at = calls_at
        self._n = 0

    def number_of(self, call: Call) -> int:
        self._calls_at.append(self._loop.now())
        self._n += 1
        return self._n


async def surge_figures(providers: Mapping[str, ProviderConfig], hedge: HedgeConfig, goal: float, seed: int) -> list[Figure]:
    """goal: the share of extra calls in the worst minute. Without hedges, LEAST_SLOW of its requests must be slow."""
    most, _ = await run_virtual_in_thread(measure_surge, providers, hedge, seed)
    _, slow = await run_virtual_in_thread(measure_surge, providers, HedgeConfig("off"), seed)
    return [Figure.exact("surge, virtual time: more calls in the worst minute", most * 100, "%", goal * 100),
            Figure.exact("surge, virtual time: slow requests without hedges", slow * 100, "%", LEAST_SLOW * 100,
                         Sense.AT_LEAST)]


def tail_load(seconds: float) -> LoadSpec:
    return LoadSpec(seconds, TAIL_RPS, n_output=2, warmup_s=WARMUP_S)


def hangs_load(seconds: float) -> LoadSpec:
    return LoadSpec(seconds, HANGS_RPS, n_output=2, warmup_s=5.0, timeout_s=10.0)


class TailRivals:
    """Each constant delay on its own draws of n requests."""

    def __init__(self, n: int, seed: int) -> None:
        self.runs = [FixedPolicyRun(FixedPolicy(after_s, n_tries, is_hedge=is_hedge), [], 0)
                     for n_tries, is_hedge in TRIES for after_s in DELAYS_S]
        for number, run in enumerate(self.runs):
            rng = Random(seed * len(self.runs) + number)
            for _ in range(n):
                run.add(*run.policy.simulate(lambda *_, rng=rng: HEAVY_TAIL.draw(rng, rng.random())))

    def choose(self, calls: float) -> FixedPolicyRun:
        """The best p99 with at most so many calls per request."""
        return min((run for run in self.runs if run.calls <= calls), key=lambda run: run.p99_s)


def _rival_figures(where: str, series: WaitSeries, rivals: TailRivals, goal: float) -> list[Figure]:
    rival = rivals.choose(series.calls)
    low, high = quantile_interval(rival.waits_s, 0.99)
    kind = "hedges" if rival.policy.is_hedge else "time-outs"
    words = f"{kind} after {rival.policy.after_s:g} s, {rival.policy.n_tries} tries, {rival.calls:.3f} calls"
    return [Figure(f"{where}: TTFT p99 of the best constant delay with as many calls ({words})", rival.p99_s, "s", low=low,
                   high=high),
            series.compare_quantile(f"{where}, virtual time: TTFT p99, over that", rival.waits_s, 0.99, goal)]


@dataclass(frozen=True, slots=True)
class Tail:
    """hedge: additional hedge settings of the routes."""

    full: Extent = Extent(500_000, 300.0)
    quick: Extent = Extent(10_000, 8.0)
    hedge: Mapping[str, Any] = field(default_factory=dict)

    name = "tail"
    statement = (
        "Two providers with p99 8 s, default settings: p95 at most 0.68 s, p99 0.92 s, 0.01 % past 5 s, for at most 10 % "
        "more calls; over sockets 0.71 s, 0.98 s, 0.04 %, 11 %. With a budget of 25 %: p95 0.52 s, p99 0.72 s, 25 %; over "
        "sockets 0.55 s, 0.80 s, 27 %. Both p99 are at most 1.05 times that of the best constant delay with as many calls, "
        "tuned to these providers. While 40 % of the calls are slow, no minute has more than 15 % more calls.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        conditions.report_progress(f"{len(DELAYS_S) * len(TRIES)} constant delays")
        rivals = await asyncio.to_thread(TailRivals, min(max(extent.n // 5, MIN_RIVAL_N), MAX_RIVAL_N), seed)
        figures: list[Figure] = []
        spoiled = None
        for name, case in TAIL.items():
            config = {**case.hedge, **self.hedge}
            real_s, n = extent.real_s * case.share, round(extent.n * case.share)
            conditions.report_progress(f"{name}: {real_s:g} s over sockets, {n:,} requests in virtual time")
            real = await run_over_sockets(heavy_tailed(seed), config, tail_load(real_s), seed)
            spoiled = spoiled or spoil_reason({"gateway": real})
            series = await _simulate(heavy_tailed(seed), HedgeConfig(**config), tail_load(n / TAIL_RPS), seed)
            figures += [*read_waits(real).figures(f"{name}, sockets", case.socket_goals),
                        *series.figures(f"{name}, virtual time", case.goals),
                        *_rival_figures(name, series, rivals, case.rival_goal)]
        conditions.report_progress("a surge of slow calls in virtual time")
        figures += await surge_figures(add_surge(heavy_tailed(seed), HEAVY_TAIL.tail_share), HedgeConfig(**self.hedge),
                                       MINUTE_CALLS, seed)
        return ClaimResult(tuple(figures), spoiled=spoiled)


@dataclass(frozen=True, slots=True)
class Hangs:
    """hedge: hedge settings of the route, in place of the defaults."""

    full: Extent = Extent(1_000_000, 60.0)
    quick: Extent = Extent(10_000, 6.0)
    hedge: Mapping[str, Any] = field(default_factory=dict)

    name = "hangs"
    statement = "If one call in twenty hangs, p99 is at most 100 ms at 1.07 calls per request, with default settings."

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        conditions.report_progress(f"{extent.real_s:g} s over sockets, {extent.n:,} requests in virtual time")
        real = await run_over_sockets(hanging(seed), self.hedge, hangs_load(extent.real_s), seed)
        virtual = await _simulate(hanging(seed), HedgeConfig(**self.hedge), hangs_load(extent.n / HANGS_RPS), seed)
        figures = (*read_waits(real).figures("sockets", HANGS_GOALS), *virtual.figures("virtual time", HANGS_GOALS))
        return ClaimResult(figures, spoiled=spoil_reason({"gateway": real}))


@dataclass(frozen=True, slots=True)
class HedgeClaim:
    """n of an extent: requests of each run. hedge: additional hedge settings of the hedged route."""

    full: Extent = Extent(500_000, 90.0)
    quick: Extent = Extent(8_000, 8.0)
    hedge: Mapping[str, Any] = field(default_factory=dict)

    name = "hedge"
    statement = (
        f"Hedging one provider to itself, default settings: p99 is at least {LESS_P99:.0%} shorter for at most "
        f"{MORE_CALLS:.1%} more calls, and p50 within {P50_WITHIN:.0%}; over sockets {SOCKETS_LESS_P99:.0%}, "
        f"{SOCKETS_MORE_CALLS:.0%} and {SOCKETS_P50_WITHIN:.0%}. A provider without a tail (sigma 0.25) gets at most "
        f"{NARROW_CALLS:.0%} more calls. With a budget of {SELF_BUDGET:.0%} no minute has more than {SELF_MINUTE_CALLS:.0%} "
        "more calls while 40 % of them are slow.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        conditions.report_progress(f"twice {extent.real_s:g} s over sockets, three times {extent.n:,} requests in virtual "
                                   f"time")
        load = LoadSpec(extent.real_s, HEDGE_RPS, n_output=2, warmup_s=WARMUP_S)
        provider = hosted(seed)
        async with asyncio.TaskGroup() as group:
            plain = group.create_task(run_over_sockets(provider, {"mode": "off"}, load, seed))
            hedged = group.create_task(run_over_sockets(provider, self.hedge, load, seed))
        figures = _comparison_figures("sockets", read_waits(plain.result()), read_waits(hedged.result()),
                                      (SOCKETS_LESS_P99, SOCKETS_MORE_CALLS, SOCKETS_P50_WITHIN))
        load = replace(load, seconds=extent.n / HEDGE_RPS)
        config = HedgeConfig(**self.hedge)
        off, on, without_tail = [await _simulate(providers, setting, load, seed) for providers, setting in (
            (provider, HedgeConfig("off")), (provider, config), (narrow(seed), config))]
        figures += [*_comparison_figures("virtual time", off, on, (LESS_P99, MORE_CALLS, P50_WITHIN)),
                    _more_calls_figure("virtual time, without a tail: more calls", without_tail, NARROW_CALLS)]
        tail_share = provider["a"].numbers.ttft.tail_share
        figures += await surge_figures(add_surge(provider, tail_share), HedgeConfig(**{"budget": SELF_BUDGET, **self.hedge}),
                                       SELF_MINUTE_CALLS, seed)
        return ClaimResult(tuple(figures), spoiled=spoil_reason({"plain": plain.result(), "hedged": hedged.result()}))


def _comparison_figures(where: str, plain: WaitSeries, hedged: WaitSeries,
                        goals: tuple[float, float, float]) -> list[Figure]:
    """goals: the shares by which p99 is shorter, calls are more, and p50 is longer."""
    less_p99, more_calls, p50_within = goals
    longer = hedged.compare_quantile(f"{where}: p50, over that without", plain.waits_s, 0.5, 1 + p50_within)
    return [*plain.figures(f"{where}, without", {}), *hedged.figures(f"{where}, hedged", {}),
            hedged.saved_figure(f"{where}: p99 shorter by", plain.waits_s, 0.99, less_p99),
            _more_calls_figure(f"{where}: more calls", hedged, more_calls), longer]


def _more_calls_figure(name: str, series: WaitSeries, goal: float) -> Figure:
    """Calls per request beyond one. goal: a share."""
    low, high = mean_interval(batch_means(series.n_calls))
    return Figure.percent(name, series.calls - 1, goal, interval=(low - 1, high - 1))
