"""One HTTP/1.1 connection: valid responses in every form."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.http.client.h1 import HIGH_WATER
from stayfast.http.client.response import EncodedRequest, RequestTemplate
from tests.unit.http.client.h1_bench import CHUNKED, INTERIM, PLAIN, Bench, on_bench, request


def test_h1_request_bytes() -> None:
    """Host and content-length are added, and all is one write."""

    async def check() -> None:
        bench = Bench()
        assert bench.transport.written == b"POST /v1/x HTTP/1.1\r\nhost: host:1\r\ncontent-length: 2\r\n\r\n{}"
        written = request("GET", [("a", "b"), ("c", "d")], b"").head
        assert written == b"GET /v1/x HTTP/1.1\r\nhost: host:1\r\na: b\r\nc: d\r\n\r\n"

    on_bench(check)


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nb", "a\rb", "a\0b", "caf\u0142"])
def test_h1_header_with_line_end_is_rejected(value: str) -> None:
    """A value that would end its line or has no place in HTTP is refused, and not quoted."""
    with pytest.raises(UpstreamFailed) as failed:
        request(headers=[("authorization", value)])
    assert failed.value.fault is Fault.MALFORMED
    assert failed.value.is_final
    assert value not in str(failed.value)
    template = RequestTemplate("POST", "/v1/x", [("a", "b"), ("authorization", value)], upstream="up", authority="h")
    with pytest.raises(UpstreamFailed):
        EncodedRequest(template, [], b"")


def test_h1_template_is_part_of_every_request() -> None:
    """Its headers come first, in HTTP/1.1 and HTTP/2."""
    template = RequestTemplate("POST", "/v1/x", [("a", "b")], upstream="up", authority="host:1")
    first, second = EncodedRequest(template, [("c", "d")], b"{}"), EncodedRequest(template, [], b"")
    assert first.head == b"POST /v1/x HTTP/1.1\r\nhost: host:1\r\na: b\r\ncontent-length: 2\r\nc: d\r\n\r\n"
    assert second.head == b"POST /v1/x HTTP/1.1\r\nhost: host:1\r\na: b\r\ncontent-length: 0\r\n\r\n"
    assert (first.headers, second.headers) == ([("a", "b"), ("c", "d")], [("a", "b")])


@pytest.mark.parametrize("raw", [PLAIN, CHUNKED, INTERIM])
def test_h1_response_split_at_any_two_points(raw: bytes) -> None:
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
def test_h1_response_byte_by_byte(raw: bytes) -> None:
    """Each byte in a read of its own."""

    async def check() -> None:
        bench = Bench()
        bench.feed(*(raw[i : i + 1] for i in range(len(raw))))
        assert await bench.body() == b"hello"
        assert bench.pool.n_idle == 1

    on_bench(check)


def test_h1_response_headers() -> None:
    """Names are lower-case; a repeated field's values are joined; bytes above ASCII survive."""

    async def check() -> None:
        bench = Bench()
        bench.feed(b"HTTP/1.1 204 No Content\r\nX-A: 1\r\nx-a: 2\r\nX-B: caf\xe9\r\n\r\n")
        assert bench.answer.headers == {"x-a": "1, 2", "x-b": "café"}
        assert await bench.body() == b""
        assert bench.pool.n_idle == 1

    on_bench(check)


def test_h1_trailers_are_no_headers_of_the_next_response() -> None:
    """They are dropped with the response that they end."""

    async def check() -> None:
        bench = Bench()
        bench.feed(CHUNKED)
        assert bench.pool.try_acquire() is bench.connection
        bench.answer = bench.connection.send_request(request())
        bench.feed(PLAIN)
        assert bench.answer.headers == {"content-length": "5", "x-request-id": "a1"}

    on_bench(check)


@pytest.mark.parametrize("head", [b"", b"X-A:\r\n", b"X-A: \t\r\nX-A:\r\nx-b: 1\r\n"])
def test_h1_response_with_empty_headers(head: bytes) -> None:
    async def check() -> None:
        bench = Bench()
        bench.feed(b"HTTP/1.1 204 No Content\r\n" + head + b"\r\n")
        assert bench.answer.headers == {b"": {}, b"X-A:\r\n": {"x-a": ""}}.get(head, {"x-a": ", ", "x-b": "1"})

    on_bench(check)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\0", b"\n ", b"\r\n "])
@pytest.mark.parametrize("line", [b"x-a: 1%bx-b: 2", b"x-a%b: 1"])
def test_h1_line_end_inside_a_header_is_no_answer(line: bytes, end: bytes) -> None:
    """A peer cannot add a header by a line end that only one of two parsers sees."""

    async def check() -> None:
        bench = Bench()
        bench.feed(b"HTTP/1.1 200 OK\r\n" + line % end + b"\r\ncontent-length: 0\r\n\r\n")
        assert await bench.fault() is Fault.MALFORMED

    on_bench(check)


@pytest.mark.parametrize("status", [204, 304])
def test_h1_status_without_a_body(status: int) -> None:
    """204 and 304 end with their head, whatever their headers say."""

    async def check() -> None:
        bench = Bench()
        bench.feed(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status if status == 304 else b"HTTP/1.1 204 X\r\n\r\n")
        assert await bench.body() == b""
        assert bench.pool.n_idle == 1

    on_bench(check)


def test_h1_head_response_has_no_body() -> None:
    """An answer to HEAD has a length and no body; its connection is not used again."""

    async def check() -> None:
        bench = Bench("HEAD")
        bench.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        assert await bench.body() == b""
        assert bench.transport.is_aborted
        assert bench.pool.n_idle == bench.pool.n_busy == 0

    on_bench(check)


def test_h1_body_until_close() -> None:
    """A reset before the end is a failure."""

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


def test_h1_unread_body_pauses_the_socket() -> None:
    """Reading resumes when the reader has caught up."""

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


def test_h1_released_while_paused_resumes() -> None:
    """An idle connection must notice that its peer closes."""

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


def test_h1_large_body_is_written_whole() -> None:
    """A body that is too large to copy."""

    async def check() -> None:
        bench = Bench()
        bench.feed(PLAIN)
        bench.transport.written = b""
        body = bytes(range(256)) * 1024
        assert bench.pool.try_acquire() is bench.connection
        bench.connection.send_request(request(body=body))
        assert bench.transport.written.endswith(b"\r\n\r\n" + body)

    on_bench(check)
