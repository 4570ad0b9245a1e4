"""The HTTP server by itself, under an application that is no gateway."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import uvloop

from stayfast.core.clock import SystemClock
from stayfast.core.errors import Rejected, StayfastError
from stayfast.http.event_loop import LazyTimer
from stayfast.http.server.connection import ConnectionTasks, HttpServer, ServerConnection
from stayfast.http.server.parser import FRAMING_HEADERS, HttpLimits, HttpRequest
from stayfast.http.server.response import connection_line, status_line, whole_response
from stayfast.testing import SimLoop, run
from tests.server.fakes import Client, eventually, get, post

pytestmark = pytest.mark.sockets


class NamedRequest(HttpRequest):
    """A request with a name in its head."""

    READ_HEADERS = frozenset((b"x-name",))


class Echo:
    """Answers with the body, after what the path says."""

    request_type = NamedRequest
    limits = HttpLimits(max_body_bytes=1000, idle_timeout_s=0.2, max_connections=3)

    def __init__(self) -> None:
        self.refused: list[StayfastError] = []
        self.n_cancelled = 0

    def check_head(self, request: NamedRequest, *, is_refusing: bool) -> StayfastError | None:
        if b"x-name" not in request.fields:
            return Rejected("Who is asking?", status=401)
        if request.path == "/quick":
            request.deadline_s = 0.05
        return Rejected("Too late.", status=410) if is_refusing else None

    async def handle(self, connection: ServerConnection[NamedRequest], request: NamedRequest) -> None:
        if request.path == "/reset":
            connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
            await asyncio.sleep(0.01)
            connection.reset()
            connection.finish(request)
            return
        if request.path == "/wait":
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                self.n_cancelled += 1
                raise
        line = connection_line(request, keep_alive=connection.keeps_alive(request))
        connection.write(whole_response(status_line(200), request.fields[b"x-name"] + request.body, line))
        connection.finish(request)

    def render_error(self, request: NamedRequest, error: StayfastError, *, keep_alive: bool) -> bytes:
        line = connection_line(request, keep_alive=keep_alive)
        return whole_response(status_line(error.status), error.message.encode(), line)

    def note_refusal(self, request: NamedRequest, error: StayfastError) -> None:
        self.refused.append(error)


@dataclass
class Running:
    """A server under test."""

    echo: Echo
    server: HttpServer[NamedRequest]
    clients: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(*self.server.bound_addresses()[0]))
        self.clients.append(client)
        return client


@asynccontextmanager
async def echoing() -> AsyncIterator[Running]:
    """A listener on a free port; unexpected exceptions fail the test."""
    echo, errors = Echo(), list[BaseException]()
    server: HttpServer[NamedRequest] = HttpServer(echo, SystemClock(), ConnectionTasks(errors.append))
    await server.listen("127.0.0.1", 0)
    running = Running(echo, server)
    try:
        yield running
    finally:
        for client in running.clients:
            client.reset()
        server.stop_listening()
        server.abort_connections()
        await server.tasks.wait_until_empty(5)
    assert errors == []


def test_http_server_uses_handler_and_errors_of_app() -> None:
    """An answer, a refusal by the head that keeps the connection, and a broken request that does not."""

    async def main() -> None:
        async with echoing() as running:
            client = await running.connect()
            client.send(post(b" hi", "/", "x-name: ann") + post(b"", "/"))
            assert (await client.answer())[::2] == (200, b"ann hi")
            assert (await client.answer())[::2] == (401, b"Who is asking?")
            client.send(post(b"", "/", "x-name: a", "x-name: b"))
            status, headers, body = await client.answer()
            assert (status, headers["connection"], body) == (400, "close", b"The header x-name occurs twice.")
            assert await client.rest() == b""
            assert [error.status for error in running.echo.refused] == [401, 400]

    uvloop.run(main())


def test_http_server_deadline_of_head_check_limits_body() -> None:
    """408 by default; a request type may say otherwise."""

    async def main() -> None:
        async with echoing() as running:
            client = await running.connect()
            client.send(post(b"whole", "/quick", "x-name: a")[:-1])
            assert (await client.answer())[0] == 408

    uvloop.run(main())


@pytest.mark.parametrize("reuse_port", [False, True])
def test_http_server_ipv6_any_includes_ipv4(reuse_port: bool) -> None:
    """On `::` a client over IPv4 is served as well, and counts as one address with itself over IPv6's way of writing it."""

    async def main() -> None:
        errors: list[BaseException] = []
        server: HttpServer[NamedRequest] = HttpServer(Echo(), SystemClock(), ConnectionTasks(errors.append))
        await server.listen("::", 0, reuse_port=reuse_port)
        [(_, port)] = server.bound_addresses()
        for address in ("127.0.0.1", "::1"):
            client = Client(*await asyncio.open_connection(address, port))
            client.send(get("/", "x-name: a"))
            assert (await client.answer())[0] == 200
            client.reset()
        server.stop_listening()
        server.abort_connections()
        assert errors == []

    if not socket.has_dualstack_ipv6():
        pytest.skip("this system has no IPv6 that takes IPv4 too")
    uvloop.run(main())


def test_http_server_response_can_be_reset() -> None:
    """Half of it, then RST; what `finish` then does is nothing."""

    async def main() -> None:
        async with echoing() as running:
            client = await running.connect()
            client.send(post(b"", "/reset", "x-name: a"))
            assert (await client.until(b"half")).endswith(b"half")
            with pytest.raises(ConnectionResetError):
                await client.rest()
            await eventually(lambda: not running.server.connections)

    uvloop.run(main())


def test_http_server_disconnect_cancels_request() -> None:
    """A client that leaves, one that says nothing, one too many, and a drain."""

    async def main() -> None:
        async with echoing() as running:
            echo, server = running.echo, running.server
            waiting = [await running.connect() for _ in range(3)]
            for client in waiting:
                client.send(post(b"", "/wait", "x-name: a"))
            await eventually(lambda: len(server.tasks) == 3)
            crowd = await running.connect()
            assert (await crowd.answer())[0] == 503
            for client in waiting[:2]:
                client.leave()
            await eventually(lambda: echo.n_cancelled == 2)
            silent, late = [await running.connect() for _ in range(2)]
            server.reject_new_requests()
            late.send(get("/", "x-name: a"))
            status, headers, _ = await late.answer()
            assert (status, headers["connection"]) == (410, "close")
            assert await silent.rest() == b""
            waiting[2].leave()
            await eventually(lambda: not server.connections)

    uvloop.run(main())


def test_http_server_new_connection_replaces_silent_one() -> None:
    """Never of one with a request under way; of the silent ones the oldest goes first, then one that was answered."""

    async def main() -> None:
        async with echoing() as running:
            busy, answered, silent = [await running.connect() for _ in range(3)]
            busy.send(post(b"", "/wait", "x-name: a"))
            answered.send(get("/", "x-name: a"))
            assert (await answered.answer())[0] == 200
            await eventually(lambda: len(running.server.tasks) == 1 and running.server.waiting.n_silent == 1)
            for gone in (silent, answered):
                newcomer = await running.connect()
                newcomer.send(get("/", "x-name: a"))
                assert (await newcomer.answer())[0] == 200
                assert await gone.rest(2.0) == b""
            assert len(running.server.tasks) == 1

    uvloop.run(main())


def test_http_server_refused_request_keeps_connection_silent() -> None:
    """Without a key nobody earns a place that silence does not have."""

    async def main() -> None:
        async with echoing() as running:
            client = await running.connect()
            client.send(get("/"))
            assert (await client.answer())[0] == 401
            assert running.server.waiting.n_silent == 1
            client.send(get("/", "x-name: a"))
            assert (await client.answer())[0] == 200
            assert running.server.waiting.n_silent == 0

    uvloop.run(main())


def test_http_server_framing_headers_are_always_read() -> None:
    """Whatever headers it keeps: content-length given twice is refused in any case."""
    assert FRAMING_HEADERS < NamedRequest.READ_HEADERS
    assert b"connection" in NamedRequest.LIST_HEADERS


def test_lazy_timer_moves_earlier_only() -> None:
    """When it fires early it looks again; nothing wakes it once it is cancelled."""

    async def main(loop: SimLoop) -> list[float]:
        began_at = loop.time()
        looks: list[float] = []
        due_at = began_at + 5

        def check() -> float:
            looks.append(loop.time() - began_at)
            return due_at if loop.time() < due_at else began_at + 20

        timer = LazyTimer(check)
        timer.set_no_later_than(began_at + 3)
        timer.set_no_later_than(began_at + 2)
        timer.set_no_later_than(began_at + 4)
        await asyncio.sleep(10)
        timer.cancel()
        timer.set_no_later_than(began_at + 11)
        await asyncio.sleep(20)
        return looks

    assert run(main) == pytest.approx([2, 5])
