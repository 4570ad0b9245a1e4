"""Runs the embedded engines: in the only process, or in the parent of all workers."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random

from stayfast.compose.system import Observers
from stayfast.core.clock import Clock, SystemClock
from stayfast.core.events import EngineState, Fact, Fanout, Sink
from stayfast.engine.config import EngineConfig
from stayfast.engine.process import Engine
from stayfast.settings import Settings
from stayfast.upstreams.embedded import Address
from stayfast.upstreams.state.upstream_state import UpstreamState

_CHECK_EVERY_S = 0.1


class Engines:
    """The engines of this process. Belongs to one loop."""

    def __init__(self, sink: Sink, clock: Clock, rng: Random) -> None:
        self._sink = sink
        self._clock = clock
        self._rng = rng
        self._running: dict[str, tuple[EngineConfig, Engine]] = {}

    async def start_missing(self, configs: Mapping[str, EngineConfig]) -> list[tuple[str, Engine]]:
        """Start missing engines; returns unneeded ones by upstream, for `retire_engine`. Raises ValueError or OSError if one
        cannot run here; then nothing has changed.
        """
        changed = {name: config for name, config in configs.items() if self._config(name) != config}
        started: dict[str, tuple[EngineConfig, Engine]] = {}
        try:
            for name, config in changed.items():
                engine = Engine(config, self._sink, self._clock, self._rng)
                await engine.start()
                started[name] = (config, engine)
        except (ValueError, OSError):
            for _, engine in started.values():
                await engine.stop()
            raise
        gone = [name for name in self._running if name not in configs or name in changed]
        unwanted = [(name, self._running.pop(name)[1]) for name in gone]
        self._running |= started
        return unwanted

    def __getitem__(self, name: str) -> Engine:
        return self._running[name][1]

    async def stop(self) -> None:
        for _, engine in self._running.values():
            await engine.stop()
        self._running.clear()

    def _config(self, name: str) -> EngineConfig | None:
        running = self._running.get(name)
        return running[0] if running is not None else None


async def retire_engine(engine: Engine, member: UpstreamState) -> None:
    """Stop an engine after its last answer."""
    while True:
        if member.n_in_flight == 0:
            break
        await asyncio.sleep(_CHECK_EVERY_S)
    await engine.stop()


class _Announcer:
    """Announces the address of an engine to the workers, each time it becomes ready."""

    def __init__(self, engine: Callable[[], Engine], announce: Callable[[Address], None]) -> None:
        self._engine = engine
        self._announce = announce

    def emit(self, fact: Fact) -> None:
        if isinstance(fact, EngineState) and fact.state == "ready":
            address = self._engine().address
            assert address is not None
            self._announce(address)


def engine_hosts(settings: Settings,
               announce: Callable[[str, Address], None]) -> Sequence[AbstractAsyncContextManager[object]]:
    """One engine for each embedded upstream, run by the parent. `announce(upstream, address)` informs the workers."""
    return [_run_with_engine(name, config, settings, announce) for name, config in settings.engines.items()]


@asynccontextmanager
async def _run_with_engine(name: str, config: EngineConfig, settings: Settings,
                  announce: Callable[[str, Address], None]) -> AsyncIterator[None]:
    observers = Observers(settings, SystemClock())
    sink = Fanout(observers.log, _Announcer(lambda: engine, lambda address: announce(name, address)))
    engine = Engine(config, sink, SystemClock(), Random(os.urandom(16)))
    observers.writer.start()
    await engine.start()
    try:
        yield
    finally:
        await engine.stop()
        observers.writer.close()
