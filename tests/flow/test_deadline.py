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


def test_first_token_limit_fires_on_time() -> None:
    """No content within `first_token_s`: 504 at that instant, naming the limit; the upstream is closed then."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(30), SendText("late")]], timeouts=Timeouts(total_s=60, first_token_s=2))
        with pytest.raises(UpstreamFailed) as failed:
            await rig.serve()
        assert (failed.value.status, failed.value.code) == (504, "first_token_s_exceeded")
        assert loop.now() == 2.0
        assert rig.scripted[0].last_closed_at == 2.0
        assert rig.n_in_flight == 0

    run(main)


def test_first_token_limit_leaves_time_for_another_attempt() -> None:
    """A slow attempt is swapped for a quick one while the deadline still allows."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(30), SendText("late")], [Wait(0.5), SendText("quick")]],
                  timeouts=Timeouts(total_s=60, first_token_s=2), retry=RetryConfig(max_attempts=2, backoff_base_s=0.01))
        reply = await rig.serve()
        assert reply.n_attempts == 2
        assert 2.5 <= loop.now() <= 2.51
        await read(reply)

    run(main)


def test_total_limit_bounds_the_first_token_too() -> None:
    """The deadline comes first when it is the earlier of the two, and then no attempt follows."""

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
def test_the_deadline_is_told_whichever_timer_is_quicker(connect_s: float) -> None:
    """At its instant the deadline is what ended the request; a shorter connect time-out is the upstream's failure."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, upstreams=[Dialing(loop)], timeouts=Timeouts(total_s=1.5, connect_s=connect_s))
        with pytest.raises(StayfastError) as failed:
            await rig.serve()
        assert isinstance(failed.value, DeadlineExceeded) is (connect_s >= 1.5)
        assert failed.value.status == (504 if connect_s >= 1.5 else 502)
        assert rig.n_in_flight == 0

    run(main)


def test_idle_gap_ends_a_running_stream() -> None:
    """A stream that halts is cut `idle_s` after its last chunk; the client is told, the upstream closed."""

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


def test_steady_stream_outlives_idle_but_not_total() -> None:
    """Each chunk renews the idle limit; nothing renews the deadline."""
    steps = [step for _ in range(100) for step in (Wait(0.5), SendText("x"))]

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [steps], timeouts=Timeouts(total_s=10, idle_s=1, first_token_s=1))
        reply = await rig.serve()
        with pytest.raises(DeadlineExceeded) as late:
            await read(reply)
        assert (late.value.limit, loop.now()) == ("total_s", 10.0)
        assert rig.sink.facts_of(RequestDone)[0].status == 504

    run(main)


def test_source_that_never_waits_is_bounded_too() -> None:
    """A reader that comes back after the deadline hears so, though the next chunk stood ready."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[SendText("a"), SendText("b"), SendText("c")]], timeouts=Timeouts(total_s=5))
        reply = await rig.serve()
        await reply.next()
        await asyncio.sleep(6)  # a client that takes nothing
        with pytest.raises(DeadlineExceeded):
            await reply.next()
        assert rig.n_open == rig.n_in_flight == 0

    run(main)


def test_client_patience_shortens_the_deadline_only() -> None:
    """`x-request-timeout` can lower the total, never raise it."""

    async def main(loop: SimLoop) -> None:
        for asked_s, ends_at in ((1.0, 1.0), (100.0, 5.0)):
            rig = Rig(loop, [[Wait(30), SendText("late")]], timeouts=Timeouts(total_s=5))
            began = loop.now()
            with pytest.raises(StayfastError):
                await rig.serve(total_s=asked_s)
            assert loop.now() - began == pytest.approx(ends_at)

    run(main)


def test_whole_answers_have_the_whole_deadline() -> None:
    """A collected answer still meets its first-token limit, since its upstream streams."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(3), SendText("x")]], timeouts=Timeouts(total_s=10, first_token_s=2))
        with pytest.raises(UpstreamFailed):
            await rig.serve(chat(stream=False))
        assert loop.now() == 2.0

    run(main)


def test_a_late_timer_in_back_off_is_no_time_out() -> None:
    """Only the deadline ends a back-off: a starved loop that wakes late goes on with its next attempt."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(retry_after_s=1)], [SendText("ok")]], timeouts=Timeouts(total_s=60),
                  retry=RetryConfig(max_attempts=2))
        task = loop.create_task(rig.serve())
        await asyncio.sleep(0.5)
        loop.stall(10)  # as if nothing ran for ten seconds
        assert (await task).n_attempts == 2

    run(main)


def test_back_off_never_outlives_the_deadline() -> None:
    """A retry whose wait does not fit is not made: the failure comes at once, not at the deadline."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(retry_after_s=30)]], timeouts=Timeouts(total_s=5), retry=RetryConfig(max_attempts=3))
        with pytest.raises(UpstreamFailed):
            await rig.serve()
        assert loop.now() < 0.001

    run(main)
