"""A second gateway in the same process, that nobody sees: it answers a made-up request when it is told to (warming.py).

It is the same code and nothing else: edge, pipeline, translation and upstream client, with metrics, limits and breakers of
its own, and canned bytes where the sockets would be.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from stayfast.compose.system import Observers, build
from stayfast.core.clock import Clock
from stayfast.core.types import Api
from stayfast.http.server.asgi import Message, Scope
from stayfast.http.server.connection import Connection, HttpServer
from stayfast.http.server.tasks import Tasks
from stayfast.server.app import GatewayApp
from stayfast.server.backend import Current
from stayfast.server.edge import Edge
from stayfast.server.inbound import Inbound
from stayfast.server.lifecycle import as_it_came
from stayfast.settings import Log, Route, Settings, SimulatedUpstream
from stayfast.upstreams.dial import Landing, Line
from stayfast.upstreams.dialect import DialectConfig, DialectUpstream
from stayfast.upstreams.http import HttpClient, HttpConfig

_MODEL: Final = "twin"
_OK = b"HTTP/1.1 200"
_LAST_CHUNK = b"0\r\n\r\n"


def _request() -> bytes:
    body = msgspec.json.encode({"model": _MODEL, "stream": True, "messages": [
        {"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Is everything at hand? " * 4}]})
    return (b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\nauthorization: Bearer twin\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


def _event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    text = b"data: %b\n\n" % msgspec.json.encode(
        {"id": "chatcmpl-twin", "object": "chat.completion.chunk", "created": 1, "model": _MODEL,
         "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})
    return b"%x\r\n%b\r\n" % (len(text), text)


_ASKED = _request()
_FIRST = (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
          + _event({"role": "assistant", "content": "Yes"}))
_REST = _event({"content": "."}) + _event({}, "stop") + b"e\r\ndata: [DONE]\n\n\r\n" + _LAST_CHUNK


class Wire(asyncio.Transport):
    """A connection without a socket: what is written to it, `hear` is told at once; b"" when it was closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hear: Callable[[bytes], None]) -> None:
        super().__init__()
        self._loop = loop
        self._hear = hear
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hand it over."""
        self._hear(bytes(data))

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._is_closing

    def close(self) -> None:
        """Nothing is left unsent: the same as `abort`."""
        self.abort()

    def abort(self) -> None:
        """Tell both ends."""
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)
            self._hear(b"")

    def get_write_buffer_size(self) -> int:
        """Nothing is ever unsent."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def pause_reading(self) -> None:
        """What comes is a few hundred bytes."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Whoever is at this end of it."""
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol


class Canned:
    """Dials nobody: every request gets the same two chunks, each in its own turn of the loop, as from a socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def open(self) -> Line:
        """A new connection."""
        wire = Wire(self._loop, lambda asked: self._answer(wire) if asked else None)
        return Line(wire, Landing(), 0.0)

    def keep_session(self, line: Line) -> None:
        """There is no TLS."""

    def _answer(self, wire: Wire) -> None:
        hears = wire.protocol.data_received
        self._loop.call_soon(hears, _FIRST)
        self._loop.call_soon(self._loop.call_soon, hears, _REST)


class Astray(RuntimeError):
    """A pass whose client read anything but the canned answer."""


class Twin:
    """A gateway with one client and one upstream, both made of bytes. Make it inside the loop."""

    def __init__(self, clock: Clock, rng: Random, on_error: Callable[[BaseException], None]) -> None:
        self._loop = asyncio.get_running_loop()
        settings = Settings(upstreams={_MODEL: SimulatedUpstream(probe=False)}, routes={_MODEL: Route((_MODEL,))},
                            log=Log(level="error", requests=False))
        observers = Observers(settings, clock)
        system = build(settings, observers, {}, clock, rng)
        http = HttpClient(_MODEL, HttpConfig("http://localhost/v1"), sink=observers.sink, clock=clock,
                          dialer=Canned(self._loop))
        dialect = DialectConfig("openai", frozenset({Api.CHAT}))
        system.registry[_MODEL].upstream = DialectUpstream(_MODEL, dialect, http, clock)
        self.system = system
        tasks = Tasks(on_error)
        self.edge = Edge(Current(system), clock=clock, sink=observers.sink, tasks=tasks, entropy=bytes(8),
                         cold=_nobody, place=as_it_came)
        self.server: HttpServer[Inbound] = HttpServer(GatewayApp(self.edge), clock, tasks)
        self._answered: asyncio.Future[bytes] = self._loop.create_future()
        self._heard = b""
        self._wire: Wire | None = None

    async def ask(self) -> bytes:
        """Answer one request; returns what its client read. Not to be called again before that. Raises Astray."""
        self._answered, self._heard = self._loop.create_future(), b""
        if self._wire is None or self._wire.is_closing():  # the first one, or the edge found it idle for too long
            self._wire = Wire(self._loop, self._hear)
            self._wire.set_protocol(Connection(self.server))
            self._wire.protocol.connection_made(self._wire)
        self._wire.protocol.data_received(_ASKED)
        heard = await self._answered
        if not heard.startswith(_OK) or not heard.endswith(_LAST_CHUNK):
            raise Astray
        return heard

    def _hear(self, data: bytes) -> None:
        self._heard += data
        is_whole = not data or self._heard.endswith(_LAST_CHUNK) or not self._heard.startswith(_OK)
        if is_whole and not self._answered.done():
            self._answered.set_result(self._heard)


async def _nobody(scope: Scope, receive: object, send: Callable[[Message], object]) -> None:
    """The cold endpoints: nobody asks a twin for them."""
    raise NotImplementedError(scope["path"])
