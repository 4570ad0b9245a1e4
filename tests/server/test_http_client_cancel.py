"""The HTTP client on real sockets: cancelled in every state, it closes at once and leaves nothing open."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.http.client.dialer import Dialer
from tests.unit.http.client.peers import PROMPT_S, Caller, deaf, listening, on_sockets, open_sockets, until

pytestmark = pytest.mark.sockets


def test_cancelled_while_resolving() -> None:
    """A request that leaves during the look-up frees its place at once; the look-up ends by itself."""
    gate = threading.Event()

    def lookup(*args: Any, **options: Any) -> Any:
        gate.wait(5)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    async def main() -> None:
        caller = Caller(1, host="slow.test", max_connections=1, lookup=lookup)
        sending = caller.send()
        await asyncio.sleep(0.01)
        sending.cancel()
        await asyncio.wait([sending], timeout=PROMPT_S)
        assert sending.cancelled()
        assert caller.is_unused()
        gate.set()

    on_sockets(main)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_connecting(loop: str) -> None:
    """Cancelled or timed out while the peer does not accept, no socket stays open."""

    async def main() -> None:
        with deaf() as port:
            before = open_sockets()
            caller = Caller(port)
            sending = caller.send()
            await until(lambda: bool(open_sockets() - before))
            sending.cancel()
            await asyncio.wait([sending])
            await until(lambda: open_sockets() <= before)
            with pytest.raises(UpstreamFailed, match="waiting for a new connection") as failed:
                await caller.send(within_s=0.05)
            assert failed.value.fault is Fault.TIMEOUT
            await until(lambda: open_sockets() <= before)
            assert caller.is_unused()

    on_sockets(main, loop=loop)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_cancelled_before_the_head(said: bytes) -> None:
    """Cancelled before the head is in, the peer sees it at once and the pool is empty."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            sending = caller.send()
            talk = await peer.accept()
            await talk.request()
            talk.say(said)
            await asyncio.sleep(0.01)
            sending.cancel()
            assert await talk.left() < PROMPT_S
            assert sending.cancelled()
            assert caller.counts == (0, 0)

    on_sockets(main)


def test_cancelled_on_a_pooled_connection() -> None:
    """A half-used connection never goes back to the pool."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            talk = await caller.ask(peer)
            sending = caller.send()
            await talk.request()
            sending.cancel()
            assert await talk.left() < PROMPT_S
            assert caller.counts == (0, 0)

    on_sockets(main)


def test_left_in_the_body() -> None:
    """A reader that is cancelled and closes: the peer sees it at once, though it would go on for ever."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            sending = caller.send()
            talk = await peer.accept()
            await talk.request()
            talk.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n")
            response = await sending
            assert await response.read() == b"he"
            reading = asyncio.get_running_loop().create_task(response.read())
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            response.close()
            assert await talk.left() < PROMPT_S
            assert caller.counts == (0, 0)

    on_sockets(main)


@pytest.mark.parametrize(("broken", "fault"), [(OSError(22, "Invalid argument"), Fault.CONNECT), (KeyError(), None)])
def test_no_socket_is_left_by_a_failure(monkeypatch: pytest.MonkeyPatch, broken: Exception, fault: Fault | None) -> None:
    """Whatever fails between connecting and the first request, the peer sees the connection close."""

    def tune(*args: Any) -> None:
        raise broken

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            monkeypatch.setattr(Dialer, "_set_socket_options", tune)
            with pytest.raises(type(broken) if fault is None else UpstreamFailed) as failed:
                await caller.send()
            assert getattr(failed.value, "fault", None) is fault
            assert await (await peer.accept()).left() < PROMPT_S
            assert caller.is_unused()

    on_sockets(main)
