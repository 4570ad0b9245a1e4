"""Peers on real sockets, scripted by the test."""

import array
import asyncio
import contextlib
import fcntl
import socket
import ssl
import termios
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from stayfast.core.clock import SystemClock
from stayfast.http.client.client import HttpClient, HttpConfig, Response
from stayfast.http.client.dialer import Lookup, Resolver
from stayfast.testing import RecordingSink

T = TypeVar("T")
# A peer sees us leave at once, and not by a time-out, of which the shortest is longer than this. How soon is measured, with
# more than one try, by tests/flow/test_cancellation_sockets.py.
PROMPT_S = 0.25
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Talk:
    """One accepted connection, from the peer's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        """The next request, head and body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        n_bytes = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                n_bytes = int(line.split(b":")[1])
        return head + await self.reader.readexactly(n_bytes)

    def say(self, data: bytes) -> None:
        """Send."""
        self.writer.write(data)

    async def left(self) -> float:
        """Seconds until the client is seen to have left; bytes that still come are dropped."""
        began_at = time.monotonic()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while await self.reader.read(65_536):
                pass
        return time.monotonic() - began_at

    def hang_up(self) -> None:
        """Close at once."""
        self.writer.transport.abort()


class Peer:
    """A listener; `accept` hands out its connections in order."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[Talk] = asyncio.Queue()
        self.port = 0

    async def accept(self) -> Talk:
        """The next connection."""
        return await self.arrived.get()

    @property
    def n_arrived(self) -> int:
        """Connections that the test has not accepted yet."""
        return self.arrived.qsize()


@contextlib.asynccontextmanager
async def listening(*, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Peer]:
    """A peer on a free port of loopback."""
    peer, talks = Peer(), []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(Talk(reader, writer))
        peer.arrived.put_nowait(talks[-1])

    server = await asyncio.start_server(accept, host, port, ssl=tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        for talk in talks:
            talk.hang_up()
        await asyncio.sleep(0.01)  # transports close in the loop's next turns


@contextlib.contextmanager
def deaf(host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """A port where connecting neither succeeds nor fails: its backlog is full."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.create_server((host, port), backlog=0))
        address = listener.getsockname()
        for _ in range(3):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield address[1]


def n_waiting(fd: int) -> int:
    """The number of unread bytes of a socket."""
    counted = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, counted)
    return counted[0]


def open_sockets() -> set[str]:
    """Open sockets of this process, those of other tests' servers and clients among them, by the kernel's numbers."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(entry.readlink()))
    return {name for name in found if name.startswith("socket:")}


class Caller:
    """A client with its sink, and a short way to send."""

    def __init__(self, port: int, *, scheme: str = "http", host: str = "127.0.0.1", lookup: Lookup = socket.getaddrinfo,
                 **config: Any) -> None:
        self.sink = RecordingSink()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("stayfast.http.client.client.Resolver", partial(Resolver, lookup=lookup))
            self.client = HttpClient("up", HttpConfig(f"{scheme}://{host}:{port}/v1", **config), sink=self.sink,
                                     clock=SystemClock())

    def send(self, *, body: bytes = b"{}", may_resend: bool = True, within_s: float = 5.0) -> asyncio.Task[Response]:
        """Send in a task."""
        return asyncio.get_running_loop().create_task(self.client.send(
            self.client.make_template("POST", "/v1/x", []), [("a", "b")], body, connect_by=time.monotonic() + within_s,
            may_resend=may_resend))

    async def ask(self, peer: Peer, answer: bytes = OK) -> Talk:
        """One whole exchange on a new connection."""
        sending = self.send()
        talk = await peer.accept()
        await self.exchange(talk, sending, answer)
        return talk

    async def exchange(self, talk: Talk, sending: "asyncio.Task[Response]", answer: bytes = OK) -> bytes:
        """Answer a request in progress; the body that the client read."""
        await talk.request()
        talk.say(answer)
        return await whole(await sending)

    def is_unused(self) -> bool:
        """Whether no connection is open, being opened or waited for."""
        return ": 0 busy, 0 idle, 0 connecting, 0 waiting, " in repr(self.client)

    @property
    def counts(self) -> tuple[int, int]:
        """Idle and busy connections."""
        return self.client.n_idle, self.client.n_busy


async def whole(response: Response) -> bytes:
    """Read to the end and close."""
    parts = []
    while data := await response.read():
        parts.append(data)
    response.close()
    return b"".join(parts)


async def until(condition: Callable[[], bool]) -> None:
    """Return when a condition holds; bounded by the run's time limit."""
    while not condition():
        await asyncio.sleep(0.001)


def on_sockets(main: Callable[[], Coroutine[Any, Any, T]], *, loop: str = "uvloop", limit_s: float = 30.0) -> T:
    """Run on real sockets; no test hangs longer than `limit_s`, and no socket is left over."""
    before = open_sockets()

    async def bounded() -> T:
        async with asyncio.timeout(limit_s):
            return await main()

    result = uvloop.run(bounded()) if loop == "uvloop" else asyncio.run(bounded())
    left_over = open_sockets() - before
    assert not left_over, left_over
    return result
