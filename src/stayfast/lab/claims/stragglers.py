"""One prompt in fifty has a hundred times the tokens, and short prompts do not wait for it.

Two engines, each without lanes and with lanes, with the same requests (Poisson):

    continuous   prefills one prompt at a time, first come first served: a request waits for all long prompts before it.
                 The lanes admit one long prompt at a time
    static       pads a batch to its longest prompt, and all 32 requests of a batch end together. The lanes put long and
                 short prompts into separate batches

Both have the same number of places at the gateway, and queue limits that reject no request, so that rejections cannot
improve the figures. When wrong: lanes do not reduce work. On the continuous engine long prompts wait longer with lanes, but
all of them must finish.
"""

from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf
from random import Random
from typing import Any

from stayfast.core.types import Request
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense, mark_invalid
from stayfast.lab.harness.intervals import block_interval
from stayfast.lab.harness.load import LoadSpec, max_lag_ms, run_together, simulated_gateway, spoil_reason, waits_s
from stayfast.lab.harness.virtual import UPSTREAM, VirtualTenants, chat_request, run_arrivals, run_virtual_in_thread
from stayfast.lab.load.result import Result
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.simulated import EngineModel, GapConfig, ProviderConfig
from stayfast.policy.admission.lanes import LanesConfig
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.queue import QueueConfig
from stayfast.testing.simloop import SimLoop

LONG_SHARE, TIMES = 0.02, 100
SHORT_P99_S, BEFORE_P99_S = 1.2, 2.0
PATIENCE_S = 600.0
N_CHUNK = 8
QUEUE = QueueConfig(max_queue=100_000, max_wait_s=PATIENCE_S, target_wait_s=PATIENCE_S, aging_s=PATIENCE_S)
LANES = LanesConfig(long_wait_s=PATIENCE_S, batch_wait_s=PATIENCE_S)


@dataclass(frozen=True, slots=True)
class EngineCase:
    """One engine, its load and its lanes. n_input: tokens of short prompts. n_output: tokens of all answers."""

    engine: EngineModel
    rate_rps: float
    n_input: int
    n_output: int
    n_places: int
    lanes: LanesConfig

    def provider(self, seed: int = 0) -> ProviderConfig:
        return ProviderConfig(seed=seed, engine=self.engine, gaps=GapConfig(0.0, 0.0, N_CHUNK), fills_max_tokens=True)

    def load(self, seconds: float, *, is_long: bool) -> LoadSpec:
        rate_rps = self.rate_rps * (LONG_SHARE if is_long else 1 - LONG_SHARE)
        return LoadSpec(seconds, rate_rps, n_input=self.n_input * (TIMES if is_long else 1), n_output=self.n_output,
                        timeout_s=PATIENCE_S)


CASES: Mapping[str, EngineCase] = {
    "continuous": EngineCase(EngineModel(), 57.5, 115, 32, 128, replace(LANES, max_prefills=1)),
    "static": EngineCase(EngineModel("static", 40_000.0, max_running=32), 7.0, 100, 16, 64,
                         replace(LANES, isolate_short=True)),
}


@dataclass(frozen=True, slots=True)
class Stragglers:
    """n of an extent: requests of each engine."""

    full: Extent = Extent(60_000, 150.0)
    quick: Extent = Extent(8_000)
    cases: Mapping[str, EngineCase] = field(default_factory=lambda: CASES)

    name = "stragglers"
    statement = (f"If 1 of {1 / LONG_SHARE:.0f} prompts has {TIMES} times the tokens, lanes keep the short prompts' p99 to "
                 f"the first token within {SHORT_P99_S:g} s, on engines with static and continuous batching. Without lanes "
                 f"it is {BEFORE_P99_S:g} s or more in virtual time. The long prompts still finish.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        figures: list[Figure] = []
        results: dict[str, Result] = {}
        for name, case in self.cases.items():
            conditions.report_progress(f"{name}: {extent.n:,} requests in virtual time, without lanes and with lanes")
            before, after = [await run_virtual_in_thread(run_in_virtual_time, case, extent.n, seed, has_lanes=has_lanes)
                             for has_lanes in (False, True)]
            figures += make_figures(f"{name}, virtual time", before, after, BEFORE_P99_S)
            if extent.real_s:
                conditions.report_progress(f"{name}: {extent.real_s:g} s over sockets, without lanes and with lanes")
                runs = [await _run_over_sockets(case, extent.real_s, seed, has_lanes=has_lanes)
                        for has_lanes in (False, True)]
                before, after = [WaitsByKind(*map(waits_s, both)) for both in runs]
                of_case = {f"{name} {kind} {n}": result for n, both in enumerate(runs)
                            for kind, result in zip(("short", "long"), both, strict=True)}
                figures += mark_invalid(make_figures(f"{name}, sockets", before, after), spoil_reason(of_case))
                results |= of_case
        if results:
            figures.append(Figure("sockets: the client's own loop was late by at most", max_lag_ms(results.values()), "ms"))
        return ClaimResult(tuple(figures), spoiled=spoil_reason(results))


@dataclass(frozen=True, slots=True)
class WaitsByKind:
    """Seconds to the first token by kind of prompt; infinite for an incomplete answer."""

    short_s: list[float]
    long_s: list[float]


async def run_in_virtual_time(loop: SimLoop, case: EngineCase, n: int, seed: int, *, has_lanes: bool) -> WaitsByKind:
    admission = AdmissionConfig(case.n_places, QUEUE, lanes=case.lanes if has_lanes else None)
    tenants = VirtualTenants(case.provider(), {}, admission, loop, seed)
    rng, waits = Random(seed), WaitsByKind([], [])
    short, long = chat_request(case.n_input, case.n_output), chat_request(case.n_input * TIMES, case.n_output)

    async def send(request: Request, waits_s: list[float]) -> None:
        waits_s.append(await tenants.send(None, request))

    def begin(_: int) -> Coroutine[Any, Any, None]:
        return send(long, waits.long_s) if rng.random() < LONG_SHARE else send(short, waits.short_s)

    await run_arrivals(n, case.rate_rps, rng, begin)
    return waits


async def _run_over_sockets(case: EngineCase, seconds: float, seed: int, *, has_lanes: bool) -> list[Result]:
    """The results of the short and of the long prompts."""
    queue: dict[str, Any] = asdict(QUEUE)
    lanes = {"lanes": asdict(case.lanes)} if has_lanes else {}
    settings = {"defaults": {"limit": {"mode": "off"}},
                "admission": {"max_in_flight": case.n_places, **queue, **lanes}}
    async with simulated_gateway({UPSTREAM: case.provider(seed)}, seed, settings) as (_, url):
        return await run_together([case.load(seconds, is_long=is_long) for is_long in (False, True)], url, seed)


def make_figures(where: str, before: WaitsByKind, after: WaitsByKind, min_before_s: float | None = None) -> list[Figure]:
    """before, after: without and with lanes. min_before_s: the goal without lanes, in runs that are long enough for one."""
    short, long = ExactDistribution(after.short_s), ExactDistribution(after.long_s)
    n_before, n_after = len(before.short_s), len(after.short_s)
    return [
        _p99_figure(f"{where}: short, without lanes: p99 (n={n_before})", before.short_s, min_before_s, Sense.AT_LEAST),
        Figure(f"{where}: short, with lanes: p50", short.quantile(0.5), "s"),
        _p99_figure(f"{where}: short, with lanes: p99 (n={n_after})", after.short_s, SHORT_P99_S, Sense.AT_MOST),
        Figure(f"{where}: long, without lanes: p99 (n={len(before.long_s)})",
               ExactDistribution(before.long_s).quantile(0.99), "s"),
        Figure(f"{where}: long, with lanes: p99", long.quantile(0.99), "s"),
        Figure.count(f"{where}: requests that did not finish, with lanes", (after.short_s + after.long_s).count(inf)),
    ]


def _p99_figure(name: str, waits_s: list[float], goal_s: float | None, sense: Sense) -> Figure:
    """Waits in a queue depend on each other: their interval is that of blocks."""
    low, high = block_interval(waits_s, 0.99)
    return Figure(name, ExactDistribution(waits_s).quantile(0.99), "s", goal_s, sense, low, high)
