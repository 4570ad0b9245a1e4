"""A server with WebSocket endpoints, raw frames, and the handshake of a raw client."""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from websockets.asyncio import client as library
from websockets.typing import Subprotocol

from stayfast.core.clock import SystemClock
from stayfast.core.errors import Rejected, Shed, StayfastError
from stayfast.http.server.connection import ConnectionTasks, HttpServer, ServerConnection
from stayfast.http.server.parser import HttpLimits, HttpRequest
from stayfast.http.server.response import connection_line, header_lines, status_line, whole_response
from stayfast.http.server.websocket import WebSocketConnection, WebSocketLimits, run_websocket
from stayfast.http.server.websocket_handshake import UPGRADE_LINES, offer_websocket, offered_subprotocols
from tests.server.fakes import Client, get

KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # of RFC 6455, 1.3, with its answer
ACCEPTED = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
OFFER = ("upgrade: websocket", "connection: keep-alive, Upgrade", "sec-websocket-version: 13", f"sec-websocket-key: {KEY}")
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class SocketApp:
    """`/ws/...` are WebSockets, handled as the path's end demands; other paths answer with their name."""

    request_type = HttpRequest

    def __init__(self, limits: HttpLimits, socket_limits: WebSocketLimits) -> None:
        self.limits = limits
        self.socket_limits = socket_limits
        self.gate = asyncio.Event()
        self.received: list[str | bytes] = []
        self.n_sent = 0
        self.n_cancelled = 0
        self.n_started = 0

    def check_head(self, request: HttpRequest, *, is_refusing: bool) -> StayfastError | None:
        if not request.path.startswith("/ws"):
            return None
        return offer_websocket(request, ("https://app.example.com",))

    async def handle(self, connection: ServerConnection[HttpRequest], request: HttpRequest) -> None:
        if request.path.startswith("/ws"):
            self.n_started += 1
            await run_websocket(connection, request, lambda socket: self._run(socket, request), self.socket_limits)
            return
        line = connection_line(request, keep_alive=connection.keeps_alive(request))
        connection.write(whole_response(status_line(200), request.path.encode(), line))
        connection.finish(request)

    def render_error(self, request: HttpRequest, error: StayfastError, *, keep_alive: bool) -> bytes:
        line = connection_line(request, keep_alive=keep_alive)
        more = header_lines(UPGRADE_LINES) if error.status == 426 else b""
        return whole_response(status_line(error.status) + more, error.message.encode(), line)

    def note_refusal(self, request: HttpRequest, error: StayfastError) -> None:
        """Nothing to record."""

    async def _run(self, socket: WebSocketConnection, request: HttpRequest) -> None:
        if request.path == "/ws/refused":
            raise Rejected("No such job.", status=404)
        if request.path == "/ws/forgotten":
            return
        offered = offered_subprotocols(request)
        await socket.accept(offered[-1] if offered else None, [("x-request-id", "r1")])
        try:
            await self._talk(socket, request.path)
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise

    async def _talk(self, socket: WebSocketConnection, path: str) -> None:
        if path == "/ws/once":
            await socket.send(await socket.receive())
            return
        if path == "/ws/gate":
            await self.gate.wait()
        if path == "/ws/work":
            with socket.working():
                await self.gate.wait()
                await socket.send("done")
        if path == "/ws/parallel":
            async with asyncio.TaskGroup() as senders:
                for _ in range(8):
                    senders.create_task(self._send_many(socket))
            return
        while path == "/ws/flood":
            await socket.send(b"x" * 50_000)
            self.n_sent += 50_000
        while True:
            message = await socket.receive()
            self.received.append(message)
            raise_as_demanded(message)
            await socket.send(message)


    async def _send_many(self, socket: WebSocketConnection) -> None:
        for _ in range(20):
            await socket.send(b"x" * 50_000)
            self.n_sent += 50_000


def raise_as_demanded(message: str | bytes) -> None:
    """Three words make the handler fail."""
    if message == "reject":
        raise Rejected("Not that.")
    if message == "shed":
        raise Shed("Not now.")
    if message == "crash":
        raise RuntimeError("a bug")


@dataclass
class RunningSockets:
    """A server under test."""

    app: SocketApp
    server: HttpServer[HttpRequest]
    errors: list[BaseException]
    clients: list[Client] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.server.bound_addresses()[0][1]

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(*self.server.bound_addresses()[0]))
        self.clients.append(client)
        return client

    async def open_raw(self, path: str = "/ws/echo") -> Client:
        """A client after its handshake, which sends frames by hand."""
        client = await self.connect()
        client.send(get(path, *OFFER))
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        return client

    def open(self, path: str = "/ws/echo", *, subprotocols: Sequence[Subprotocol] | None = None) -> library.connect:
        """The library's client, as a context manager. It sends no pings."""
        return library.connect(f"ws://127.0.0.1:{self.port}{path}", subprotocols=subprotocols, ping_interval=None,
                               close_timeout=1, proxy=None)


@asynccontextmanager
async def sockets(socket_limits: WebSocketLimits | None = None,
                  limits: HttpLimits | None = None) -> AsyncIterator[RunningSockets]:
    """A listener on a free port; the test checks `errors`."""
    app, errors = SocketApp(limits or HttpLimits(), socket_limits or WebSocketLimits()), list[BaseException]()
    server: HttpServer[HttpRequest] = HttpServer(app, SystemClock(), ConnectionTasks(errors.append))
    await server.listen("127.0.0.1", 0)
    running = RunningSockets(app, server, errors)
    try:
        async with asyncio.timeout(60):  # a lost wake-up fails the test
            yield running
    finally:
        for client in running.clients:
            client.reset()
        server.stop_listening()
        server.abort_connections()
        await server.tasks.wait_until_empty(5)


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, reserved: int = 0, mask: bytes | None = b"\1\2\3\4",
          declared: int | None = None) -> bytes:
    """A client's frame. `declared`: another length than the payload's."""
    n = len(payload) if declared is None else declared
    masked = 0x80 if mask is not None else 0
    head = bytes((fin << 7 | reserved << 4 | opcode,))
    if n < 126:
        head += bytes((masked | n,))
    elif n < 65_536:
        head += bytes((masked | 126,)) + struct.pack("!H", n)
    else:
        head += bytes((masked | 127,)) + struct.pack("!Q", n)
    if mask is None:
        return head + payload
    if not any(mask):
        return head + mask + payload
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


async def read_frame(client: Client, within_s: float = 20.0) -> tuple[int, bytes]:
    """One frame of the server: opcode and payload."""
    async with asyncio.timeout(within_s):
        first, second = await client.reader.readexactly(2)
        assert first & 0x80
        n = second
        if n >= 126:
            n_more = 2 if n == 126 else 8
            n = int.from_bytes(await client.reader.readexactly(n_more))
        return first & 0x0F, await client.reader.readexactly(n)


async def read_close(client: Client) -> int:
    """The server's close code, after any other frames; nothing follows it. The client then disconnects."""
    opcode, payload = await read_frame(client)
    while opcode != CLOSE:
        opcode, payload = await read_frame(client)
    assert await client.rest() == b""
    client.leave()
    return int.from_bytes(payload[:2]) if payload else 1005
