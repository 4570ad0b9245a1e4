"""A gateway in virtual time, and its pipeline as a target without a socket, for `bench --build_virtual_system`.

A request enters where the HTTP server hands it to the pipeline, and the answer is parsed by the same code as one from a
socket. So the policies, the upstreams and the statistics are those of a real run. Not included: the HTTP server itself with
its parsing, API keys and writes. `stayfast prove overhead` measures that cost in real time.
"""

import asyncio
from dataclasses import replace
from itertools import count
from math import nan
from random import Random

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.lab.load.client import RequestConfig, RequestEncoder, SampleMaker
from stayfast.lab.load.reader import MeasuredAnswer, parser_for
from stayfast.lab.load.result import Error, Sample
from stayfast.lab.load.runner import DueShot
from stayfast.lab.load.schedule import Prompts
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.settings import LogSettings, Settings, TracingSettings
from stayfast.wire.request_body import decode


def check_simulated(settings: Settings) -> None:
    """Raise ValueError for upstreams that are not simulated and stores that are not in memory: anything outside this process
    answers in real time."""
    upstreams = settings.upstreams.items()
    real = [f"{name} (kind {upstream.kind})" for name, upstream in upstreams if not isinstance(upstream, SimulatedUpstream)]
    if real:
        raise ValueError(f"in virtual time all upstreams must be simulated, and these are not: {', '.join(real)}")
    outside = [f"{name} (kind {store.kind})" for name, store in settings.stores.items() if store.kind != "memory"]
    if outside:
        raise ValueError(f"in virtual time all stores must be memory, and these are not: {', '.join(outside)}")


def build_virtual_system(settings: Settings, clock: Clock, seed: int) -> System:
    """Build the system of these settings; call it on the virtual loop. All randomness comes from `seed`. Metrics work as
    usual; the request log and tracing are off, because they need a thread. Raises ValueError as `check_simulated` does."""
    check_simulated(settings)
    quiet = replace(settings, log=LogSettings(level="error", requests=False), tracing=TracingSettings())
    return build(quiet, Observers(quiet, clock), {}, clock, Random(seed))


class PipelineTarget:
    """A gateway in this process, called as one of its tenants. Used on one event loop."""

    def __init__(self, gateway: Gateway, config: RequestConfig, prompts: Prompts, clock: Clock,
                 tenant: str | None = None) -> None:
        self._gateway = gateway
        self._tenant = tenant
        self._config = config
        self._asker = RequestEncoder(config, prompts)
        self._clock = clock
        self._numbers = count()
        self._running: set[asyncio.Timeout] = set()
        self._tally = SampleMaker()

    @property
    def counted_by(self) -> str:
        return self._tally.counted_by

    async def send(self, due: DueShot) -> Sample:
        clock, config = self._clock, self._config
        exchange = MeasuredAnswer(parser_for(config.api), streams=config.stream, gaps=due.gaps, zero_at=due.zero_at,
                                  done=asyncio.get_running_loop().create_future(), allows_empty=config.allow_empty)
        sent_at = clock.now()
        try:
            async with asyncio.timeout_at(due.timeout_at) as timeout:
                self._running.add(timeout)
                await self._serve(due, exchange, sent_at)
        except TimeoutError:
            exchange.set_ended(Error.TIMEOUT, clock.now())
        finally:
            self._running.discard(timeout)
        return self._tally.make_sample(due, exchange, sent_at, nan)

    async def _serve(self, asking: DueShot, exchange: MeasuredAnswer, sent_at: float) -> None:
        clock = self._clock
        arrival = Arrival(f"req_{next(self._numbers):016x}", sent_at, self._tenant)
        try:
            reply = await self._gateway.serve(decode(self._config.api, self._asker.encode(asking.shot)), arrival)
        except StayfastError as error:
            exchange.receive_head(error.status, {b"server-timing": (error.server_timing or "").encode()}, clock.now())
            exchange.receive_data(error.message.encode(), clock.now())
            exchange.set_ended(exchange.error, clock.now())
            return
        try:
            content_type = b"text/event-stream" if self._config.stream else b"application/json"
            headers = {b"content-type": content_type, b"x-stayfast-attempts": b"%d" % reply.n_attempts}
            exchange.receive_head(200, headers, clock.now())
            while (chunk := await reply.next()) is not None:
                exchange.receive_data(chunk.data, clock.now())
            exchange.finish(clock.now())
        except StayfastError:
            exchange.set_ended(Error.STREAM_ERROR, clock.now())
        finally:
            reply.close()
        exchange.server_timing = reply.server_timing()

    def close(self) -> None:
        for timeout in list(self._running):
            timeout.reschedule(0)
