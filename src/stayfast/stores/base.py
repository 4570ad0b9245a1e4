"""What is kept of answers, what a store of them promises, and the orders that a place outside this process takes."""

from collections.abc import Sequence
from math import inf
from typing import Protocol

import msgspec
from msgspec import Struct

from stayfast.core.types import Usage


class StoreUnavailable(Exception):
    """A store cannot be asked just now. Its words are ours; they name no key and no address's password."""


class CachedAnswer(msgspec.Struct, frozen=True, gc=False):
    """One answer, as it is kept. `body` is whole, in the dialect of those who may have it. Instants are wall seconds.

    route, tenant and tags are what it can be purged by. A new field needs a default: what is kept outlives its version.
    """

    body: bytes
    kept_at: float
    usage: Usage | None = None  # what it took to make it
    finish_reason: str | None = None
    drop_at: float = inf  # nobody will have it after this
    route: str = ""
    tenant: str | None = None
    tags: tuple[str, ...] = ()  # its client's own words for it

    def is_of(self, route: str | None, tenant: str | None, tag: str | None) -> bool:
        """Whether all that is given is true of it."""
        return ((route is None or self.route == route) and (tenant is None or self.tenant == tenant)
                and (tag is None or tag in self.tags))


class StoreStats(msgspec.Struct, frozen=True):
    """How a store is. `n_entries`, `n_bytes`: all that is in it; None where it cannot say."""

    kind: str  # memory, sqlite, redis
    n_entries: int | None
    n_bytes: int | None
    max_bytes: int | None  # None: whoever runs it has set that
    n_evicted: int = 0  # for want of room, by this process
    is_shared: bool = False  # by processes: then each of them tells of the same answers
    n_near: int = 0  # of a shared one: answers that are in this process's memory as well
    why_not: str = ""  # why it cannot be asked just now; then nothing is known of what is in it


class Store(Protocol):
    """Answers by key (32 bytes). May lose any of them at any time; never gives what was kept under another key.

    get, ask, put, remove, inspect, lead and follow never raise, and never take longer than the settings give the store: one
    that is slow or gone has nothing. `until`: the instant (monotonic seconds) by which whoever asks goes on without it.
    """

    @property
    def is_shared(self) -> bool:
        """Whether it is outside of this process: then it may be waited for, and others may make the same answers."""

    @property
    def n_bytes(self) -> int:
        """What it takes up in this process's memory."""

    @property
    def n_entries(self) -> int:
        """How many answers are in this process's memory."""

    async def get(self, key: bytes, until: float = inf) -> CachedAnswer | None:
        """What is kept under a key."""

    async def ask(self, key: bytes, until: float = inf) -> tuple[CachedAnswer | None, bool]:
        """What `get` says, and whether that is known: (None, False) of a store that could not be asked, or not in time."""

    async def put(self, key: bytes, answer: CachedAnswer) -> None:
        """Keep an answer in place of what was kept under its key. A shared store is told in the background."""

    async def remove(self, key: bytes) -> bool:
        """Keep nothing under this key. False of a store that could not be asked, or did not say so in time."""

    async def lead(self, key: bytes, until: float = inf) -> bool:
        """Whether to make the answer to `key`, for all who share the store. False: another process does so just now, and
        `follow` waits for it. Whoever was told True calls `led` when it is over, whatever came of it.
        """

    async def follow(self, key: bytes, until: float, since: float) -> CachedAnswer | None:
        """What another process makes of `key`; None when it ends without, or is not done in time.

        since: an answer that was kept before this instant (wall seconds) is not what is waited for.
        """

    def led(self, key: bytes) -> None:
        """The call that `lead` was asked about is over. What it brought has been put before."""

    async def inspect(self, key: bytes) -> CachedAnswer | None:
        """What is kept under a key, for whoever looks after the store: it does not count as asked for."""

    async def purge(self, *, route: str | None = None, tenant: str | None = None, tag: str | None = None) -> int:
        """Forget all answers of which everything given is true; nothing given: all. Returns how many. Raises
        StoreUnavailable.
        """

    async def stats(self) -> StoreStats:
        """How it is, and how full. Never raises."""

    async def close(self) -> None:
        """End what runs for it; it has nothing any more. What was put and has not been written yet may be lost."""


class Get(Struct, frozen=True, gc=False):
    """The data under a key, or None."""

    key: bytes


class Put(Struct, frozen=True, gc=False):
    """Data in place of what was there; `kept` is the same, for what it can be purged by."""

    key: bytes
    data: bytes
    kept: CachedAnswer


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


class StoreBackend(Protocol):
    """A place outside of this process where data is kept by key. `execute` is used by one task at a time.

    All raise StoreUnavailable, and nothing else; none but `execute` need be quick.
    """

    @property
    def kind(self) -> str:
        """The word for it in the settings."""

    async def execute(self, orders: Sequence[Order]) -> list[Reply]:
        """Do all of these, in their order; one reply each."""

    async def append_log(self, name: str, records: Sequence[bytes], most: int) -> None:
        """Append these to the records of a name (lower-case letters and digits), of which about the last `most` are kept."""

    async def read_log(self, name: str, after: str, n: int) -> list[tuple[str, bytes]]:
        """The first `n` records of a name that come after a place, each with its own; after "": after none."""

    async def purge(self, route: str | None, tenant: str | None, tag: str | None) -> int:
        """Forget all that is of those that are given. Returns how many there were."""

    async def stats(self) -> StoreStats:
        """How full it is."""

    async def close(self) -> None:
        """End it."""
