"""The stored form of an answer, the interface of a store, and the commands that a backend outside this process executes."""

from collections.abc import Sequence
from math import inf
from typing import Protocol

import msgspec
from msgspec import Struct

from stayfast.core.types import Usage


class StoreUnavailable(Exception):
    """A store cannot be used now. The text contains no cache key and no password."""


class CachedAnswer(msgspec.Struct, frozen=True, gc=False):
    """A stored answer. `body` is a whole response in the dialect of its request. Instants are wall-clock seconds.

    A new field needs a default: stored answers outlive the version that wrote them.
    """

    body: bytes
    kept_at: float
    usage: Usage | None = None  # of the call that made it
    finish_reason: str | None = None
    drop_at: float = inf  # not served after this
    route: str = ""
    tenant: str | None = None
    tags: tuple[str, ...] = ()  # of its client (`x-cache-tags`)

    def matches(self, route: str | None, tenant: str | None, tag: str | None) -> bool:
        """Whether it matches all of these; None matches any."""
        return ((route is None or self.route == route) and (tenant is None or self.tenant == tenant)
                and (tag is None or tag in self.tags))


class StoreStats(msgspec.Struct, frozen=True):
    """The size and state of a store. `n_entries`, `n_bytes`: of the whole store; None if unknown."""

    kind: str  # memory, sqlite, redis
    n_entries: int | None
    n_bytes: int | None
    max_bytes: int | None  # None: the store's server sets it
    n_evicted: int = 0  # by this process
    is_shared: bool = False  # by processes, all of which report the same answers
    n_near: int = 0  # of a shared store: answers also in this process's memory
    why_not: str = ""  # why it is unavailable; empty: it is available


class Store(Protocol):
    """Answers by key (32 bytes). May lose any of them at any time; never returns an answer of another key.

    get, find, put, remove, inspect, acquire_lead and wait_for_leader never raise, and never take longer than the store's
    settings allow: a store that is slow or unavailable is empty. `until`: the instant (monotonic seconds) at which the
    caller stops waiting.
    """

    @property
    def is_shared(self) -> bool:
        """Whether it is outside this process: lookups then take time, and other processes write to it."""

    @property
    def n_bytes(self) -> int:
        """Bytes in this process's memory."""

    @property
    def n_entries(self) -> int:
        """Answers in this process's memory."""

    async def get(self, key: bytes, until: float = inf) -> CachedAnswer | None:
        """The answer of a key."""

    async def find(self, key: bytes, until: float = inf) -> tuple[CachedAnswer | None, bool]:
        """As `get`, and whether the store replied: (None, False) if it is unavailable or too slow."""

    async def put(self, key: bytes, answer: CachedAnswer) -> None:
        """Store an answer, replacing that of the same key. A shared store is written in the background."""

    async def remove(self, key: bytes) -> bool:
        """Remove the answer of a key. False if the store did not confirm it in time."""

    async def acquire_lead(self, key: bytes, until: float = inf) -> bool:
        """Acquire the right to make the answer of `key` for all processes that share the store. False: another process
        has it, and `wait_for_leader` waits for its answer. After True the caller must call `release_lead` when its call
        ends, however it ends.
        """

    async def wait_for_leader(self, key: bytes, until: float, since: float) -> CachedAnswer | None:
        """The answer that another process makes for `key`; None if it ends without one, or not in time.

        since: answers stored before this instant (wall-clock seconds) are ignored.
        """

    def release_lead(self, key: bytes) -> None:
        """Release what `acquire_lead` acquired, after the answer has been put."""

    async def inspect(self, key: bytes) -> CachedAnswer | None:
        """The answer of a key, for administration: does not count as a use."""

    async def purge(self, *, route: str | None = None, tenant: str | None = None, tag: str | None = None) -> int:
        """Remove all answers that match every given value; all answers if none is given. Returns how many. Raises
        StoreUnavailable.
        """

    async def stats(self) -> StoreStats:
        """Never raises."""

    async def close(self) -> None:
        """Stop its tasks. Answers that are not written yet may be lost."""


class Get(Struct, frozen=True, gc=False):
    """Reply: the data of a key, or None."""

    key: bytes


class Put(Struct, frozen=True, gc=False):
    """Store data. `answer`: the same answer, decoded, for the fields it can be purged by."""

    key: bytes
    data: bytes
    answer: CachedAnswer


class Remove(Struct, frozen=True, gc=False):
    """Remove the data of a key."""

    key: bytes


class AcquireLead(Struct, frozen=True, gc=False):
    """Reply: whether `owner` now leads this key, for `for_s` seconds: it does unless another owner does."""

    key: bytes
    owner: bytes
    for_s: float


class IsLed(Struct, frozen=True, gc=False):
    """Reply: whether any owner leads this key."""

    key: bytes


class ReleaseLead(Struct, frozen=True, gc=False):
    """`owner` no longer leads this key."""

    key: bytes
    owner: bytes


StoreCommand = Get | Put | Remove | AcquireLead | IsLed | ReleaseLead
StoreReply = bytes | bool | None  # Get: data or None. Lead, IsLed: a bool. Others: None


class StoreBackend(Protocol):
    """A database outside this process. All methods raise StoreUnavailable, and nothing else.

    Only `execute` is on the path of requests; one task at a time calls it.
    """

    @property
    def kind(self) -> str:
        """Its name in the settings."""

    async def execute(self, commands: Sequence[StoreCommand]) -> list[StoreReply]:
        """Execute commands in order; one reply each."""

    async def append_log(self, name: str, records: Sequence[bytes], max_records: int) -> None:
        """Append to the log `name` (lower-case letters and digits), which keeps about its last `most` records."""

    async def read_log(self, name: str, after: str, n: int) -> list[tuple[str, bytes]]:
        """Up to `n` records of a log after a position, each with its own position; after "": from the start."""

    async def purge(self, route: str | None, tenant: str | None, tag: str | None) -> int:
        """Remove all answers that match; None matches any. Returns how many."""

    async def stats(self) -> StoreStats: ...

    async def close(self) -> None: ...
