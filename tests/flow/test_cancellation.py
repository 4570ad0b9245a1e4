"""The client is gone, in every state: the upstream closes at that very instant and nothing stays held."""

import asyncio
import gc
from collections.abc import Sequence
from random import Random

import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import Shed
from stayfast.core.events import RequestDone
from stayfast.core.types import Api, Request
from stayfast.pipeline.attempts.attempt import Attempt
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.pipeline.stages.relay import Reply
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.queue import QueueConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Fail, Script, SendText, SimLoop, Wait, run
from stayfast.upstreams.base import AnswerStream, Call
from tests.flow.rig import Rig, chat, read


class Connecting:
    """An upstream to which no connection ever comes about."""

    name = "connecting"
    kind = "test"
    always_streams = True

    def __init__(self) -> None:
        self.n_open = 0

    def can_serve(self, api: Api) -> bool:
        """Everything."""
        return True

    async def open(self, call: Call) -> AnswerStream:
        """Never returns."""
        self.n_open += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.n_open -= 1
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Nothing."""


async def _leave_at(loop: SimLoop, rig: Rig, leave_at: float, request: Request) -> None:
    async def client() -> None:
        reply = await rig.serve(request)
        try:
            await read(reply)
        finally:
            reply.close()

    task = loop.create_task(client())
    await asyncio.sleep(leave_at - loop.now())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert loop.now() == leave_at
    assert rig.n_open == 0
    assert rig.n_in_flight == 0
    (done,) = rig.sink.facts_of(RequestDone)
    assert (done.status, done.error) == (499, "client_left")
    await asyncio.sleep(2.0)  # what slots of alarms were set for is over by then
    assert loop.n_timers == 0


STATES: dict[str, tuple[Sequence[Script], float, bool]] = {
    "before_first_token": ([[Wait(5), SendText("x")]], 1.0, True),
    "mid_stream": ([[Wait(0.2), SendText("a"), Wait(5), SendText("b")]], 1.0, True),
    "not_streaming": ([[Wait(0.2), SendText("a"), Wait(5), SendText("b")]], 1.0, False),
    "back_off": ([[Fail(retry_after_s=4)]], 1.0, True),
}


@pytest.mark.parametrize("state", STATES)
def test_client_hang_up_closes_the_upstream_at_once(state: str) -> None:
    """At the same instant; nothing stays held, no timer is left."""
    scripts, leave_at, stream = STATES[state]

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, scripts, retry=RetryConfig(max_attempts=3), timeouts=Timeouts(total_s=60))
        await _leave_at(loop, rig, leave_at, chat(stream=stream))
        if state != "back_off":
            assert rig.scripted[0].last_closed_at == leave_at
            assert rig.scripted[0].n_cancelled == 1

    run(main)


@pytest.mark.parametrize("state", STATES)
def test_drain_cancellation_is_a_503(state: str) -> None:
    """The request does not count as one whose client has left."""
    scripts, leave_at, stream = STATES[state]
    late = Shed("This gateway is shutting down.", code="draining", retry_after_s=1)

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, scripts, retry=RetryConfig(max_attempts=3), timeouts=Timeouts(total_s=60))

        async def client() -> None:
            reply = await rig.serve(chat(stream=stream))
            try:
                await read(reply)
            finally:
                reply.close(late)

        task = loop.create_task(client())
        await asyncio.sleep(leave_at)
        task.cancel(late)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert rig.n_open == rig.n_in_flight == 0
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.status, done.error) == (503, "draining")

    run(main)


def test_client_hang_up_in_the_middle_of_an_answer_leaves_no_reference_cycle() -> None:
    """The memory of the request is free at once, not when the collector runs."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(0.1), SendText("a"), Wait(100.0), SendText("b")]])
        gc.collect()
        gc.disable()
        try:
            await _leave_at(loop, rig, loop.now() + 1.0, chat())
            await asyncio.sleep(0.1)
            n_replies = sum(isinstance(each, Reply) for each in gc.get_objects())
            assert n_replies == 0
        finally:
            gc.enable()

    run(main)


def test_client_hang_up_ends_the_connection_attempt() -> None:
    async def main(loop: SimLoop) -> None:
        upstream = Connecting()
        rig = Rig(loop, upstreams=[upstream])
        await _leave_at(loop, rig, 1.0, chat())
        assert upstream.n_open == 0

    run(main)


def test_reply_close_before_reading_releases_everything() -> None:
    """An async generator that was never iterated would not."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[SendText("a"), Wait(5), SendText("b")]])
        reply = await rig.serve()
        assert rig.n_in_flight == 1
        reply.close()
        reply.close()
        assert rig.n_open == rig.n_in_flight == 0
        assert len(rig.sink.facts_of(RequestDone)) == 1

    run(main)


def test_client_hang_up_at_the_instant_of_a_timeout_leaves_nothing() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(5), SendText("x")]], timeouts=Timeouts(first_token_s=1.0))
        task = loop.create_task(rig.serve())
        loop.call_at(1.0, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert rig.n_open == rig.n_in_flight == 0

    run(main)


def test_reply_with_an_attempt_that_fails_to_end_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the gateway itself at the very end: the place is free, and no timeout is left to cancel the task."""
    def fail(attempt: Attempt, *arguments: object, **options: object) -> None:
        raise ZeroDivisionError

    async def main(loop: SimLoop) -> float:
        places = Admission(AdmissionConfig(1, QueueConfig()), {}, loop, Random(1))
        rig = Rig(loop, [[SendText("Hello")]], admit=places)
        reply = await rig.serve()
        monkeypatch.setattr(Attempt, "end", fail)
        with pytest.raises(ZeroDivisionError):
            await read(reply)
        assert places.places.n_taken == 0
        assert len(rig.sink.facts_of(RequestDone)) == 1
        await asyncio.sleep(1000)
        return loop.now()

    assert run(main) == 1000
