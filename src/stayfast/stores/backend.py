"""What a shared store is asked, some orders at a time, and what kind of place can be asked so."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from stayfast.stores.base import Kept, StoreStats


class Get(Struct, frozen=True, gc=False):
    """The data under a key, or None."""

    key: bytes


class Put(Struct, frozen=True, gc=False):
    """Data in place of what was there; `kept` is the same, for what it can be purged by."""

    key: bytes
    data: bytes
    kept: Kept


class Remove(Struct, frozen=True, gc=False):
    """Nothing is to be under a key."""

    key: bytes


class Lead(Struct, frozen=True, gc=False):
    """Whether `owner` may make this answer: it may where nobody may, or it may already; for `for_s` seconds."""

    key: bytes
    owner: bytes
    for_s: float


class IsLed(Struct, frozen=True, gc=False):
    """Whether anybody makes this answer."""

    key: bytes


class Led(Struct, frozen=True, gc=False):
    """`owner` makes it no longer."""

    key: bytes
    owner: bytes


Order = Get | Put | Remove | Lead | IsLed | Led
Reply = bytes | bool | None  # Get: data or None. Lead, IsLed: a bool. Others: None


class Door(Protocol):
    """A place outside of this process where data is kept by key. `carry` is used by one task at a time.

    All raise StoreGone, and nothing else; none but `carry` need be quick.
    """

    @property
    def kind(self) -> str:
        """The word for it in the settings."""
        ...

    async def carry(self, orders: Sequence[Order]) -> list[Reply]:
        """Do all of these, in their order; one reply each."""
        ...

    async def tell(self, name: str, records: Sequence[bytes], most: int) -> None:
        """Append these to the records of a name (lower-case letters and digits), of which about the last `most` are kept."""
        ...

    async def told(self, name: str, after: str, n: int) -> list[tuple[str, bytes]]:
        """The first `n` records of a name that come after a place, each with its own; after "": after none."""
        ...

    async def purge(self, route: str | None, tenant: str | None, tag: str | None) -> int:
        """Forget all that is of those that are given. Returns how many there were."""
        ...

    async def stats(self) -> StoreStats:
        """How full it is."""
        ...

    async def close(self) -> None:
        """End it."""
        ...
