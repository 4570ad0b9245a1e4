"""compose.process: how late the event loop runs."""

import asyncio

import pytest

from stayfast.compose.process import LAG_EVERY_S, watch_loop
from stayfast.core.events import LoopLag
from stayfast.testing import RecordingSink, SimLoop, run


def test_loop_lag_of_a_blocked_loop_is_reported() -> None:
    """0.3 s without a turn; a loop that runs on time has a lag of 0."""
    async def main(loop: SimLoop) -> list[LoopLag]:
        sink = RecordingSink()
        task = loop.create_task(watch_loop(loop, sink))
        await asyncio.sleep(3.5 * LAG_EVERY_S)
        loop.stall(0.3 + LAG_EVERY_S / 2)
        await asyncio.sleep(1.2 * LAG_EVERY_S)
        task.cancel()
        return sink.facts_of(LoopLag)

    assert [lag.seconds for lag in run(main)] == pytest.approx([0, 0, 0, 0.3, 0], abs=1e-6)
