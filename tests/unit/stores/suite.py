"""The tests of every store of answers. A subclass makes the store."""

import asyncio
from collections.abc import Awaitable, Callable

from stayfast.core.types import Usage
from stayfast.stores.base import CachedAnswer, Store

KEY, OTHER, THIRD = b"k" * 32, b"o" * 32, b"\x00\xff" * 16
Story = Callable[[Store], Awaitable[None]]


def kept(text: str, kept_at: float = 5.0, *, route: str = "", tenant: str | None = None,
         tags: tuple[str, ...] = ()) -> CachedAnswer:
    """An answer."""
    return CachedAnswer(text.encode(), kept_at, Usage(3, 4), "stop", route=route, tenant=tenant, tags=tags)


async def filled(store: Store, *answers: tuple[bytes, CachedAnswer]) -> None:
    """Put these, and wait until they are where they belong."""
    for key, answer in answers:
        await store.put(key, answer)
    await store.remove(b"n" * 32)  # comes after all that was put


class StoreSuite:
    """The promises of `Store`."""

    def make(self, max_bytes: int) -> Store:
        """An empty one."""
        raise NotImplementedError

    def tell(self, story: Story, max_bytes: int = 1 << 20) -> None:
        """What happens to an empty store."""
        async def whole() -> None:
            store = self.make(max_bytes)
            try:
                await story(store)
            finally:
                await store.close()

        asyncio.run(whole())

    def test_store_put_answer_is_returned_unchanged(self) -> None:
        """Whole, with its time, its usage, its end and its tags."""
        one = kept("one", route="r", tenant="t", tags=("a", "ü"))

        async def story(store: Store) -> None:
            await filled(store, (KEY, one), (THIRD, kept("\x00" * 100_000)))
            assert await store.get(KEY) == one
            assert await store.inspect(KEY) == one
            assert await store.get(OTHER) is None
            assert await store.inspect(OTHER) is None
            assert await store.get(THIRD) == kept("\x00" * 100_000)
            assert (await store.stats()).n_entries == 2

        self.tell(story)

    def test_store_second_put_replaces_answer(self) -> None:
        """The second one takes the place of the first."""
        async def story(store: Store) -> None:
            await filled(store, (KEY, kept("one")), (KEY, kept("two", 9.0)))
            assert await store.get(KEY) == kept("two", 9.0)
            assert (await store.stats()).n_entries == 1

        self.tell(story)

    def test_store_remove_deletes_only_that_key(self) -> None:
        """And only that; removing it again is nothing."""
        async def story(store: Store) -> None:
            await filled(store, (KEY, kept("one")), (OTHER, kept("two")))
            assert await store.remove(KEY)
            assert await store.remove(KEY)
            assert await store.get(KEY) is None
            assert await store.get(OTHER) == kept("two")

        self.tell(story)

    def test_store_purge_removes_answers_that_match_all_conditions(self) -> None:
        """By route, by tenant, by tag, by some of them, and everything; and says how many."""
        answers = [(bytes([n]) * 32, kept(str(n), route=f"r{n % 2}", tenant=f"t{n % 3}", tags=(f"g{n % 5}", "all")))
                   for n in range(30)]

        async def story(store: Store) -> None:
            await filled(store, *answers)
            assert await store.purge(route="r9") == 0
            assert await store.purge(route="r0", tenant="t0", tag="g0") == 1
            assert await store.purge(tag="g0") == 5
            assert await store.purge(route="r1", tenant="t1") == 4
            assert await store.purge(tenant="t2") == 8
            left = {int(key[0]) for key, _ in answers if await store.get(key) is not None}
            assert left == {n for n in range(30) if n % 5 and n % 3 != 2 and not (n % 2 == 1 and n % 3 == 1)}
            assert await store.purge() == len(left)
            assert (await store.stats()).n_entries == 0

        self.tell(story)

    def test_store_purged_key_can_be_put_again(self) -> None:
        """Forgetting is no ban."""
        async def story(store: Store) -> None:
            await filled(store, (KEY, kept("one", tags=("a",))))
            assert await store.purge(tag="a") == 1
            await filled(store, (KEY, kept("two", tags=("b",))))
            assert await store.purge(tag="a") == 0
            assert await store.get(KEY) == kept("two", tags=("b",))

        self.tell(story)

    def test_store_size_is_bounded(self) -> None:
        """A thousand answers do not take up more than it was given, and the newest are among those that stay."""
        async def story(store: Store) -> None:
            await filled(store, *[(n.to_bytes(32, "big"), kept("x" * 500)) for n in range(1000)])
            stats = await store.stats()
            assert stats.n_entries is not None
            assert stats.n_bytes is not None
            assert 0 < stats.n_entries < 1000
            assert stats.n_bytes <= 50_000
            assert stats.n_evicted == 1000 - stats.n_entries
            assert await store.get((999).to_bytes(32, "big")) is not None

        self.tell(story, max_bytes=50_000)

    def test_store_keeps_used_answers(self) -> None:
        """Ten answers that are had again and again outlast a thousand that are not."""
        async def story(store: Store) -> None:
            for n in range(1000):
                await filled(store, (n.to_bytes(32, "big"), kept("x" * 500)))
                for popular in range(min(n, 10)):
                    assert await store.get(popular.to_bytes(32, "big")) is not None, (n, popular)

        self.tell(story, max_bytes=50_000)
