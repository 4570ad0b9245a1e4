"""One HTTP/2 connection against the `h2` library's server side, in memory: streams, windows, resets, GOAWAY."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection as Machine
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes, Settings
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.upstreams.answer import Answer, Outgoing
from stayfast.upstreams.h2 import N_STREAMS_UNTOLD, STREAM_WINDOW, H2Connection
from stayfast.upstreams.pool import Pool
from tests.unit.upstreams.fakes import FakeTransport, SetClock

HEAD = [(":status", "200"), ("content-type", "text/event-stream"), ("x-a", "1"), ("x-a", "2")]


class Bench:
    """A client connection and a server machine, wired back to back by `pump`."""

    def __init__(self, *, max_streams: int | None = None, window: int | None = None, split: int = 1 << 30) -> None:
        self.split = split
        self.transport = FakeTransport()
        self.pool = Pool(1, 10, 50.0, is_shared=True, clock=SetClock())
        self.server = Machine(H2Configuration(client_side=False, header_encoding="utf-8"))
        told = {SettingCodes.MAX_CONCURRENT_STREAMS: max_streams, SettingCodes.INITIAL_WINDOW_SIZE: window}
        self.server.local_settings = Settings(client=False, initial_values={
            code: value for code, value in told.items() if value is not None})
        self.server.initiate_connection()
        self.connection = H2Connection("up", "host:1", self.transport, self.pool, max_head_bytes=65_536,
                                       loop=asyncio.get_running_loop())
        self.pool._n_dialing = 1
        self.pool.dialed(self.connection)
        self.connection.unreserve()
        self.events: list[Event] = []

    def request(self, body: bytes = b"{}", headers: list[tuple[str, str]] | None = None) -> Answer:
        """Take a place and send."""
        assert self.pool.take() is self.connection
        return self.connection.request(Outgoing("POST", "/v1/x", headers or [("A", "b")], body, upstream="up",
                                                authority="host:1"))

    def pump(self) -> None:
        """Exchange bytes until neither side has any."""
        while True:
            written, self.transport.written = self.transport.written, b""
            if written:
                self.events += self.server.receive_data(written)
            data = self.server.data_to_send()
            if not data and not written:
                return
            for start in range(0, len(data), self.split):
                self.connection.data_received(data[start : start + self.split])

    def seen(self, kind: type[Any]) -> list[Any]:
        """Server events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def answer(self, stream_id: int, body: bytes = b"hello") -> None:
        """A whole answer."""
        self.server.send_headers(stream_id, HEAD)
        self.server.send_data(stream_id, body, end_stream=True)
        self.pump()


async def whole(answer: Answer) -> bytes:
    """The body to its end."""
    parts = []
    while data := await answer.read():
        parts.append(data)
    return b"".join(parts)


def on_loop(check: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run on a fresh loop."""
    asyncio.run(check())


def test_one_exchange() -> None:
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


def test_many_at_a_time() -> None:
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
def test_any_split(split: int, body: bytes) -> None:
    """Frames cut at any byte give the same answer."""

    async def check() -> None:
        bench = Bench(split=split)
        answer = bench.request()
        bench.pump()
        bench.answer(1, body)
        assert await whole(answer) == body

    on_loop(check)


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=300))
def test_garbage_never_escapes(noise: bytes) -> None:
    """Whatever comes, no exception leaves the protocol, and the end is a named failure."""

    async def check() -> None:
        bench = Bench()
        answer = bench.request()
        bench.connection.data_received(noise)
        bench.connection.connection_lost(None)
        with pytest.raises(UpstreamFailed) as failed:
            await whole(answer)
        assert failed.value.fault in (Fault.MALFORMED, Fault.RESET)
        assert bench.pool.n_busy == bench.pool.n_idle == 0

    on_loop(check)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_frames_never_escape(damages: list[tuple[int, int]]) -> None:
    """Real frames with bytes changed: no exception leaves the protocol, and every answer ends."""

    async def check() -> None:
        bench = Bench()
        answers = [bench.request(), bench.request()]
        bench.events += bench.server.receive_data(bench.transport.written)
        for stream_id in (1, 3):
            bench.server.send_headers(stream_id, HEAD)
            bench.server.send_data(stream_id, b"hello" * 20, end_stream=True)
        data = bytearray(bench.server.data_to_send())
        for at, value in damages:
            data[at % len(data)] = value
        bench.connection.data_received(bytes(data))
        bench.connection.connection_lost(None)
        for answer in answers:
            with contextlib.suppress(UpstreamFailed):
                await whole(answer)
        assert bench.pool.n_busy == bench.pool.n_idle == 0

    on_loop(check)


def test_not_http2() -> None:
    """A peer that speaks something else: MALFORMED for all, and the socket is closed."""

    async def check() -> None:
        bench = Bench()
        answers = [bench.request(), bench.request()]
        bench.connection.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        for answer in answers:
            with pytest.raises(UpstreamFailed) as failed:
                await answer.wait_head()
            assert failed.value.fault is Fault.MALFORMED
        assert bench.transport.is_aborted

    on_loop(check)


def test_interim_answers_are_skipped() -> None:
    """103 comes before the head and is not it."""

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


def test_large_request_waits_for_windows() -> None:
    """A body larger than the peer's windows goes out as they open, whole."""

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


def test_window_grows_with_settings() -> None:
    """A body that waits goes on when the peer's settings widen the window."""

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


def test_reader_that_stops() -> None:
    """A reader that stops bounds what its stream can send, and holds up no other stream; reading opens the window again."""

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


def test_padding_counts() -> None:
    """Padding uses up windows as data does; a long padded answer still comes whole."""

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


def test_close_resets_the_stream() -> None:
    """Leaving an answer resets its stream with CANCEL and keeps the connection; late bytes for it are dropped."""

    async def check() -> None:
        bench = Bench()
        gone, stays = bench.request(), bench.request()
        bench.pump()
        bench.server.send_headers(1, HEAD)
        bench.pump()
        bench.server.send_data(1, b"late")
        late = bench.server.data_to_send()
        gone.close()
        gone.close()
        bench.connection.data_received(late)
        bench.pump()
        (reset,) = bench.seen(StreamReset)
        assert (reset.stream_id, reset.error_code) == (1, ErrorCodes.CANCEL)
        bench.answer(3)
        assert await whole(stays) == b"hello"
        assert bench.pool.n_idle == 1
        assert not bench.transport.is_aborted

    on_loop(check)


@pytest.mark.parametrize(("code", "was_refused"), [(ErrorCodes.REFUSED_STREAM, True), (ErrorCodes.INTERNAL_ERROR, False)])
def test_reset_by_the_peer(code: ErrorCodes, was_refused: bool) -> None:
    """A reset is a failure; REFUSED_STREAM says that nothing was processed."""

    async def check() -> None:
        bench = Bench()
        answer = bench.request()
        bench.pump()
        bench.server.reset_stream(1, code)
        bench.pump()
        with pytest.raises(UpstreamFailed, match=f"error {code:d}") as failed:
            await answer.wait_head()
        assert failed.value.fault is Fault.RESET
        assert answer.was_refused is was_refused
        assert bench.pool.n_idle == 1

    on_loop(check)


def test_answered_before_the_body_was_read() -> None:
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


def test_goaway() -> None:
    """Streams that the peer took go on to their end; the others are refused; nobody new comes on; then the socket closes."""

    async def check() -> None:
        bench = Bench()
        taken, refused = bench.request(), bench.request()
        bench.pump()
        bench.server.send_headers(1, HEAD)
        bench.pump()
        bench.connection.data_received(bytes.fromhex("000008 07 00 00000000 00000001 00000000"))  # last stream: 1
        assert refused.was_refused
        with pytest.raises(UpstreamFailed):
            await refused.wait_head()
        assert bench.pool.take() is None
        assert bench.pool._can_dial()
        assert not bench.transport.is_aborted
        bench.transport.written = b""
        bench.server.send_data(1, b"to the end", end_stream=True)
        bench.connection.data_received(bench.server.data_to_send())
        assert await whole(taken) == b"to the end"
        assert bench.transport.is_aborted

    on_loop(check)


def test_goaway_when_idle() -> None:
    """A connection without streams closes at once."""

    async def check() -> None:
        bench = Bench()
        bench.pump()
        bench.server.close_connection()
        bench.pump()
        assert bench.transport.is_aborted
        assert bench.pool.n_idle == 0

    on_loop(check)


def test_place_held_over_a_goaway() -> None:
    """A place that was held when the peer said GOAWAY refuses: nothing was sent."""

    async def check() -> None:
        bench = Bench()
        bench.pump()
        assert bench.pool.take() is bench.connection
        bench.server.close_connection()
        bench.pump()
        answer = bench.connection.request(Outgoing("GET", "/", [], b"", upstream="up", authority="h"))
        assert answer.was_refused

    on_loop(check)


def test_connection_lost() -> None:
    """All streams fail; those without a head may be sent again."""

    async def check() -> None:
        bench = Bench()
        begun, waiting = bench.request(), bench.request()
        bench.pump()
        bench.server.send_headers(1, HEAD)
        bench.pump()
        bench.connection.connection_lost(ConnectionResetError())
        for answer in (begun, waiting):
            with pytest.raises(UpstreamFailed) as failed:
                await answer.read()
            assert failed.value.fault is Fault.RESET
        assert (begun.was_untouched, waiting.was_untouched) == (False, True)
        assert bench.pool.n_busy == bench.pool.n_idle == 0

    on_loop(check)


def test_limit_on_streams() -> None:
    """The peer's limit holds from its settings on: no place beyond it until a stream ends."""

    async def check() -> None:
        bench = Bench(max_streams=2)
        bench.pump()
        bench.request()
        bench.request()
        assert bench.pool.take() is None
        bench.pump()
        bench.answer(1)
        assert bench.pool.take() is bench.connection
        assert bench.pool.take() is None

    on_loop(check)


def test_limit_before_settings() -> None:
    """Until the peer has spoken, a hundred streams; a place held when a lower limit arrives is refused, not an exception."""

    async def check() -> None:
        bench = Bench(max_streams=1)
        for _ in range(N_STREAMS_UNTOLD):
            assert bench.pool.take() is bench.connection
        assert bench.pool.take() is None
        outgoing = Outgoing("GET", "/", [], b"", upstream="up", authority="h")
        bench.connection.data_received(bench.server.data_to_send())
        first, second = bench.connection.request(outgoing), bench.connection.request(outgoing)
        assert (first.was_refused, second.was_refused) == (False, True)
        for _ in range(N_STREAMS_UNTOLD - 2):
            bench.connection.unreserve()
        assert bench.pool.take() is None

    on_loop(check)


def test_ping_is_answered() -> None:
    """A peer that probes gets its answer."""

    async def check() -> None:
        bench = Bench()
        bench.pump()
        bench.server.ping(b"12345678")
        bench.pump()
        assert any(type(event).__name__ == "PingAckReceived" for event in bench.events)

    on_loop(check)
