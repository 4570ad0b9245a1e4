"""One HTTP/2 connection: resets, GOAWAY, broken peers, lost connections."""

import asyncio
import contextlib

import pytest
from h2.errors import ErrorCodes
from h2.events import StreamReset
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.http.client.response import EncodedRequest, RequestTemplate
from tests.unit.http.client.h2_bench import HEAD, Bench, on_loop, whole


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=300))
def test_h2_garbage_never_raises(noise: bytes) -> None:
    """Any bytes end in a failure of the streams."""

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
def test_h2_damaged_frames_never_raise(damages: list[tuple[int, int]]) -> None:
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


def test_h2_http1_peer_is_malformed() -> None:
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


def test_h2_release_waits_for_the_end() -> None:
    """An answer that its protocol has ended: the stream's end is waited for, and then it is reset."""

    async def check() -> None:
        bench = Bench()
        ended, endless = bench.request(), bench.request()
        bench.pump()
        for stream_id in (1, 3):
            bench.server.send_headers(stream_id, HEAD)
        bench.pump()
        for answer in (ended, endless):
            answer.release()
        bench.server.end_stream(1)
        bench.pump()
        assert bench.connection.n_active == 1
        while bench.connection.n_active:
            await asyncio.sleep(0.001)
        bench.pump()
        assert [(event.stream_id, event.error_code) for event in bench.seen(StreamReset)] == [(3, ErrorCodes.CANCEL)]
        assert not bench.transport.is_aborted

    on_loop(check)


def test_h2_close_resets_the_stream() -> None:
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
def test_h2_reset_by_the_peer(code: ErrorCodes, was_refused: bool) -> None:
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


def test_h2_goaway_refuses_later_streams() -> None:
    """Accepted streams end normally, others are refused, and then the socket closes."""

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
        assert bench.pool.try_acquire() is None
        assert bench.pool.can_dial()
        assert not bench.transport.is_aborted
        bench.transport.written = b""
        bench.server.send_data(1, b"to the end", end_stream=True)
        bench.connection.data_received(bench.server.data_to_send())
        assert await whole(taken) == b"to the end"
        assert bench.transport.is_aborted

    on_loop(check)


def test_h2_goaway_when_idle_closes() -> None:
    """A connection without streams closes at once."""

    async def check() -> None:
        bench = Bench()
        bench.pump()
        bench.server.close_connection()
        bench.pump()
        assert bench.transport.is_aborted
        assert bench.pool.n_idle == 0

    on_loop(check)


def test_h2_reservation_across_a_goaway_is_refused() -> None:
    """Nothing was sent."""

    async def check() -> None:
        bench = Bench()
        bench.pump()
        assert bench.pool.try_acquire() is bench.connection
        bench.server.close_connection()
        bench.pump()
        template = RequestTemplate("GET", "/", [], upstream="up", authority="h")
        answer = bench.connection.send_request(EncodedRequest(template, [], b""))
        assert answer.was_refused

    on_loop(check)


def test_h2_connection_lost_fails_all_streams() -> None:
    """Those without a head may be sent again."""

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
