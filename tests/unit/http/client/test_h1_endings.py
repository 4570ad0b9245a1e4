"""One HTTP/1.1 connection: how an answer breaks, and when its connection must not be used again."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import Fault, UpstreamFailed
from tests.unit.http.client.h1_bench import CHUNKED, PLAIN, Bench, on_bench, request


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_h1_garbage_never_raises(noise: bytes, cuts: list[int]) -> None:
    """Any bytes give a complete response or a failure."""

    async def check() -> None:
        bench = Bench()
        edges = [0, *sorted(cut for cut in cuts if cut < len(noise)), len(noise)]
        for a, b in pairwise(edges):
            if not bench.transport.is_aborted:
                bench.feed(noise[a:b])
        bench.connection.connection_lost(None)
        fault = await bench.fault()
        assert fault in (None, Fault.MALFORMED, Fault.RESET)
        assert bench.pool.n_busy == 0

    on_bench(check)


@pytest.mark.parametrize("cut", [PLAIN[:-1], CHUNKED[:-3], PLAIN[:20]])
def test_h1_truncated_response_is_a_reset(cut: bytes) -> None:
    """The bytes before the close can still be read."""

    async def check() -> None:
        bench = Bench()
        bench.feed(cut)
        bench.connection.connection_lost(None)
        assert await bench.fault() is Fault.RESET
        assert not bench.answer.was_untouched
        assert bench.pool.n_busy == 0

    on_bench(check)


def test_h1_close_before_the_first_byte_is_untouched() -> None:
    """Only such a request may be sent again."""

    async def check() -> None:
        bench = Bench()
        bench.connection.connection_lost(None)
        assert bench.answer.was_untouched
        with pytest.raises(UpstreamFailed):
            await bench.answer.wait_head()

    on_bench(check)


@pytest.mark.parametrize("junk", [b"H", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"nonsense\r\n", b"\x00" * 40])
def test_h1_bytes_after_a_response_close_the_connection(junk: bytes) -> None:
    """Bytes behind an answer leave it whole and its connection unusable: they could pose as the next answer."""

    async def check() -> None:
        for parts in ([PLAIN + junk], [PLAIN, junk]):
            bench = Bench()
            bench.feed(*parts)
            assert bench.answer.headers["x-request-id"] == "a1"
            assert await bench.body() == b"hello"
            assert bench.transport.is_aborted
            assert bench.pool.n_idle == bench.pool.n_busy == 0

    on_bench(check)


@pytest.mark.parametrize("raw", [
    b"SSH-2.0-x\r\n",
    b"HTTP/1.1 2x0 OK\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
])
def test_h1_invalid_response_is_malformed(raw: bytes) -> None:
    """The socket is closed at once."""

    async def check() -> None:
        bench = Bench()
        bench.feed(raw)
        assert await bench.fault() is Fault.MALFORMED
        assert bench.transport.is_aborted
        assert bench.pool.n_busy == 0

    on_bench(check)


@pytest.mark.parametrize("parts", [
    [b"HTTP/1.1 200 OK\r\nX-A: ", *[b"x" * 500] * 9],  # a line without an end
    [b"HTTP/1.1 200 OK\r\n", *[b"X-%d: %s\r\n" % (i, b"y" * 300) for i in range(14)]],
    [b"HTTP/1.1 200 OK\r\nX-A: " + b"x" * 5000 + b"\r\nContent-Length: 0\r\n\r\n"],  # whole in one read
    [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"] * 120,
    [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n0\r\n", *[b"X-T: " + b"z" * 900 + b"\r\n"] * 5],
])
def test_h1_endless_head_is_malformed(parts: list[bytes]) -> None:
    """Heads, interim answers and trailers cannot grow beyond the limit."""

    async def check() -> None:
        bench = Bench(max_head_bytes=4096)
        for part in parts:
            if not bench.transport.is_aborted:
                bench.feed(part)
        assert await bench.fault() is Fault.MALFORMED
        with pytest.raises(UpstreamFailed, match="more than 4096 bytes"):
            await bench.body()
        assert bench.pool.n_busy == 0

    on_bench(check)


def test_h1_head_up_to_the_limit_is_accepted() -> None:
    """Also in one read with a long body."""

    async def check() -> None:
        bench = Bench(max_head_bytes=4096)
        bench.feed(b"HTTP/1.1 200 OK\r\nX-A: " + b"x" * 3900 + b"\r\nContent-Length: 9000\r\n\r\n" + b"b" * 9000)
        assert len(await bench.body()) == 9000
        assert bench.pool.n_idle == 1

    on_bench(check)


def test_h1_close_wakes_the_reader() -> None:
    """Closing from elsewhere aborts the socket and ends a reader's wait; closing again changes nothing."""

    async def check() -> None:
        bench = Bench()
        bench.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        reading = asyncio.get_running_loop().create_task(bench.answer.read())
        await asyncio.sleep(0)
        bench.answer.close()
        bench.answer.close()
        with pytest.raises(UpstreamFailed):
            await reading
        assert bench.transport.is_aborted
        assert bench.pool.n_busy == 0

    on_bench(check)


def test_h1_idle_peer_that_sends_or_closes_is_removed() -> None:
    """Bytes or a close on an idle connection take it out of the pool."""

    async def check() -> None:
        for said in (b"HTTP/1.1 408 X\r\n\r\n", b""):
            bench = Bench()
            bench.feed(PLAIN)
            assert bench.pool.n_idle == 1
            if said:
                bench.feed(said)
            else:
                bench.connection.connection_lost(None)
            assert bench.pool.n_idle == bench.pool.n_busy == 0
            assert bench.pool.try_acquire() is None

    on_bench(check)


def test_h1_request_on_a_closed_connection_is_refused() -> None:
    """A connection lost between being taken and being used refuses: nothing was sent."""

    async def check() -> None:
        bench = Bench()
        bench.feed(PLAIN)
        assert bench.pool.try_acquire() is bench.connection
        bench.connection.connection_lost(None)
        answer = bench.connection.send_request(request())
        assert answer.was_refused
        with pytest.raises(UpstreamFailed):
            await answer.wait_head()
        assert bench.pool.n_busy == 0

    on_bench(check)


def test_h1_response_before_the_request_was_sent_closes() -> None:
    """The connection is not reused, because the request is still being written."""

    async def check() -> None:
        bench = Bench()
        bench.transport.n_unwritten = 1
        bench.feed(PLAIN)
        assert await bench.body() == b"hello"
        assert bench.transport.is_aborted

    on_bench(check)


@pytest.mark.parametrize("head", [
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
])
def test_h1_connection_close_is_not_reused(head: bytes) -> None:
    """`Connection: close` and HTTP/1.0 end the connection with the answer."""

    async def check() -> None:
        bench = Bench()
        bench.feed(head)
        assert await bench.body() == b"hello"
        assert bench.transport.is_aborted
        assert bench.pool.n_idle == 0

    on_bench(check)
