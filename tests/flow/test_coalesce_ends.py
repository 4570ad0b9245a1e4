"""How a call that may be shared ends for its clients: cut by a time-out, too long, broken by a bug; and what facts say of
it."""

import asyncio

import msgspec
import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import Shed, StayfastError
from stayfast.core.events import AttemptDone, RequestDone, TokenGaps
from stayfast.core.types import Outcome
from stayfast.pipeline.stages.cache import shared_call
from stayfast.testing import Script, SendText, SimLoop, Wait, run
from stayfast.upstreams.base import AnswerStream, Call
from tests.flow.cache_rig import HELLO, CacheRig
from tests.flow.rig import chat, read, text_of

STALLS: Script = [SendText("a"), Wait(0.5), SendText("b"), Wait(50.0), SendText("c")]


@pytest.mark.parametrize("n_clients", [1, 3])
def test_coalesce_idle_timeout_with_partial_ends_the_answer_in_its_protocol(n_clients: int) -> None:
    """For all clients; there is one timed-out attempt, and nothing is stored."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, STALLS, partial=True, timeouts=Timeouts(idle_s=3.0))

        async def client() -> None:
            reply = await rig.serve_request()
            body = await read(reply)
            assert text_of(body) == "ab"
            assert b'"finish_reason":"length"' in body
            assert reply.degraded == "partial"

        await asyncio.gather(*[client() for _ in range(n_clients)])
        assert loop.now() == pytest.approx(3.5)
        (attempt,) = rig.sink.facts_of(AttemptDone)
        assert (attempt.outcome, attempt.fault) == (Outcome.DROPPED, "timeout")
        assert [fact.status for fact in rig.sink.facts_of(RequestDone)] == [200] * n_clients
        assert rig.route_cache.store.n_entries == 0
        rig.check_clean()

    run(main)


def test_coalesce_partial_answer_has_all_that_the_client_had_not_read() -> None:
    """The client read only the first token before its deadline: the call was ahead of it."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, STALLS, partial=True)
        reply = await rig.serve_request(total_s=2.0)
        lead = await reply.next()
        assert lead is not None
        await asyncio.sleep(5.0)
        rest = await read(reply)
        assert text_of(lead.data + rest) == "ab"
        assert b'"finish_reason":"length"' in rest
        await asyncio.sleep(0)
        rig.check_clean()

    run(main)


def test_coalesce_deadline_in_mid_answer_is_a_timeout_of_the_attempt() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, STALLS)
        with pytest.raises(StayfastError) as late:
            await rig.text(total_s=2.0)
        assert late.value.code == "total_s_exceeded"
        (attempt,) = rig.sink.facts_of(AttemptDone)
        assert (attempt.outcome, attempt.fault, attempt.ended_at) == (Outcome.DROPPED, "timeout", 2.0)
        await asyncio.sleep(0)
        rig.check_clean()

    run(main)


def test_coalesce_whole_answer_cut_at_the_deadline_is_partial() -> None:
    """It is not stored."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, STALLS, partial=True)
        replies = await asyncio.gather(*[rig.serve_request(chat(stream=False), total_s=total_s) for total_s in (2.0, 30.0)])
        for reply in replies:
            (choice,) = msgspec.json.decode(await read(reply))["choices"]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("ab", "length")
            assert reply.degraded == "partial"
        (attempt,) = rig.sink.facts_of(AttemptDone)
        assert (attempt.outcome, attempt.fault) == (Outcome.DROPPED, "timeout")
        assert rig.route_cache.store.n_entries == 0
        rig.check_clean()

    run(main)


def test_coalesce_long_whole_answer_is_given_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of the buffer are for streams: a whole answer comes in one piece."""
    monkeypatch.setattr(shared_call, "MAX_BYTES", 1000)
    monkeypatch.setattr(shared_call, "AHEAD_BYTES", 500)

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [Wait(0.1), SendText("x" * 5000)])
        replies = await asyncio.gather(*[rig.serve_request(chat(stream=False)) for _ in range(2)])
        for reply in replies:
            assert b"x" * 5000 in await read(reply)
        rig.check_clean()

    run(main)


@pytest.mark.parametrize("leaves", [False, True])
def test_coalesce_unexpected_error_is_raised_in_the_request_that_made_the_call(monkeypatch: pytest.MonkeyPatch,
                                                                               leaves: bool) -> None:
    """The other request makes another call. If the maker has left, the handler of the loop gets the error."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO)

        async def open_wrongly(call: Call) -> AnswerStream:
            monkeypatch.undo()
            await asyncio.sleep(1.0)
            raise ZeroDivisionError

        monkeypatch.setattr(rig.scripted[0], "open", open_wrongly)
        handled: list[object] = []
        loop.set_exception_handler(lambda _, context: handled.append(context.get("exception")))
        first, other = asyncio.create_task(rig.text()), asyncio.create_task(rig.text())
        await asyncio.sleep(0.5)
        if leaves:
            first.cancel()
        one, two = await asyncio.gather(first, other, return_exceptions=True)
        assert isinstance(one, asyncio.CancelledError if leaves else ZeroDivisionError)
        assert two == "Hello"
        await asyncio.sleep(0)
        assert [type(error) for error in handled] == [ZeroDivisionError] * leaves
        rig.check_clean()

    run(main)


def test_coalesce_timings_of_a_lone_stream_are_those_of_its_tokens() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [Wait(0.25), SendText("a"), Wait(0.1), SendText("b"), Wait(0.4), SendText("c")])
        assert await rig.text() == "abc"
        (done,) = rig.sink.facts_of(RequestDone)
        assert done.ttft_s == pytest.approx(0.25)
        assert done.gap_max_s == pytest.approx(0.4)
        assert (done.upstream, done.cache, len(done.attempts)) == ("up0", "miss", 1)
        (gaps,) = rig.sink.facts_of(TokenGaps)
        assert gaps.gaps_s == pytest.approx([0.1, 0.4])

    run(main)


@pytest.mark.parametrize("leaves_at", [0.0, 0.1, 0.3])
def test_coalesce_cancellation_keeps_its_reason(leaves_at: float) -> None:
    """The reason is a drain; before the first token and in mid-answer the upstream is closed."""
    late = Shed("This gateway is shutting down.", code="draining", retry_after_s=1)

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO)

        async def client() -> None:
            reply = await rig.serve_request()
            try:
                await read(reply)
            finally:
                reply.close(late)

        task = asyncio.create_task(client())
        await asyncio.sleep(leaves_at)
        task.cancel(late)
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.status, done.error) == (503, "draining")
        assert [attempt.outcome for attempt in done.attempts] == [Outcome.IGNORED]
        rig.check_clean()

    run(main)
