"""A nap is awaited as a sleep is, on every loop that a simulated provider runs on."""

import asyncio
import gc
from collections.abc import Callable

import pytest
import uvloop

from stayfast.pipeline.carried import Step, carry, go_on
from stayfast.testing import SimLoop, run
from stayfast.upstreams.simulated.nap import Nap

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [SimLoop, asyncio.new_event_loop, uvloop.new_event_loop]


async def nap(seconds: float) -> str:
    """Sleep, and say how it ended."""
    try:
        await Nap(seconds, asyncio.get_running_loop())
    except asyncio.CancelledError:
        return "cancelled"
    return "woke"


@pytest.mark.parametrize("loop_of", LOOPS)
def test_it_wakes(loop_of: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Once the time is up; not before."""
    async def main() -> float:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        assert await nap(0.02) == "woke"
        return loop.time() - began_at

    with asyncio.Runner(loop_factory=loop_of) as runner:
        assert 0.018 < runner.run(main()) < 1


@pytest.mark.parametrize("loop_of", LOOPS)
def test_a_cancel_ends_it(loop_of: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """At once, whether the nap has begun or is about to."""
    async def main() -> list[str]:
        begun = asyncio.ensure_future(nap(600))
        await asyncio.sleep(0)
        new = asyncio.ensure_future(nap(600))
        asyncio.get_running_loop().call_soon(new.cancel)  # in the turn in which it begins
        begun.cancel()
        return list(await asyncio.gather(begun, new))

    with asyncio.Runner(loop_factory=loop_of) as runner:
        assert runner.run(main()) == ["cancelled"] * 2


def test_a_cancel_in_the_instant_of_the_end() -> None:
    """Whoever cancels in the very turn of the loop in which the time is up finds it cancelled, and nothing raises later."""
    async def main(loop: SimLoop) -> tuple[str, list[object]]:
        errors: list[object] = []
        loop.set_exception_handler(lambda _, context: errors.append(context))
        napping = asyncio.ensure_future(nap(1.0))
        loop.call_at(1.0, napping.cancel)  # set before the nap's own timer, so that it runs before
        end = await napping
        await asyncio.sleep(1)
        return end, errors

    assert run(main) == ("cancelled", [])


class Wanted:
    """A carrier whose call goes on without the task that began it."""

    def is_wanted(self) -> bool:
        """Always."""
        return True

    def take(self, call: Step, waits_for: object) -> None:
        """In a task of its own."""
        self.task = asyncio.ensure_future(go_on(call, waits_for))


@pytest.mark.parametrize("left_at", [0.4, 1.0])
def test_another_task_can_go_on_with_it(left_at: float) -> None:
    """Whoever began to wait is cancelled, in the instant of the end too: the wait ends when it would have ended."""
    async def main(loop: SimLoop) -> tuple[bool, float, str]:
        carrier = Wanted()
        first = asyncio.ensure_future(carry(nap(1.0), carrier))
        loop.call_at(left_at, first.cancel)  # set before the nap's own timer
        with pytest.raises(asyncio.CancelledError):
            await first
        end = await carrier.task
        return first.cancelled(), loop.time(), end

    assert run(main) == (True, 1.0, "woke")


def test_it_leaves_no_cycles() -> None:
    """A million answers are ten millions of naps: the collector has nothing to do with them."""
    async def main(loop: SimLoop) -> int:
        gc.collect()
        gc.disable()
        try:
            for _ in range(100):
                await Nap(0.1, loop)
            return gc.collect()
        finally:
            gc.enable()

    assert run(main) < 50
