"""A place at an upstream: elsewhere, in turn, refused, given back whatever happens."""

import asyncio
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import DeadlineExceeded, Fault, Shed, StayfastError
from stayfast.core.events import AttemptDone, Hedged, RequestDone
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.policy.admission.lanes import LANES, LanesConfig
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Fail, Script, SendBytes, SendText, SimLoop, Wait, run
from tests.flow.rig import MODEL, Rig, chat, read

ONE = LimitConfig("fixed", min=1, max=1)
SECOND: Script = [Wait(0.5), SendText("ok"), Wait(0.5)]


async def serve_timed(rig: Rig, total_s: float | None = None) -> tuple[str, float]:
    """Who answered, and when the whole of it was there."""
    reply = await rig.serve(total_s=total_s)
    await read(reply)
    return reply.upstream, rig.loop.now()


def test_limit_full_upstream_is_skipped() -> None:
    """The preferred upstream has one request: the next one goes to the other, and back when there is room."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [SECOND], [SECOND], limit=ONE, in_turn=True)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(serve_timed(rig)) for _ in range(2)]
        assert [task.result() for task in tasks] == [("up0", 1.0), ("up1", 1.0)]
        assert await serve_timed(rig) == ("up0", 2.0)
        assert rig.n_in_flight == 0

    run(main)


def test_limit_waiting_requests_go_in_order() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [SECOND], limit=ONE)
        member = rig.registry["up0"]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(serve_timed(rig)) for _ in range(3)]
            await asyncio.sleep(0.1)
            assert (member.n_in_flight, member.n_waiting) == (1, 2)
        assert [task.result() for task in tasks] == [("up0", 1.0), ("up0", 2.0), ("up0", 3.0)]
        assert (member.n_in_flight, member.n_waiting, member.has_room) == (0, 0, True)

    run(main)


def test_limit_full_queue_rejects_at_once() -> None:
    """With a Retry-After, and a reason for the metric."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(3), SendText("ok")]], limit=LimitConfig("fixed", min=1, max=1, max_waiting=1))
        await serve_timed(rig)
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(serve_timed(rig))
            await asyncio.sleep(0.1)
            with pytest.raises(Shed) as shed:
                await rig.serve()
        assert loop.now() == 9.0
        assert (shed.value.status, shed.value.code, shed.value.reason) == (503, "upstream_busy", "upstream_busy")
        assert 6.0 <= (shed.value.retry_after_s or 0) <= 12.0
        assert shed.value.message == "upstream up0 is at its concurrency limit: its queue is full (1 waiting)"

    run(main)


def test_limit_wait_that_cannot_end_in_time_is_refused() -> None:
    """A place is held for three seconds, the request has one."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(3), SendText("ok")]], limit=ONE)
        await serve_timed(rig)
        async with asyncio.TaskGroup() as group:
            group.create_task(serve_timed(rig))
            await asyncio.sleep(0.1)
            with pytest.raises(Shed, match=r"a wait of 3 s for a slot plus up to 4\.5 s for a first token"):
                await rig.serve(total_s=1.0)
            assert loop.now() == pytest.approx(3.1)

    run(main)


def test_limit_wait_ends_at_the_deadline() -> None:
    """The time for which a place is held is not known yet."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(3), SendText("ok")]], limit=ONE)
        async with asyncio.TaskGroup() as group:
            group.create_task(serve_timed(rig))
            await asyncio.sleep(0.1)
            with pytest.raises(DeadlineExceeded):
                await rig.serve(total_s=1.0)
            assert loop.now() == pytest.approx(1.1)
            assert rig.registry["up0"].n_waiting == 0
        assert rig.n_in_flight == 0

    run(main)


def test_limit_full_upstream_falls_back() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(60), SendText("ok")]], [SECOND], limit=ONE, n_fallback=1, timeouts=Timeouts(total_s=10))
        async with asyncio.TaskGroup() as group:
            first = group.create_task(serve_timed(rig, total_s=600))
            await asyncio.sleep(0)
            assert (await serve_timed(rig))[0] == "up1"
            first.cancel()

    run(main)


@pytest.mark.parametrize("leaves_at_s", [0.5, 1.0])
def test_limit_client_that_leaves_the_queue_passes_its_place_on(leaves_at_s: float) -> None:
    """Also at the instant at which it gets the place."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [SECOND], limit=ONE)
        async with asyncio.TaskGroup() as group:
            group.create_task(serve_timed(rig))
            await asyncio.sleep(0)
            leaver = group.create_task(serve_timed(rig))
            await asyncio.sleep(0)
            last = group.create_task(serve_timed(rig))
            loop.call_at(leaves_at_s, leaver.cancel)
        assert last.result() == ("up0", 2.0)
        member = rig.registry["up0"]
        assert (member.n_in_flight, member.n_waiting, member.has_room, len(member.pending)) == (0, 0, True, 0)

    run(main)


SCRIPTS: list[Script] = [SECOND, [Wait(0.3), Fail(Fault.RESET)], [Fail(Fault.STATUS, status=503)],
                         [Fail(Fault.STATUS, status=429, retry_after_s=0.5)], [Wait(0.1), SendText("a"), Fail(Fault.RESET)],
                         [Wait(0.1), SendText("a"), Wait(5)], [SendBytes(b": ping\n\n"), Wait(2.0), SendText("b")]]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), n_clients=st.integers(1, 25), most=st.integers(1, 4), max_waiting=st.integers(0, 5))
def test_limit_random_clients_leave_nothing_held(seed: int, n_clients: int, most: int, max_waiting: int) -> None:
    """Clients come, wait, leave and fail at random: every place is free at the end, and no more ran than the limit."""

    async def main(loop: SimLoop) -> None:
        rng = Random(seed)
        limit = LimitConfig("fixed", min=1, max=most, max_waiting=max_waiting)
        scripts = [[rng.choice(SCRIPTS) for _ in range(10)] for _ in range(2)]
        rig = Rig(loop, *scripts, limit=limit, retry=RetryConfig(max_attempts=3))

        async def client() -> None:
            await asyncio.sleep(rng.uniform(0, 3))
            try:
                reply = await rig.serve(total_s=rng.uniform(0.2, 8))
                try:
                    await read(reply)
                finally:
                    reply.close()
            except StayfastError:
                pass
            finally:
                assert all(member.n_in_flight <= most for member in rig.registry)

        tasks = [loop.create_task(client()) for _ in range(n_clients)]
        for task in tasks:
            if rng.random() < 0.5:
                loop.call_at(rng.uniform(0, 6), task.cancel)
        await asyncio.wait(tasks)
        assert [task.exception() for task in tasks if not task.cancelled()] == [None] * sum(not t.cancelled() for t in tasks)
        for member in rig.registry:
            assert (member.n_in_flight, member.n_waiting, len(member.pending), member.has_room) == (0, 0, 0, True)
            assert member.whole_limiter.n_taken == 0
        assert rig.n_open == 0

    run(main)


def test_limit_by_lane_full_long_lane_does_not_delay_short_requests() -> None:
    """The note of a wait has its lane."""

    async def main(loop: SimLoop) -> None:
        admission = Admission(AdmissionConfig(100, lanes=LanesConfig(long_input_tokens=1000)), {}, loop, Random(3))
        rig = Rig(loop, [SECOND], limit=LimitConfig("gradient", min=1), admit=admission)
        member = rig.registry["up0"]
        member.split_by_lane(LANES)
        assert member.lanes is not None
        long, short = member.lanes["long"], member.lanes["short"]
        long.limit.adopt_value(1.0)
        novel = chat(messages=[{"role": "user", "content": "x" * 8000}])
        first, second = [asyncio.ensure_future(rig.serve(novel)) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert (long.n_in_flight, long.n_waiting, short.n_in_flight, member.n_in_flight) == (1, 1, 0, 1)
        assert await serve_timed(rig) == ("up0", 1.1)
        await read(await first)
        await read(await second)
        notes = [done.notes for done in rig.sink.facts_of(RequestDone)]
        assert ("waited 1600 ms for a place at up0: 1 of 1 places of lane long were taken, 0 others waiting",) in notes
        assert [(limited.n_in_flight, limited.n_waiting, limited.has_room) for limited in member.all_limiters] == [
            (0, 0, True)] * 4

    run(main)


def test_limit_reload_of_lanes_keeps_waiting_requests() -> None:
    """A reload removes the lanes, another one restores them: all waiting requests run, all places return."""

    async def main(loop: SimLoop) -> None:
        admission = Admission(AdmissionConfig(100, lanes=LanesConfig()), {}, loop, Random(3))
        rig = Rig(loop, [SECOND], limit=LimitConfig("gradient", min=1), admit=admission)
        member = rig.registry["up0"]
        member.split_by_lane(LANES)
        assert member.lanes is not None
        before = member.lanes["short"]
        before.limit.adopt_value(1.0)
        asking = [asyncio.ensure_future(serve_timed(rig)) for _ in range(3)]
        await asyncio.sleep(0.1)
        member.split_by_lane(())
        assert member.limiter_of("short") is member.whole_limiter
        assert [at for _, at in await asyncio.gather(*asking)] == [1.0, 1.1, 1.1]
        member.limit.adopt_value(1.0)
        asking = [asyncio.ensure_future(serve_timed(rig)) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert (member.n_in_flight, member.whole_limiter.n_waiting) == (1, 2)
        member.split_by_lane(LANES)
        assert [round(at, 6) for _, at in await asyncio.gather(*asking)] == [2.1, 2.2, 2.2]
        for limited in (before, *member.all_limiters):
            assert (limited.n_in_flight, limited.n_waiting, limited.n_taken) == (0, 0, 0)
        assert member.n_in_flight == 0

    run(main)


def test_limit_hedge_needs_a_place_of_its_lane() -> None:
    """No hedge goes to an upstream whose lane is full, though other lanes have places."""

    async def main(loop: SimLoop) -> None:
        admission = Admission(AdmissionConfig(100, lanes=LanesConfig()), {}, loop, Random(3))
        rig = Rig(loop, [SECOND], [SECOND], limit=LimitConfig("gradient", min=1), admit=admission, in_turn=True)
        routes = rig.gateway.router.routes
        assert isinstance(routes, dict)
        routes[MODEL] = replace(routes[MODEL], hedging=Hedging(HedgeConfig("race", race_after_s=0.1), RetryConfig()))
        other = rig.registry["up1"]
        other.split_by_lane(LANES)
        assert other.lanes is not None
        full = other.lanes["short"]
        full.limit.adopt_value(1.0)
        full.acquire()
        assert (await serve_timed(rig))[0] == "up0"
        assert [attempt.upstream for attempt in rig.sink.facts_of(AttemptDone)] == ["up0", "up0"]
        rig.registry["up0"].split_by_lane(LANES)
        rig.registry["up0"].limiter_of("short").limit.adopt_value(1.0)
        assert (await serve_timed(rig))[0] == "up0"
        assert rig.sink.facts_of(Hedged)[-1].refused == "busy"

    run(main)
