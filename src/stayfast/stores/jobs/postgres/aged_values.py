"""Counts that take long when there is much to count."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from stayfast.core.clock import Clock
from stayfast.stores.base import StoreUnavailable

COUNT_AGE: Final = 50.0  # a value is used for so many times the duration of its query
MAX_AGE_S: Final = 30.0
T = TypeVar("T")


class AgedValue(Generic[T]):
    """The result of a query. A small one is always new; a large one is up to COUNT_AGE times as old as the query took, and
    is then made anew in the background: it costs the server 2 % of its time, and only the first caller waits for it.
    """

    def __init__(self, query: Callable[[], Awaitable[T]], is_large: Callable[[T], bool], clock: Clock) -> None:
        self._query = query
        self._is_large = is_large
        self._clock = clock
        self._value: T | None = None  # None: small, or unknown
        self._valid_until = 0.0
        self._refreshing: asyncio.Task[None] | None = None

    async def get(self) -> T:
        """Raises StoreUnavailable."""
        if self._value is None:
            return await self._make()
        if self._clock.now() >= self._valid_until and self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        return self._value

    async def _make(self) -> T:
        began_at = self._clock.now()
        value = await self._query()
        now = self._clock.now()
        self._value = value if self._is_large(value) else None
        self._valid_until = now + min(MAX_AGE_S, COUNT_AGE * (now - began_at))
        return value

    async def _refresh(self) -> None:
        try:
            with suppress(StoreUnavailable):  # the next caller tries again
                await self._make()
        finally:
            self._refreshing = None
