"""A store of jobs that is opened at its first use, and measured.

Jobs cost a gateway without jobs nothing: no thread, no file, no connection. A store that cannot be opened is unavailable,
and is tried again at the earliest RETRY_S later.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

from stayfast.core.clock import Clock
from stayfast.core.events import JobStoreCalled, Sink
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import JobStore, StoreFull

RETRY_S = 5.0
_ITERATORS = frozenset(("batch_results",))  # methods that return an iterator
_UNMEASURED = frozenset(("wait", "close"))
_OK, _FULL, _UNAVAILABLE = "ok", "full", "unavailable"


class LazyJobStore:
    """Passes every call to the store that `open_store` makes. Belongs to one loop."""

    def __init__(self, open_store: Callable[[], Awaitable[JobStore]], clock: Clock, sink: Sink) -> None:
        """open_store: raises StoreUnavailable."""
        self._open_store = open_store
        self._clock = clock
        self._sink = sink
        self._store: JobStore | None = None
        self._opening = asyncio.Lock()
        self._failed: tuple[float, str] | None = None  # instant and cause

    def as_store(self) -> JobStore:
        return cast("JobStore", self)

    @property
    def is_open(self) -> bool:
        return self._store is not None

    async def open(self) -> JobStore:
        """Raises StoreUnavailable."""
        if self._store is not None:
            return self._store
        async with self._opening:
            if self._store is None:
                if self._failed is not None and self._clock.now() - self._failed[0] < RETRY_S:
                    raise StoreUnavailable(self._failed[1])
                try:
                    self._store = await self._open_store()
                except StoreUnavailable as error:
                    self._failed = (self._clock.now(), str(error))
                    raise
                self._failed = None
        return self._store

    async def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in _ITERATORS:
            return lambda *args, **fields: self._iterate(name, args, fields)
        return lambda *args, **fields: self._call(name, args, fields)

    async def _call(self, name: str, args: tuple[Any, ...], fields: dict[str, Any]) -> Any:
        store = self._store if self._store is not None else await self.open()
        if name in _UNMEASURED:
            return await getattr(store, name)(*args, **fields)
        began_at, result = self._clock.now(), _OK
        try:
            return await getattr(store, name)(*args, **fields)
        except StoreFull:
            result = _FULL
            raise
        except StoreUnavailable:
            result = _UNAVAILABLE
            raise
        finally:
            self._sink.emit(JobStoreCalled(name, result, self._clock.now() - began_at))

    async def _iterate(self, name: str, args: tuple[Any, ...], fields: dict[str, Any]) -> AsyncIterator[Any]:
        store = await self.open()
        async for item in getattr(store, name)(*args, **fields):
            yield item

    def __repr__(self) -> str:
        return f"<LazyJobStore {self._store!r}>"
