"""One deadline bounds every wait, to the instant."""

import asyncio

import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import DeadlineExceeded, Fault, StayfastError, UpstreamFailed
from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.types import Api, Stage
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Fail, SendText, SimLoop, Wait, run
from stayfast.upstreams.base import AnswerStream, Call
from tests.flow.rig import Rig, chat, read


def test_first_token_limit_ends_an_attempt_on_time() -> None:
    """504 with the name of the limit; the upstream is closed at that instant."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(30), SendText("late")]], timeouts=Timeouts(total_s=60, first_token_s=2))
        with pytest.raises(UpstreamFailed) as failed:
            await rig.serve()
        assert (failed.value.status, failed.value.code) == (504, "first_token_s_exceeded")
        assert loop.now() == 2.0
        assert rig.scripted[0].last_closed_at == 2.0
        assert rig.n_in_flight == 0

    run(main)


def test_first_token_limit_leaves_time_for_a_retry() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(30), SendText("late")], [Wait(0.5), SendText("quick")]],
                  timeouts=Timeouts(total_s=60, first_token_s=2), retry=RetryConfig(max_attempts=2, backoff_base_s=0.01))
        reply = await rig.serve()
        assert reply.n_attempts == 2
        assert 2.5 <= loop.now() <= 2.51
        await read(reply)

    run(main)


def test_deadline_before_the_first_token_limit_ends_the_request() -> None:
    """No further attempt follows."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(30), SendText("late")]], timeouts=Timeouts(total_s=1.5, first_token_s=2),
                  retry=RetryConfig(max_attempts=3))
        with pytest.raises(DeadlineExceeded) as late:
            await rig.serve()
        assert (late.value.stage, late.value.limit, loop.now()) == (Stage.CALL, "total_s", 1.5)
        assert (late.value.message, late.value.code) == (
            "the request's deadline of 1.5 s passed in stage call", "total_s_exceeded")

    run(main)


class Dialing:
    """An upstream that never answers, and whose client gives up dialing at the request's own deadline."""

    name, kind, always_streams = "up0", "openai", False

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def can_serve(self, api: Api) -> bool:
        """All of them."""
        return True

    async def open(self, call: Call) -> AnswerStream:
        """In vain."""
        await asyncio.sleep(call.deadline.end_of_wait(call.connect_s, self._loop.now()) - self._loop.now())
        raise UpstreamFailed(self.name, Fault.TIMEOUT, "timed out waiting for a new connection")

    def close(self) -> None:
        """Holds nothing."""


@pytest.mark.parametrize("connect_s", [5.0, 1.5, 1.0])
def test_deadline_wins_over_a_connect_timeout_at_the_same_instant(connect_s: float) -> None:
    """A shorter connect time-out is a failure of the upstream."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, upstreams=[Dialing(loop)], timeouts=Timeouts(total_s=1.5, connect_s=connect_s))
        with pytest.raises(StayfastError) as failed:
            await rig.serve()
        assert isinstance(failed.value, DeadlineExceeded) is (connect_s >= 1.5)
        assert failed.value.status == (504 if connect_s >= 1.5 else 502)
        assert rig.n_in_flight == 0

    run(main)


def test_idle_limit_ends_a_running_stream() -> None:
    """`idle_s` after its last chunk."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[SendText("a"), Wait(1), SendText("b"), Wait(30), SendText("c")]], timeouts=Timeouts(idle_s=3))
        reply = await rig.serve()
        with pytest.raises(DeadlineExceeded) as late:
            await read(reply)
        assert (late.value.stage, late.value.limit) == (Stage.RELAY, "idle_s")
        assert loop.now() == 4.0
        assert rig.n_open == rig.n_in_flight == 0
        assert rig.sink.facts_of(AttemptDone)[0].fault == "timeout"

    run(main)


def test_idle_limit_is_renewed_by_chunks_and_the_deadline_is_not() -> None:
    steps = [step for _ in range(100) for step in (Wait(0.5), SendText("x"))]

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [steps], timeouts=Timeouts(total_s=10, idle_s=1, first_token_s=1))
        reply = await rig.serve()
        with pytest.raises(DeadlineExceeded) as late:
            await read(reply)
        assert (late.value.limit, loop.now()) == ("total_s", 10.0)
        assert rig.sink.facts_of(RequestDone)[0].status == 504

    run(main)


def test_deadline_ends_a_stream_with_a_ready_chunk() -> None:
    """The client comes back after the deadline."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[SendText("a"), SendText("b"), SendText("c")]], timeouts=Timeouts(total_s=5))
        reply = await rig.serve()
        await reply.next()
        await asyncio.sleep(6)  # a client that takes nothing
        with pytest.raises(DeadlineExceeded):
            await reply.next()
        assert rig.n_open == rig.n_in_flight == 0

    run(main)


def test_client_deadline_can_only_shorten() -> None:
    async def main(loop: SimLoop) -> None:
        for asked_s, ends_at in ((1.0, 1.0), (100.0, 5.0)):
            rig = Rig(loop, [[Wait(30), SendText("late")]], timeouts=Timeouts(total_s=5))
            began = loop.now()
            with pytest.raises(StayfastError):
                await rig.serve(total_s=asked_s)
            assert loop.now() - began == pytest.approx(ends_at)

    run(main)


def test_first_token_limit_holds_for_whole_answers() -> None:
    """The upstream streams, so that there is a first token."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(3), SendText("x")]], timeouts=Timeouts(total_s=10, first_token_s=2))
        with pytest.raises(UpstreamFailed):
            await rig.serve(chat(stream=False))
        assert loop.now() == 2.0

    run(main)


def test_late_timer_during_back_off_does_not_end_the_request() -> None:
    """The event loop was blocked for ten seconds; the next attempt is made."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(retry_after_s=1)], [SendText("ok")]], timeouts=Timeouts(total_s=60),
                  retry=RetryConfig(max_attempts=2))
        task = loop.create_task(rig.serve())
        await asyncio.sleep(0.5)
        loop.stall(10)  # as if nothing ran for ten seconds
        assert (await task).n_attempts == 2

    run(main)


def test_back_off_beyond_the_deadline_is_not_started() -> None:
    """The failure is the answer, at once."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(retry_after_s=30)]], timeouts=Timeouts(total_s=5), retry=RetryConfig(max_attempts=3))
        with pytest.raises(UpstreamFailed):
            await rig.serve()
        assert loop.now() < 0.001

    run(main)
