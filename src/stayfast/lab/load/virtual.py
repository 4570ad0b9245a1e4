"""A system in virtual time, and its pipeline as a target without a socket: what `--virtual` asks.

A request enters where the edge hands it over and its answer is read by the same eyes that read one from a socket, so the
policies, the upstreams and the arithmetic of the report are those of a real run. What is left out is the edge itself:
parsing HTTP, keys, writing. Its cost is measured on real time (`stayfast prove overhead`) and is not in these figures.
"""

import asyncio
from dataclasses import replace
from itertools import count
from math import nan
from random import Random
from typing import Final

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.lab.load.client import Asker, AskingConfig, SampleTally
from stayfast.lab.load.reader import MeasuredAnswer, reader_of
from stayfast.lab.load.result import Error, Sample
from stayfast.lab.load.runner import DueShot
from stayfast.lab.load.schedule import Prompts
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.settings import LogSettings, Settings, TracingSettings
from stayfast.wire.json_input import decode


def check_simulated(settings: Settings) -> None:
    """Raises ValueError for upstreams that are not simulated and stores that are not memory: what is outside of this process
    answers in real time."""
    upstreams = settings.upstreams.items()
    real = [f"{name} (kind {upstream.kind})" for name, upstream in upstreams if not isinstance(upstream, SimulatedUpstream)]
    if real:
        raise ValueError(f"in virtual time all upstreams must be simulated, and these are not: {', '.join(real)}")
    outside = [f"{name} (kind {its.kind})" for name, its in settings.stores.items() if its.kind != "memory"]
    if outside:
        raise ValueError(f"in virtual time all stores must be memory, and these are not: {', '.join(outside)}")


def virtual(settings: Settings, clock: Clock, seed: int) -> System:
    """The system of these settings; call it on the virtual loop. Everything that is drawn comes from `seed`. Metrics are
    kept as usual, request lines and spans are not written: there is no thread to write them. Raises ValueError as
    `check_simulated` does."""
    check_simulated(settings)
    quiet = replace(settings, log=LogSettings(level="error", requests=False), tracing=TracingSettings())
    return build(quiet, Observers(quiet, clock), {}, clock, Random(seed))


_EVENTS: Final = {b"content-type": b"text/event-stream"}


class PipelineTarget:
    """One gateway in this process, as one of its tenants. Used on one event loop."""

    def __init__(self, gateway: Gateway, config: AskingConfig, prompts: Prompts, clock: Clock,
                 tenant: str | None = None) -> None:
        self._gateway = gateway
        self._tenant = tenant
        self._api = config.api
        self._streams = config.stream
        self._allows_empty = config.allow_empty
        self._asker = Asker(config, prompts)
        self._clock = clock
        self._numbers = count()
        self._running: set[asyncio.Timeout] = set()
        self._tally = SampleTally()

    @property
    def counted_by(self) -> str:
        return self._tally.counted_by

    async def ask(self, asking: DueShot) -> Sample:
        """A time-out leaves as a client does: by cancelling."""
        clock = self._clock
        exchange = MeasuredAnswer(reader_of(self._api), streams=self._streams, gaps=asking.gaps, zero_at=asking.zero_at,
                            done=asyncio.get_running_loop().create_future(), allows_empty=self._allows_empty)
        sent_at = clock.now()
        try:
            async with asyncio.timeout_at(asking.timeout_at) as patience:
                self._running.add(patience)
                await self._serve(asking, exchange, sent_at)
        except TimeoutError:
            exchange.end(Error.TIMEOUT, clock.now())
        finally:
            self._running.discard(patience)
        return self._tally.sample(asking, exchange, sent_at, nan)

    async def _serve(self, asking: DueShot, exchange: MeasuredAnswer, sent_at: float) -> None:
        clock = self._clock
        arrival = Arrival(f"req_{next(self._numbers):016x}", sent_at, self._tenant)
        try:
            reply = await self._gateway.serve(decode(self._api, self._asker.body(asking.shot)), arrival)
        except StayfastError as error:
            exchange.begin(error.status, {b"server-timing": (error.server_timing or "").encode()}, clock.now())
            exchange.take(error.message.encode(), clock.now())
            exchange.end(exchange.error, clock.now())
            return
        try:
            head = {**(_EVENTS if self._streams else {}), b"x-stayfast-attempts": b"%d" % reply.n_attempts}
            exchange.begin(200, head, clock.now())
            while (chunk := await reply.next()) is not None:
                exchange.take(chunk.data, clock.now())
            exchange.finish(clock.now())
        except StayfastError:
            exchange.end(Error.STREAM_ERROR, clock.now())
        finally:
            reply.close()
        exchange.server_timing = reply.server_timing()

    def close(self) -> None:
        for patience in list(self._running):
            patience.reschedule(0)
