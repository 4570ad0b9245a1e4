"""Gateways in this process, upstreams that write bytes, and clients, over real sockets."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import SystemClock
from stayfast.lab.simulated.settings import KINDS
from stayfast.server.backend import ActiveSystem
from stayfast.server.lifecycle import GatewayServer, ServerHooks
from stayfast.settings import SettingsText, load_settings

N_TRIES = 5
EVENT_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
         b'[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n')
BUSY = b"HTTP/1.1 503 Busy\r\nretry-after: 20\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}"


@asynccontextmanager
async def gateway(text: str) -> AsyncIterator[tuple[System, int]]:
    """A gateway in this process with these settings: its system and its port. At its end it has reported no error."""
    settings = load_settings(SettingsText("test", text), {}, kinds=KINDS)
    clock = SystemClock()
    observers = Observers(settings, clock)
    system = build(settings, observers, {}, clock, Random(1))
    errors: list[BaseException] = []
    hooks = ServerHooks(clock=clock, sink=observers.sink, entropy=b"12345678", version="0", on_error=errors.append,
                        on_listening=lambda _: None, on_reload=lambda: None, on_draining=lambda: None)
    server = GatewayServer(ActiveSystem(system), hooks)
    await server.listen()
    try:
        yield system, server.addresses()[0][1]
    finally:
        server.close()
        system.registry.close()
        await server.app.tasks.wait_until_empty(1.0)
    assert errors == []


@asynccontextmanager
async def listening(
        talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    """A server on a port of 127.0.0.1: the port."""
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def chunk_of(*events: bytes, ends: bool = False) -> bytes:
    """Events as one chunk of a chunked body; the last chunk follows where the body `ends`."""
    data = b"".join(b"data: " + event + b"\n\n" for event in events)
    return b"%x\r\n%b\r\n%b" % (len(data), data, b"0\r\n\r\n" if ends else b"")


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head and the body of one request."""
    head = await reader.readuntil(b"\r\n\r\n")
    return head, await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))


@dataclass
class Peer:
    """An upstream that writes `answer` after each request and then nothing; it records when its connections closed."""

    answer: bytes
    n_requests: int = 0
    was_called: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    closed_at: float = 0.0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            await read_request(reader)
            self.n_requests += 1
            self.was_called.set()
            writer.write(self.answer)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # a reset is a close, too
        finally:
            self.closed_at = time.monotonic()
            self.closed.set()
            writer.close()


def send_request(port: int, *, stream: bool, headers: bytes = b"") -> socket.socket:
    """A client that has sent a chat request. headers: more lines of its head."""
    body = b'{"model":"m","stream":%s,"messages":[{"role":"user","content":"x"}]}' % (b"true" if stream else b"false")
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                   b"%bcontent-length: %d\r\n\r\n%b" % (headers, len(body), body))
    return client


def check_within(limit_s: float, measure: Callable[[], float]) -> None:
    """One try of several is within the limit: a machine without free CPU may delay some of them, not all."""
    took_s = []
    for _ in range(N_TRIES):
        took_s.append(measure())
        if took_s[-1] <= limit_s:
            return
    raise AssertionError(f"took {took_s} s")


async def until(is_true: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(limit_s):
        while not is_true():
            await asyncio.sleep(0.002)


def n_connecting(port: int) -> int:
    """Connections to `port` whose handshake is under way (SYN_SENT in the table of the kernel)."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2] == f"0100007F:{port:04X}" and row[3] == "02" for row in rows)


def fill_accept_queue(stack: ExitStack) -> int:
    """The port of a listener whose accept queue is full: further handshakes hang."""
    full = stack.enter_context(socket.socket())
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    port = full.getsockname()[1]
    for _ in range(3):
        filler = stack.enter_context(socket.socket())
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))
    return int(port)
