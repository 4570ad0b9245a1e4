"""pipeline.alarms and pipeline.watch: waits end when they should, at any distance, and nothing is kept of what is over."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Stage
from stayfast.pipeline.timing.timeouts import AHEAD_S, SLOT_S, RequestTimeouts, TimerWheel
from stayfast.testing import SimLoop
from stayfast.testing.simloop import run

NEAR = st.floats(0.0, 3 * SLOT_S)
FAR = st.floats(0.0, 4 * AHEAD_S)


async def cut_at(loop: SimLoop, watch: RequestTimeouts) -> float:
    """When the wait that is under way is ended by its watch."""
    try:
        await loop.create_future()
    except asyncio.CancelledError:
        assert watch.take_timeout_error(Stage.CALL) is not None
    return loop.now()


@given(st.floats(0.0, 100.0), st.lists(st.one_of(NEAR, FAR), min_size=1, max_size=6))
def test_timer_wheel_ends_each_wait_at_its_instant(offset_s: float, waits_s: list[float]) -> None:
    """Several waits in a row, near and far, whatever the one before left."""
    async def main(loop: SimLoop) -> None:
        await asyncio.sleep(offset_s)
        watch = RequestTimeouts(TimerWheel(loop), loop.now() + 1000.0, 1000.0)
        for wait_s in waits_s:
            due_at = loop.now() + wait_s
            watch.arm("idle_s", wait_s, loop.now())
            assert abs(await cut_at(loop, watch) - due_at) < 1e-6
            watch.disarm()
        watch.stop()

    run(main)


@given(st.lists(st.tuples(FAR, FAR), min_size=1, max_size=8))
def test_timer_wheel_alarm_and_wait_are_independent(pairs: list[tuple[float, float]]) -> None:
    """Whichever comes first, each comes at its instant."""
    async def one(loop: SimLoop, alarms: TimerWheel, alarm_s: float, wait_s: float) -> None:
        rung: list[float] = []
        began_at = loop.now()
        watch = RequestTimeouts(alarms, began_at + 1000.0, 1000.0)
        watch.arm("idle_s", wait_s, began_at)
        watch.schedule_hedge_check(began_at + alarm_s, lambda: rung.append(loop.now()))
        assert abs(await cut_at(loop, watch) - began_at - wait_s) < 1e-6
        watch.stop()
        if alarm_s < wait_s - 1e-6:
            assert [abs(at - began_at - alarm_s) < 1e-6 for at in rung] == [True]
        elif alarm_s > wait_s + 1e-6:
            assert rung == []

    async def main(loop: SimLoop) -> None:
        alarms = TimerWheel(loop)
        await asyncio.gather(*(one(loop, alarms, *pair) for pair in pairs))

    run(main)


def test_timer_wheel_drops_stopped_waits() -> None:
    """A thousand waits with an hour to go are dropped within a second; one timer serves them all."""
    async def main(loop: SimLoop) -> None:
        alarms = TimerWheel(loop)
        for _ in range(1000):
            RequestTimeouts(alarms, loop.now() + 3600.0, 3600.0).stop()
        assert repr(alarms) == "<TimerWheel: 1000 new, 0 in 0 slots>"
        await asyncio.sleep(2 * SLOT_S)
        assert repr(alarms) == "<TimerWheel: 0 new, 0 in 0 slots>"

    run(main)


def test_timer_wheel_deadline_ends_an_unarmed_wait() -> None:
    async def main(loop: SimLoop) -> None:
        watch = RequestTimeouts(TimerWheel(loop), loop.now() + 2.5, 2.5)
        assert await cut_at(loop, watch) == 2.5

    run(main)
