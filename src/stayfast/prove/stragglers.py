"""One prompt in fifty has a hundred times the tokens, and the short ones do not wait for it.

Two engines are played, one after the other, each asked without lanes and with them, by the same clients (Poisson):

    continuous   reads one prompt at a time, first come first served, beside its decoding: whoever comes behind long prompts
                 waits for all of them. Lanes let one long prompt be read at a time
    static       pads a batch to its longest prompt, and nobody leaves before the last: one straggler makes 32 of it. Lanes
                 are kept apart

Both have as many places at the gateway, and bounds that turn nobody away, so that nothing is won by refusing. Over sockets
the clients are two loads of the bench, one for each kind. When wrong: lanes make no work less, and on the continuous engine
the long ones wait longer with them; all of them have to finish.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf, isnan
from random import Random
from typing import Any

from stayfast.bench.arrivals import Gamma
from stayfast.bench.asking import AskingConfig
from stayfast.bench.client import HttpConfig, HttpTarget
from stayfast.bench.lengths import Constant
from stayfast.bench.perform import Origin, Plan, perform
from stayfast.bench.result import Result, Subject
from stayfast.bench.schedule import Limit, Prompts, Workload
from stayfast.bench.stats import Exact
from stayfast.core.clock import SystemClock
from stayfast.core.errors import StayfastError
from stayfast.core.types import Api, Request
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.admission import AdmissionConfig
from stayfast.policy.lanes import LanesConfig
from stayfast.policy.queue import QueueConfig
from stayfast.prove.claim import Conditions, Figure, Finding, Sense
from stayfast.prove.crowd import MODEL, Crowd, chat
from stayfast.prove.load import why_spoiled
from stayfast.prove.rig import Rig, gateway_settings
from stayfast.testing.simloop import SimLoop, run
from stayfast.upstreams.simulated import EngineModel, ProviderConfig
from stayfast.upstreams.simulated.latency import Gaps

LONG_SHARE, TIMES = 0.02, 100
SHORT_P99_S, BEFORE_P99_S = 1.2, 2.0
PATIENCE_S = 600.0
N_CHUNK = 8
QUEUE = QueueConfig(max_queue=100_000, max_wait_s=PATIENCE_S, target_wait_s=PATIENCE_S, ages_within_s=PATIENCE_S)
LANES = LanesConfig(long_wait_s=PATIENCE_S, batch_wait_s=PATIENCE_S)


@dataclass(frozen=True, slots=True)
class Scene:
    """One engine, what it is asked (tokens of the short prompts and of all answers), and the lanes for it."""

    engine: EngineModel
    rate_rps: float
    n_input: int
    n_output: int
    n_places: int
    lanes: LanesConfig

    def admission(self, *, has_lanes: bool) -> AdmissionConfig:
        """The gateway's settings."""
        return AdmissionConfig(self.n_places, QUEUE, lanes=self.lanes if has_lanes else None)

    def provider(self) -> ProviderConfig:
        """The simulator's."""
        return ProviderConfig(engine=self.engine, gaps=Gaps(0.0, 0.0, N_CHUNK), fills_max_tokens=True)


SCENES: Mapping[str, Scene] = {
    "continuous": Scene(EngineModel(), 57.5, 115, 32, 128, replace(LANES, max_prefills=1)),
    "static": Scene(EngineModel("static", 40_000.0, max_running=32), 7.0, 100, 16, 64,
                    replace(LANES, apart=True)),
}


@dataclass(frozen=True, slots=True)
class Extent:
    """Requests of each engine in virtual time, and seconds over sockets (0: not at all)."""

    n_virtual: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Stragglers:
    """See the module."""

    full: Extent = Extent(60_000, 150.0)
    quick: Extent = Extent(8_000, 0.0)
    scenes: Mapping[str, Scene] = field(default_factory=lambda: SCENES)

    name = "stragglers"
    says = (f"Where 1 of {1 / LONG_SHARE:.0f} prompts has {TIMES} times the tokens, lanes keep the short ones' p99 to the "
            f"first token within {SHORT_P99_S:g} s, which is many times as long without, on engines of static and of "
            "continuous batching; the long ones still finish.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        extent = self.quick if conditions.is_quick else self.full
        figures: list[Figure] = []
        results: dict[str, Result] = {}
        for name, scene in self.scenes.items():
            conditions.say(f"{name}: {extent.n_virtual:,} requests in virtual time, without lanes and with them")
            before, after = [await asyncio.to_thread(in_virtual_time, scene, extent.n_virtual, conditions.seed,
                                                     has_lanes=has_lanes) for has_lanes in (False, True)]
            figures += _figures(f"{name}, virtual time", before, after, BEFORE_P99_S)
            if extent.seconds:
                conditions.say(f"{name}: {extent.seconds:g} s over sockets, without lanes and with them")
                runs = [await _over_sockets(scene, extent.seconds, conditions.seed, has_lanes=has_lanes)
                        for has_lanes in (False, True)]
                before, after = [Waits(*map(_waits, both)) for both in runs]
                figures += _figures(f"{name}, sockets", before, after)
                results |= {f"{name} {kind} {n}": result for n, both in enumerate(runs)
                            for kind, result in zip(("short", "long"), both, strict=True)}
        if results:
            lag_s = max(result.health.loop_lag_max_s for result in results.values())
            figures.append(Figure("sockets: the client's own loop was late by at most", lag_s * 1e3, "ms"))
        return Finding(tuple(figures), spoiled=why_spoiled(results))


@dataclass(frozen=True, slots=True)
class Waits:
    """Times to the first token by kind; infinite for an answer that did not come whole."""

    short_s: list[float]
    long_s: list[float]


def in_virtual_time(scene: Scene, n: int, seed: int, *, has_lanes: bool) -> Waits:
    """So many requests, in virtual time."""
    async def main(loop: SimLoop) -> Waits:
        crowd = Crowd(scene.provider(), {}, scene.admission(has_lanes=has_lanes), loop, seed)
        rng, waits = Random(seed), Waits([], [])
        short, long = chat(scene.n_input, scene.n_output), chat(scene.n_input * TIMES, scene.n_output)
        async with asyncio.TaskGroup() as group:
            for number in range(n):
                is_long = rng.random() < LONG_SHARE
                group.create_task(_ask(crowd, long if is_long else short, number, loop,
                                       waits.long_s if is_long else waits.short_s))
                await asyncio.sleep(rng.expovariate(scene.rate_rps))
        return waits

    return run(main)


async def _ask(crowd: Crowd, request: Request, number: int, loop: SimLoop, waits: list[float]) -> None:
    began_at, wait_s = loop.now(), inf
    try:
        reply = await crowd.system.gateway.serve(request, Arrival(f"req_{number}", began_at))
        first_s = loop.now() - began_at
        try:
            while await reply.next() is not None:
                pass
            wait_s = first_s
        finally:
            reply.close()
    except StayfastError:
        pass  # it waits for ever
    waits.append(wait_s)


async def _over_sockets(scene: Scene, seconds: float, seed: int, *, has_lanes: bool) -> list[Result]:
    """Of the short ones, and of the long ones."""
    provider = {"engine": asdict(scene.engine), "gaps": {"median_s": 0.0, "sigma": 0.0, "tokens_per_chunk": N_CHUNK},
                "fills_max_tokens": True}
    async with Rig() as rig:
        sim = await rig.simulator({"provider": provider}, seed)
        settings = gateway_settings({"provider": f"{sim.url}/provider/v1"})
        settings["upstreams"]["provider"]["limit"] = {"mode": "off"}
        queue: dict[str, Any] = asdict(QUEUE)
        lanes = {"lanes": asdict(scene.lanes)} if has_lanes else {}
        settings["admission"] = {"max_in_flight": scene.n_places, **queue, **lanes}
        gateway = await rig.gateway(settings)
        async with asyncio.TaskGroup() as group:
            loads = [group.create_task(_load(gateway.url, scene, seconds, seed + n, is_long=bool(n))) for n in (0, 1)]
    return [load.result() for load in loads]


async def _load(url: str, scene: Scene, seconds: float, seed: int, *, is_long: bool) -> Result:
    name, clock = "long" if is_long else "short", SystemClock()
    rate_rps = scene.rate_rps * (LONG_SHARE if is_long else 1 - LONG_SHARE)
    workload = Workload(input=Constant(scene.n_input * (TIMES if is_long else 1)), output=Constant(scene.n_output),
                        arrivals=Gamma(rate_rps))
    plan = Plan(workload, Limit(seconds, None, 0.0), seed, 0, PATIENCE_S, seconds)
    target = HttpTarget(name, HttpConfig(f"{url}/v1", AskingConfig(Api.CHAT, MODEL, True)), Prompts(seed), clock)
    [result] = await perform(plan, [(Subject(name, url, Api.CHAT.value, MODEL), target)], clock, Origin())
    return result


def _waits(result: Result) -> list[float]:
    samples = result.samples
    return [inf if error or isnan(first) else first - at for error, first, at in zip(
        samples.errors, samples.floats["first_s"], samples.floats["at_s"], strict=True)]


def _figures(where: str, before: Waits, after: Waits, before_s: float | None = None) -> list[Figure]:
    """`before_s`: without lanes it must take as long as that; minutes over sockets are too short to say."""
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
