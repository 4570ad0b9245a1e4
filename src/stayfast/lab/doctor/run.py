"""Runs a scene through the production pipeline in virtual time, and takes its snapshot."""

import asyncio
import json
from collections.abc import Mapping
from functools import reduce
from itertools import count
from random import Random
from typing import Any

import msgspec

from stayfast.compose.system import Observers, build
from stayfast.core.errors import StayfastError
from stayfast.core.snapshot import Snapshot
from stayfast.core.types import Api, Request
from stayfast.lab.doctor.scene import Flow, Scene
from stayfast.lab.harness.virtual import SEED_STEP
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.settings import Settings
from stayfast.settings.effective import effective_settings
from stayfast.settings.load import SettingsText, load_settings
from stayfast.testing.simloop import SimLoop, run
from stayfast.wire.request_body import decode

QUIET = {"log": {"level": "error", "requests": False}, "snapshots": {"hours": 0}}  # no files: others have the default folder


def observe_scene(scene: Scene, seed: int = 1) -> Snapshot:
    """Run a scene and return the snapshot at its end. All randomness comes from `seed`."""
    return SceneRunner(seed).observe(scene)


class SceneRunner:
    """Runs scenes with one seed. Scenes that differ in their amendments only are run once."""

    def __init__(self, seed: int = 1) -> None:
        self._seed = seed
        self._taken: dict[str, tuple[Scene, Snapshot]] = {}  # the scene lives on, so its functions' addresses stay unique

    def observe(self, scene: Scene) -> Snapshot:
        """The snapshot at the end of a scene."""
        key = f"{json.dumps(scene.settings, sort_keys=True)} {scene.flows} {scene.seconds}"
        if key not in self._taken:
            self._taken[key] = scene, run(lambda loop: _observe(loop, scene, self._seed))
        return reduce(lambda before, amendment: amendment(before), scene.amendments, self._taken[key][1])


def load_scene(tree: Mapping[str, Any]) -> Settings:
    """The settings of a scene, checked as a file is. Raises SettingsError."""
    return load_settings(SettingsText("scene", json.dumps(tree)), {}, kinds=(SimulatedUpstream,))


async def _observe(loop: SimLoop, scene: Scene, seed: int) -> Snapshot:
    settings = load_scene(_seed_upstreams({**QUIET, **scene.settings}, seed))
    observers = Observers(settings, loop)
    system = build(settings, observers, {}, loop, Random(seed))
    ends_at = loop.now() + scene.seconds
    async with asyncio.TaskGroup() as group:
        collecting = observers.snapshots.start(group.create_task)
        senders = [group.create_task(_send_flow(system.gateway, (name, flow), loop, Random(f"{name}/{seed}"), ends_at))
                   for name, flow in scene.flows.items()]
        await asyncio.sleep(scene.seconds)
        snapshot = await observers.snapshots.take()
        assert snapshot is not None
        for task in (*senders, collecting):
            if task is not None:
                task.cancel()
    return msgspec.structs.replace(snapshot, settings=effective_settings(settings))


def _seed_upstreams(tree: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Every simulated provider with draws of its own for each seed."""
    upstreams = {name: {"seed": seed * SEED_STEP % 2**32, **upstream} if upstream["kind"] == "simulated" else upstream
                 for name, upstream in tree["upstreams"].items()}
    return {**tree, "upstreams": upstreams}


async def _send_flow(gateway: Gateway, named: tuple[str, Flow], loop: SimLoop, rng: Random, ends_at: float) -> None:
    name, flow = named
    ends_at, numbers = min(ends_at, loop.now() + flow.until_s), count()
    await asyncio.sleep(flow.from_s)
    async with asyncio.TaskGroup() as group:
        while loop.now() < ends_at:
            group.create_task(_send_one(gateway, flow, f"{name}/{next(numbers):x}", rng, loop))
            await asyncio.sleep(rng.expovariate(flow.per_s))


async def _send_one(gateway: Gateway, flow: Flow, request_id: str, rng: Random, loop: SimLoop) -> None:
    """One request, as a patient client reads it."""
    body: dict[str, Any] = {"model": flow.route, "messages": flow.make_messages(rng, flow), "stream": flow.stream}
    if flow.stream:
        body["stream_options"] = {"include_usage": True}
    if flow.max_tokens is not None:
        body["max_tokens"] = flow.max_tokens
    request = decode(Api.CHAT, msgspec.json.encode({**body, **flow.body}))
    arrival = Arrival(request_id, loop.now() - flow.held_s, flow.tenant, flow.headers, flow.total_s, flow.silence_s)
    try:
        await _read_patiently(gateway, request, arrival, flow.silence_s)
    except (StayfastError, TimeoutError):
        return  # the facts contain it


async def _read_patiently(gateway: Gateway, request: Request, arrival: Arrival, silence_s: float | None) -> None:
    """Read the answer; leave after silence_s without a byte. Raises TimeoutError."""
    async with asyncio.timeout(silence_s):
        reply = await gateway.serve(request, arrival)
    try:
        while True:
            async with asyncio.timeout(silence_s):
                if await reply.next() is None:
                    return
    finally:
        reply.close()
