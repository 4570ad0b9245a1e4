"""One prompt in fifty has a hundred times the tokens, and the short ones do not wait for it.

Two engines, each asked without lanes and with them, by the same clients (Poisson):

    continuous   reads one prompt at a time, first come first served, beside its decoding: a request behind long prompts
                 waits for all of them. Lanes let one long prompt be read at a time
    static       pads a batch to its longest prompt, and no request leaves before the last: one straggler makes 32 of it.
                 Lanes are kept apart

Both have as many places at the gateway, and bounds that reject no request, so that nothing is won by refusing. When wrong:
lanes make no work less, and on the continuous engine the long ones wait longer with them; all of them have to finish.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf
from random import Random
from typing import Any

from stayfast.core.types import Request
from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, Sense
from stayfast.lab.harness.load import LoadSpec, ask, largest_lag_ms, simulated_gateway, waits_s, why_spoiled
from stayfast.lab.harness.virtual import UPSTREAM, VirtualTenants, arrive, chat, run_virtual_in_thread
from stayfast.lab.load.result import Result
from stayfast.lab.load.stats import Exact
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
class Scene:
    """One engine, its requests (tokens of the short prompts and of all answers), and the lanes for it."""

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


SCENES: Mapping[str, Scene] = {
    "continuous": Scene(EngineModel(), 57.5, 115, 32, 128, replace(LANES, max_prefills=1)),
    "static": Scene(EngineModel("static", 40_000.0, max_running=32), 7.0, 100, 16, 64, replace(LANES, isolate_short=True)),
}


@dataclass(frozen=True, slots=True)
class Stragglers:
    full: Extent = Extent(60_000, 150.0)  # n: requests of each engine
    quick: Extent = Extent(8_000)
    scenes: Mapping[str, Scene] = field(default_factory=lambda: SCENES)

    name = "stragglers"
    says = (f"Where 1 of {1 / LONG_SHARE:.0f} prompts has {TIMES} times the tokens, lanes keep the short ones' p99 to the "
            f"first token within {SHORT_P99_S:g} s, which is many times as long without, on engines of static and of "
            "continuous batching; the long ones still finish.")

    async def run(self, conditions: Conditions) -> Finding:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        figures: list[Figure] = []
        results: dict[str, Result] = {}
        for name, scene in self.scenes.items():
            conditions.report_progress(f"{name}: {extent.n:,} requests in virtual time, without lanes and with them")
            before, after = [await run_virtual_in_thread(in_virtual_time, scene, extent.n, seed, has_lanes=has_lanes)
                             for has_lanes in (False, True)]
            figures += judge(f"{name}, virtual time", before, after, BEFORE_P99_S)
            if extent.real_s:
                conditions.report_progress(f"{name}: {extent.real_s:g} s over sockets, without lanes and with them")
                runs = [await _over_sockets(scene, extent.real_s, seed, has_lanes=has_lanes)
                        for has_lanes in (False, True)]
                before, after = [WaitsByKind(*map(waits_s, both)) for both in runs]
                figures += judge(f"{name}, sockets", before, after)
                results |= {f"{name} {kind} {n}": result for n, both in enumerate(runs)
                            for kind, result in zip(("short", "long"), both, strict=True)}
        if results:
            figures.append(Figure("sockets: the client's own loop was late by at most", largest_lag_ms(results.values()),
                                  "ms"))
        return Finding(tuple(figures), spoiled=why_spoiled(results))


@dataclass(frozen=True, slots=True)
class WaitsByKind:
    """Times to the first token by kind; infinite for an answer that did not come whole."""

    short_s: list[float]
    long_s: list[float]


async def in_virtual_time(loop: SimLoop, scene: Scene, n: int, seed: int, *, has_lanes: bool) -> WaitsByKind:
    admission = AdmissionConfig(scene.n_places, QUEUE, lanes=scene.lanes if has_lanes else None)
    tenants = VirtualTenants(scene.provider(), {}, admission, loop, seed)
    rng, waits = Random(seed), WaitsByKind([], [])
    short, long = chat(scene.n_input, scene.n_output), chat(scene.n_input * TIMES, scene.n_output)

    async def one(request: Request, waits_s: list[float]) -> None:
        waits_s.append(await tenants.ask(None, request))

    def begin(_: int) -> Coroutine[Any, Any, None]:
        return one(long, waits.long_s) if rng.random() < LONG_SHARE else one(short, waits.short_s)

    await arrive(n, scene.rate_rps, rng, begin)
    return waits


async def _over_sockets(scene: Scene, seconds: float, seed: int, *, has_lanes: bool) -> list[Result]:
    """Of the short ones, and of the long ones."""
    queue: dict[str, Any] = asdict(QUEUE)
    lanes = {"lanes": asdict(scene.lanes)} if has_lanes else {}
    settings = {"defaults": {"limit": {"mode": "off"}},
                "admission": {"max_in_flight": scene.n_places, **queue, **lanes}}
    async with simulated_gateway({UPSTREAM: scene.provider(seed)}, seed, settings) as (_, url), \
            asyncio.TaskGroup() as group:
        asking = [group.create_task(ask(scene.load(seconds, is_long=is_long), {"gateway": url}, seed + is_long))
                  for is_long in (False, True)]
    return [task.result()["gateway"] for task in asking]


def judge(where: str, before: WaitsByKind, after: WaitsByKind, before_s: float | None = None) -> list[Figure]:
    """`before_s`: without lanes it must take as long as that; minutes over sockets are too short to tell."""
    short, long = Exact(after.short_s), Exact(after.long_s)
    n_lost = sum(wait_s == inf for wait_s in (*after.short_s, *after.long_s))
    return [
        Figure(f"{where}: short, without lanes: p99 (n={len(before.short_s)})", Exact(before.short_s).at(0.99), "s",
               before_s, Sense.AT_LEAST),
        Figure(f"{where}: short, with lanes: p50", short.at(0.5), "s"),
        Figure(f"{where}: short, with lanes: p99 (n={len(after.short_s)})", short.at(0.99), "s", SHORT_P99_S),
        Figure(f"{where}: long, without lanes: p99 (n={len(before.long_s)})", Exact(before.long_s).at(0.99), "s"),
        Figure(f"{where}: long, with lanes: p99", long.at(0.99), "s"),
        Figure(f"{where}: requests that did not finish, with lanes", float(n_lost), "", 0.0),
    ]
