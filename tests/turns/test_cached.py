"""What turns look up and keep, on virtual time."""

import asyncio
from typing import Any

import msgspec
import pytest

from stayfast.stores.memory import MemoryStore
from stayfast.testing import SimLoop, run
from stayfast.turns.cached import CachedFunction


class Index:
    """A retrieval that takes 0.2 s and says the how-manieth call it was; it fails while `is_down`."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.n_ended = 0
        self.is_down = False

    async def find(self, question: str, k: int = 3) -> list[str]:
        """Look it up."""
        self.n_calls += 1
        try:
            await asyncio.sleep(0.2)
            if self.is_down:
                raise ConnectionError("the index is down")
            return [f"{question}-{k}-{self.n_calls}"]
        finally:
            self.n_ended += 1


def test_what_was_found_is_found_at_once() -> None:
    """Within ttl_s no second call; another argument is another question."""

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


def test_the_same_question_at_once_is_asked_once() -> None:
    """Twenty at once are one call; the first one may leave, and with the last one it ends."""

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


def test_an_old_one_is_given_and_made_again() -> None:
    """Within stale_while_revalidate_s nobody waits, and one call is made behind their backs."""

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


def test_one_that_was_kept_by_a_clock_that_was_ahead_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stay young until the real time gets there."""

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


def test_an_old_one_instead_of_an_error() -> None:
    """Within stale_if_error_s a failure is not seen; beyond it, and without anything kept, it is raised, and not kept."""

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


def test_what_fails_in_the_background_is_not_raised_anywhere() -> None:
    """The old value stays, one call at a time is tried, and one that hangs is given up."""

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


def test_what_is_not_to_be_kept() -> None:
    """`keep` decides; what was found is returned all the same."""

    async def main(loop: SimLoop) -> None:
        index = Index()
        search = CachedFunction(index.find, ttl_s=60, should_cache=lambda found: len(found) > 1)
        assert [await search("a"), await search("a")] == [["a-3-1"], ["a-3-2"]]
        search = CachedFunction(index.find, ttl_s=60)
        await search("a")
        await search.invalidate("a")
        assert await search("a") == ["a-3-4"]

    run(main)


def test_it_is_bounded() -> None:
    """The most that are kept is max_entries."""

    async def main(loop: SimLoop) -> None:
        index = Index()
        search = CachedFunction(index.find, ttl_s=60, max_entries=10)
        for number in range(50):
            await search(str(number))
        assert sum(search.peek(str(number)) is not None for number in range(50)) == 10

    run(main)


def test_the_key_tells_one_question_from_another() -> None:
    """What is more than text and numbers needs a key; whose it is belongs into it."""

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


def test_a_store_shares_it_between_processes() -> None:
    """What one has found the other need not look up; what cannot be read any more is looked up."""

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


def test_in_a_shared_store_two_names_are_two_caches() -> None:
    """The methods of two objects have one name; without one of their own they would find each other's."""

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


def test_a_list_that_was_found_is_its_finders_own() -> None:
    """Whoever changes it changes it for nobody else: not kept, not shared, not a fallback."""

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


def test_a_plain_function_is_told_what_to_write() -> None:
    """It would block everybody."""
    async def main(_: SimLoop) -> None:
        plain: Any = list
        with pytest.raises(TypeError, match=r"list is a plain function: .* asyncio\.to_thread\(list, question\)"):
            await CachedFunction(plain, ttl_s=60)("a")

    run(main)


def test_wrong_use_is_told_at_once() -> None:
    """A time that is none is a ValueError that names it."""
    with pytest.raises(ValueError, match="ttl_s"):
        CachedFunction(Index().find, ttl_s=0)
    with pytest.raises(ValueError, match="stale_if_error_s"):
        CachedFunction(Index().find, ttl_s=1, stale_if_error_s=-1)
    with pytest.raises(ValueError, match="max_entries"):
        CachedFunction(Index().find, ttl_s=1, max_entries=0)
