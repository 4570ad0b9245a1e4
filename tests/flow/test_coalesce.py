"""Calls that many share, on virtual time: who leaves, who fails, who is slow, and who pays."""

import asyncio

import msgspec
import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import DeadlineExceeded, Fault, Rejected, StayfastError, UpstreamFailed
from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.types import Outcome
from stayfast.pipeline.stages.cache import shared_call
from stayfast.testing import Fail, SendBytes, SendText, SimLoop, Wait, run
from tests.flow.cache_rig import HELLO, OTHER, CacheRig
from tests.flow.rig import chat, read, text_of


@pytest.mark.parametrize("stream", [True, False])
def test_coalesce_thousand_requests_make_one_call(stream: bool) -> None:
    """All get the same bytes at the same time, and one request pays."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO)
        replies = await asyncio.gather(*[rig.serve_request(chat(stream=stream)) for _ in range(1000)])
        bodies = set(await asyncio.gather(*[read(reply) for reply in replies]))
        assert len(bodies) == 1
        assert loop.now() == pytest.approx(0.35)
        assert rig.n_calls == 1
        done = rig.sink.facts_of(RequestDone)
        assert sum(len(fact.attempts) for fact in done) == 1
        assert sorted({str(fact.cache) for fact in done}) == ["coalesced", "miss"]
        assert all(fact.ttft_s == pytest.approx(0.25) for fact in done)
        rig.check_clean()

    run(main)


def test_coalesce_late_request_reads_from_the_start() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [SendText("a"), Wait(1.0), SendText("b"), Wait(1.0), SendText("c")])

        async def late() -> str:
            await asyncio.sleep(1.5)
            return await rig.text()

        assert list(await asyncio.gather(rig.text(), late())) == ["abc", "abc"]
        assert loop.now() == 2.0
        assert sorted(map(str, rig.results)) == ["coalesced", "miss"]
        assert rig.n_calls == 1

    run(main)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leaves_after_s", [0.1, 0.3])
def test_coalesce_first_client_leaves_and_the_call_goes_on(stream: bool, leaves_after_s: float) -> None:
    """Before the first token and after it; the next client pays for the call."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO, OTHER)

        async def whole() -> bytes:
            reply = await rig.serve_request(chat(stream=stream))
            try:
                return await read(reply)
            finally:
                reply.close()

        leader, other = asyncio.create_task(whole()), asyncio.create_task(whole())
        await asyncio.sleep(leaves_after_s)
        leader.cancel()
        body = await other
        assert (text_of(body) if stream else msgspec.json.decode(body)["choices"][0]["message"]["content"]) == "Hello"
        assert loop.now() == pytest.approx(0.35)
        (attempt,) = rig.sink.facts_of(AttemptDone)
        assert attempt.outcome is Outcome.SUCCESS
        facts = {fact.status: fact for fact in rig.sink.facts_of(RequestDone)}
        assert len(facts[200].attempts) == 1
        rig.check_clean()

    run(main)


@pytest.mark.parametrize("leaves_after_s", [0.0, 0.1, 0.3])
def test_coalesce_last_client_leaves_and_the_call_ends(leaves_after_s: float) -> None:
    """The upstream is closed in the same turn of the loop, and nothing is stored."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO)

        async def leave() -> None:
            reply = await rig.serve_request()
            try:
                await read(reply)
            finally:
                reply.close()

        tasks = [asyncio.create_task(leave()) for _ in range(3)]
        await asyncio.sleep(leaves_after_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        assert loop.now() == leaves_after_s
        rig.check_clean()
        assert sum(len(fact.attempts) for fact in rig.sink.facts_of(RequestDone)) == rig.n_calls
        assert rig.route_cache.store.n_entries == 0

    run(main)


def test_coalesce_failed_call_is_repeated_once() -> None:
    """The first client gets the failure; one of the others makes a second call, whose answer all get."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [Wait(0.1), Fail(Fault.RESET)], HELLO)
        answers = await asyncio.gather(*[rig.text() for _ in range(20)], return_exceptions=True)
        assert [isinstance(answer, UpstreamFailed) for answer in answers] == [True] + [False] * 19
        assert set(answers[1:]) == {"Hello"}
        assert rig.n_calls == 2
        rig.check_clean()

    run(main)


def test_coalesce_second_failed_call_fails_all() -> None:
    """An upstream that is down is not called once by each client."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [Wait(0.1), Fail(Fault.RESET)])
        answers = await asyncio.gather(*[rig.text() for _ in range(20)], return_exceptions=True)
        assert all(isinstance(answer, UpstreamFailed) for answer in answers)
        assert len({id(answer) for answer in answers}) == 20
        assert rig.n_calls == 2
        rig.check_clean()

    run(main)


def test_coalesce_invalid_request_fails_all_at_once() -> None:
    """A 400 would be the same for each of them: no second call is made."""

    async def main(loop: SimLoop) -> None:
        bad = b'data: {"error":{"message":"no such parameter","type":"invalid_request_error","code":"unknown"}}\n\n'
        rig = CacheRig(loop, [Wait(0.1), SendBytes(bad)], HELLO)
        answers = await asyncio.gather(*[rig.text() for _ in range(5)], return_exceptions=True)
        assert all(isinstance(answer, UpstreamFailed | Rejected) for answer in answers)
        assert rig.n_calls == 1

    run(main)


def test_coalesce_break_in_mid_answer_fails_all() -> None:
    """A client that has read a part cannot continue with another answer."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [SendText("Hel"), Wait(0.1), Fail(Fault.RESET)])
        answers = await asyncio.gather(*[rig.text() for _ in range(5)], return_exceptions=True)
        assert all(isinstance(answer, UpstreamFailed) for answer in answers)
        assert rig.n_calls == 1
        rig.check_clean()

    run(main)


def test_coalesce_longer_deadline_makes_another_call() -> None:
    """The first call ends with the deadline of its maker; a client with more time makes another."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [Wait(5.0), SendText("late")])
        first, second = await asyncio.gather(rig.text(total_s=1.0), rig.text(total_s=60.0), return_exceptions=True)
        assert isinstance(first, DeadlineExceeded)
        assert first.code == "total_s_exceeded"
        assert second == "late"
        assert loop.now() == 6.0
        rig.check_clean()

    run(main)


def test_coalesce_shorter_deadline_ends_only_its_own_request() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [Wait(5.0), SendText("late")])
        first, second = await asyncio.gather(rig.text(total_s=60.0), rig.text(total_s=1.0), return_exceptions=True)
        assert first == "late"
        assert isinstance(second, DeadlineExceeded)
        assert loop.now() == 5.0
        assert rig.n_calls == 1

    run(main)


def test_coalesce_stream_goes_on_after_the_deadline_of_its_maker() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [SendText("a"), Wait(2.0), SendText("b")])
        first, second = await asyncio.gather(rig.text(total_s=1.0), rig.text(total_s=60.0), return_exceptions=True)
        assert isinstance(first, DeadlineExceeded)
        assert second == "ab"
        assert rig.n_calls == 1
        rig.check_clean()

    run(main)


def test_coalesce_idle_upstream_fails_all() -> None:
    """idle_s is a limit of the call: there is one failed attempt."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [SendText("a"), Wait(50.0), SendText("b")], timeouts=Timeouts(idle_s=3.0))
        answers = await asyncio.gather(*[rig.text() for _ in range(3)], return_exceptions=True)
        assert all(isinstance(answer, StayfastError) and answer.code == "idle_s_exceeded" for answer in answers)
        (attempt,) = rig.sink.facts_of(AttemptDone)
        assert (attempt.outcome, attempt.fault) == (Outcome.DROPPED, "timeout")
        rig.check_clean()

    run(main)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leaves_after_s", [0.0, 0.1])
def test_coalesce_call_keeps_its_limits_when_its_maker_leaves(stream: bool, leaves_after_s: float) -> None:
    """The first token does not come in time: the call ends, and its attempt is a time-out."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [Wait(50.0), SendText("late")], timeouts=Timeouts(first_token_s=3.0))
        leader, other = (asyncio.create_task(rig.serve_request(chat(stream=stream))) for _ in range(2))
        await asyncio.sleep(leaves_after_s)
        leader.cancel()
        with pytest.raises(StayfastError) as failed:
            await other
        assert failed.value.code == "first_token_s_exceeded"
        ends = [(attempt.outcome, attempt.fault) for attempt in rig.sink.facts_of(AttemptDone)]
        assert ends == [(Outcome.DROPPED, "timeout")] * 2
        assert loop.now() == pytest.approx(6.0)
        rig.check_clean()

    run(main)


def test_coalesce_unread_call_is_bounded_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upstream is read at most AHEAD_BYTES ahead of the fastest client."""
    monkeypatch.setattr(shared_call, "AHEAD_BYTES", 2000)

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [SendText("x" * 1000) for _ in range(50)])
        reply = await rig.serve_request()
        await asyncio.sleep(5)
        (running,) = rig.calls.values()
        assert running.buffer.n_bytes < 5000
        assert len(text_of(await read(reply))) == 50_000
        await asyncio.sleep(0)
        rig.check_clean()

    run(main)


def test_coalesce_client_that_reads_too_slowly_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is MAX_BYTES behind; the fast client gets all of the answer, which is not stored."""
    monkeypatch.setattr(shared_call, "MAX_BYTES", 5000)

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [step for _ in range(50) for step in (SendText("x" * 1000), Wait(0.1))])
        quick, slow = await asyncio.gather(rig.serve_request(), rig.serve_request())
        assert len(text_of(await read(quick))) == 50_000
        with pytest.raises(UpstreamFailed) as failed:
            await read(slow)
        assert failed.value.code == "read_too_slowly"
        await asyncio.sleep(0)
        assert rig.route_cache.store.n_entries == 0
        rig.check_clean()

    run(main)


def test_coalesce_partial_answer_for_a_single_client_is_not_stored() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [SendText("a"), Wait(5.0), SendText("b")], partial=True)
        reply = await rig.serve_request(total_s=1.0)
        body = await read(reply)
        assert text_of(body) == "a"
        assert b'"finish_reason":"length"' in body
        assert reply.degraded == "partial"
        await asyncio.sleep(0)
        assert rig.route_cache.store.n_entries == 0
        rig.check_clean()

    run(main)


def test_coalesce_call_waits_for_its_fastest_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clients stop reading: the upstream is read AHEAD_BYTES ahead of the fastest of them, and no further."""
    monkeypatch.setattr(shared_call, "AHEAD_BYTES", 2000)

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [step for _ in range(50) for step in (SendText("x" * 1000), Wait(0.1))])
        replies = await asyncio.gather(*[rig.serve_request() for _ in range(3)])
        await asyncio.sleep(9)
        (call,) = rig.calls.values()
        n_bytes = call.buffer.n_bytes
        assert n_bytes < 6000
        await replies[1].next()
        await replies[1].next()
        await asyncio.sleep(9)
        assert n_bytes < call.buffer.n_bytes < n_bytes + 6000
        assert len(text_of(await read(replies[2]))) == 50_000
        replies[0].close()
        replies[1].close()
        await asyncio.sleep(0)
        rig.check_clean()

    run(main)
