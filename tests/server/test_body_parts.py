"""Streamed request bodies: parts, back-pressure, limits, time-outs, and what follows them on the connection."""

import asyncio
import tracemalloc
from itertools import pairwise

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.clock import SystemClock
from stayfast.core.errors import StayfastError
from stayfast.http.server.body_parts import MAX_UNREAD_BYTES
from stayfast.http.server.parser import IDLE, HttpLimits, HttpRequest, RequestParser
from stayfast.http.server.response import LAST_CHUNK
from tests.server.fakes import eventually, get, post
from tests.server.upload_rig import chunked, uploading

pytestmark = pytest.mark.sockets

MIB = 1 << 20


def test_streamed_body_handler_gets_parts_before_the_end() -> None:
    """Sized and chunked; the connection serves the next request."""

    async def main() -> None:
        async with uploading() as running:
            client = await running.connect()
            for data in (post(b"ab" * 5000, "/upload"), chunked("/upload", b"x" * 7000, b"y" * 3000) + LAST_CHUNK):
                running.app.sizes.clear()
                client.send(data[:-2000])
                await eventually(lambda: sum(running.app.sizes) > 6000)
                assert sum(running.app.sizes) < 9000
                client.send(data[-2000:])
                assert (await client.answer())[::2] == (200, b"10000 of /upload")
            client.send(get("/"))
            assert (await client.answer())[::2] == (200, b"0 of /")

    uvloop.run(main())


def test_streamed_body_of_200_mb_takes_no_memory() -> None:
    """Above HttpLimits.max_body_bytes, which is for collected bodies."""

    async def main() -> None:
        async with uploading() as running:
            client = await running.connect()
            client.send(post(b"", "/upload").replace(b"length: 0", b"length: %d" % (200 * MIB)))
            block = b"x" * MIB
            tracemalloc.start()
            try:
                for _ in range(200):
                    client.send(block)
                    await client.writer.drain()
                assert (await client.answer())[::2] == (200, b"%d of /upload" % (200 * MIB))
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 20 * MIB

    uvloop.run(main())


def test_streamed_body_unread_pauses_the_client() -> None:
    """At most the limit and one read of the socket are held; the rest stays at the client until the handler reads."""

    async def main() -> None:
        async with uploading() as running:
            client = await running.connect()
            client.send(post(b"x" * (40 * MIB), "/upload/gate"))
            n_unsent = -1
            while n_unsent != (n_unsent := client.writer.transport.get_write_buffer_size()):
                await asyncio.sleep(0.2)
            assert n_unsent > 20 * MIB  # the kernel holds some
            running.app.gate.set()
            assert (await client.answer())[::2] == (200, b"%d of /upload/gate" % (40 * MIB))
            assert max(running.app.sizes) <= 2 * MAX_UNREAD_BYTES

    uvloop.run(main())


def test_streamed_body_pause_is_not_the_clients_delay() -> None:
    """The body's time-out excludes the time in which the server did not read."""

    async def main() -> None:
        async with uploading(HttpLimits(body_timeout_s=1.0)) as running:
            client = await running.connect()
            n_sent = MAX_UNREAD_BYTES + 1  # pauses when all of it has arrived
            client.send(post(b"x" * (n_sent + 1), "/upload/gate")[:-1])
            await asyncio.sleep(1.5)
            assert running.app.errors == []
            running.app.gate.set()
            await eventually(lambda: sum(running.app.sizes) == n_sent)
            await asyncio.sleep(0.1)
            client.send(b"x")
            assert (await client.answer())[0] == 200

    uvloop.run(main())


@pytest.mark.parametrize("data", [post(b"x" * 2001, "/upload"), post(b"x" * 2001, "/upload", "expect: 100-continue")])
def test_streamed_body_declared_too_large_is_413_without_handler(data: bytes) -> None:
    """Before any of it is read."""

    async def main() -> None:
        async with uploading(limit_bytes=2000) as running:
            client = await running.connect()
            client.send(data[:-2001])
            status, headers, body = await client.answer()
            assert (status, headers["connection"]) == (413, "close")
            assert b"larger than 2000 bytes" in body
            assert running.app.n_started == 0

    uvloop.run(main())


def test_streamed_body_too_large_in_the_middle_is_413() -> None:
    """The handler has read what fitted; the answer arrives although the client still sends."""

    async def main() -> None:
        async with uploading(limit_bytes=MIB) as running:
            client = await running.connect()
            client.send(chunked("/upload", *[b"x" * 65_536] * 160))
            status, headers, _ = await client.answer()
            assert (status, headers["connection"], running.app.errors) == (413, "close", [413])
            assert sum(running.app.sizes) <= MIB
            assert await client.rest() == b""

    uvloop.run(main())


@pytest.mark.parametrize("data", [post(b"x" * 9000, "/upload")[:-1], chunked("/upload", b"x" * 1000)])
def test_streamed_body_stalled_is_408(data: bytes) -> None:
    """The handler's read raises it, and the connection ends."""

    async def main() -> None:
        async with uploading(HttpLimits(body_timeout_s=0.1)) as running:
            client = await running.connect()
            client.send(data)
            status, headers, _ = await client.answer()
            assert (status, headers["connection"], running.app.errors) == (408, "close", [408])
            assert await client.rest() == b""

    uvloop.run(main())


def test_streamed_body_fast_then_stalled_is_408() -> None:
    """Time that a fast start would earn at 16 KiB/s does not count: 20 MiB would be 21 minutes."""

    async def main() -> None:
        async with uploading(HttpLimits(body_timeout_s=0.3)) as running:
            client = await running.connect()
            client.send(post(b"x" * (20 * MIB), "/upload")[:-1])
            assert (await client.answer())[0] == 408

    uvloop.run(main())


@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
def test_streamed_body_disconnect_cancels_handler(how: str) -> None:
    """In the middle of a chunk."""

    async def main() -> None:
        async with uploading() as running:
            client = await running.connect()
            client.send(chunked("/upload", b"x" * 1000) + b"ff\r\nabc")
            await eventually(lambda: sum(running.app.sizes) == 1003)
            {"close": client.leave, "half-close": client.writer.write_eof, "reset": client.reset}[how]()
            await eventually(lambda: running.app.n_cancelled == 1 and not running.server.connections)
            assert running.app.errors == []

    uvloop.run(main())


@pytest.mark.parametrize("garbage", [b"zz\r\n", b"5\r\nabcdeXX", b"-1\r\n", b"1" * 70_000])
def test_streamed_body_malformed_chunk_is_400(garbage: bytes) -> None:
    """Nothing after it is parsed."""

    async def main() -> None:
        async with uploading() as running:
            client = await running.connect()
            client.send(chunked("/upload", b"x" * 1000))
            await eventually(lambda: running.app.n_started == 1)
            client.send(garbage)
            status, headers, _ = await client.answer()
            assert (status, headers["connection"], running.app.errors) == (400, "close", [400])
            client.send(get("/"))
            assert await client.rest() == b""
            assert running.app.n_started == 1

    uvloop.run(main())


def test_streamed_body_pipelined_requests_are_in_order() -> None:
    """Before and behind: the parts of one never become those of another."""

    async def main() -> None:
        async with uploading() as running:
            client = await running.connect()
            client.send(post(b"a" * 10, "/first") + post(b"b" * 20_000, "/upload") + get("/second")
                        + chunked("/upload/third", b"c" * 300) + LAST_CHUNK + post(b"d", "/last"))
            bodies = [(await client.answer())[2] for _ in range(5)]
            assert bodies == [b"10 of /first", b"20000 of /upload", b"0 of /second", b"300 of /upload/third", b"1 of /last"]
            assert running.app.body == b"b" * 20_000 + b"c" * 300

    uvloop.run(main())


def test_streamed_body_behind_running_request_has_the_read_ahead_limit() -> None:
    """Reading goes on for the running one's disconnect; the waiting one is refused without its handler."""

    async def main() -> None:
        async with uploading() as running:
            client = await running.connect()
            client.send(get("/wait"))
            await eventually(lambda: running.app.n_started == 1)
            client.send(post(b"x" * MIB, "/upload"))
            await client.writer.drain()
            await eventually(lambda: client.writer.transport.get_write_buffer_size() == 0)
            await asyncio.sleep(0.1)
            running.app.gate.set()
            assert (await client.answer())[0] == 200
            status, headers, body = await client.answer()
            assert (status, headers["connection"]) == (400, "close")
            assert b"while a request was being answered" in body
            assert running.app.n_started == 1

    uvloop.run(main())


def test_streamed_body_read_ahead_counts_only_what_follows_it() -> None:
    """A second upload on the same connection, much larger than what may be read ahead."""

    async def main() -> None:
        async with uploading() as running:
            client = await running.connect()
            for _ in range(2):
                client.send(post(b"x" * (3 * MIB), "/upload"))
                assert (await client.answer())[::2] == (200, b"%d of /upload" % (3 * MIB))

    uvloop.run(main())


def test_streamed_body_left_unread_keeps_connection_only_if_whole() -> None:
    """A body that has arrived is dropped; one that has not ends the connection, after the client got its answer."""

    async def main() -> None:
        async with uploading() as running:
            client = await running.connect()
            client.send(post(b"x" * 1000, "/upload/unread") + get("/"))
            status, headers, _ = await client.answer()
            assert (status, headers.get("connection")) == (200, None)
            assert (await client.answer())[2] == b"0 of /"
            client.send(post(b"x" * (30 * MIB), "/upload/unread"))
            status, headers, _ = await client.answer()
            assert (status, headers["connection"]) == (200, "close")
            assert await client.rest() == b""

    uvloop.run(main())


def test_streamed_body_100_continue_is_sent_at_the_first_read() -> None:
    """Not before it, and not at all if the handler answers instead."""

    async def main() -> None:
        async with uploading() as running:
            client = await running.connect()
            client.send(post(b"x" * 9, "/upload/gate", "expect: 100-continue")[:-9])
            await eventually(lambda: running.app.n_started == 1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.until(b"\r\n")
            running.app.gate.set()
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(b"x" * 9)
            assert (await client.answer())[::2] == (200, b"9 of /upload/gate")
            client.send(post(b"x" * 9, "/upload/early", "expect: 100-continue")[:-9])
            assert (await client.answer())[::2] == (507, b"The disk is full.")

    uvloop.run(main())


def test_streamed_body_early_error_reaches_a_client_that_still_sends() -> None:
    """No reset overtakes it."""

    async def main() -> None:
        async with uploading() as running:
            client = await running.connect()
            client.send(post(b"x" * (50 * MIB), "/upload/early"))
            status, headers, body = await client.answer()
            assert (status, headers["connection"], body) == (507, "close", b"The disk is full.")
            assert await client.rest() == b""

    uvloop.run(main())


def test_streamed_body_of_refused_head_is_dropped() -> None:
    """As for a collected body: a short one keeps the connection."""

    async def main() -> None:
        async with uploading() as running:
            client = await running.connect()
            client.send(post(b"x" * 1000, "/upload/refused") + get("/"))
            assert (await client.answer())[0] == 403
            assert (await client.answer())[0] == 200
            assert running.app.n_started == 1

    uvloop.run(main())


def test_asgi_receive_streams_parts() -> None:
    """`more_body` until the end."""

    async def main() -> None:
        async with uploading() as running:
            client = await running.connect()
            client.send(post(b"x" * (3 * MIB), "/upload/asgi"))
            status, _, body = await client.answer()
            n_bytes, _, n_parts = body.partition(b" in ")
            assert (status, int(n_bytes)) == (200, 3 * MIB)
            assert int(n_parts) > 4
            client.send(post(b"", "/upload/asgi"))
            assert (await client.answer())[2] == b"0 in 1"

    uvloop.run(main())


def streaming_parser() -> RequestParser[HttpRequest]:
    """A parser that streams the bodies of /upload."""

    def check_head(request: HttpRequest) -> StayfastError | None:
        if request.path == "/upload":
            request.stream_body(10_000)
        return None

    return RequestParser(HttpRequest, HttpLimits(), SystemClock(), check_head)


_SENT = (post(b"one", "/a") + post(b"two" * 50, "/upload") + chunked("/upload", b"three", b"x" * 9)
         + b"0\r\nx-trailer: y\r\n\r\n" + get("/b") + post(b"", "/upload"))


@given(cuts=st.lists(st.integers(0, len(_SENT)), max_size=30))
def test_streamed_bodies_are_the_same_for_any_split(cuts: list[int]) -> None:
    """Parts, order and keep-alive do not depend on how the bytes arrive."""

    async def main() -> list[tuple[str, bytes, bool]]:
        parser = streaming_parser()
        edges = sorted({0, *cuts, len(_SENT)})
        for start, end in pairwise(edges):
            parser.feed(_SENT[start:end])
        assert parser.phase == IDLE
        found = []
        for request in parser.ready:
            body = request.body
            if request.body_parts is not None:
                while part := await request.body_parts.read():
                    body += part
            found.append((request.path, body, request.keep_alive))
        return found

    assert asyncio.run(main()) == [("/a", b"one", True), ("/upload", b"two" * 50, True),
                                   ("/upload", b"threexxxxxxxxx", True), ("/b", b"", True), ("/upload", b"", True)]


def test_streamed_tiny_chunks_cost_their_bytes() -> None:
    """100,000 chunks of 2 bytes that nobody has read."""
    parser = streaming_parser()
    parser.feed(chunked("/upload"))
    data = b"2\r\n{}\r\n" * 5_000
    tracemalloc.start()
    try:
        parser.feed(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
