"""A blocked event loop is reported as such; steps that only waited meanwhile are not blamed."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import pytest
import uvloop

from stayfast.core.errors import UpstreamFailed
from stayfast.testing import SimLoop, run
from stayfast.turns import BreakerPolicy, Budget, HedgePolicy, StepTimeout, TurnRequest, budget, report, step
from tests.turns.rig import takes
from tests.turns.served_rig import Serving


def in_turn(body: Callable[[Budget, SimLoop], Awaitable[object]], total: float = 1.0) -> Budget:
    """A turn of so many seconds, over."""
    async def main(loop: SimLoop) -> Budget:
        async with budget(total) as b:
            await body(b, loop)
        return b

    return run(main)


async def blocks(seconds: float, then_s: float = 0.0) -> str:
    """What computes on the loop, and then waits."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    loop.stall(seconds)
    await asyncio.sleep(then_s)
    return "computed"


@pytest.mark.parametrize("then_s", [0.0, 9.0])
def test_step_concurrent_with_a_blocking_one_times_out_and_the_loop_is_blamed(then_s: float) -> None:
    async def body(b: Budget, loop: SimLoop) -> None:
        await b.gather(slow=step(blocks, 1.5, then_s), innocent=takes(60))

    b = in_turn(body)
    innocent = b.step_runs[1]
    assert (innocent.outcome, innocent.detail) == (
        "timeout", "not done within the 1 s that the turn had for it; the event loop was blocked for 0.5 s at its end")
    assert b.broken_by == report.find_blamed_anywhere(b) == "the event loop"
    assert b.report().endswith("broke the budget: the event loop")


def test_step_after_a_blocking_one_is_not_blamed() -> None:
    """The late one says why it ended late."""
    async def body(b: Budget, loop: SimLoop) -> None:
        async def computes() -> None:
            loop.stall(1.5)

        await b.run(computes)
        assert await b.run(takes, 0.1, name="answer", fallback="late") == "late"

    b = in_turn(body)
    assert b.broken_by == "the event loop"
    assert "ok, ended 500 ms late, as the event loop was blocked" in b.report()
    assert "0 ms of 0 ms, timeout, fallback used, no time was left to start it" in b.report()


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_result_that_exists_when_a_late_timer_fires_is_used(runner: Callable[[Coroutine[object, object, None]],
                                                                             None]) -> None:
    """On either loop; the body is not cut off."""
    async def computes() -> str:
        sum(range(int(2e7)))  # takes 0.2 s or more
        return "computed"

    async def main() -> None:
        async with budget(0.05) as b:
            assert await b.run(computes) == "computed"
            assert await b.run(takes, 1.0, name="answer", fallback="late") == "late"
        assert [row.outcome for row in b.step_runs] == ["ok", "timeout"]
        assert b.broken_by == "the event loop"

    runner(main())


def test_hedge_still_running_at_the_deadline_is_ended() -> None:
    """If the first call failed just as the time ran out."""
    search = HedgePolicy(after_s=0.1)
    n_calls = 0

    async def main(loop: SimLoop) -> None:
        async def read() -> None:
            nonlocal n_calls
            n_calls += 1
            if n_calls == 1:
                await asyncio.sleep(0.9)
                loop.stall(0.5)
                raise LookupError
            await asyncio.sleep(60)

        async with budget(1.0) as b:
            assert await b.run(read, hedge=search, fallback="none") == "none"
        assert loop.now() < 1.5
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)
    assert n_calls == 2


@pytest.mark.parametrize(("stall_s", "blamed"), [(0.03, "waits"), (0.09, "waits"), (0.2, "the event loop")])
def test_loop_late_by_milliseconds_does_not_excuse_a_step(stall_s: float, blamed: str) -> None:
    async def body(b: Budget, loop: SimLoop) -> None:
        loop.call_at(0.999, loop.stall, stall_s)
        await b.run(takes, 60, name="waits", fallback=None)

    assert in_turn(body).broken_by == blamed


def test_breaker_cap_exceeded_while_the_loop_was_blocked_is_no_failure() -> None:
    crm = BreakerPolicy()

    async def main(loop: SimLoop) -> None:
        async with budget(100) as b:
            for _ in range(9):
                loop.call_at(loop.now() + 0.099, loop.stall, 0.3)
                with pytest.raises(StepTimeout, match=r"its cap of 0\.1 s; the event loop was blocked for 0\.299"):
                    await b.run(takes, 60, cap=0.1, breaker=crm)
            assert await b.run(takes, 0.01, "well", breaker=crm) == "well"
        assert b.broken_by is None

    run(main)


def test_served_turn_504_and_steps_blame_the_blocked_loop() -> None:
    async def desk(asked: TurnRequest) -> str:
        asyncio.get_running_loop().call_later(0.45, stalls)
        async with budget(0.5) as b:
            await b.run(takes, 60, name="search")
        return "never"

    def stalls() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.stall(0.3)

    async def main(loop: SimLoop) -> tuple[UpstreamFailed, Serving]:
        serving = Serving(loop, desk)
        with pytest.raises(UpstreamFailed) as failed:
            await serving.ask()
        return failed.value, serving

    failed, serving = run(main)
    assert failed.message.endswith("ran out of time, as the event loop was blocked")
    assert [(one.name, one.outcome, one.broke_budget) for one in serving.attempts[0].steps] == [("search", "timeout", False)]
