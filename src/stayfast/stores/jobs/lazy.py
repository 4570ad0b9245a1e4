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
from stayfast.stores.jobs.base import FileBodies, FileWriter, IsKnown, JobStore, StoreFull

RETRY_S = 5.0
_ITERATORS = frozenset(("batch_results",))  # methods that return an iterator
_UNMEASURED = frozenset(("notify", "wait", "close"))
_OK, _FULL, _UNAVAILABLE = "ok", "full", "unavailable"


OpenStores = tuple[JobStore, FileBodies]


class LazyJobStore:
    """Passes every call to the store that `open_store` makes. Belongs to one loop."""

    def __init__(self, open_stores: Callable[[], Awaitable[OpenStores]], clock: Clock, sink: Sink) -> None:
        """open_stores: raises StoreUnavailable."""
        self._open_stores = open_stores
        self._clock = clock
        self._sink = sink
        self._store: JobStore | None = None
        self._files: FileBodies | None = None
        self._opening = asyncio.Lock()
        self._failed: tuple[float, str] | None = None  # instant and cause

    def as_store(self) -> JobStore:
        return cast("JobStore", self)

    async def files(self) -> FileBodies:
        """The contents of files. Raises StoreUnavailable."""
        await self.open()
        assert self._files is not None
        return self._files

    async def open(self) -> JobStore:
        """Raises StoreUnavailable."""
        if self._store is not None:
            return self._store
        async with self._opening:
            if self._store is None:
                if self._failed is not None and self._clock.now() - self._failed[0] < RETRY_S:
                    raise StoreUnavailable(self._failed[1])
                try:
                    self._store, self._files = await self._open_stores()
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


class LazyFileBodies:
    """The contents of files of a lazy store."""

    def __init__(self, lazy: LazyJobStore) -> None:
        self._lazy = lazy

    async def create(self, file_id: str, *, spare_bytes: int = 0) -> FileWriter:
        return await (await self._lazy.files()).create(file_id, spare_bytes=spare_bytes)

    async def read(self, file_id: str, at: int = 0) -> AsyncIterator[bytes]:
        async for part in (await self._lazy.files()).read(file_id, at):
            yield part

    async def delete(self, file_id: str) -> None:
        await (await self._lazy.files()).delete(file_id)

    async def remove_orphans(self, is_known: IsKnown) -> int:
        return await (await self._lazy.files()).remove_orphans(is_known)
