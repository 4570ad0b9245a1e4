"""The gateway's policies around a step: its breaker and its hedge."""

import asyncio

import pytest

from stayfast.testing import SimLoop, run
from stayfast.turns import BreakerConfig, BreakerPolicy, HedgePolicy, StepSkipped, StepTimeout, budget, step
from tests.turns.rig import fails, takes


def test_breaker_failing_step_is_skipped_then_probed() -> None:
    """A step cut short by its turn is no failure."""
    crm = BreakerPolicy(BreakerConfig(open_s=1.0))

    async def main(loop: SimLoop) -> None:
        for _ in range(5):
            async with budget(0.05) as b:
                assert await b.run(takes, 1.0, breaker=crm, fallback=None) is None  # cut short: nobody's fault
        async with budget(100) as b:
            for _ in range(5):
                with pytest.raises((LookupError, StepTimeout)):
                    await b.run(fails, 0.1, cap=0.2, breaker=crm)
            began_at = loop.now()
            with pytest.raises(StepSkipped, match="breaker open: 5 failures in a row"):
                await b.run(fails, 0.1, breaker=crm)
            assert await b.run(fails, 0.1, breaker=crm, fallback="cached") == "cached"
            assert loop.now() == began_at
            await asyncio.sleep(1.3)
            assert await b.run(takes, 0.1, "well", breaker=crm) == "well"
            assert await b.run(takes, 0.1, "well", breaker=crm) == "well"
            assert "closed" in repr(crm)

    run(main)


def test_breaker_step_cut_short_by_gather_is_no_failure() -> None:
    """Nor did it break the budget."""
    crm = BreakerPolicy()

    async def main(_: SimLoop) -> None:
        for _turn in range(7):
            async with budget(2) as b:
                found = await b.gather(crm=step(takes, 0.05, cap=1.0, breaker=crm), by=0.01)
                assert (found.missing["crm"].reason, found.missing["crm"].detail) == ("timeout", "not done by 0.01 s")
            assert b.broken_by is None
        async with budget(2) as b:
            assert await b.run(takes, 0.05, breaker=crm) == "done"

    run(main)


def test_hedge_after_the_learned_delay_uses_the_faster_call() -> None:
    search = HedgePolicy(share=0.2)
    n_calls = 0

    async def main(loop: SimLoop) -> None:
        async def read() -> str:
            nonlocal n_calls
            n_calls += 1
            await asyncio.sleep(2.0 if n_calls % 10 == 0 else 0.1)
            return "found"

        async def turn() -> float:
            async with budget(5) as b:
                began_at = loop.now()
                assert await b.run(read, hedge=search) == "found"
                return loop.now() - began_at

        took_s = [await turn() for _ in range(400)]
        assert max(took_s[:40]) == pytest.approx(2.0)  # nothing is known yet
        assert sorted(took_s[100:])[-3] < 0.5
        assert n_calls <= 400 * 1.2 + 15
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_hedge_that_cannot_finish_before_the_deadline_is_not_started() -> None:
    """A second call is made only if a typical call fits into the rest of the step's time."""
    search = HedgePolicy(share=0.2)
    n_calls = 0

    async def main(loop: SimLoop) -> None:
        async def read(durations_s: list[float]) -> str:
            nonlocal n_calls
            n_calls += 1
            await asyncio.sleep(durations_s.pop(0))
            return "found"

        async def count_calls(first_s: float, cap_s: float) -> int:
            before = n_calls
            async with budget(5) as b:
                await b.run(read, [first_s, 0.1], cap=cap_s, hedge=search, fallback=None)
            return n_calls - before

        for number in range(400):
            await count_calls(2.0 if number % 15 == 0 else 0.1, 5.0)
        hedge_at_s = search.after_s(loop.now())
        assert 0.05 < hedge_at_s < 1.0  # a typical call takes 0.1 s
        assert await count_calls(2.0, hedge_at_s + 0.05) == 1
        assert await count_calls(2.0, hedge_at_s + 0.3) == 2

    run(main)


def test_breaker_step_cancelled_as_surplus_is_no_evidence() -> None:
    """A fan-out cancels a step because enough others are done: that is neither a failure nor a success of the step."""
    crm = BreakerPolicy(BreakerConfig(consecutive_failures=5))

    async def main(_: SimLoop) -> None:
        async def run_as_surplus() -> None:
            async with budget(2) as b:
                found = await b.gather(kb=takes(0.01), crm=step(takes, 1.0, cap=1.5, breaker=crm), need=1)
                assert found.missing["crm"].reason == "cancelled"

        async def fail() -> None:
            async with budget(2) as b:
                await b.run(fails, 0.01, breaker=crm, fallback=None)
                assert b.step_runs[0].outcome == "failed"

        for _call in range(4):
            await fail()
        for _call in range(7):
            await run_as_surplus()
        await fail()  # the fifth in a row: it was still called, and opens the breaker
        async with budget(2) as b:
            with pytest.raises(StepSkipped):
                await b.run(takes, 0.01, breaker=crm)

    run(main)


def test_hedge_with_a_fixed_delay_is_bounded_by_its_share() -> None:
    """And ten a minute."""
    search = HedgePolicy(share=0.01, after_s=0.1)
    n_calls = 0

    async def main(loop: SimLoop) -> None:
        async def read() -> None:
            nonlocal n_calls
            n_calls += 1
            await asyncio.sleep(0.2)

        async def turn() -> None:
            async with budget(5) as b:
                await b.run(read, hedge=search)

        await asyncio.gather(*[turn() for _ in range(100)])

    run(main)
    assert n_calls == 100 + 11
