"""One call of a cached function for several turns: its deadline, its cost, and a turn that leaves. Virtual time."""

import asyncio

import pytest

from stayfast.testing import SimLoop, run
from stayfast.turns import budget, charge, current_budget, remaining
from stayfast.turns.cached import CachedFunction
from stayfast.turns.http import deadline_headers


async def asked(search: CachedFunction[[str], str], total: float, *, after_s: float = 0.0,
                cap: float | None = None) -> str | None:
    """One turn that asks for "a", begun a little later; None where it has no time for it."""
    await asyncio.sleep(after_s)
    async with budget(total) as b:
        return await b.run(search, "a", name="kb", cap=cap, fallback=None)


def test_shared_call_being_cancelled_is_not_joined() -> None:
    n_calls = 0

    async def find(question: str) -> str:
        nonlocal n_calls
        n_calls += 1
        try:
            await asyncio.sleep(0.2)
        finally:
            await asyncio.sleep(0.003)
        return question

    async def main(_: SimLoop) -> None:
        search = CachedFunction(find, ttl_s=60)
        plain = asyncio.create_task(search("a"))
        await asyncio.sleep(0.1)
        plain.cancel()
        await asyncio.sleep(0.001)
        assert await search("a") == "a"
        await search.invalidate("a")
        came = await asyncio.gather(asked(search, 2, cap=0.05), asked(search, 3, after_s=0.051))
        assert list(came) == [None, "a"]
        assert n_calls == 4

    run(main)


@pytest.mark.parametrize("after_s", [0.0, 0.02])
def test_shared_call_has_the_time_of_its_longest_waiter(after_s: float) -> None:
    n_calls = 0

    async def find(question: str) -> str:
        nonlocal n_calls
        n_calls += 1
        await asyncio.sleep(0.1)
        assert float(deadline_headers()["x-stayfast-deadline-ms"]) > 4000
        return await current_budget().run(later, question)

    async def later(question: str) -> str:
        await asyncio.sleep(0.1)
        assert remaining() > 4
        return question

    async def main(_: SimLoop) -> None:
        search = CachedFunction(find, ttl_s=60)
        came = await asyncio.gather(asked(search, 0.05), asked(search, 5, after_s=after_s), asked(search, 0.15))
        assert list(came) == [None, "a", None]
        assert n_calls == 1
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_shared_call_that_lacked_time_is_repeated_for_waiters_with_more() -> None:
    """Once, together; early failures are not repeated."""
    n_calls = 0
    fails_after_s = 1000.0

    async def find(question: str) -> str:
        nonlocal n_calls
        n_calls += 1
        async with asyncio.timeout(min(fails_after_s, remaining())):
            await asyncio.sleep(0.1)
        return question

    async def main(_: SimLoop) -> None:
        nonlocal fails_after_s
        search = CachedFunction(find, ttl_s=60)
        came = await asyncio.gather(*[asked(search, total, after_s=after_s)
                                      for total, after_s in ((0.05, 0.0), (5, 0.02), (5, 0.03), (0.02, 0.02))])
        assert came == [None, "a", "a", None]
        assert n_calls == 2
        fails_after_s = 0.02
        await search.invalidate("a")
        assert set(await asyncio.gather(asked(search, 0.05), asked(search, 5, after_s=0.01))) == {None}
        assert n_calls == 3

    run(main)


def test_background_refresh_has_its_own_budget() -> None:
    left_s: list[float] = []

    async def find(question: str) -> str:
        return await current_budget().run(slow, f"{question}{len(left_s)}")

    async def slow(found: str) -> str:
        await asyncio.sleep(0.2)
        left_s.append(remaining())
        return found

    async def main(_: SimLoop) -> list[str | None]:
        search = CachedFunction(find, ttl_s=1, stale_while_revalidate_s=60, refresh_timeout_s=5)
        came = []
        for _turn in range(3):
            came.append(await asked(search, 0.3))
            await asyncio.sleep(2)
        return came

    assert run(main) == ["a0", "a0", "a1"]
    assert left_s == [pytest.approx(0.1), pytest.approx(4.8), pytest.approx(4.8)]


def test_shared_call_with_a_waiter_without_deadline_has_none() -> None:
    async def find(question: str) -> str:
        await asyncio.sleep(1000)
        assert deadline_headers() == {}
        return question

    async def main(_: SimLoop) -> None:
        search = CachedFunction(find, ttl_s=60)
        assert list(await asyncio.gather(asked(search, 0.05), search("a"))) == [None, "a"]

    run(main)


def test_shared_call_awaited_by_the_body_is_not_limited_by_a_reserve() -> None:
    left_s: list[float] = []

    async def find(question: str) -> str:
        left_s.append(remaining())
        await asyncio.sleep(0.2)
        return question

    async def main(_: SimLoop) -> str:
        async with budget(1.0, {"answer": 0.9}):
            return await CachedFunction(find, ttl_s=60)("a")

    assert run(main) == "a"
    assert left_s == [pytest.approx(0.1)]


def test_shared_call_is_charged_to_the_first_caller() -> None:
    async def find(question: str) -> str:
        charge(0.25)
        await current_budget().run(asyncio.sleep, 0.2, name="index")
        return question

    async def main(_: SimLoop) -> None:
        search = CachedFunction(find, ttl_s=60)
        async with budget(1.0) as first, budget(1.0) as second:
            await asyncio.gather(first.run(search, "a", name="one"), second.run(search, "a", name="two"))
        assert [first.cost_usd, second.cost_usd] == [0.25, 0.0]
        assert [line.split("|")[0].strip() for line in first.report().splitlines()[1:]] == ["two", "one", "index"]

    run(main)
