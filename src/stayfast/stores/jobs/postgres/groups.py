"""Group commit: concurrent calls of one kind share a transaction.

Problem: a durable commit waits for the disk, 1 to 10 ms; one commit a call limits a process to some hundreds of calls a
second. Rule: while a commit is under way, calls gather; the next commit has all of them. After a group of several calls the
next one is gathered for GATHER_S, because a client that has just got its reply is likely to send its next call.
A call waits LIMIT_S at most, for the commit before it and its own. One that was cancelled, or failed while its commit was
under way, may still happen.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.postgres.connections import LIMIT_S

GATHER_S: Final = 0.002
MAX_ITEMS: Final = 512  # in one transaction
MAX_BYTES: Final = 8 << 20
T = TypeVar("T")
R = TypeVar("R")


class _Call(NamedTuple, Generic[T, R]):
    items: Sequence[T]
    n_bytes: int
    future: asyncio.Future[list[R]]


class CallGroups(Generic[T, R]):
    """The calls of one kind. `execute` takes the items of several calls and returns one reply for each item; it executes all
    or nothing, and raises StoreUnavailable. No two items of one execution have the same `key`.
    """

    def __init__(self, execute: Callable[[Sequence[T]], Awaitable[list[R]]], key: Callable[[T], Hashable],
                 n_bytes: Callable[[T], int]) -> None:
        self._execute = execute
        self._key = key
        self._n_bytes = n_bytes
        self._waiting: deque[_Call[T, R]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def call(self, items: Sequence[T]) -> list[R]:
        """Execute the items of one call, together with others; returns one reply for each."""
        if not items:
            return []
        loop = asyncio.get_running_loop()
        call = _Call[T, R](items, sum(map(self._n_bytes, items)), loop.create_future())
        self._waiting.append(call)
        if self._task is None:
            self._task = loop.create_task(self._run())
        try:
            async with asyncio.timeout(LIMIT_S):
                return await call.future
        except TimeoutError:
            if call in self._waiting:
                self._waiting.remove(call)
            raise StoreUnavailable("the database did not reply in time") from None

    def close(self) -> None:
        """Calls that are waiting fail."""
        if self._task is not None:
            self._task.cancel()
        while self._waiting:
            _fail(self._waiting.popleft(), StoreUnavailable("the store is closed"))

    async def _run(self) -> None:
        group: list[_Call[T, R]] = []
        try:
            while self._waiting:
                await asyncio.sleep(GATHER_S if len(group) > 1 else 0)
                group = self._take_group()
                await self._execute_group(group)
        finally:
            self._task = None
            for call in group:
                _fail(call, StoreUnavailable("the store is closed"))

    def _take_group(self) -> list[_Call[T, R]]:
        """The next calls without repeated keys; at least one, which may itself be larger than the limits."""
        group, keys, n_items, n_bytes = list[_Call[T, R]](), set[Hashable](), 0, 0
        while self._waiting:
            call = self._waiting[0]
            own_keys = {self._key(item) for item in call.items}
            n_items, n_bytes = n_items + len(call.items), n_bytes + call.n_bytes
            if group and (n_items > MAX_ITEMS or n_bytes > MAX_BYTES or keys & own_keys):
                break
            keys |= own_keys
            group.append(self._waiting.popleft())
        return group

    async def _execute_group(self, group: Sequence[_Call[T, R]]) -> None:
        try:
            replies = iter(await self._execute([item for call in group for item in call.items]))
        except StoreUnavailable as error:
            for call in group:
                _fail(call, error)
            return
        for call in group:
            own = [next(replies) for _ in call.items]
            if not call.future.done():
                call.future.set_result(own)


def _fail(call: _Call[T, R], error: StoreUnavailable) -> None:
    if not call.future.done():
        call.future.set_exception(error)
