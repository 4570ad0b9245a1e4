"""What every store of answers must do. A new one is tested by a subclass that says how to make it."""

import asyncio
from collections.abc import Callable

from stayfast.core.types import Usage
from stayfast.pipeline.store import Kept, Store

KEY, OTHER = b"k" * 32, b"o" * 32


def kept(text: str, kept_at: float = 5.0) -> Kept:
    """An answer."""
    return Kept(text.encode(), kept_at, Usage(3, 4), "stop")


class StoreSuite:
    """The promises of `Store`."""

    make: Callable[[int], Store]

    def filled(self, *answers: tuple[bytes, Kept], max_bytes: int = 1 << 20) -> Store:
        """A store that was given these."""
        store = type(self).make(max_bytes)

        async def fill() -> None:
            for key, answer in answers:
                await store.put(key, answer)

        asyncio.run(fill())
        return store

    def get(self, store: Store, key: bytes) -> Kept | None:
        """What it has."""
        async def find() -> Kept | None:
            return await store.get(key)

        return asyncio.run(find())

    def test_what_was_put_is_there(self) -> None:
        """Whole, with its time, its usage and its end."""
        store = self.filled((KEY, kept("one")))
        assert self.get(store, KEY) == kept("one")
        assert self.get(store, OTHER) is None
        assert store.n_entries == 1
        assert store.n_bytes > 3

    def test_a_key_has_its_newest_answer(self) -> None:
        """The second one takes the place of the first."""
        store = self.filled((KEY, kept("one")), (KEY, kept("two", 9.0)))
        assert self.get(store, KEY) == kept("two", 9.0)
        assert store.n_entries == 1

    def test_what_is_removed_is_gone(self) -> None:
        """And only that; removing it again is nothing."""
        store = self.filled((KEY, kept("one")), (OTHER, kept("two")))

        async def remove() -> None:
            await store.remove(KEY)
            await store.remove(KEY)

        asyncio.run(remove())
        assert self.get(store, KEY) is None
        assert self.get(store, OTHER) == kept("two")
        assert store.n_entries == 1

    def test_room_is_bounded(self) -> None:
        """A thousand answers do not take up more than it was given."""
        store = self.filled(*[(n.to_bytes(32, "big"), kept("x" * 500)) for n in range(1000)], max_bytes=50_000)
        assert 0 < store.n_entries < 1000
        assert store.n_bytes <= 50_000
