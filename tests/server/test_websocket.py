"""WebSockets: an independent client's view, hostile frames, limits, and the ways in which a connection ends."""

import asyncio
from itertools import pairwise

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from stayfast.http.server.parser import HttpLimits
from stayfast.http.server.websocket import MAX_QUEUED_BYTES, WebSocketLimits
from tests.server.fakes import eventually, get
from tests.server.websocket_rig import (
    ACCEPTED,
    BINARY,
    CLOSE,
    KEY,
    OFFER,
    PING,
    PONG,
    TEXT,
    frame,
    read_close,
    read_frame,
    sockets,
)

pytestmark = pytest.mark.sockets


def test_websocket_echoes_messages_of_a_library_client() -> None:
    """Text and binary, empty and above every length format, fragmented by the client; then its close."""

    async def main() -> None:
        async with sockets() as running:
            async with running.open(subprotocols=[Subprotocol("one"), Subprotocol("two")]) as client:
                assert client.subprotocol == "two"
                assert client.response is not None
                assert client.response.headers["x-request-id"] == "r1"
                for message in ("", "hé\N{SNOWMAN}", "x" * 125, "x" * 126, "x" * 70_000, b"", b"\0\xff" * 40_000):
                    await client.send(message)
                    assert await client.recv() == message
                await client.send(["a", "\N{SNOWMAN}" * 500, "b"])
                assert await client.recv() == "a" + "\N{SNOWMAN}" * 500 + "b"
                assert await (await client.ping(b"p")) >= 0
            assert client.close_code == 1000
            await eventually(lambda: not running.server.connections)
            assert running.app.n_cancelled == 1
            assert running.errors == []

    uvloop.run(main())


def test_websocket_closes_normally_when_handler_returns() -> None:
    """1000, and the connection ends."""

    async def main() -> None:
        async with sockets() as running, running.open("/ws/once") as client:
            await client.send("hi")
            assert await client.recv() == "hi"
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert (client.close_code, running.app.n_cancelled) == (1000, 0)

    uvloop.run(main())


@pytest.mark.parametrize(("word", "code", "reason"), [
    ("reject", 1008, "Not that."), ("shed", 1013, "Not now."), ("crash", 1011, "Internal error."),
])
def test_websocket_handler_error_closes_with_its_code(word: str, code: int, reason: str) -> None:
    """Only an unexpected one is reported, and its text is not sent."""

    async def main() -> None:
        async with sockets() as running:
            async with running.open() as client:
                await client.send(word)
                with pytest.raises(ConnectionClosed):
                    await client.recv()
                assert (client.close_code, client.close_reason) == (code, reason)
            await eventually(lambda: not running.server.connections)
            assert [str(error) for error in running.errors] == (["a bug"] if word == "crash" else [])

    uvloop.run(main())


@pytest.mark.parametrize(("path", "status", "n_errors"), [("/ws/refused", 404, 0), ("/ws/forgotten", 500, 1)])
def test_websocket_handler_that_accepts_nothing_is_an_http_error(path: str, status: int, n_errors: int) -> None:
    """The handshake is answered as any request."""

    async def main() -> None:
        async with sockets() as running:
            with pytest.raises(InvalidStatus) as refused:
                async with running.open(path):
                    pass
            assert refused.value.response.status_code == status
            assert len(running.errors) == n_errors

    uvloop.run(main())


def without(name: str, *more: str) -> list[str]:
    """The offer with one header replaced."""
    return [line for line in OFFER if not line.startswith(name)] + list(more)


@pytest.mark.parametrize(("lines", "status", "words"), [
    ([], 426, b"A WebSocket handshake is expected"),
    (without("upgrade"), 426, b"A WebSocket handshake is expected"),
    (without("upgrade", "upgrade: h2c"), 426, b"A WebSocket handshake is expected"),
    (without("connection"), 426, b"A WebSocket handshake is expected"),
    (without("connection", "connection: close"), 426, b"A WebSocket handshake is expected"),
    (without("sec-websocket-version", "sec-websocket-version: 8"), 426, b"must be 13, not 8"),
    (without("sec-websocket-version"), 426, b"must be 13, not none"),
    (without("sec-websocket-key"), 400, b"sec-websocket-key must be"),
    (without("sec-websocket-key", "sec-websocket-key: c2hvcnQ="), 400, b"sec-websocket-key must be"),
    ([*OFFER, f"sec-websocket-key: {KEY}"], 400, b"sec-websocket-key must be"),
    ([*OFFER, "origin: http://evil.example"], 403, b"origin"),
    ([*OFFER, "content-length: 5"], 426, b"A WebSocket handshake is expected"),
])
def test_websocket_bad_handshake_is_an_http_error(lines: list[str], status: int, words: bytes) -> None:
    """It names what was expected; 426 names the version; the handler does not start."""

    async def main() -> None:
        async with sockets() as running:
            client = await running.connect()
            client.send(get("/ws/echo", *lines) + (b"hello" if "content-length: 5" in lines else b""))
            found, headers, body = await client.answer()
            assert found == status
            assert words in body
            assert (headers.get("upgrade"), headers.get("sec-websocket-version")) == (
                ("websocket", "13") if status == 426 else (None, None))
            assert running.app.n_started == 0

    uvloop.run(main())


@pytest.mark.parametrize("origin", ["http://localhost", "https://app.example.com"])
def test_websocket_own_and_allowed_origins_are_accepted(origin: str) -> None:
    """The server's own is the one of its host header."""

    async def main() -> None:
        async with sockets() as running:
            client = await running.connect()
            client.send(get("/ws/echo", *OFFER, f"origin: {origin}"))
            head = await client.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101 ")
            assert f"sec-websocket-accept: {ACCEPTED}\r\n".encode() in head

    uvloop.run(main())


def test_websocket_refused_offer_keeps_the_connection() -> None:
    """Also on a path that is none; requests before it are answered first, and a WebSocket may follow."""

    async def main() -> None:
        async with sockets() as running:
            client = await running.connect()
            client.send(get("/a") + get("/b", *OFFER) + get("/ws/echo") + get("/ws/echo", *without("sec-websocket-key"))
                        + get("/ws/echo", *OFFER))
            assert [(await client.answer())[0] for _ in range(4)] == [200, 200, 426, 400]
            assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            client.send(frame(TEXT, b"hi"))
            assert await read_frame(client) == (TEXT, b"hi")

    uvloop.run(main())


def test_websocket_frames_before_the_response_are_refused() -> None:
    """They could be another request behind a proxy that does not know upgrades."""

    async def main() -> None:
        async with sockets() as running:
            client = await running.connect()
            client.send(get("/ws/echo", *OFFER) + frame(TEXT, b"early"))
            assert (await client.answer())[0] == 400
            assert await client.rest() == b""
            assert running.app.n_started == 0

    uvloop.run(main())


@pytest.mark.parametrize(("sent", "code"), [
    (frame(TEXT, b"hi", mask=None), 1002),
    (frame(TEXT, b"hi", reserved=4), 1002),
    (frame(TEXT, b"hi", reserved=2), 1002),
    (frame(3, b"hi"), 1002),
    (frame(11, b""), 1002),
    (frame(PING, b"hi", fin=False), 1002),
    (frame(PING, b"x" * 126), 1002),
    (frame(0, b"hi"), 1002),
    (frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), 1002),
    (frame(TEXT, b"x", declared=1 << 63), 1002),
    (bytes((0x81, 0xFE, 0, 5)) + b"\1\2\3\4hello", 1002),
    (frame(CLOSE, b"\3"), 1002),
    (frame(CLOSE, b"\3\xec"), 1002),
    (frame(CLOSE, b"\0\1"), 1002),
    (frame(TEXT, b"\xff\xfe"), 1007),
    (frame(TEXT, b"\xe2\x98", fin=False) + frame(0, b"x"), 1007),
    (frame(TEXT, b"\xed\xa0\x80"), 1007),
    (frame(CLOSE, b"\3\xe8\xff\xff"), 1007),
    (frame(TEXT, b"x" * 20_001), 1009),
    (frame(BINARY, b"x" * 20_000, fin=False) + frame(0, b"y"), 1009),
    (frame(BINARY, b"x" * 30_000, declared=1 << 40), 1009),
    (frame(CLOSE, b"\3\xe8bye"), 1000),
    (frame(CLOSE, b""), 1005),
    (frame(CLOSE, b"\x0f\xa1"), 4001),
    (frame(CLOSE, b"\3\xe8") + frame(TEXT, b"after"), 1000),
])
def test_websocket_frame_ends_connection_with_code(sent: bytes, code: int) -> None:
    """In one write and byte by byte; the handler is cancelled, and receives nothing."""

    async def main() -> None:
        async with sockets(WebSocketLimits(max_message_bytes=20_000, close_timeout_s=60)) as running:
            for step in (len(sent), 1 if len(sent) < 1000 else 997):
                client = await running.open_raw()
                for at in range(0, len(sent), step):
                    client.send(sent[at : at + step])
                assert await read_close(client) == code
            await eventually(lambda: running.app.n_cancelled == 2 and not running.server.connections)
            assert (running.app.received, running.errors) == ([], [])

    uvloop.run(main())


@settings(max_examples=60, deadline=None)
@given(messages=st.lists(st.one_of(st.text(max_size=300), st.binary(max_size=300)), min_size=1, max_size=6), data=st.data())
def test_websocket_messages_do_not_depend_on_fragmentation(messages: list[str | bytes], data: st.DataObject) -> None:
    """Any fragments with control frames between them, in any reads."""
    wire = b""
    n_pings = 0
    for message in messages:
        payload = message.encode() if isinstance(message, str) else message
        cuts = sorted(data.draw(st.lists(st.integers(0, len(payload)), max_size=5)))
        edges = [0, *cuts, len(payload)]
        for at, (start, end) in enumerate(pairwise(edges)):
            opcode = 0 if at else (TEXT if isinstance(message, str) else BINARY)
            mask = data.draw(st.binary(min_size=4, max_size=4))
            wire += frame(opcode, payload[start:end], fin=at == len(edges) - 2, mask=mask)
            if data.draw(st.booleans()):
                wire += frame(PING, b"p")
                n_pings += 1
    reads = sorted({0, *data.draw(st.lists(st.integers(0, len(wire)), max_size=8)), len(wire)})

    async def main() -> None:
        async with sockets() as running:
            client = await running.open_raw()
            for start, end in pairwise(reads):
                client.send(wire[start:end])
                await asyncio.sleep(0)
            found: list[str | bytes] = []
            n_pongs = 0
            while len(found) < len(messages):
                opcode, payload = await read_frame(client)
                if opcode == PONG:
                    n_pongs += 1
                else:
                    found.append(payload.decode() if opcode == TEXT else payload)
            assert found == messages
            assert n_pongs <= n_pings
            client.send(frame(CLOSE, b"\3\xe8"))
            assert await read_close(client) == 1000

    asyncio.run(main())


def test_websocket_ping_flood_is_answered_with_few_pongs() -> None:
    """Only the last ping of a slice is answered, and the loop goes on in between."""

    async def main() -> None:
        async with sockets() as running:
            client = await running.open_raw()
            client.send(frame(PING) * 100_000 + frame(TEXT, b"end"))
            other = await running.connect()
            other.send(get("/other"))
            assert (await other.answer())[2] == b"/other"
            n_pongs = 0
            while (await read_frame(client))[0] == PONG:
                n_pongs += 1
            assert 1 <= n_pongs < 1000

    uvloop.run(main())


@pytest.mark.parametrize("message", [b"x" * 10_000, b""])
def test_websocket_unreceived_messages_pause_the_client(message: bytes) -> None:
    """By their bytes or by their number; when the handler receives them, the others follow."""

    async def main() -> None:
        async with sockets() as running:
            client = await running.open_raw("/ws/gate")
            n_messages = 3000 if message else 5_000_000
            client.send(frame(BINARY, message, mask=bytes(4)) * n_messages)
            n_unsent = -1
            while n_unsent != (n_unsent := client.writer.transport.get_write_buffer_size()):
                await asyncio.sleep(0.2)
            assert n_unsent > 10_000_000  # the kernel holds some
            running.app.gate.set()
            for _ in range(min(n_messages, 3000)):
                assert await read_frame(client) == (BINARY, message)

    uvloop.run(main())


def test_websocket_client_that_reads_nothing_is_disconnected() -> None:
    """`send` waits, so what is held is bounded; after write_timeout_s the connection ends."""

    async def main() -> None:
        async with sockets(limits=HttpLimits(write_timeout_s=0.5)) as running:
            client = await running.open_raw("/ws/flood")
            client.pause_reading()
            await eventually(lambda: running.app.n_cancelled == 1)
            assert running.app.n_sent < 20_000_000
            await eventually(lambda: not running.server.connections)

    uvloop.run(main())


def test_websocket_parallel_senders_all_continue() -> None:
    """Eight Tasks wait for a client that has paused; a pong waits with them."""

    async def main() -> None:
        async with sockets(WebSocketLimits(close_timeout_s=0.2)) as running:
            client = await running.open_raw("/ws/parallel")
            client.pause_reading()
            client.send(frame(PING, b"p"))
            n_sent = -1
            while n_sent != (n_sent := running.app.n_sent):
                await asyncio.sleep(0.1)
            assert n_sent < 8 * 20 * 50_000
            client.resume_reading()
            found = [await read_frame(client) for _ in range(8 * 20 + 1)]
            assert found.count((PONG, b"p")) == 1
            assert await read_close(client) == 1000

    uvloop.run(main())


@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
def test_websocket_disconnect_cancels_handler(how: str) -> None:
    """Without a close frame."""

    async def main() -> None:
        async with sockets() as running:
            client = await running.open_raw("/ws/gate")
            await eventually(lambda: running.app.n_started == 1)
            {"close": client.leave, "half-close": client.writer.write_eof, "reset": client.reset}[how]()
            await eventually(lambda: running.app.n_cancelled == 1 and not running.server.connections)
            assert running.errors == []

    uvloop.run(main())


def test_websocket_pings_and_disconnects_without_any_answer() -> None:
    """A library's client answers and stays, beyond every time-out of HTTP; a silent one goes."""

    async def main() -> None:
        limits = HttpLimits(idle_timeout_s=0.2, head_timeout_s=0.2, body_timeout_s=0.2)
        async with sockets(WebSocketLimits(ping_s=0.6), limits) as running, running.open() as client:
            silent = await running.open_raw()
            assert await read_frame(silent) == (PING, b"")
            assert await silent.rest() == b""
            await asyncio.sleep(1.0)
            await client.send("still here")
            assert await client.recv() == "still here"

    uvloop.run(main())


def test_websocket_idle_client_is_closed_unless_the_handler_works() -> None:
    """Pings alone do not keep it."""

    async def main() -> None:
        async with sockets(WebSocketLimits(ping_s=0.5, idle_timeout_s=0.4)) as running, running.open("/ws/work") as worked:
            async with running.open() as idle:
                with pytest.raises(ConnectionClosed):
                    await idle.recv()
                assert (idle.close_code, idle.close_reason) == (1001, "No message for 0.4 s.")
            running.app.gate.set()
            assert await worked.recv() == "done"

    uvloop.run(main())


def test_websocket_lifetime_ends_with_message_and_1001() -> None:
    """The handler is cancelled."""

    async def main() -> None:
        async with sockets(WebSocketLimits(max_lifetime_s=0.3, expiry_message="reconnect")) as running:
            async with running.open("/ws/gate") as client:
                assert await client.recv() == "reconnect"
                with pytest.raises(ConnectionClosed):
                    await client.recv()
                assert client.close_code == 1001
            assert running.app.n_cancelled == 1

    uvloop.run(main())


def test_websocket_shutdown_closes_idle_at_once_and_working_after_its_work() -> None:
    """Both with 1001."""

    async def main() -> None:
        async with sockets() as running, running.open() as idle, running.open("/ws/work") as worked:
            await eventually(lambda: running.app.n_started == 2)
            running.server.reject_new_requests()
            for connection in tuple(running.server.connections):
                connection.close_if_idle()
            with pytest.raises(ConnectionClosed):
                await idle.recv()
            assert idle.close_code == 1001
            running.app.gate.set()
            assert await worked.recv() == "done"
            with pytest.raises(ConnectionClosed):
                await worked.recv()
            assert (worked.close_code, worked.close_reason) == (1001, "The server is shutting down.")
            await eventually(lambda: not running.server.connections)

    uvloop.run(main())


def test_websocket_close_without_the_clients_part_ends_in_time() -> None:
    """A client that never answers our close frame, and sends on."""

    async def main() -> None:
        async with sockets(WebSocketLimits(close_timeout_s=0.2)) as running:
            client = await running.open_raw("/ws/once")
            client.send(frame(TEXT, b"hi") + frame(TEXT, b"more"))
            assert await read_frame(client) == (TEXT, b"hi")
            opcode, payload = await read_frame(client)
            assert (opcode, payload[:2]) == (CLOSE, b"\3\xe8")
            await eventually(lambda: not running.server.connections)

    uvloop.run(main())


def test_websocket_counts_as_a_connection() -> None:
    """At the limit a new connection is refused, and the WebSocket stays."""

    async def main() -> None:
        async with sockets(limits=HttpLimits(max_connections=1)) as running, running.open() as client:
            other = await running.connect()
            assert (await other.answer())[0] == 503
            await client.send("hi")
            assert await client.recv() == "hi"

    uvloop.run(main())


def test_websocket_fragments_of_one_byte_are_one_message() -> None:
    """As large as the limit."""

    async def main() -> None:
        n = MAX_QUEUED_BYTES // 8
        async with sockets(WebSocketLimits(max_message_bytes=n)) as running:
            client = await running.open_raw()
            client.send(frame(BINARY, b"x", fin=False) + frame(0, b"x", fin=False) * (n - 2) + frame(0, b"x"))
            assert await read_frame(client) == (BINARY, b"x" * n)

    uvloop.run(main())
