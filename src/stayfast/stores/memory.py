"""Answers in this process's own memory."""

from math import inf

from stayfast.policy.cache.s3fifo import S3Fifo
from stayfast.stores.base import CachedAnswer, StoreStats


class MemoryStore:
    """A `Store` for one loop, bounded by bytes; evicts by `policy.cache.s3fifo`."""

    __slots__ = ("_answers",)
    is_shared = False

    def __init__(self, max_bytes: int) -> None:
        self._answers: S3Fifo[CachedAnswer] = S3Fifo(max_bytes)

    @property
    def n_bytes(self) -> int:
        return self._answers.n_bytes

    @property
    def n_entries(self) -> int:
        return len(self._answers)

    def get_sync(self, key: bytes) -> CachedAnswer | None:
        """`get` without a coroutine, which would cost as much as the look-up."""
        return self._answers.get(key)

    def put_sync(self, key: bytes, answer: CachedAnswer) -> None:
        """`put` without a coroutine."""
        self._answers.put(key, answer, len(answer.body))

    async def get(self, key: bytes, until: float = inf) -> CachedAnswer | None:
        return self._answers.get(key)

    async def find(self, key: bytes, until: float = inf) -> tuple[CachedAnswer | None, bool]:
        return self._answers.get(key), True

    async def put(self, key: bytes, answer: CachedAnswer) -> None:
        self._answers.put(key, answer, len(answer.body))

    async def remove(self, key: bytes) -> bool:
        self._answers.remove(key)
        return True

    async def acquire_lead(self, key: bytes, until: float = inf) -> bool:
        return True

    async def wait_for_leader(self, key: bytes, until: float, since: float) -> CachedAnswer | None:
        return None

    def release_lead(self, key: bytes) -> None:
        """No other process waits for it."""

    async def inspect(self, key: bytes) -> CachedAnswer | None:
        return self._answers.peek(key)

    async def purge(self, *, route: str | None = None, tenant: str | None = None, tag: str | None = None) -> int:
        """Takes 1 ms for each 10,000 answers."""
        found = [key for key, answer in self._answers.items() if answer.matches(route, tenant, tag)]
        for key in found:
            self._answers.remove(key)
        return len(found)

    async def stats(self) -> StoreStats:
        answers = self._answers
        return StoreStats("memory", len(answers), answers.n_bytes, answers.max_bytes, answers.n_evicted)

    async def close(self) -> None:
        """Nothing to close."""

    def __repr__(self) -> str:
        return f"<MemoryStore {self._answers!r}>"
