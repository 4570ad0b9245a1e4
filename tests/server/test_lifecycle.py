"""Start, reload, drain, stop; with real signals to this very process."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace

import pytest
import uvloop

from stayfast.core.errors import Shed
from stayfast.core.types import Request
from stayfast.server.backend import ActiveSystem
from stayfast.server.config import ServerConfig
from stayfast.server.lifecycle import CUT_OFF, DRAINED, GatewayServer, run
from stayfast.testing import RecordingSink
from tests.server.fakes import CHAT, STREAM, Client, FakeBackend, FakeGateway, eventually, get, host, post, serving

pytestmark = pytest.mark.sockets

QUICK = ServerConfig(port=0, drain_grace_s=0.2, drain_s=2.0)


def test_drain_serves_new_requests_for_the_grace() -> None:
    """Readiness ends at once; new requests, on old connections and new ones, are served for the grace, and close."""

    async def main() -> None:
        async with serving(FakeBackend(replace(QUICK, drain_grace_s=1.0), FakeGateway(lambda request: [b"{}"]))) as running:
            kept, idle = await running.connect(), await running.connect()
            serve = asyncio.ensure_future(running.server.serve())
            running.server.stop()
            await eventually(lambda: running.server.http.is_draining)
            assert (await running.ask(get("/readyz"))).startswith(b"HTTP/1.1 503")
            for client in (kept, await running.connect()):
                client.send(post())
                answer = await client.rest()
                assert answer.startswith(b"HTTP/1.1 200 ")
                assert b"connection: close\r\n" in answer
            assert await idle.rest() == b""
            assert await serve == DRAINED

    uvloop.run(main())


def test_drain_finishes_running_answers_and_refuses_new_ones() -> None:
    """After the grace what still comes gets 503 with Retry-After and close, the stream gets to its end, status 0."""

    async def main() -> None:
        gateway = FakeGateway(lambda request: [b"data: a\n\n", 0.6, b"data: b\n\n"])
        async with serving(FakeBackend(QUICK, gateway)) as running:
            stream, idle, late = await running.connect(), await running.connect(), await running.connect()
            stream.send(post(STREAM))
            late.send(post()[:20])
            await stream.until(b"data: a\n\n")
            serve = asyncio.ensure_future(running.server.serve())
            running.server.stop()
            await eventually(lambda: running.server.http.is_draining)
            for path, status in (("/readyz", b"503"), ("/livez", b"200")):
                assert (await running.ask(get(path))).startswith(b"HTTP/1.1 " + status)  # the listener is still open
            await eventually(lambda: running.server.http.is_refusing)
            late.send(post()[20:])
            refused = await late.rest()
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1\r\n" in refused
            assert b"connection: close\r\n" in refused
            assert (await stream.rest()).endswith(b"\r\n0\r\n\r\n")
            assert await idle.rest() == b""
            assert await serve == DRAINED
            with pytest.raises(ConnectionRefusedError):
                await running.connect()

    uvloop.run(main())


async def _outlasting(gateway: FakeGateway, body: bytes, has_begun: Callable[[], bool]) -> bytes:
    """What the client hears of a request that takes longer than the drain."""
    async with serving(FakeBackend(replace(QUICK, drain_grace_s=0, drain_s=0.1), gateway)) as running:
        client = await running.connect()
        client.send(post(body))
        await eventually(has_begun)
        running.server.stop()
        assert await running.server.serve() == CUT_OFF
        return await client.rest()


@pytest.mark.parametrize(("body", "says"), [(STREAM, b"shutting down"), (CHAT, b"HTTP/1.1 503 ")])
def test_drain_late_stream_gets_error_event(body: bytes, says: bytes) -> None:
    """After drain_s: an event in a stream, which breaks off; 503 where nothing was sent; the status says so too."""

    async def main() -> None:
        gateway = FakeGateway(lambda request: [b"data: a\n\n", 30.0])
        answer = await _outlasting(gateway, body, lambda: bool(gateway.replies))
        assert gateway.replies[0].is_closed
        ended_for = gateway.replies[0].closed_for
        assert ended_for is not None
        assert ended_for.code == "draining"
        assert says in answer
        assert not answer.endswith(b"0\r\n\r\n")

    uvloop.run(main())


def test_drain_late_request_without_token_gets_503() -> None:
    """The gateway is cancelled with the reason, and does not take it for a client that left."""

    async def main() -> None:
        ended_for: list[object] = []

        async def before(request: Request) -> None:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError as why:
                ended_for.extend(why.args)
                raise

        gateway = FakeGateway(before=before)
        assert (await _outlasting(gateway, CHAT, lambda: bool(gateway.seen))).startswith(b"HTTP/1.1 503 ")
        [why] = ended_for
        assert isinstance(why, Shed)
        assert why.code == "draining"

    uvloop.run(main())


def test_drain_second_stop_closes_at_once() -> None:
    """An operator in a hurry presses Ctrl-C twice."""

    async def main() -> None:
        config = ServerConfig(port=0, drain_grace_s=60, drain_s=60)
        async with serving(FakeBackend(config, FakeGateway(lambda request: [30.0]))) as running:
            client = await running.connect()
            client.send(post())
            await eventually(lambda: bool(running.backend.gateway.replies))
            serve = asyncio.ensure_future(running.server.serve())
            running.server.stop()
            await eventually(lambda: running.server.http.is_draining)
            running.server.stop()
            async with asyncio.timeout(10):
                assert await serve == CUT_OFF

    uvloop.run(main())


def test_drain_partially_read_request_is_answered() -> None:
    """Its head was let in before: it is served, and the connection closes after it."""

    async def main() -> None:
        async with serving(FakeBackend(QUICK)) as running:
            client = await running.connect()
            asked = post()
            client.send(asked[:-5])
            await eventually(lambda: any("body" in repr(one) for one in running.server.http.connections))
            serve = asyncio.ensure_future(running.server.serve())
            running.server.stop()
            await eventually(lambda: running.server.http.is_draining)
            client.send(asked[-5:])
            answer = await client.rest()
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close\r\n" in answer
            assert await serve == DRAINED

    uvloop.run(main())


def test_drain_grace_default_depends_on_address() -> None:
    """Unless it is set: five seconds, and none on this machine alone."""
    assert [ServerConfig(host).grace_s for host in ("127.0.0.1", "localhost", "0.0.0.0", "::")] == [0, 0, 5, 5]
    assert ServerConfig("0.0.0.0", drain_grace_s=0).grace_s == 0
    assert ServerConfig(drain_grace_s=9).grace_s == 9


@pytest.mark.parametrize(("number", "grace_s"), [(signal.SIGTERM, 0), (signal.SIGINT, 600)])
def test_signals_reload_and_drain(number: signal.Signals, grace_s: float) -> None:
    """SIGHUP calls back and changes nothing by itself; SIGTERM and SIGINT (without the grace) end `run` with 0."""
    told: list[object] = []

    async def main() -> int:
        listening = asyncio.Event()

        def on_listening(addresses: object) -> None:
            told.append("listening")
            listening.set()

        one = replace(host(RecordingSink(), []), on_listening=on_listening, on_reload=lambda: told.append("reload"),
                      on_draining=lambda: told.append("draining"))
        serve = asyncio.ensure_future(run(ActiveSystem(FakeBackend(replace(QUICK, drain_grace_s=grace_s))), one))
        await listening.wait()
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: "reload" in told)
        os.kill(os.getpid(), number)
        return await serve

    assert uvloop.run(main()) == DRAINED
    assert told == ["listening", "reload", "draining"]


def test_reload_running_stream_keeps_old_system() -> None:
    """New requests go to the new gateway; no stream is dropped."""

    async def main() -> None:
        old = FakeBackend(gateway=FakeGateway(lambda request: [b"data: old\n\n", 0.1, b"data: old\n\n"]))
        new = FakeBackend(gateway=FakeGateway(lambda request: [b"data: new\n\n"]))
        async with serving(old) as running:
            first, second = await running.connect(), await running.connect()
            first.send(post(STREAM))
            await first.until(b"data: old\n\n")
            running.current.swap(new)
            second.send(post(STREAM))
            assert b"data: new\n\n" in await second.until(b"\r\n0\r\n\r\n")
            assert b"data: old\n\n" in await first.until(b"\r\n0\r\n\r\n")

    uvloop.run(main())


def test_server_listens_on_bound_socket() -> None:
    """For a supervisor that opens the port, or systemd."""

    async def main() -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            server = GatewayServer(ActiveSystem(FakeBackend()), host(RecordingSink(), []))
            await server.listen([sock])
            client = Client(*await asyncio.open_connection(*sock.getsockname()))
            client.send(post(CHAT))
            assert (await client.answer())[0] == 200
            client.reset()
            server.close()

    uvloop.run(main())


def test_server_reuse_port_shares_port() -> None:
    """SO_REUSEPORT for workers; without it the port is taken."""

    async def main() -> None:
        first = GatewayServer(ActiveSystem(FakeBackend()), host(RecordingSink(), []))
        await first.listen(reuse_port=True)
        config = ServerConfig(port=first.addresses()[0][1])
        second = GatewayServer(ActiveSystem(FakeBackend(config)), host(RecordingSink(), []))
        await second.listen(reuse_port=True)
        third = GatewayServer(ActiveSystem(FakeBackend(config)), host(RecordingSink(), []))
        with pytest.raises(OSError, match="in use"):
            await third.listen()
        first.close()
        second.close()

    uvloop.run(main())


def test_server_reachable_address_without_keys_is_refused() -> None:
    """No key and every address: refused before the socket is bound."""

    async def main() -> None:
        server = GatewayServer(ActiveSystem(FakeBackend(ServerConfig(host="0.0.0.0", port=0))), host(RecordingSink(), []))
        with pytest.raises(ValueError, match="no keys"):
            await server.listen()
        assert server.addresses() == []

    uvloop.run(main())


def test_connection_tasks_report_unhandled_exceptions() -> None:
    """An exception that leaves a Task is heard; a cancellation is not one."""

    async def main() -> None:
        async def fail() -> None:
            raise RuntimeError("lost")

        async def before(request: Request) -> None:
            await asyncio.Event().wait()

        async with serving(FakeBackend(gateway=FakeGateway(before=before))) as running:
            tasks = running.server.http.tasks
            tasks.spawn(fail())
            await tasks.wait_until_empty(1)
            assert [str(error) for error in running.errors] == ["lost"]
            running.errors.clear()
            client = await running.connect()
            client.send(post())
            await eventually(lambda: len(tasks) == 1)
            assert repr(tasks) == "<ConnectionTasks: 1 running>"
            client.reset()
            await eventually(lambda: len(tasks) == 0)

    uvloop.run(main())
