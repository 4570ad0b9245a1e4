"""Where answers are kept. `MemoryStore` is this process's own memory."""

from typing import Protocol

import msgspec

from stayfast.core.types import Usage
from stayfast.policy.s3fifo import S3Fifo


class Kept(msgspec.Struct, frozen=True, gc=False):
    """One answer, as it is kept. `body` is whole, in the dialect of those who may have it."""

    body: bytes
    kept_at: float  # seconds since the epoch
    usage: Usage | None = None  # what it took to make it
    finish_reason: str | None = None


class Store(Protocol):
    """Answers by key (32 bytes). May lose any of them at any time; never gives what was kept under another key.

    Never raises: a store that is gone has nothing.
    """

    @property
    def n_bytes(self) -> int:
        """What it takes up; of a shared store this process's part."""
        ...

    @property
    def n_entries(self) -> int:
        """How many answers it has."""
        ...

    async def get(self, key: bytes) -> Kept | None:
        """What is kept under a key."""
        ...

    async def put(self, key: bytes, kept: Kept) -> None:
        """Keep an answer in place of what was kept under its key."""
        ...

    async def remove(self, key: bytes) -> None:
        """Keep nothing under this key."""
        ...


class MemoryStore:
    """A `Store` for one loop, bounded by bytes. What is asked for often stays (`policy.s3fifo`)."""

    __slots__ = ("_answers",)

    def __init__(self, max_bytes: int) -> None:
        self._answers: S3Fifo[Kept] = S3Fifo(max_bytes)

    @property
    def n_bytes(self) -> int:
        """What it takes up."""
        return self._answers.n_bytes

    @property
    def n_entries(self) -> int:
        """How many answers it has."""
        return len(self._answers)

    async def get(self, key: bytes) -> Kept | None:
        """What is kept under a key."""
        return self._answers.get(key)

    async def put(self, key: bytes, kept: Kept) -> None:
        """Keep an answer."""
        self._answers.put(key, kept, len(kept.body))

    async def remove(self, key: bytes) -> None:
        """Forget an answer."""
        self._answers.remove(key)

    def __repr__(self) -> str:
        return f"<MemoryStore {self._answers!r}>"
