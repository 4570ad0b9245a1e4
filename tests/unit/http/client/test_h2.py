"""One HTTP/2 connection: exchanges, windows and limits."""


from h2.events import DataReceived, RequestReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.http.client.h2 import DEFAULT_MAX_STREAMS, STREAM_WINDOW
from stayfast.http.client.response import EncodedRequest, RequestTemplate
from tests.unit.http.client.h2_bench import HEAD, Bench, on_loop, whole


def test_h2_one_exchange() -> None:
    """Request and answer as HTTP says them; the connection is idle after."""

    async def check() -> None:
        bench = Bench()
        answer = bench.request(b"body")
        bench.pump()
        (asked,) = bench.seen(RequestReceived)
        assert dict(asked.headers) == {":method": "POST", ":scheme": "http", ":authority": "host:1", ":path": "/v1/x",
                                       "content-length": "4", "a": "b"}
        assert b"".join(event.data for event in bench.seen(DataReceived)) == b"body"
        assert len(bench.seen(StreamEnded)) == 1
        assert (bench.pool.n_idle, bench.pool.n_busy) == (0, 1)
        bench.answer(1)
        await answer.wait_head()
        assert (answer.status, answer.headers) == (200, {"content-type": "text/event-stream", "x-a": "1, 2"})
        assert await whole(answer) == b"hello"
        assert (bench.pool.n_idle, bench.pool.n_busy) == (1, 0)

    on_loop(check)


def test_h2_many_streams_at_a_time() -> None:
    """Streams are interleaved and end in any order."""

    async def check() -> None:
        bench = Bench()
        answers = [bench.request() for _ in range(5)]
        bench.pump()
        for stream_id in (9, 1, 5, 3, 7):
            bench.answer(stream_id, b"%d" % stream_id)
        assert [await whole(answer) for answer in answers] == [b"1", b"3", b"5", b"7", b"9"]
        assert bench.pool.n_idle == 1

    on_loop(check)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.binary(max_size=400))
def test_h2_response_at_any_split(split: int, body: bytes) -> None:
    """Frames cut at any byte give the same answer."""

    async def check() -> None:
        bench = Bench(split=split)
        answer = bench.request()
        bench.pump()
        bench.answer(1, body)
        assert await whole(answer) == body

    on_loop(check)


def test_h2_interim_responses_are_skipped() -> None:
    """103 before the final head."""

    async def check() -> None:
        bench = Bench()
        answer = bench.request()
        bench.pump()
        bench.server.send_headers(1, [(":status", "103"), ("link", "x")])
        bench.pump()
        assert answer.status == 0
        bench.answer(1)
        assert answer.status == 200

    on_loop(check)


def test_h2_large_request_waits_for_windows() -> None:
    """The body is sent as the peer's windows open."""

    async def check() -> None:
        bench = Bench(window=1000)
        bench.pump()
        body = bytes(range(256)) * 1000
        answer = bench.request(body)
        got = b""
        while len(got) < len(body):
            bench.pump()
            fresh = bench.seen(DataReceived)
            bench.events.clear()
            assert fresh
            for event in fresh:
                got += event.data
                bench.server.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        bench.pump()
        assert got == body
        bench.answer(1)
        assert await whole(answer) == b"hello"

    on_loop(check)


def test_h2_settings_enlarge_the_window() -> None:
    """A waiting body continues."""

    async def check() -> None:
        bench = Bench(window=0)
        bench.pump()
        bench.request(b"x" * 50)
        bench.pump()
        assert not bench.seen(DataReceived)
        bench.server.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100})
        bench.pump()
        assert sum(len(event.data) for event in bench.seen(DataReceived)) == 50

    on_loop(check)


def test_h2_reader_that_stops_bounds_the_stream() -> None:
    """Other streams continue, and reading opens the window again."""

    async def check() -> None:
        bench = Bench()
        stopped, other = bench.request(), bench.request()
        bench.pump()
        bench.server.send_headers(1, HEAD)
        bench.server.send_headers(3, HEAD)

        def send(stream_id: int, n_bytes: int) -> int:
            n_sent = 0
            while n_sent < n_bytes and (room := bench.server.local_flow_control_window(stream_id)):
                n_part = min(room, 16_384, n_bytes - n_sent)
                bench.server.send_data(stream_id, bytes(n_part))
                n_sent += n_part
                bench.pump()
            return n_sent

        assert send(1, 10_000_000) == STREAM_WINDOW == stopped.n_unread
        n_other = 0
        while n_other < 40_000_000:  # more than the connection's window
            n_sent = send(3, 200_000)
            assert n_sent
            n_other += n_sent
            while other.n_unread:
                await other.read()
                bench.pump()
        assert len(await stopped.read()) == STREAM_WINDOW
        bench.pump()
        assert send(1, STREAM_WINDOW) == STREAM_WINDOW

    on_loop(check)


def test_h2_padding_counts_for_flow_control() -> None:
    """A long padded response arrives completely."""

    async def check() -> None:
        bench = Bench()
        answer = bench.request()
        bench.pump()
        bench.server.send_headers(1, HEAD)
        n_read = 0
        for _ in range(3000):
            bench.server.send_data(1, b"x", pad_length=250)
            bench.pump()
            n_read += len(await answer.read())
            bench.pump()
        assert n_read == 3000

    on_loop(check)


def test_h2_response_before_the_body_was_sent() -> None:
    """An answer that ends while the request is still being sent is whole; the rest is not sent."""

    async def check() -> None:
        bench = Bench(window=10)
        bench.pump()
        answer = bench.request(b"x" * 100)
        bench.pump()
        bench.answer(1, b"413")
        assert await whole(answer) == b"413"
        assert bench.seen(StreamReset)
        assert bench.pool.n_idle == 1

    on_loop(check)


def test_h2_stream_limit_of_the_peer() -> None:
    """The peer's limit holds from its settings on: no place beyond it until a stream ends."""

    async def check() -> None:
        bench = Bench(max_streams=2)
        bench.pump()
        bench.request()
        bench.request()
        assert bench.pool.try_acquire() is None
        bench.pump()
        bench.answer(1)
        assert bench.pool.try_acquire() is bench.connection
        assert bench.pool.try_acquire() is None

    on_loop(check)


def test_h2_stream_limit_before_settings() -> None:
    """Until the peer has spoken, a hundred streams; a place held when a lower limit arrives is refused, not an exception."""

    async def check() -> None:
        bench = Bench(max_streams=1)
        for _ in range(DEFAULT_MAX_STREAMS):
            assert bench.pool.try_acquire() is bench.connection
        assert bench.pool.try_acquire() is None
        request = EncodedRequest(RequestTemplate("GET", "/", [], upstream="up", authority="h"), [], b"")
        bench.connection.data_received(bench.server.data_to_send())
        first, second = bench.connection.send_request(request), bench.connection.send_request(request)
        assert (first.was_refused, second.was_refused) == (False, True)
        for _ in range(DEFAULT_MAX_STREAMS - 2):
            bench.connection.unreserve()
        assert bench.pool.try_acquire() is None

    on_loop(check)


def test_h2_ping_is_answered() -> None:
    """A peer that probes gets its answer."""

    async def check() -> None:
        bench = Bench()
        bench.pump()
        bench.server.ping(b"12345678")
        bench.pump()
        assert any(type(event).__name__ == "PingAckReceived" for event in bench.events)

    on_loop(check)
