"""The parser with the requests of the simulator: any split of the bytes gives the same requests."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.clock import SystemClock
from stayfast.http.server.parser import HttpLimits, RequestParser
from stayfast.lab.sim_server.answer import SimRequest

MAX_HEAD_BYTES = HttpLimits().max_head_bytes
ASKED = (b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nX-API-Key: k\r\nContent-Length: 5\r\n\r\nhello"
         b"POST /b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
         b"3\r\nabc\r\n2;ext\r\nde\r\n0\r\nTrailer: t\r\n\r\n"
         b"GET /c HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
         b"POST /d HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nhi"
         b"GET /e HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\nGET /never HTTP/1.1\r\n\r\n")
READ = [("POST", "/a", b"hello", True), ("POST", "/b", b"abcde", True), ("GET", "/c", b"", True),
        ("POST", "/d", b"hi", True), ("GET", "/e", b"", False)]


def parser() -> RequestParser[SimRequest]:
    """A parser that refuses nothing by its head."""
    return RequestParser(SimRequest, HttpLimits(max_body_bytes=1024), SystemClock(), lambda request: None)


@given(cuts=st.lists(st.integers(0, len(ASKED)), max_size=12))
def test_sim_requests_are_parsed_equally_however_split(cuts: list[int]) -> None:
    reader = parser()
    places = [0, *sorted(cuts), len(ASKED)]
    for begin, end in pairwise(places):
        reader.feed(ASKED[begin:end])
    assert [(one.method, one.path, one.body, one.keep_alive) for one in reader.ready] == READ
    assert reader.ready[0].key == b"k"
    assert reader.is_over


@given(parts=st.lists(st.binary(max_size=200) | st.sampled_from((ASKED[:60], b"\r\n\r\n", b"GET / HTTP/1.1\r\n")),
                      max_size=8))
def test_sim_any_bytes_are_answered(parts: list[bytes]) -> None:
    reader = parser()
    for part in parts:
        reader.feed(part)
    refused = [one.refusal is not None for one in reader.ready]
    assert True not in refused[:-1]


def test_sim_endless_request_is_rejected() -> None:
    for begin, more, status in (
        (b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 100, 431), (b"GET / HTTP/1.1\r\na: ", b"b" * 999, 431),
        (b"GET /", b"a" * 999, 431),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 100, 413),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1;", b"x" * 999, 431),
    ):
        reader = parser()
        reader.feed(begin)
        for _ in range(3 * MAX_HEAD_BYTES // 500):
            reader.feed(more)
        assert [one.refusal is not None and one.refusal.status for one in reader.ready] == [status]
