"""One deadline through a turn: caps, reserves, nesting, fallbacks, cancellation. In virtual time, to the millisecond."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf

import pytest

from stayfast.testing import SimLoop, VirtualThreads, run
from stayfast.turns import Budget, OutOfTime, StepCancelled, StepTimeout, budget, charge, current_budget, remaining, step
from tests.turns.rig import fails, stubborn, takes


def in_turn(body: Callable[[Budget], Awaitable[None]], total: float = 2.5, **reserve: float) -> tuple[Budget, float]:
    """Run a body in a budget; the budget, and when it ended."""
    async def main(loop: SimLoop) -> tuple[Budget, float]:
        async with budget(total, reserve) as b:
            await body(b)
        return b, loop.now()

    return run(main)


def test_step_unused_time_is_left_for_the_next() -> None:
    async def body(b: Budget) -> None:
        assert await b.run(takes, 0.2, "kb") == "kb"
        assert b.remaining() == pytest.approx(2.3)

    assert in_turn(body)[1] == pytest.approx(0.2)


def test_step_at_its_cap_raises_step_timeout_or_gives_its_fallback() -> None:
    async def body(b: Budget) -> None:
        with pytest.raises(StepTimeout, match=r"'takes': not done within its cap of 0\.4 s"):
            await b.run(takes, 9.0, cap=0.4)
        assert await b.run(takes, 9.0, cap=0.4, fallback=[]) == []
        assert b.remaining() == pytest.approx(1.7)

    b, ended_at = in_turn(body)
    assert ended_at == pytest.approx(0.8)
    assert [(row.outcome, row.used_fallback) for row in b.step_runs] == [("timeout", False), ("timeout", True)]
    assert b.broken_by is None


def test_reserve_limits_earlier_steps_and_is_released_for_its_stage() -> None:
    async def body(b: Budget) -> None:
        assert b.remaining() == pytest.approx(0.9)
        assert await b.run(takes, 0.3, name="kb") == "done"
        assert await b.run(takes, 9.0, name="web", fallback=None) is None
        assert b.remaining() == 0.0
        seen = []

        async def answer() -> None:
            seen.append(remaining())
            await asyncio.sleep(1.5)

        await b.run(answer)
        assert seen == [pytest.approx(1.6)]

    b, ended_at = in_turn(body, answer=1.6)
    assert ended_at == pytest.approx(0.9 + 1.5)
    assert b.broken_by == "web"


def test_reserve_of_a_skipped_stage_is_released() -> None:
    async def body(b: Budget) -> None:
        assert b.remaining() == pytest.approx(0.5)
        await b.run(takes, 0.1, name="answer")
        assert b.remaining() == pytest.approx(2.4)

    in_turn(body, rerank=0.5, answer=1.5)


def test_nested_budget_ends_with_the_step_around_it() -> None:
    """Its reserves are scaled to the time left."""
    async def inner() -> object:
        async with budget(10, {"answer": 8}) as b:
            assert b.remaining() == pytest.approx(0.2)  # of 1 s, eight tenths are reserved
            assert current_budget() is b
            return await b.run(takes, 9.0, name="answer", fallback="late")

    async def body(b: Budget) -> None:
        assert await b.run(inner, cap=1.0, fallback="cut") == "cut"
        async with budget() as same:
            assert same.remaining() == pytest.approx(1.5)

    assert in_turn(body)[1] == pytest.approx(1.0)


async def run_inner(b: Budget, function: Callable[[], Awaitable[None]]) -> None:
    await b.run(function, name="inner", cap=1.0)


async def gather_inner(b: Budget, function: Callable[[], Awaitable[None]]) -> None:
    await b.gather(inner=step(function, cap=1.0))


async def open_inner(_: Budget, function: Callable[[], Awaitable[None]]) -> None:
    async with budget(1.0) as inner:
        await inner.run(function, name="inner")


@pytest.mark.parametrize("start_inner", [run_inner, gather_inner, open_inner])
def test_step_inside_a_step_is_limited_by_the_outer_cap(
        start_inner: Callable[[Budget, Callable[[], Awaitable[None]]], Awaitable[None]]) -> None:
    """The inner step has a longer cap; it knows the earlier end, and is over then."""
    left_s: list[float] = []
    ended_at: list[float] = []

    async def inner() -> None:
        left_s.append(remaining())
        try:
            await asyncio.sleep(60)
        finally:
            ended_at.append(asyncio.get_running_loop().time())

    async def body(b: Budget) -> None:
        async def outer() -> None:
            await asyncio.sleep(0.1)
            assert b.remaining() == pytest.approx(0.3)
            await start_inner(b, inner)

        assert await b.run(outer, cap=0.4, fallback="cut") == "cut"
        runs = [b.step_runs[0], *[row for row in b.step_runs if row.name == "inner"]]
        for opened in b.step_runs[0].inner or ():
            runs += opened.step_runs
        assert [row.ends_at for row in runs] == [pytest.approx(0.4)] * 2

    in_turn(body)
    assert left_s == [pytest.approx(0.3)]
    assert ended_at == [pytest.approx(0.4)]


def test_remaining_is_that_of_the_step_and_infinite_without_a_budget() -> None:
    async def body(b: Budget) -> None:
        seen = []

        async def look() -> None:
            seen.append(await asyncio.create_task(inside()))

        async def inside() -> float:
            return remaining()

        await b.run(look, cap=0.4)
        await b.run(look)
        assert seen == [pytest.approx(0.4), pytest.approx(2.5)]

    assert remaining() == inf
    with pytest.raises(RuntimeError, match=r"`async with budget\(total=2\.5\):` around"):
        current_budget()
    in_turn(body)


def test_failing_step_raises_its_own_exception_or_gives_its_fallback() -> None:
    async def body(b: Budget) -> None:
        with pytest.raises(LookupError, match="no such page"):
            await b.run(fails, 0.1)
        assert await b.run(fails, 0.1, fallback="none") == "none"

    b, _ = in_turn(body)
    assert [(row.outcome, row.detail) for row in b.step_runs] == [("failed", "LookupError")] * 2


def test_cancelled_turn_cancels_its_steps_and_waits_for_cleanup() -> None:
    cleaned: list[float] = []

    async def main(loop: SimLoop) -> None:
        async def careful() -> None:
            try:
                await asyncio.sleep(9)
            finally:
                await asyncio.sleep(0.003)
                cleaned.append(loop.now())

        async def turn() -> None:
            async with budget(5) as b:
                await b.gather(one=careful(), two=b.run(careful, cap=3.0))

        task = asyncio.create_task(turn())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned == [pytest.approx(1.003)] * 2
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_step_that_suppresses_cancellation_is_abandoned_and_named() -> None:
    async def body(b: Budget) -> None:
        assert await b.run(stubborn, cap=1.0, fallback=None) is None

    b, ended_at = in_turn(body)
    assert ended_at == pytest.approx(1.01)
    assert b.abandoned == ["stubborn"]
    assert "abandoned, may still be running: stubborn" in b.report()


def test_abandoned_step_is_cancelled_again_at_the_end_of_the_turn() -> None:
    """A step that is still cleaning up is not."""
    closed: list[str] = []

    async def refuses_once() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    async def closes() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.004)
            closed.append("connection")

    async def body(b: Budget) -> None:
        assert await b.run(refuses_once, cap=0.1, fallback="none") == "none"
        await b.gather(closes=closes, by=0.1)

    b, ended_at = in_turn(body)
    assert b.abandoned == []
    assert closed == ["connection"]
    assert ended_at < 0.22


def test_plain_function_late_in_its_thread_is_abandoned() -> None:
    """It knows the deadline."""
    async def main(loop: SimLoop) -> None:
        threads = VirtualThreads()

        def look_up(seconds: float) -> float:
            threads.sleep(seconds)
            return remaining()

        async with budget(2.5, threads=threads) as b:
            assert await b.run(look_up, 0.5, cap=1.0) == pytest.approx(1.0)
            assert await b.run(look_up, 9.0, cap=1.0, fallback=None) is None
            assert loop.now() == pytest.approx(1.5)
            assert b.abandoned == ["look_up"]
            assert list(threads.running.values()) == ["look_up"]

    run(main)


def test_body_waiting_outside_of_steps_raises_out_of_time() -> None:
    async def body(b: Budget) -> None:
        await asyncio.sleep(2.505)
        with pytest.raises(StepTimeout, match="no time was left"):
            await b.run(takes, 0.1)
        await asyncio.sleep(9)

    with pytest.raises(OutOfTime, match=r"2\.5 s were over .* b\.run"):
        in_turn(body)


def test_timeout_error_raised_in_the_body_is_not_converted() -> None:
    async def body(b: Budget) -> None:
        async with asyncio.timeout(0.1):
            await b.run(takes, 1.0)

    with pytest.raises(TimeoutError) as caught:
        in_turn(body)
    assert type(caught.value) is TimeoutError


def test_step_cancelled_from_outside_raises_step_cancelled() -> None:
    """Not the cancellation of the turn."""
    async def body(b: Budget) -> None:
        async def lost() -> None:
            raise asyncio.CancelledError

        with pytest.raises(StepCancelled, match="cancelled from outside of its budget"):
            await b.run(lost)

    in_turn(body)


def test_report_has_steps_costs_and_the_step_that_broke_the_budget() -> None:
    """Costs of inner budgets are included."""
    async def paid() -> None:
        charge(0.002)
        async with budget(1) as inner:
            await inner.run(takes, 0.1, name="inner")
            charge(0.001)

    async def body(b: Budget) -> None:
        await b.run(paid)
        await b.gather(kb=step(takes, 9, cap=0.4, fallback=[]), web=takes(9))

    b, _ = in_turn(body)
    assert b.cost_usd == pytest.approx(0.003)
    assert [line.split("|")[0].strip() for line in b.report().splitlines()[1:5]] == ["paid", "inner", "kb", "web"]
    assert "timeout, fallback used, not done within its cap of 0.4 s" in b.report()
    assert b.report().endswith("broke the budget: web")


def test_broken_by_names_a_step_of_an_inner_budget() -> None:
    """Only if it used the outer budget's time."""
    async def inside(total: float | None) -> None:
        async with budget(total) as inner:
            await inner.run(takes, 99, name="inner", fallback=None)

    async def body(b: Budget) -> None:
        await b.run(inside, 0.5)
        assert b.broken_by is None
        await inside(None)

    b, _ = in_turn(body)
    assert b.broken_by == "inner"
    assert b.report().endswith("broke the budget: inner")


def test_abandoned_includes_steps_of_inner_budgets() -> None:
    async def body(b: Budget) -> None:
        async with budget(1) as inner:
            await inner.run(stubborn, name="inner", cap=0.1, fallback=None)

    b, _ = in_turn(body)
    assert b.abandoned == ["inner"]
    assert "abandoned, may still be running: inner" in b.report()


def test_body_after_a_blocked_loop_still_has_its_grace() -> None:
    """Step and body expire in the same iteration of the loop."""
    async def main(loop: SimLoop) -> object:
        async with budget(2.5) as b:
            loop.call_at(2.499, loop.stall, 0.05)
            return await b.run(takes, 60, name="kb", fallback="nothing")

    assert run(main) == "nothing"
