"""A small real HTTP server that speaks three protocols, remembers what it was asked and sees when it was left.

It runs on a loop in a thread of the tests' own process, so its clock is theirs: what a client does and when the upstream
notices can be subtracted.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.clients import speak_chat
from tests.clients.script import (
    N_PIECES_BEFORE_FAULT,
    SLOW_S,
    Asked,
    Dialect,
    Event,
    Refusal,
    Scenario,
    answer_for,
    scenario_of,
    until_fault,
)
from tests.clients.speak_chat import CHAT
from tests.clients.speak_messages import MESSAGES, count_tokens
from tests.clients.speak_responses import RESPONSES
from tests.loop_thread import PATIENCE_S, loop_in_thread

DIALECTS = {dialect.path: dialect for dialect in (CHAT, RESPONSES, MESSAGES)}
SIMPLE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "/v1/embeddings": speak_chat.embeddings, "/v1/messages/count_tokens": count_tokens,
    "/v1/completions": speak_chat.completion, "/v1/rerank": speak_chat.rerank,
}
BREAK_AFTER_S = 0.05  # a reset that comes with the content would overtake it


@dataclass(slots=True)
class Seen:
    """One request that arrived. `left_at` is when its connection closed before its answer was over (monotonic seconds)."""

    peer: tuple[str, int]  # the other end of its connection
    path: str
    headers: dict[str, str]
    text: str
    is_silent: threading.Event = field(default_factory=threading.Event)  # all is said that will ever be, and it hangs
    has_left: threading.Event = field(default_factory=threading.Event)
    left_at: float | None = None

    @property
    def body(self) -> dict[str, Any]:
        """The body as JSON."""
        decoded: dict[str, Any] = json.loads(self.text)
        return decoded

    def wait_silent(self) -> None:
        """Until the scenario hangs."""
        if not self.is_silent.wait(PATIENCE_S):
            raise AssertionError(f"{self.path}: the scenario does not hang")

    def wait_left(self) -> float:
        """When the other side closed the connection; waits for it."""
        if not self.has_left.wait(PATIENCE_S):
            raise AssertionError(f"{self.path}: the connection is still open after {PATIENCE_S} s")
        assert self.left_at is not None
        return self.left_at


class Upstream:
    """The running server, as tests see it. Thread-safe."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._seen: list[Seen] = []
        self._arrival = threading.Condition()

    @property
    def origin(self) -> str:
        """Its address without a path."""
        return f"http://127.0.0.1:{self.port}"

    def note(self, seen: Seen) -> None:
        """Remember a request."""
        with self._arrival:
            self._seen.append(seen)
            self._arrival.notify_all()

    def seen(self, marker: str) -> list[Seen]:
        """The requests so far whose body holds `marker`."""
        with self._arrival:
            return [seen for seen in self._seen if marker in seen.text]

    def wait_for(self, marker: str) -> Seen:
        """The first request whose body holds `marker`; waits for it."""
        with self._arrival:
            if not self._arrival.wait_for(lambda: any(marker in seen.text for seen in self._seen), PATIENCE_S):
                raise AssertionError(f"no request with {marker} came within {PATIENCE_S} s")
        return self.seen(marker)[0]


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with content-length bodies: all that the SDKs and the gateway send."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._input = b""
        self._answering: asyncio.Task[None] | None = None
        self._seen: Seen | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._input += data
        head, found, rest = self._input.partition(b"\r\n\r\n")
        if not found:
            return
        request_line, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        n_body = int(headers.get("content-length", 0))
        if len(rest) < n_body:
            return
        self._input = rest[n_body:]
        peer = self._transport.get_extra_info("peername")
        self._seen = Seen(peer, request_line.split(" ")[1], headers, rest[:n_body].decode())
        self._upstream.note(self._seen)
        self._answering = asyncio.get_running_loop().create_task(self._answer(self._seen))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answering is None or self._answering.done():
            return
        assert self._seen is not None
        self._seen.left_at = time.monotonic()
        self._seen.has_left.set()
        self._answering.cancel()

    async def _answer(self, seen: Seen) -> None:
        path = seen.path.partition("?")[0]
        scenario = scenario_of(seen.text)
        if path in SIMPLE and not (path == "/v1/completions" and seen.body.get("stream")):
            self._send_json(200, SIMPLE[path](seen.body))
        elif path == "/v1/completions":
            await self._stream(iter(speak_chat.completion_events(seen.body)), Scenario.GOOD, b"")
        elif path in DIALECTS:
            await self._converse(DIALECTS[path], seen.body, scenario)
        else:
            self._send_json(404, {"error": {"message": f"nothing at {path}"}})

    async def _converse(self, dialect: Dialect, body: dict[str, Any], scenario: Scenario) -> None:
        complaint = dialect.complain(body)
        refusal = dialect.refuse(complaint) if complaint else dialect.refusals.get(scenario)
        if refusal is not None:
            return self._send_refusal(refusal)
        if scenario is Scenario.HANG_AT_ONCE:
            await self._hang()
        asked = dialect.read(body)
        if asked.streams:
            await self._stream(dialect.events(asked, answer_for(asked, scenario)), scenario, dialect.error_event)
        else:
            await self._send_whole(dialect, asked, scenario)
        return None

    async def _send_whole(self, dialect: Dialect, asked: Asked, scenario: Scenario) -> None:
        whole = dialect.whole(asked, answer_for(asked, scenario))
        match scenario:
            case Scenario.HANG_FIRST | Scenario.HANG_MIDWAY:
                await self._hang()
            case Scenario.ERROR_FIRST | Scenario.ERROR_MIDWAY:
                self._send_json(200, dialect.error_body)
            case Scenario.TRUNCATED | Scenario.RESET:
                body = json.dumps(whole).encode()
                headers = (("content-type", "application/json"), ("content-length", str(len(body))))
                self._send(_head(200, headers) + body[:40])
                await self._break(scenario)
            case _:
                self._send_json(200, whole)

    async def _stream(self, events: Iterator[Event], scenario: Scenario, error_event: bytes) -> None:
        self._send(_head(200, (("content-type", "text/event-stream; charset=utf-8"), ("transfer-encoding", "chunked"))))
        if scenario in (Scenario.SLOW, Scenario.SLOW_ERROR):
            await asyncio.sleep(SLOW_S)
        if scenario in (Scenario.HANG_FIRST, Scenario.ERROR_FIRST, Scenario.SLOW_ERROR):
            events = until_fault(events, 0)
        elif scenario in (Scenario.ERROR_MIDWAY, Scenario.TRUNCATED, Scenario.RESET, Scenario.HANG_MIDWAY):
            events = until_fault(events, N_PIECES_BEFORE_FAULT)
        for event in events:
            self._send_chunk(event.data)
            await asyncio.sleep(0)
        if scenario in (Scenario.HANG_FIRST, Scenario.HANG_MIDWAY):
            await self._hang()
        if scenario in (Scenario.ERROR_FIRST, Scenario.ERROR_MIDWAY, Scenario.SLOW_ERROR):
            self._send_chunk(error_event)
        if scenario is Scenario.RESET:
            return await self._break(scenario)
        self._send_chunk(b"")
        return None

    async def _hang(self) -> None:
        assert self._seen is not None
        self._seen.is_silent.set()
        await asyncio.Event().wait()

    async def _break(self, scenario: Scenario) -> None:
        await asyncio.sleep(BREAK_AFTER_S)
        if scenario is Scenario.RESET:
            self._transport.abort()
        else:
            self._transport.close()

    def _send_refusal(self, refusal: Refusal) -> None:
        self._send_json(refusal.status, refusal.body, refusal.headers)

    def _send_json(self, status: int, value: dict[str, Any], headers: tuple[tuple[str, str], ...] = ()) -> None:
        body = json.dumps(value).encode()
        own = (("content-type", "application/json"), ("content-length", str(len(body))), ("x-request-id", "req_upstream"))
        self._send(_head(status, own + headers) + body)

    def _send_chunk(self, data: bytes) -> None:
        self._send(b"%x\r\n%s\r\n" % (len(data), data))

    def _send(self, data: bytes) -> None:
        self._transport.write(data)


def _head(status: int, headers: tuple[tuple[str, str], ...]) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers), "", "")).encode()


@contextmanager
def running_upstream() -> Iterator[Upstream]:
    """An upstream on a free port of loopback, in a thread of its own."""
    upstream = Upstream(0)

    async def listen() -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(lambda: _Connection(upstream), "127.0.0.1", 0)

    with loop_in_thread("upstream") as loop:
        server = loop.run(listen())
        loop.at_end.append(server.close)
        upstream.port = server.sockets[0].getsockname()[1]
        yield upstream
