"""One HTTP/1.1 connection, fed by hand: every way an answer can come, end and break."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.upstreams.answer import Answer, Outgoing
from stayfast.upstreams.h1 import HIGH_WATER, H1Connection
from stayfast.upstreams.pool import Pool
from tests.unit.upstreams.fakes import FakeTransport, new_pool

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Request-Id: a1\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;ext=1\r\nllo\r\n0\r\nX-Trailer: 1\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + PLAIN


class Bench:
    """A connection on a fake transport, taken for one request."""

    def __init__(self, method: str = "POST", max_head_bytes: int = 4096) -> None:
        self.transport = FakeTransport()
        self.pool: Pool = new_pool()
        self.connection = H1Connection("up", self.transport, self.pool, max_head_bytes, asyncio.get_running_loop())
        self.pool._n_dialing = 1
        self.pool.dialed(self.connection)
        self.answer: Answer = self.connection.request(outgoing(method))

    def feed(self, *parts: bytes) -> None:
        """Bytes from the peer, one call for each read of the socket."""
        for part in parts:
            self.connection.data_received(part)

    async def body(self) -> bytes:
        """All of the body."""
        parts = []
        while data := await self.answer.read():
            parts.append(data)
        return b"".join(parts)

    async def fault(self) -> Fault | None:
        """How the answer failed; None: it is whole."""
        try:
            await self.answer.wait_head()
            await self.body()
        except UpstreamFailed as failed:
            return failed.fault
        return None


def outgoing(method: str = "POST", headers: list[tuple[str, str]] | None = None, body: bytes = b"{}") -> Outgoing:
    """A request."""
    return Outgoing(method, "/v1/x", headers or [], body, upstream="up", authority="host:1")


def on_bench(check: Callable[[], object]) -> None:
    """Run a coroutine function on a loop of its own."""

    async def run() -> None:
        result = check()
        if asyncio.iscoroutine(result):
            await result

    asyncio.run(run())


def test_request_as_written() -> None:
    """Host and content-length come from us, the rest as given, in one write."""

    async def check() -> None:
        bench = Bench()
        assert bench.transport.written == b"POST /v1/x HTTP/1.1\r\nhost: host:1\r\ncontent-length: 2\r\n\r\n{}"
        written = outgoing("GET", [("a", "b"), ("c", "d")], b"").head
        assert written == b"GET /v1/x HTTP/1.1\r\nhost: host:1\r\na: b\r\nc: d\r\n\r\n"

    on_bench(check)


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nb", "a\rb", "a\0b", "caf\u0142"])
def test_header_that_smuggles(value: str) -> None:
    """A value that would end its line or has no place in HTTP is refused, and not quoted."""
    with pytest.raises(UpstreamFailed) as failed:
        outgoing(headers=[("authorization", value)])
    assert failed.value.fault is Fault.MALFORMED
    assert failed.value.is_final
    assert value not in str(failed.value)


@pytest.mark.parametrize("raw", [PLAIN, CHUNKED, INTERIM])
def test_any_two_splits(raw: bytes) -> None:
    """However an answer is cut into reads, it is the same answer and the connection is free after it."""

    @settings(max_examples=120, deadline=None)
    @given(st.lists(st.integers(0, len(raw)), max_size=6))
    def check_splits(cuts: list[int]) -> None:
        async def check() -> None:
            bench = Bench()
            edges = [0, *sorted(cuts), len(raw)]
            bench.feed(*(raw[a:b] for a, b in pairwise(edges) if a < b))
            assert bench.answer.status == 200
            assert await bench.body() == b"hello"
            assert (bench.pool.n_idle, bench.pool.n_busy) == (1, 0)

        on_bench(check)

    check_splits()


@pytest.mark.parametrize("raw", [PLAIN, CHUNKED, INTERIM])
def test_byte_at_a_time(raw: bytes) -> None:
    """Each byte in a read of its own."""

    async def check() -> None:
        bench = Bench()
        bench.feed(*(raw[i : i + 1] for i in range(len(raw))))
        assert await bench.body() == b"hello"
        assert bench.pool.n_idle == 1

    on_bench(check)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_garbage_never_escapes(noise: bytes, cuts: list[int]) -> None:
    """Whatever comes, no exception leaves the protocol, and the end is a whole answer or a named failure."""

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


def test_headers() -> None:
    """Names are lower-case; a repeated field's values are joined; bytes above ASCII survive."""

    async def check() -> None:
        bench = Bench()
        bench.feed(b"HTTP/1.1 204 No Content\r\nX-A: 1\r\nx-a: 2\r\nX-B: caf\xe9\r\n\r\n")
        assert bench.answer.headers == {"x-a": "1, 2", "x-b": "café"}
        assert await bench.body() == b""
        assert bench.pool.n_idle == 1

    on_bench(check)


@pytest.mark.parametrize("status", [204, 304])
def test_no_body_by_status(status: int) -> None:
    """204 and 304 end with their head, whatever their headers say."""

    async def check() -> None:
        bench = Bench()
        bench.feed(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status if status == 304 else b"HTTP/1.1 204 X\r\n\r\n")
        assert await bench.body() == b""
        assert bench.pool.n_idle == 1

    on_bench(check)


def test_head_request() -> None:
    """An answer to HEAD has a length and no body; its connection is not used again."""

    async def check() -> None:
        bench = Bench("HEAD")
        bench.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        assert await bench.body() == b""
        assert bench.transport.is_aborted
        assert bench.pool.n_idle == bench.pool.n_busy == 0

    on_bench(check)


def test_until_close() -> None:
    """Without a length the body ends with the connection; a reset there is a failure."""

    async def check() -> None:
        bench = Bench()
        bench.feed(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo")
        assert await bench.answer.read() == b"hello"
        bench.connection.connection_lost(None)
        assert await bench.answer.read() == b""
        bench = Bench()
        bench.feed(b"HTTP/1.1 200 OK\r\n\r\nhel")
        bench.connection.connection_lost(ConnectionResetError())
        assert await bench.answer.read() == b"hel"
        with pytest.raises(UpstreamFailed) as failed:
            await bench.answer.read()
        assert failed.value.fault is Fault.RESET

    on_bench(check)


@pytest.mark.parametrize("cut", [PLAIN[:-1], CHUNKED[:-3], PLAIN[:20]])
def test_cut_short(cut: bytes) -> None:
    """A close before the promised end is a reset, never a clean end; bytes that came are still read."""

    async def check() -> None:
        bench = Bench()
        bench.feed(cut)
        bench.connection.connection_lost(None)
        assert await bench.fault() is Fault.RESET
        assert not bench.answer.was_untouched
        assert bench.pool.n_busy == 0

    on_bench(check)


def test_untouched() -> None:
    """A close before the first byte is told apart: only then may a request go out again."""

    async def check() -> None:
        bench = Bench()
        bench.connection.connection_lost(None)
        assert bench.answer.was_untouched
        with pytest.raises(UpstreamFailed):
            await bench.answer.wait_head()

    on_bench(check)


@pytest.mark.parametrize("junk", [b"H", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"nonsense\r\n", b"\x00" * 40])
def test_junk_after_an_answer(junk: bytes) -> None:
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


@pytest.mark.parametrize("head", [
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
])
def test_not_kept_alive(head: bytes) -> None:
    """`Connection: close` and HTTP/1.0 end the connection with the answer."""

    async def check() -> None:
        bench = Bench()
        bench.feed(head)
        assert await bench.body() == b"hello"
        assert bench.transport.is_aborted
        assert bench.pool.n_idle == 0

    on_bench(check)


def test_answer_before_the_request_was_taken() -> None:
    """An answer that comes while the request is still being written does not free the connection."""

    async def check() -> None:
        bench = Bench()
        bench.transport.n_unwritten = 1
        bench.feed(PLAIN)
        assert await bench.body() == b"hello"
        assert bench.transport.is_aborted

    on_bench(check)


@pytest.mark.parametrize("raw", [
    b"SSH-2.0-x\r\n",
    b"HTTP/1.1 2x0 OK\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
])
def test_not_http(raw: bytes) -> None:
    """What is not HTTP/1.1 is a named failure, and the socket is closed at once."""

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
def test_head_without_an_end(parts: list[bytes]) -> None:
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


def test_head_up_to_the_limit() -> None:
    """A head within the limit is good even when it comes in one read with a long body."""

    async def check() -> None:
        bench = Bench(max_head_bytes=4096)
        bench.feed(b"HTTP/1.1 200 OK\r\nX-A: " + b"x" * 3900 + b"\r\nContent-Length: 9000\r\n\r\n" + b"b" * 9000)
        assert len(await bench.body()) == 9000
        assert bench.pool.n_idle == 1

    on_bench(check)


def test_back_pressure() -> None:
    """Reading pauses above the high-water mark and goes on once the reader has taken what was there."""

    async def check() -> None:
        bench = Bench()
        bench.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        bench.feed(b"x" * HIGH_WATER)
        paused = [bench.transport.is_paused]
        bench.feed(b"x")
        paused.append(bench.transport.is_paused)
        assert len(await bench.answer.read()) == HIGH_WATER + 1
        paused.append(bench.transport.is_paused)
        assert paused == [False, True, False]

    on_bench(check)


def test_freed_while_paused() -> None:
    """A connection whose answer ended while reading was paused listens again: it must notice the peer's close."""

    async def check() -> None:
        bench = Bench()
        n_bytes = HIGH_WATER + 10
        bench.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % n_bytes + b"x" * n_bytes)
        assert bench.pool.n_idle == 1
        assert not bench.transport.is_paused
        bench.answer.close()
        assert not bench.transport.is_aborted
        assert len(await bench.body()) == n_bytes

    on_bench(check)


def test_close_wakes_the_reader() -> None:
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


def test_idle_peer_speaks_or_leaves() -> None:
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
            assert bench.pool.take() is None

    on_bench(check)


def test_large_body_is_written_whole() -> None:
    """A body too large to copy goes out unchanged."""

    async def check() -> None:
        bench = Bench()
        bench.feed(PLAIN)
        bench.transport.written = b""
        body = bytes(range(256)) * 1024
        assert bench.pool.take() is bench.connection
        bench.connection.request(outgoing(body=body))
        assert bench.transport.written.endswith(b"\r\n\r\n" + body)

    on_bench(check)


def test_request_on_a_lost_connection() -> None:
    """A connection lost between being taken and being used refuses: nothing was sent."""

    async def check() -> None:
        bench = Bench()
        bench.feed(PLAIN)
        assert bench.pool.take() is bench.connection
        bench.connection.connection_lost(None)
        answer = bench.connection.request(outgoing())
        assert answer.was_refused
        with pytest.raises(UpstreamFailed):
            await answer.wait_head()
        assert bench.pool.n_busy == 0

    on_bench(check)
