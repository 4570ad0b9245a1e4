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
from stayfast.engine.fit import check_fits, fit_engines
from stayfast.engine.process import Engine
from stayfast.engine.speculation import configs_of_arms, name_engine, upstream_of_engine
from stayfast.settings import Settings
from stayfast.upstreams.embedded import EngineAddress
from stayfast.upstreams.state.upstream_state import UpstreamState

_CHECK_EVERY_S = 0.1


class Engines:
    """The engines of this process. Belongs to one loop."""

    def __init__(self, sink: Sink, clock: Clock, rng: Random) -> None:
        self._sink = sink
        self._clock = clock
        self._rng = rng
        self._configs: dict[str, EngineConfig] = {}  # by upstream
        self._running: dict[str, Engine] = {}  # by process

    async def start_missing(self, configs: Mapping[str, EngineConfig]) -> list[tuple[str, Engine]]:
        """Start missing engines of upstreams; returns unneeded ones by name, for `retire_engine`. Raises ValueError or
        OSError if one cannot run here; then nothing has changed.
        """
        changed = {name: config for name, config in configs.items() if self._configs.get(name) != config}
        started: dict[str, Engine] = {}
        try:
            for name, engine in make_engines(changed, lambda _: self._sink, self._clock, self._rng).items():
                await engine.start()
                started[name] = engine
        except (ValueError, OSError):
            for engine in started.values():
                await engine.stop()
            raise
        gone = [name for name in self._running if (of := upstream_of_engine(name)) not in configs or of in changed]
        unwanted = [(name, self._running.pop(name)) for name in gone]
        self._running |= started
        self._configs = dict(configs)
        return unwanted

    def __getitem__(self, name: str) -> Engine:
        return self._running[name]

    async def stop(self) -> None:
        for engine in self._running.values():
            await engine.stop()
        self._running.clear()
        self._configs.clear()


def make_engines(configs: Mapping[str, EngineConfig], sink_of: Callable[[str], Sink], clock: Clock, rng: Random
                 ) -> dict[str, Engine]:
    """The processes of some upstreams, by their names. All those of an upstream have its size, and the sum of all is within
    the memory. Raises ValueError.
    """
    found = {}
    for (name, config), fit in zip(configs.items(), fit_engines(configs.values()), strict=True):
        check_fits(config, fit)
        for arm, of_arm in configs_of_arms(config).items():
            process = name_engine(name, config, arm)
            found[process] = Engine(of_arm, sink_of(process), clock, rng, name=process, fit=fit)
    return found


async def retire_engine(engine: Engine, member: UpstreamState) -> None:
    """Stop an engine after its last answer."""
    while True:
        if member.n_in_flight == 0:
            break
        await asyncio.sleep(_CHECK_EVERY_S)
    await engine.stop()


class _Announcer:
    """Announces an engine to the workers, each time it becomes ready."""

    def __init__(self, engine: Callable[[], Engine], announce: Callable[[EngineAddress], None]) -> None:
        self._engine = engine
        self._announce = announce

    def emit(self, fact: Fact) -> None:
        if isinstance(fact, EngineState) and fact.state == "ready":
            engine = self._engine()
            assert engine.address is not None
            assert engine.n_slots is not None
            self._announce(EngineAddress(*engine.address, engine.n_slots))


def engine_hosts(settings: Settings, announce: Callable[[str, EngineAddress], None]
                 ) -> Sequence[AbstractAsyncContextManager[object]]:
    """The engines of the embedded upstreams, run by the parent. `announce(name, address)` informs the workers. Raises
    ValueError if they cannot all run here.
    """
    clock = SystemClock()
    engines: dict[str, Engine] = {}
    observers = {name: Observers(settings, clock) for name in settings.engines}

    def sink_of(name: str) -> Sink:
        return Fanout(observers[name].log, _Announcer(lambda: engines[name], lambda address: announce(name, address)))

    engines |= make_engines(settings.embedded, sink_of, clock, Random(os.urandom(16)))
    return [_run_with_engine(engine, observers[name]) for name, engine in engines.items()]


@asynccontextmanager
async def _run_with_engine(engine: Engine, observers: Observers) -> AsyncIterator[None]:
    observers.writer.start()
    await engine.start()
    try:
        yield
    finally:
        await engine.stop()
        observers.writer.close()
