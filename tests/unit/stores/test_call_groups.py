"""Group commit: concurrent calls share an execution."""

import asyncio
from collections.abc import Sequence

import pytest

from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.postgres import groups
from stayfast.stores.jobs.postgres.groups import CallGroups


class Executions:
    """What was executed together. Each execution waits until it is let go."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.error: StoreUnavailable | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def execute(self, items: Sequence[str]) -> list[str]:
        """Replies in capitals."""
        self.groups.append(list(items))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [item.upper() for item in items]


def make_groups(executions: Executions) -> CallGroups[str, str]:
    """Items are their own keys."""
    return CallGroups[str, str](executions.execute, lambda item: item[0], len)


def test_calls_during_an_execution_share_the_next_one() -> None:
    """Each call gets its own replies."""
    async def main() -> None:
        executions = Executions()
        calls = make_groups(executions)
        executions.gate.clear()
        first = asyncio.create_task(calls.call(["a"]))
        await asyncio.sleep(0.01)
        others = [asyncio.create_task(calls.call(items)) for items in (["b", "c"], ["d"], [])]
        await asyncio.sleep(0.01)
        executions.gate.set()
        assert await first == ["A"]
        assert await asyncio.gather(*others) == [["B", "C"], ["D"], []]
        assert executions.groups == [["a"], ["b", "c", "d"]]

    asyncio.run(main())


def test_items_with_the_same_key_are_not_executed_together() -> None:
    """Each item of a key has its own execution, in order."""
    async def main() -> None:
        executions = Executions()
        calls = make_groups(executions)
        replies = await asyncio.gather(*(calls.call([item]) for item in ("a1", "b", "a2", "c")))
        assert replies == [["A1"], ["B"], ["A2"], ["C"]]
        assert executions.groups == [["a1", "b"], ["a2", "c"]]

    asyncio.run(main())


def test_failed_execution_fails_all_its_calls_and_no_later_one() -> None:
    """The next call is executed."""
    async def main() -> None:
        executions = Executions()
        calls = make_groups(executions)
        executions.error = StoreUnavailable("gone")
        found = await asyncio.gather(*(calls.call([item]) for item in "ab"), return_exceptions=True)
        assert [str(error) for error in found] == ["gone"] * 2
        executions.error = None
        assert await calls.call(["c"]) == ["C"]

    asyncio.run(main())


def test_call_behind_an_execution_that_hangs_fails_in_time_and_never_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for the time of two executions."""
    monkeypatch.setattr(groups, "LIMIT_S", 0.1)

    async def main() -> None:
        executions = Executions()
        calls = make_groups(executions)
        executions.gate.clear()
        found = await asyncio.gather(calls.call(["a"]), asyncio.create_task(late(calls)), return_exceptions=True)
        assert [type(error) for error in found] == [StoreUnavailable] * 2
        executions.gate.set()
        assert await calls.call(["c"]) == ["C"]
        assert executions.groups == [["a"], ["c"]]

    async def late(calls: CallGroups[str, str]) -> list[str]:
        await asyncio.sleep(0.02)
        return await calls.call(["b"])

    asyncio.run(main())


def test_closed_groups_fail_what_waits() -> None:
    """Nothing hangs."""
    async def main() -> None:
        executions = Executions()
        calls = make_groups(executions)
        executions.gate.clear()
        waiting = [asyncio.create_task(calls.call([item])) for item in "ab"]
        await asyncio.sleep(0.01)
        waiting.append(asyncio.create_task(calls.call(["c"])))
        await asyncio.sleep(0.01)
        calls.close()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [StoreUnavailable] * 3

    asyncio.run(main())
