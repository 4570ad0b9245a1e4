"""The client is gone while its request waits, or while several attempts of it run: nothing of any of them stays."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.types import Stage
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.queue import QueueConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Fail, Script, SendBytes, SendText, SimLoop, Wait, run
from tests.flow.rig import MODEL, Rig, chat, read

SLOW: Script = [Wait(5.0), SendText("slow")]
CONNECTED: Script = [SendBytes(b": ok\n\n"), Wait(5.0), SendText("slow")]  # the head is there, and then nothing
QUICK: Script = [Wait(0.2), SendText("quick"), Wait(5.0), SendText("end")]
RACE = HedgeConfig("race", race_after_s=0.1)


def _rig(loop: SimLoop, *scripts: Sequence[Script], hedge: HedgeConfig | None = None, n_fallback: int = 0,
         limit: LimitConfig | None = None, places: int | None = None) -> Rig:
    """A gateway of which one thing is on."""
    admission = Admission(AdmissionConfig(places, QueueConfig(max_wait_s=30.0)), {}, loop, Random(1)) if places else None
    retry = RetryConfig(max_attempts=2, backoff_base_s=2.0)
    rig = Rig(loop, *scripts, in_turn=True, retry=retry, n_fallback=n_fallback, limit=limit, admit=admission,
              timeouts=Timeouts(total_s=60.0))
    routes = rig.gateway.router.routes
    assert isinstance(routes, dict)
    routes[MODEL] = replace(routes[MODEL], hedging=Hedging(hedge or HedgeConfig("off"), retry))
    return rig


async def _client(rig: Rig, *, stream: bool = True) -> None:
    """Asks, and reads to the end."""
    reply = await rig.serve(chat(stream=stream))
    try:
        await read(reply)
    finally:
        reply.close()


async def _leave_at(loop: SimLoop, rig: Rig, at: float, client: Coroutine[Any, Any, None]) -> RequestDone:
    """Hang up at an instant; what the gateway says of it, which must be at that instant."""
    n_before = len(rig.sink.facts_of(RequestDone))
    task = loop.create_task(client)
    await asyncio.sleep(at - loop.now())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert loop.now() == at
    (done,) = rig.sink.facts_of(RequestDone)[n_before:]
    assert (done.status, done.error) == (499, "client_left")
    return done


async def _assert_nothing_left(loop: SimLoop, rig: Rig) -> None:
    """Once all have ended: no place, no stream, no waiting, no Task, no timer, and room for the next."""
    assert (rig.n_in_flight, rig.n_open) == (0, 0)
    assert all(member.has_room and not member.n_waiting and not member.pending for member in rig.registry)
    admit = rig.gateway.admit
    assert not isinstance(admit, Admission) or (admit.places.n_taken, admit.places.n_waiting) == (0, 0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await asyncio.sleep(2.0)
    assert loop.n_timers == 0


@pytest.mark.parametrize(("kind", "stage"), [("places", Stage.ADMIT), ("limit", Stage.CALL)])
def test_client_hang_up_while_waiting_frees_the_turn(kind: str, stage: Stage) -> None:
    """In the queue or at the limit of an upstream: the next request gets the place, and no call is made."""
    async def main(loop: SimLoop) -> None:
        rig = _rig(loop, [SLOW], places=1 if kind == "places" else None,
                   limit=LimitConfig("fixed", 1, 1) if kind == "limit" else None)
        first = loop.create_task(_client(rig))
        await asyncio.sleep(0.5)
        leaving = loop.create_task(_leave_at(loop, rig, 1.0, _client(rig)))
        await asyncio.sleep(0.25)
        last = loop.create_task(_client(rig))
        done = await leaving
        assert done.stages[-2].stage is stage
        assert done.attempts == ()
        assert rig.scripted[0].n_calls == 1
        await first
        assert loop.now() == pytest.approx(5.0)
        await last
        assert loop.now() == pytest.approx(10.0)
        await _assert_nothing_left(loop, rig)

    run(main)


@pytest.mark.parametrize("kind", ["places", "limit"])
def test_client_hang_up_as_its_place_is_freed_passes_it_on(kind: str) -> None:
    async def main(loop: SimLoop) -> None:
        rig = _rig(loop, [SLOW], places=1 if kind == "places" else None,
                   limit=LimitConfig("fixed", 1, 1) if kind == "limit" else None)
        tasks = [loop.create_task(_client(rig)) for _ in range(3)]
        loop.call_at(5.0, lambda: asyncio.get_running_loop().call_soon(tasks[1].cancel))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] in (
            [type(None), asyncio.CancelledError, type(None)], [type(None)] * 3)
        assert loop.now() == pytest.approx(10.0)
        await _assert_nothing_left(loop, rig)

    run(main)


STATES: dict[str, tuple[Callable[[SimLoop], Rig], float, tuple[int, ...]]] = {
    # what runs, when its client leaves, and how often each upstream has been asked by then
    "in_back_off": (lambda loop: _rig(loop, [[Fail(status=503)]]), 0.5, (1,)),
    "both_connecting": (lambda loop: _rig(loop, [SLOW], [SLOW], hedge=RACE), 1.0, (1, 1)),
    "first_connected_second_connecting": (lambda loop: _rig(loop, [CONNECTED], [SLOW], hedge=RACE), 1.0, (1, 1)),
    "first_failed_second_runs": (lambda loop: _rig(loop, [[Wait(0.15), Fail(status=503)]], [SLOW], hedge=RACE), 1.0, (1, 1)),
    "second_won_while_the_first_connected": (lambda loop: _rig(loop, [SLOW], [QUICK], hedge=RACE), 1.0, (1, 1)),
    "second_wins_in_this_instant": (lambda loop: _rig(loop, [SLOW], [QUICK], hedge=RACE), 0.1 + 0.2, (1, 1)),
    "first_won_while_the_second_connected": (lambda loop: _rig(loop, [QUICK], [SLOW], hedge=RACE), 1.0, (1, 1)),
    "second_begins_in_this_instant": (lambda loop: _rig(loop, [SLOW], [SLOW], hedge=RACE), 0.1, (1, 0)),
    "in_the_fallback": (lambda loop: _rig(loop, [[Fail(status=400)], [Fail()]], [SLOW], n_fallback=1), 4.0, (2, 1)),
}


@pytest.mark.parametrize(("state", "stream"), [*((state, True) for state in STATES), ("in_back_off", False),
                                               ("in_the_fallback", False)])
def test_client_hang_up_during_attempts_closes_them_all(state: str, stream: bool) -> None:
    """At that instant; each attempt has one fact."""
    make, at, n_asked = STATES[state]

    async def main(loop: SimLoop) -> None:
        rig = make(loop)
        done = await _leave_at(loop, rig, at, _client(rig, stream=stream))
        assert (rig.n_open, rig.n_in_flight) == (0, 0)
        assert len(done.attempts) == len(rig.sink.facts_of(AttemptDone)) >= sum(upstream.n_calls
                                                                                for upstream in rig.scripted)
        if state != "second_begins_in_this_instant":
            assert tuple(upstream.n_calls for upstream in rig.scripted) == n_asked
        assert all(attempt.ended_at <= at for attempt in done.attempts)
        await _assert_nothing_left(loop, rig)

    run(main)
