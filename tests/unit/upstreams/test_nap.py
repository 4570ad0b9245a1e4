"""A nap is awaited as a sleep is, on every loop that a simulated provider runs on."""

import asyncio
import gc
from collections.abc import Callable

import pytest
import uvloop

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
