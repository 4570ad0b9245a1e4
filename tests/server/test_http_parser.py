"""http.server.parser without sockets: any split of the bytes gives the same requests."""

import tracemalloc

import pytest

from stayfast.core.errors import DeadlineExceeded, StayfastError
from stayfast.core.types import Stage
from stayfast.http.server.parser import BODY, HEAD, IDLE, MAX_DISCARDED_BYTES, MAX_PIPELINED, HttpLimits, RequestParser
from stayfast.server.http_request import LlmHttpRequest, body_deadline_s
from tests.server.fakes import CHAT, get, post

_CHUNKED = (b"POST /v1/messages?a=b HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: Chunked\r\nX-Request-Id: one\r\n\r\n"
            b"3\r\nabc\r\nA;ext=1\r\n0123456789\r\n0\r\nx-trailer: y\r\n\r\n")
_UPGRADE = post(CHAT, "/v1/responses", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
_ROUND = post() + _CHUNKED + get("/livez") + _UPGRADE + post(b"")


class Ticking:
    """A clock that moves one second with each look."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        self.at += 1
        return self.at

    def wall(self) -> float:
        return self.now()

    def cpu(self) -> float:
        """None."""
        return 0.0


def reader(limits: HttpLimits | None = None, refusal: StayfastError | None = None,
           clock: Ticking | None = None) -> RequestParser[LlmHttpRequest]:
    """A parser that refuses every request, or none."""

    def check_head(inbound: LlmHttpRequest) -> StayfastError | None:
        inbound.deadline_s = body_deadline_s(inbound.fields)
        return refusal

    return RequestParser(LlmHttpRequest, limits or HttpLimits(), clock or Ticking(), check_head)


def told(inbound: LlmHttpRequest) -> tuple[object, ...]:
    """What matters of a request."""
    error = inbound.refusal
    return (inbound.method, inbound.path, inbound.query, inbound.body, inbound.keep_alive, inbound.is_broken,
            inbound.fields.get(b"x-request-id"), None if error is None else error.status)


_EXPECTED = [
    ("POST", "/v1/chat/completions", b"", CHAT, True, False, None, None),
    ("POST", "/v1/messages", b"a=b", b"abc0123456789", True, False, b"one", None),
    ("GET", "/livez", b"", b"", True, False, None, None),
    ("POST", "/v1/responses", b"", CHAT, True, False, None, None),
    ("POST", "/v1/chat/completions", b"", b"", True, False, None, None),
]


def test_one_read_holds_many_requests() -> None:
    """Pipelined requests come out in order."""
    it = reader()
    it.feed(_ROUND)
    assert [told(inbound) for inbound in it.ready] == _EXPECTED
    assert it.phase == IDLE


def test_every_split_gives_the_same_requests() -> None:
    """Cut in two at every byte, heads, bodies, chunk lines, trailers and a declined upgrade included."""
    for at in range(1, len(_ROUND)):
        it = reader()
        it.feed(_ROUND[:at])
        it.feed(_ROUND[at:])
        assert [told(inbound) for inbound in it.ready] == _EXPECTED, at


def test_byte_by_byte_gives_the_same_requests() -> None:
    """The slowest client there is."""
    it = reader()
    for at in range(len(_ROUND)):
        it.feed(_ROUND[at : at + 1])
    assert [told(inbound) for inbound in it.ready] == _EXPECTED


def test_a_large_head_in_many_reads_is_not_counted_twice() -> None:
    """A head just below its limit passes, however it is cut; one just above it does not."""
    for n_pad, status in ((1900, None), (2100, 431)):
        data = get("/livez", "x: " + "a" * n_pad)
        for step in (1, 7, 500, 10_000):
            it = reader(HttpLimits(max_head_bytes=2048))
            for at in range(0, len(data), step):
                it.feed(data[at : at + step])
            assert [told(inbound)[-1] for inbound in it.ready] == [status], (n_pad, step)


def test_a_long_body_before_a_head_does_not_count_as_head() -> None:
    """The beginning of a pipelined request shares its read with the end of a large body."""
    it = reader(HttpLimits(max_head_bytes=2048))
    data = post(b"x" * 50_000) + get("/livez")
    it.feed(data[:-10])
    it.feed(data[-10:])
    assert [told(inbound)[-1] for inbound in it.ready] == [None, None]


def test_nothing_is_read_after_connection_close() -> None:
    """The client said it was the last; what follows is not even parsed."""
    it = reader()
    it.feed(get("/livez", "connection: close") + b"\0\0\0" + get("/livez"))
    it.feed(get("/livez"))
    assert [told(inbound)[4:] for inbound in it.ready] == [(False, False, None, None)]
    assert it.is_over


def test_what_comes_before_a_broken_request_is_still_served() -> None:
    """Order is kept: the good one first, then the refusal, then nothing."""
    it = reader()
    it.feed(get("/livez") + b"GET / HTTP/1.1\r\nhost\r\n\r\n" + get("/livez"))
    assert [told(inbound)[-1] for inbound in it.ready] == [None, 400]
    assert it.is_over


def test_reading_ahead_is_bounded() -> None:
    """A client that sends requests without end is served so many and then has to come again."""
    it = reader()
    it.feed(get("/livez") * 1000)
    assert len(it.ready) == MAX_PIPELINED + 1
    assert it.is_over
    assert [inbound.keep_alive for inbound in it.ready] == [True] * MAX_PIPELINED + [False]


def test_time_is_given_by_phase_and_by_what_arrived() -> None:
    """A head has head_timeout_s; a body body_timeout_s and a second for each 16 KiB that came."""
    it = reader(HttpLimits(head_timeout_s=10, body_timeout_s=30))
    data = post(b"x" * 100_000)
    it.feed(data[:20])
    assert (it.phase, it.due_at()) == (HEAD, 1 + 10)
    it.feed(data[20 : -100_000 + 32_768])
    assert (it.phase, it.due_at()) == (BODY, 1 + 30 + 2)
    it.reject_timed_out()
    assert [told(inbound)[-1] for inbound in it.ready] == [408]


def test_a_body_has_no_more_time_than_its_client_has_patience() -> None:
    """Then the deadline has passed, whatever is still to come; who says it wrongly is told so once the body is in."""
    clock = Ticking()
    it = reader(HttpLimits(head_timeout_s=10, body_timeout_s=30), clock=clock)
    data = post(b"x" * 100_000).replace(b"host:", b"x-request-timeout: 3.5\r\nhost:")
    it.feed(data[:-50_000])
    assert (it.phase, it.due_at()) == (BODY, 1 + 3.5)
    clock.at += 3
    it.reject_timed_out()
    [late] = it.ready
    assert isinstance(late.refusal, DeadlineExceeded)
    assert (late.refusal.status, late.refusal.stage) == (504, Stage.ADMIT)
    wrong = reader(HttpLimits(body_timeout_s=30))
    wrong.feed(data[:-90_000].replace(b"3.5", b"abc"))
    assert wrong.due_at() > 30


@pytest.mark.parametrize("n_reads", [1, 2])
def test_parser_drops_the_body_of_a_rejected_request(n_reads: int) -> None:
    """The body takes no memory, and the connection stays usable."""
    it = reader(refusal=StayfastError("no"))
    data = post(b"x" * 100_000)
    step = len(data) // n_reads + 1
    for at in range(0, len(data), step):
        it.feed(data[at : at + step])
    assert [(inbound.body, inbound.keep_alive) for inbound in it.ready] == [(b"", True)]


_OPEN_END = (b"POST /v1/messages HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n")


@pytest.mark.parametrize("start", [b"2\r\n{}\r\n0\r\nx-a: ", b"2\r\n{}\r\n0\r\n", b"2;", b"2;a="])
def test_trailers_and_extensions_without_end_are_broken_off(start: bytes) -> None:
    """They have a head's bound, and one read more: 431, and nothing is read after it."""
    it = reader(HttpLimits(max_head_bytes=65_536))
    it.feed(_OPEN_END + start)
    n_fed = 0
    while not it.is_over:
        it.feed(b"b" * 10_000)
        n_fed += 10_000
        assert n_fed <= 65_536 + 10_000
    assert [told(inbound)[-1] for inbound in it.ready] == [431]


def test_short_trailers_and_extensions_pass() -> None:
    """In any number of chunks: the bound is for what no body interrupts."""
    it = reader(HttpLimits(max_head_bytes=1024))
    it.feed(_OPEN_END)
    for _ in range(100):
        it.feed(b"1;" + b"e" * 600 + b"\r\nx\r\n")
    it.feed(b"0\r\nx: " + b"t" * 600 + b"\r\n\r\n")
    assert [(inbound.body, told(inbound)[-1]) for inbound in it.ready] == [(b"x" * 100, None)]


def test_tiny_chunks_cost_their_bytes() -> None:
    """A body sent two bytes a chunk takes no more memory than one sent whole."""
    it = reader()
    it.feed(_OPEN_END)
    data = b"2\r\n{}\r\n" * 10_000
    tracemalloc.start()
    try:
        for _ in range(10):
            it.feed(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000  # 200 kB of body; as a list of parts it was 4 MB
    it.feed(b"0\r\n\r\n")
    assert it.ready[0].body == b"{}" * 100_000


@pytest.mark.parametrize("head", [_OPEN_END + b"ffffffff\r\n", post(b"").replace(b"length: 0", b"length: 30000000")])
def test_an_endless_body_is_not_read_for_a_refusal(head: bytes) -> None:
    """What the head is refused for is answered after SWALLOWED_BYTES, and the connection ends."""
    it = reader(refusal=StayfastError("no", status=404))
    it.feed(head)
    n_fed = 0
    while not it.is_over:
        it.feed(b"b" * 50_000)
        n_fed += 50_000
        assert n_fed <= MAX_DISCARDED_BYTES + 50_000
    assert [(told(inbound)[-1], inbound.is_broken) for inbound in it.ready] == [(404, True)]


def test_the_gate_decides_before_the_body_is_invited() -> None:
    """`expect: 100-continue` with a refusal: answered at once, and closed."""
    head, _, _ = post(b"x" * 1000, "/v1/chat/completions", "expect: 100-continue").partition(b"x" * 1000)
    refusing = reader(refusal=StayfastError("no"))
    refusing.feed(head)
    assert [told(inbound)[4:6] for inbound in refusing.ready] == [(False, True)]
    inviting = reader()
    inviting.feed(head)
    assert (inviting.expects_continue, len(inviting.ready)) == (True, 0)
    inviting.feed(b"x" * 1000)
    assert (inviting.expects_continue, len(inviting.ready)) == (False, 1)
