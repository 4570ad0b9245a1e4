"""What turns look up and keep, on virtual time."""

import asyncio
from typing import Any

import msgspec
import pytest

from stayfast.stores.memory import MemoryStore
from stayfast.testing import SimLoop, run
from stayfast.turns.cached import CachedFunction
from tests.turns.rig import Index


def test_cached_result_within_ttl_needs_no_call() -> None:
    async def main(loop: SimLoop) -> None:
        index = Index()
        search = CachedFunction(index.find, ttl_s=60)
        assert await search("a") == ["a-3-1"]
        assert await search("a") == ["a-3-1"]
        assert await search("a", 5) == ["a-5-2"]
        assert loop.now() == pytest.approx(0.4)
        await asyncio.sleep(61)
        assert await search("a") == ["a-3-3"]
        assert (search.counts.n_hits, search.counts.n_misses) == (1, 3)

    run(main)


def test_cached_concurrent_equal_calls_share_one() -> None:
    """It survives the first caller and ends with the last."""

    async def main(loop: SimLoop) -> None:
        index = Index()
        search = CachedFunction(index.find, ttl_s=60)
        tasks = [asyncio.create_task(search("a")) for _ in range(20)]
        await asyncio.sleep(0.1)
        tasks[0].cancel()
        assert await asyncio.gather(*tasks[1:]) == [["a-3-1"]] * 19
        assert (index.n_calls, search.counts.n_shared) == (1, 19)
        tasks = [asyncio.create_task(search("b")) for _ in range(3)]
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        assert (index.n_calls, index.n_ended) == (2, 2)
        assert len(asyncio.all_tasks()) == 1

    run(main)


def test_cached_stale_result_is_returned_and_refreshed_in_the_background() -> None:
    async def main(loop: SimLoop) -> None:
        index = Index()
        search = CachedFunction(index.find, ttl_s=60, stale_while_revalidate_s=60)
        await search("a")
        await asyncio.sleep(90)
        began_at = loop.now()
        assert [await search("a") for _ in range(3)] == [["a-3-1"]] * 3
        assert loop.now() == began_at
        await asyncio.sleep(1)
        assert await search("a") == ["a-3-2"]
        assert (index.n_calls, search.counts.n_stale) == (2, 3)

    run(main)


def test_cached_result_with_a_timestamp_in_the_future_is_refreshed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: SimLoop) -> None:
        index = Index()
        search = CachedFunction(index.find, ttl_s=60)
        with monkeypatch.context() as patched:
            wall = loop.wall
            patched.setattr(loop, "wall", lambda: wall() + 86_400)
            assert await search("a") == ["a-3-1"]
        assert await search("a") == ["a-3-2"]
        assert await search("a") == ["a-3-2"]

    run(main)


def test_cached_stale_result_replaces_an_error() -> None:
    """Within stale_if_error_s; errors are not stored."""

    async def main(loop: SimLoop) -> None:
        index = Index()
        search = CachedFunction(index.find, ttl_s=60, stale_if_error_s=600)
        await search("a")
        index.is_down = True
        await asyncio.sleep(300)
        assert await search("a") == ["a-3-1"]
        with pytest.raises(ConnectionError):
            await search("b")
        await asyncio.sleep(600)
        with pytest.raises(ConnectionError):
            await search("a")
        assert search.peek("a") == ["a-3-1"]
        assert search.peek("b") is None

    run(main)


def test_cached_failing_background_refresh_keeps_the_old_result() -> None:
    """One refresh at a time; a hanging one is cancelled."""

    async def main(loop: SimLoop) -> None:
        index = Index()
        search = CachedFunction(index.find, ttl_s=60, stale_while_revalidate_s=600, refresh_timeout_s=0.1)
        await search("a")
        await asyncio.sleep(90)
        assert await search("a") == ["a-3-1"]
        await asyncio.sleep(1)
        assert (index.n_calls, index.n_ended) == (2, 2)
        assert await search("a") == ["a-3-1"]

    run(main)


def test_cached_result_rejected_by_should_cache_is_returned_but_not_stored() -> None:
    async def main(loop: SimLoop) -> None:
        index = Index()
        search = CachedFunction(index.find, ttl_s=60, should_cache=lambda found: len(found) > 1)
        assert [await search("a"), await search("a")] == [["a-3-1"], ["a-3-2"]]
        search = CachedFunction(index.find, ttl_s=60)
        await search("a")
        await search.invalidate("a")
        assert await search("a") == ["a-3-4"]

    run(main)


def test_cached_holds_at_most_max_entries() -> None:
    async def main(loop: SimLoop) -> None:
        index = Index()
        search = CachedFunction(index.find, ttl_s=60, max_entries=10)
        for number in range(50):
            await search(str(number))
        assert sum(search.peek(str(number)) is not None for number in range(50)) == 10

    run(main)


def test_cached_arguments_other_than_text_and_numbers_need_a_key() -> None:
    async def main(loop: SimLoop) -> None:
        index = Index()
        plain: Any = CachedFunction(index.find, ttl_s=60)
        with pytest.raises(TypeError, match="key=lambda"):
            await plain(["a"])

        async def mine(question: str, user: object) -> str:
            return f"{question} of {user}"

        by_user = CachedFunction(mine, ttl_s=60, key=lambda question, user: f"{user} {question}")
        assert [await by_user("a", "ann"), await by_user("a", "bob")] == ["a of ann", "a of bob"]

    run(main)


def test_cached_store_shares_results_between_processes() -> None:
    """Entries of another type are ignored."""

    class Hit(msgspec.Struct):
        text: str

    async def main(loop: SimLoop) -> None:
        store, n_calls = MemoryStore(1 << 20), 0

        async def find(question: str) -> list[Hit]:
            nonlocal n_calls
            n_calls += 1
            return [Hit(question)]

        one, other = (CachedFunction(find, ttl_s=60, store=store, name="kb", kind=list[Hit]) for _ in range(2))
        assert [await one("a"), await other("a")] == [[Hit("a")], [Hit("a")]]
        assert n_calls == 1
        assert await CachedFunction(find, ttl_s=60, store=store, name="kb", kind=list[int])("a") == [Hit("a")]
        assert n_calls == 2

    run(main)


def test_cached_two_names_in_a_store_are_separate() -> None:
    async def main(loop: SimLoop) -> None:
        store, acme, globex = MemoryStore(1 << 20), Index(), Index()
        with pytest.raises(ValueError, match="name"):
            CachedFunction(acme.find, ttl_s=60, store=store)
        one = CachedFunction(acme.find, ttl_s=60, store=store, name="acme")
        other = CachedFunction(globex.find, ttl_s=60, store=store, name="globex")
        await one("a")
        await other("a")
        assert (acme.n_calls, globex.n_calls) == (1, 1)

    run(main)


def test_cached_lists_are_copied_for_each_caller() -> None:
    async def main(loop: SimLoop) -> None:
        async def find(question: str) -> dict[str, Any]:
            await asyncio.sleep(0.1)
            return {"hits": [question, (["part"], {"tag"})]}

        search, whole = CachedFunction(find, ttl_s=60), {"hits": ["a", (["part"], {"tag"})]}
        for found in [*await asyncio.gather(search("a"), search("a")), await search("a"), search.peek("a")]:
            assert found == whole
            found["hits"][1][0].append("x")
            found["hits"][1][1].add("x")
            found["hits"].clear()

    run(main)


def test_cached_plain_function_raises_with_the_correction() -> None:
    async def main(_: SimLoop) -> None:
        plain: Any = list
        with pytest.raises(TypeError, match=r"list is a plain function: .* asyncio\.to_thread\(list, question\)"):
            await CachedFunction(plain, ttl_s=60)("a")

    run(main)


def test_cached_wrong_seconds_raise_value_error() -> None:
    with pytest.raises(ValueError, match="ttl_s"):
        CachedFunction(Index().find, ttl_s=0)
    with pytest.raises(ValueError, match="stale_if_error_s"):
        CachedFunction(Index().find, ttl_s=1, stale_if_error_s=-1)
    with pytest.raises(ValueError, match="max_entries"):
        CachedFunction(Index().find, ttl_s=1, max_entries=0)
