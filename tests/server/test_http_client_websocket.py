"""WebSockets to an upstream, against the `websockets` library and against raw bytes."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol
from wsproto.connection import SERVER, Connection
from wsproto.events import BytesMessage

from stayfast.core.clock import SystemClock
from stayfast.core.errors import UpstreamFailed
from stayfast.http.client.client import HttpConfig
from stayfast.http.client.websocket import SocketClosed, SocketDialer, SocketHead, UpstreamSocket, encode_masked
from tests.unit.http.client.peers import listening, on_sockets
from tests.unit.http.client.tls_peers import Trust

pytestmark = pytest.mark.sockets


async def dial(port: int, *, subprotocols: tuple[str, ...] = (), max_bytes: int = 1 << 20) -> UpstreamSocket | SocketHead:
    dialer = SocketDialer("up", HttpConfig(f"http://127.0.0.1:{port}/v1"), SystemClock())
    return await dialer.open("/v1/realtime?model=m", [("authorization", "Bearer k")], subprotocols,
                             connect_by=time.monotonic() + 5, max_message_bytes=max_bytes)


@asynccontextmanager
async def peer(handler: Callable[[ServerConnection], Awaitable[None]], *, chosen: str | None = None,
               max_bytes: int = 1 << 20) -> AsyncIterator[UpstreamSocket]:
    """A WebSocket to a server of the library, which runs `handler`."""
    def choose(_: ServerConnection, __: Sequence[Subprotocol]) -> Subprotocol | None:
        return Subprotocol(chosen) if chosen is not None else None

    async with serve(handler, "127.0.0.1", 0, select_subprotocol=choose, max_size=None) as server:
        found = await dial(server.sockets[0].getsockname()[1], subprotocols=("realtime",) if chosen else (),
                           max_bytes=max_bytes)
        assert isinstance(found, UpstreamSocket)
        try:
            yield found
        finally:
            found.abort()
            await asyncio.sleep(0.01)


@given(st.binary(max_size=70_000), st.binary(min_size=4, max_size=4))
def test_encode_masked_any_message_is_read_by_wsproto(message: bytes, mask: bytes) -> None:
    frames = Connection(SERVER)
    frames.receive_data(encode_masked(message, lambda _: mask))
    parts = [event for event in frames.events() if isinstance(event, BytesMessage)]
    assert b"".join(bytes(part.data) for part in parts) == message
    assert parts[-1].message_finished


def test_open_exchanges_messages_and_subprotocol() -> None:
    async def echo(socket: ServerConnection) -> None:
        assert socket.request is not None
        await socket.send(f"{socket.request.path} {socket.request.headers['authorization']}")
        async for message in socket:
            await socket.send(message)

    async def main() -> None:
        async with peer(echo, chosen="realtime") as socket:
            assert socket.subprotocol == "realtime"
            assert await socket.receive() == "/v1/realtime?model=m Bearer k"
            for message in ("hé", b"\0\1", "x" * 70_000, b"y" * 200):
                await socket.send(message)
                assert await socket.receive() == message

    on_sockets(main)


def test_receive_fragmented_message_is_whole_and_ping_is_answered() -> None:
    async def handler(socket: ServerConnection) -> None:
        await (await socket.ping())
        await socket.send(["he", "l", "lo"])
        await socket.send([b"a", b"b"])
        await socket.wait_closed()

    async def main() -> None:
        async with peer(handler) as socket:
            assert await socket.receive() == "hello"
            assert await socket.receive() == b"ab"

    on_sockets(main)


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (4001, "session expired"), (1011, "broken")])
def test_receive_closed_by_upstream_raises_code_after_last_message(code: int, reason: str) -> None:
    async def handler(socket: ServerConnection) -> None:
        await socket.send("last")
        await socket.close(code, reason)

    async def main() -> None:
        async with peer(handler) as socket:
            assert await socket.receive() == "last"
            with pytest.raises(SocketClosed) as closed:
                await socket.receive()
            assert (closed.value.code, closed.value.reason) == (code, reason)

    on_sockets(main)


def test_receive_from_vanished_upstream_raises_1006() -> None:
    async def handler(socket: ServerConnection) -> None:
        socket.transport.abort()

    async def main() -> None:
        async with peer(handler) as socket:
            with pytest.raises(SocketClosed) as closed:
                await socket.receive()
            assert closed.value.code == 1006

    on_sockets(main)


def test_receive_too_large_message_raises_1009() -> None:
    async def handler(socket: ServerConnection) -> None:
        await socket.send("x" * 2000)
        await socket.wait_closed()

    async def main() -> None:
        async with peer(handler, max_bytes=1000) as socket:
            with pytest.raises(SocketClosed) as closed:
                await socket.receive()
            assert closed.value.code == 1009

    on_sockets(main)


def test_close_sends_code_and_reason() -> None:
    codes: list[tuple[int | None, str | None]] = []

    async def handler(socket: ServerConnection) -> None:
        await socket.wait_closed()
        codes.append((socket.close_code, socket.close_reason))

    async def main() -> None:
        async with peer(handler) as socket:
            socket.close(4000, "done")
            while not codes:
                await asyncio.sleep(0.005)
        assert codes == [(4000, "done")]

    on_sockets(main)


def test_open_refused_returns_head_and_body() -> None:
    async def main() -> None:
        async with listening() as raw:
            dialing = asyncio.get_running_loop().create_task(dial(raw.port))
            talk = await raw.accept()
            await talk.request()
            talk.say(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            talk.say(b"HTTP/1.1 401 No\r\ntransfer-encoding: chunked\r\n\r\n3\r\nbad\r\n0\r\n\r\n")
            refusal = await dialing
            assert isinstance(refusal, SocketHead)
            assert (refusal.status, refusal.body) == (401, b"bad")
            await talk.left()

    on_sockets(main)


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: wrong\r\n\r\n",
    b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 101 Swi", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
])
def test_open_wrong_answer_fails_and_closes(answer: bytes) -> None:
    async def main() -> None:
        async with listening() as raw:
            dialing = asyncio.get_running_loop().create_task(dial(raw.port))
            talk = await raw.accept()
            await talk.request()
            talk.say(answer)
            if not answer.endswith((b"\n", b"y")):
                talk.hang_up()
            with pytest.raises(UpstreamFailed):
                await dialing

    on_sockets(main)


def test_open_over_tls_checks_certificate_and_exchanges(tmp_path: Path) -> None:
    async def echo(socket: ServerConnection) -> None:
        async for message in socket:
            await socket.send(message)

    async def main() -> None:
        trust = Trust(tmp_path)
        async with serve(echo, "127.0.0.1", 0, ssl=trust.server("h2", "http/1.1")) as server:
            origin = f"https://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/v1"
            trusting = SocketDialer("up", HttpConfig(origin, ca_file=trust.ca_file), SystemClock())
            socket = await trusting.open("/v1/realtime", [], (), connect_by=time.monotonic() + 5, max_message_bytes=1000)
            assert isinstance(socket, UpstreamSocket)
            await socket.send("x")
            assert await socket.receive() == "x"
            socket.close(1000, "")
            with pytest.raises(UpstreamFailed, match="untrusted certificate"):
                await SocketDialer("up", HttpConfig(origin), SystemClock()).open(
                    "/v1/realtime", [], (), connect_by=time.monotonic() + 5, max_message_bytes=1000)
            await asyncio.sleep(0.05)

    on_sockets(main)
