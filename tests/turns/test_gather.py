"""A fan-out: what is done, what is missing and why, and when it returns."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stayfast.testing import SimLoop, run
from stayfast.turns import Budget, GatherResult, budget, step
from tests.turns.rig import fails, stubborn, takes


def gathered(body: Callable[[Budget], Awaitable[GatherResult]], total: float = 2.5) -> tuple[GatherResult, float]:
    """What a fan-out brought, and when."""
    async def main(loop: SimLoop) -> tuple[GatherResult, float]:
        async with budget(total) as b:
            found = await body(b)
            at = loop.now()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found, at

    return run(main)


def test_gather_takes_as_long_as_the_slowest_step() -> None:
    found, at = gathered(lambda b: b.gather(kb=takes(0.2, 1), web=step(takes, 0.5, 2), own=lambda: None))
    assert at == pytest.approx(0.5)
    assert found.done == {"kb": 1, "web": 2, "own": None}
    assert not found.missing


def test_gather_reports_failures_by_name_without_raising() -> None:
    found, at = gathered(lambda b: b.gather(good=takes(0.3, 1), bad=fails(0.1), slow=takes(9),
                                            capped=step(takes, 9, cap=0.2, fallback=[])))
    assert at == pytest.approx(2.5)
    assert found.done == {"good": 1, "capped": []}
    assert {name: missing.reason for name, missing in found.missing.items()} == {
        "bad": "failed", "slow": "timeout", "capped": "timeout"}
    assert found.timed_out == ("slow", "capped")
    assert found.get("slow", "nothing") == "nothing"
    with pytest.raises(LookupError):
        found.require("good", "bad")


@pytest.mark.parametrize(("need", "by", "expected_s"), [
    (1, None, 0.2), (2, None, 0.5), (1, 0.4, 0.4), (2, 0.4, 0.5), (0, 0.4, 0.4), (0, 0.1, 0.1), (3, None, 1.0),
    (0, 9.0, 1.0)])
def test_gather_returns_by_need_and_by(need: int, by: float | None, expected_s: float) -> None:
    found, at = gathered(lambda b: b.gather(a=takes(0.2), b=takes(0.5), c=takes(1.0), need=need, by=by))
    assert at == pytest.approx(expected_s)
    assert set(found.done) == {name for name, s in (("a", 0.2), ("b", 0.5), ("c", 1.0)) if s <= expected_s}


def test_gather_failures_and_fallbacks_do_not_count_for_need() -> None:
    found, at = gathered(lambda b: b.gather(bad=step(fails, 0.1, fallback=[]), good=takes(0.6), need=1))
    assert at == pytest.approx(0.6)
    assert found.done == {"bad": [], "good": "done"}
    _, at = gathered(lambda b: b.gather(bad=fails(0.1), worse=fails(0.3), need=1))
    assert at == pytest.approx(0.3)


def test_gather_late_steps_continue_under_the_outer_budget() -> None:
    async def main(loop: SimLoop) -> None:
        async with budget(30) as outer:
            async with budget(2.0) as b:
                found = await b.gather(kb=takes(0.1), crm=step(takes, 5, "ann", cap=20),
                                       never=step(takes, 99, cap=9), by=0.5, late=outer)
                assert found.missing["crm"].reason == "late"
                assert found.timed_out == ("crm", "never")
            assert loop.now() == pytest.approx(0.5)
            assert await found.late["crm"].wait() == "ann"
            assert loop.now() == pytest.approx(5)
            with pytest.raises(TimeoutError, match="cap of 9 s"):
                await found.late["never"].wait()
            found = await outer.gather(a=takes(99), by=1, late=outer)
        assert loop.now() == pytest.approx(10)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert found.late["a"].outcome == "cancelled"

    run(main)


def test_gather_late_steps_do_not_delay_the_turn() -> None:
    async def main(loop: SimLoop) -> None:
        async with budget(30) as outer, budget(2.0, {"answer": 0.5}) as b:
            found = await b.gather(kb=takes(0.1), crm=takes(5), late=outer)
            assert loop.now() == pytest.approx(1.5)
            assert set(found.late) == {"crm"}

    run(main)


def test_gather_step_that_suppresses_cancellation_delays_no_other() -> None:
    async def main(loop: SimLoop) -> None:
        async with budget(1.0) as b:
            calls: dict[str, Any] = {f"s{number}": stubborn() for number in range(20)}
            await b.gather(**calls)
        assert loop.now() <= 1.01
        assert len(b.abandoned) == 20

    run(main)
