"""A scripted system behind the edge, and a client that speaks raw bytes to it."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.errors import DeadlineExceeded, StayfastError
from stayfast.core.types import Allowance, AnswerSummary, Chunk, Request, Stage
from stayfast.http.server.connection import ServerConnection
from stayfast.http.server.parser import RequestParser
from stayfast.jobs.service import JobService
from stayfast.keys.table import LiveKeys
from stayfast.pipeline.classify.classifier import TextClassifier
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.relay import Reply
from stayfast.server.backend import ActiveSystem, PurgeFilter, RecentRequestsQuery
from stayfast.server.config import ServerConfig
from stayfast.server.lifecycle import GatewayServer, ServerHooks
from stayfast.server.snapshot.service import SnapshotService
from stayfast.testing import RecordingSink

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'
ANSWER = b'{"id":"x","choices":[]}'

Step = bytes | float | StayfastError | Callable[[], Awaitable[None]]


class FakeReply:
    """Plays steps: bytes are chunks, numbers are waits in seconds, errors are raised, callables awaited."""

    def __init__(self, steps: Sequence[Step], deadline_at: float = math.inf) -> None:
        self.summary = AnswerSummary()
        self.upstream = "fake"
        self.n_attempts = 1
        self.degraded: str | None = None
        self.guard: str | None = None
        self.cache: str | None = None
        self.allowances: tuple[Allowance, ...] = ()
        self.deadline_at = deadline_at
        self.n_pulled = 0
        self.is_closed = False
        self.closed_for: StayfastError | None = None
        self._steps = iter(steps)

    @property
    def may_degrade(self) -> bool:
        """Whether it is degraded; none of these may become so."""
        return self.degraded is not None

    async def next(self) -> Chunk | None:
        if SystemClock().now() >= self.deadline_at:
            raise DeadlineExceeded(Stage.RELAY, "total_s", 0.0)
        for step in self._steps:
            if isinstance(step, bytes):
                self.n_pulled += len(step)
                return Chunk(step, 1)
            await play(step)
        return None

    def close(self, why: StayfastError | None = None) -> None:
        self.is_closed = True
        self.closed_for = why

    def server_timing(self) -> str:
        return "call;dur=1.00"


async def play(step: float | StayfastError | Callable[[], Awaitable[None]]) -> None:
    """One step that is not a chunk."""
    if isinstance(step, StayfastError):
        raise step
    if callable(step):
        await step()
    else:
        await asyncio.sleep(step)


@dataclass
class FakeGateway:
    """Answers every request by a script chosen from it. Records what it saw and when it was cancelled."""

    script: Callable[[Request], Sequence[Step]] = lambda request: (ANSWER,)
    before: Callable[[Request], Awaitable[None]] | None = None  # what comes before the first token
    total_s: float = math.inf
    degraded: str | None = None
    is_whole: bool = False  # all of an answer has come when its first chunk is asked for
    seen: list[tuple[Request, Arrival]] = field(default_factory=list)
    replies: list[FakeReply] = field(default_factory=list)
    cancelled_at: list[float] = field(default_factory=list)

    async def serve(self, request: Request, arrival: Arrival) -> Reply:
        self.seen.append((request, arrival))
        try:
            if self.before is not None:
                await self.before(request)
        except asyncio.CancelledError:
            self.cancelled_at.append(SystemClock().now())
            raise
        reply = FakeReply(self.script(request), SystemClock().now() + self.total_s)
        reply.degraded = self.degraded
        reply.summary.is_complete = self.is_whole
        self.replies.append(reply)
        return cast("Reply", reply)


@dataclass
class FakeBackend:
    """One running system with a scripted gateway."""

    config: ServerConfig = field(default_factory=lambda: ServerConfig(port=0))
    gateway: FakeGateway = field(default_factory=FakeGateway)
    reason: str | None = None
    asked: list[RecentRequestsQuery] = field(default_factory=list)
    forgotten: list[PurgeFilter] = field(default_factory=list)
    jobs: JobService | None = None
    resumable: frozenset[str] = frozenset()
    passthrough: None = None
    snapshots: SnapshotService | None = None
    keys: LiveKeys | None = None
    text_classifiers: dict[str, TextClassifier] = field(default_factory=dict)

    @property
    def together(self) -> "FakeBackend":
        return self

    def models(self) -> Sequence[str]:
        return ["m", "vendor/m-2", *self.resumable]

    def unready(self) -> str | None:
        return self.reason

    def state(self) -> bytes:
        return b'{"upstreams":{}}'

    def effective_settings(self) -> bytes:
        return b'{"settings":{},"sources":{}}'

    async def metrics(self) -> tuple[str, bytes]:
        return "text/plain; version=0.0.4", b"up 1\n"

    async def cache_stats(self) -> bytes:
        return b'{"object":"list","data":[]}'

    async def purge(self, what: PurgeFilter) -> bytes:
        self.forgotten.append(what)
        return b'{"forgotten":3,"gone":[]}'

    async def histories(self) -> bytes:
        return b'{"object":"list","data":[]}'

    async def delete_conversation(self, name: str, tenant: str | None) -> bytes | None:
        self.forgotten.append(PurgeFilter(tenant=tenant, tag=name))
        return b'{"deleted":2,"gone":[],"unconfirmed":[]}' if name == "s/1" else None

    async def gateways(self) -> bytes:
        return b'{"object":"list","data":[],"why_alone":null,"findings":[]}'

    async def inspect_answer(self, key: bytes) -> bytes | None:
        return b'{"bytes":5}' if key == bytes(32) else None

    async def recent_requests(self, query: RecentRequestsQuery) -> bytes:
        self.asked.append(query)
        return b'{"object":"list","data":[]}'

    async def compare_prompts(self, version_id: str, before: str) -> bytes | None:
        return None

    async def traffic(self) -> bytes:
        return b'{"columns":[],"trial_columns":[],"rows":[]}'

    async def read_scaling(self) -> bytes:
        return b'{"pools":{}}'

    async def drain_upstream(self, name: str, what: str) -> bytes | None:
        done = b'{"upstream":"gpu","draining":%b,"workers":1,"silent_workers":0}'
        return done % (b"true" if what == "drain" else b"false") if name == "gpu" else None

    async def recent_request(self, request_id: str, tenant: str | None) -> bytes | None:
        self.asked.append(RecentRequestsQuery(tenant=tenant))
        return b'{"request_id":"r/1"}' if request_id == "r/1" else None


@dataclass
class Running:
    """A server under test."""

    server: GatewayServer
    current: ActiveSystem
    backend: FakeBackend
    sink: RecordingSink
    errors: list[BaseException]
    port: int
    clients: "list[Client]" = field(default_factory=list)

    async def connect(self) -> "Client":
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client

    async def ask(self, data: bytes) -> bytes:
        """Send bytes on a connection of their own; everything that comes back until it closes."""
        client = await self.connect()
        client.send(data)
        return await client.rest()


class Client:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def rest(self, within_s: float = 20.0) -> bytes:
        """Everything until the end of the connection."""
        async with asyncio.timeout(within_s):
            return await self.reader.read()

    async def until(self, mark: bytes, within_s: float = 20.0) -> bytes:
        """Everything up to and with `mark`."""
        async with asyncio.timeout(within_s):
            return await self.reader.readuntil(mark)

    async def answer(self, within_s: float = 20.0) -> tuple[int, dict[str, str], bytes]:
        """One answer with a content-length: status, headers, body."""
        head = await self.until(b"\r\n\r\n", within_s)
        status, headers = parse_head(head)
        async with asyncio.timeout(within_s):
            body = await self.reader.readexactly(int(headers["content-length"]))
        return status, headers, body

    def pause_reading(self) -> None:
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume_reading(self) -> None:
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]

    def leave(self) -> None:
        """Close in the normal way."""
        self.writer.close()

    def reset(self) -> None:
        """Vanish."""
        self.writer.transport.abort()


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers, lower-case names."""
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    return int(first.split(" ")[1]), {name.lower(): value.strip() for name, value in pairs}


def post(body: bytes = CHAT, path: str = "/v1/chat/completions", *lines: str) -> bytes:
    """A POST with its length."""
    head = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", f"content-length: {len(body)}",
            *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def get(path: str, *lines: str, method: str = "GET") -> bytes:
    """A request without a body."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *lines]).encode() + b"\r\n\r\n"


@asynccontextmanager
async def serving(backend: FakeBackend | None = None) -> AsyncIterator[Running]:
    """A real listener on a free port of loopback; unexpected exceptions fail the test."""
    backend = backend or FakeBackend()
    current = ActiveSystem(backend)
    sink, errors = RecordingSink(), list[BaseException]()
    server = GatewayServer(current, host(sink, errors))
    await server.listen()
    running = Running(server, current, backend, sink, errors, server.addresses()[0][1])
    try:
        yield running
    finally:
        for client in running.clients:
            client.reset()
        server.close()
        await server.app.tasks.wait_until_empty(5)
    assert not errors, errors


def host(sink: RecordingSink, errors: list[BaseException]) -> ServerHooks:
    """What a server gets from whoever starts it, for tests."""
    return ServerHooks(clock=SystemClock(), sink=sink, entropy=b"12345678", version="0", on_error=errors.append,
                on_listening=lambda addresses: None, on_reload=lambda: None, on_draining=lambda: None)


def record_transports(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Transport]:
    """The server's side of each later connection, in order."""
    transports: list[asyncio.Transport] = []
    connection_made = ServerConnection.connection_made

    def record(connection: ServerConnection[Any], transport: asyncio.BaseTransport) -> None:
        transports.append(cast("asyncio.Transport", transport))
        connection_made(connection, transport)

    monkeypatch.setattr(ServerConnection, "connection_made", record)
    return transports


def record_overrun_parsers(monkeypatch: pytest.MonkeyPatch) -> list[RequestParser[Any]]:
    """The parsers of connections whose client sends too far ahead."""
    parsers: list[RequestParser[Any]] = []
    reject_further = RequestParser.reject_further

    def record(parser: RequestParser[Any], refusal: StayfastError) -> None:
        parsers.append(parser)
        reject_further(parser, refusal)

    monkeypatch.setattr(RequestParser, "reject_further", record)
    return parsers


async def eventually(is_so: Callable[[], bool], within_s: float = 20.0) -> float:
    """Wait for a condition; seconds it took."""
    clock = SystemClock()
    began_at = clock.now()
    async with asyncio.timeout(within_s):
        while not is_so():  # the condition is the server's, which has no event for a test
            await asyncio.sleep(0.001)
    return clock.now() - began_at
