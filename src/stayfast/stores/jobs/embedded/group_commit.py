"""Group commit: calls that arrive within a window share one transaction and one synchronisation of the disk.

Problem: a synchronised commit takes milliseconds, so one a call allows a few hundred calls a second. Rule: a thread takes
all calls that have arrived, runs them in one transaction, commits it, and then answers them. If the transaction fails, it is
rolled back, and each half of the calls runs again by itself: only the calls that cause the failure fail.
"""

import asyncio
import os
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import msgspec

from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import StoreFull
from stayfast.stores.jobs.embedded.schema import MODE

T = TypeVar("T")

WINDOW_S: Final = 0.002
MAX_GROUP: Final = 1024
RESERVE_BYTES: Final = 32 * 1024 * 1024
_SQLITE_IOERR_SHMSIZE: Final = sqlite3.SQLITE_IOERR | (19 << 8)
# A quota and a limit on the size of files are write errors. What was accepted may still fit.
_FULL: Final = frozenset((sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, _SQLITE_IOERR_SHMSIZE))

# What a call can cause: any of them is its caller's, and must not end the thread.
_ERRORS: Final = (sqlite3.Error, msgspec.MsgspecError, ValueError, ArithmeticError, TypeError, LookupError, AttributeError,
                  AssertionError)

Work = Callable[[sqlite3.Connection], Any]
BulkWork = Callable[[sqlite3.Connection, Sequence[Any]], list[Any]]


class _Call:
    """A call and its outcome. kind: calls of one kind are executed as one, on all their items."""

    __slots__ = ("error", "future", "items", "kind", "reply", "work")

    def __init__(self, work: Work | None, kind: str = "", items: Sequence[Any] = (),
                 future: "asyncio.Future[Any] | None" = None) -> None:
        self.work = work
        self.kind = kind
        self.items = items
        self.future = future
        self.reply: Any = None
        self.error: BaseException | None = None


class Headroom:
    """Disk space that is set aside while there is some, so that accepted work can end when there is none."""

    def __init__(self, path: Path, n_bytes: int) -> None:
        self._path = path
        self._n_bytes = n_bytes
        self.is_released = False

    def restore(self) -> bool:
        """Set the space aside if twice as much is free; False if it stays released."""
        try:
            size = self._path.stat().st_size if self._path.exists() else 0
            volume = os.statvfs(self._path.parent)
            self.is_released = size < self._n_bytes and volume.f_bavail * volume.f_frsize < 2 * self._n_bytes
            if size < self._n_bytes and not self.is_released:
                file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, MODE)
                try:
                    os.posix_fallocate(file, 0, self._n_bytes)
                finally:
                    os.close(file)
        except OSError:
            self.release()
        return not self.is_released

    def release(self) -> None:
        """Give the space to the disk."""
        self.is_released = True
        with suppress(OSError):
            self._path.unlink()


class GroupCommit:
    """A connection and the thread that uses it. `is_inline`: no thread and no window, for virtual time.

    refused: kinds of calls that are refused while the headroom is used up.
    """

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection], bulk: Mapping[str, BulkWork], *,
                 begin: str = "BEGIN IMMEDIATE", window_s: float = WINDOW_S, headroom: Headroom | None = None,
                 refused: frozenset[str] = frozenset(), is_inline: bool = False) -> None:
        self._name = name
        self._connect = connect
        self._bulk = bulk
        self._begin = begin
        self._window_s = window_s
        self._headroom = headroom
        self._refused = refused
        self._is_inline = is_inline
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._db: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None  # the file that is open
        self._opening = threading.Lock()
        self._is_closed = False
        self._pause = threading.Event()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The reply of `work`, once it is committed. Raises StoreUnavailable, and what `work` raises."""
        reply: T = await self._submit(_Call(work))
        return reply

    async def run_bulk(self, kind: str, items: Sequence[Any]) -> list[Any]:
        """The replies to `items`, one each: all are executed, or none."""
        replies: list[Any] = await self._submit(_Call(None, kind, items))
        return replies

    def open(self) -> sqlite3.Connection:
        """The connection. Raises StoreUnavailable. Any thread may call it."""
        with self._opening:
            if self._db is None:
                try:
                    self._db = self._connect()
                    self._opened = self._find_file()
                    if self._headroom is not None:
                        self._headroom.restore()
                except (sqlite3.Error, OSError) as error:
                    raise StoreUnavailable(f"{self._name}: {error}") from None
            return self._db

    async def close(self) -> None:
        """Close the connection after the calls that have arrived."""
        self._is_closed = True
        thread, self._thread = self._thread, None
        if thread is None:
            self._disconnect()
            return
        self._calls.put(None)
        await asyncio.get_running_loop().run_in_executor(None, thread.join)

    async def _submit(self, call: _Call) -> Any:
        if self._is_closed:
            raise StoreUnavailable("closed")
        if self._is_inline:
            self._execute([call])
            if call.error is not None:
                raise call.error
            return call.reply
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._serve, name="stayfast-jobs", daemon=True)
            self._thread.start()
        assert self._loop is not None
        call.future = self._loop.create_future()
        self._calls.put(call)
        return await call.future

    def _serve(self) -> None:
        is_over = False
        while not is_over:
            group, is_over = self._next_group()
            if group:
                self._execute(group)
                assert self._loop is not None
                with suppress(RuntimeError):  # the loop is closed: its callers are gone
                    self._loop.call_soon_threadsafe(_resolve, group)
        self._disconnect()

    def _next_group(self) -> tuple[list[_Call], bool]:
        """The calls that have arrived by the end of the window, and whether the thread ends after them."""
        group: list[_Call] = []
        call = self._calls.get()
        if call is not None and self._window_s:
            self._pause.wait(self._window_s)
        with suppress(Empty):
            while call is not None:
                group.append(call)
                if len(group) == MAX_GROUP:
                    return group, False
                call = self._calls.get_nowait()
            return group, True
        return group, False

    def _execute(self, group: Sequence[_Call]) -> None:
        """Execute calls and set their outcomes. Never raises."""
        try:
            db = self.open()
            self._check_file()
        except StoreUnavailable as error:
            for call in group:
                call.error = error
            return
        self._execute_part(db, self._refuse_if_full(group))

    def _check_file(self) -> None:
        """Raises StoreUnavailable if the file was removed or replaced: what is committed to the open one is lost when it is
        closed. It stays open, because closing it would delete the write-ahead log of another file with its name.
        """
        if self._find_file() != self._opened:
            raise StoreUnavailable(f"{self._name}: the file was removed or replaced; restart the processes that use it")

    def _find_file(self) -> tuple[int, int] | None:
        """Device and number of the file with the store's name."""
        try:
            found = Path(self._name).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _refuse_if_full(self, group: Sequence[_Call]) -> Sequence[_Call]:
        if self._headroom is None or not self._headroom.is_released or all(call.kind not in self._refused for call in group):
            return group
        if self._headroom.restore():
            return group
        for call in group:
            if call.kind in self._refused:
                call.error = StoreFull("no space is left on the disk")
        return [call for call in group if call.kind not in self._refused]

    def _execute_part(self, db: sqlite3.Connection, group: Sequence[_Call]) -> None:
        if not group:
            return
        if not self._is_open(db):  # it is closed after an error of another part
            for call in group:
                call.error = StoreUnavailable(f"{self._name}: closed after an error")
            return
        try:
            self._execute_together(db, group)
        except _ERRORS as error:
            if db.in_transaction:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
            self._divide(db, group, error)

    def _divide(self, db: sqlite3.Connection, group: Sequence[_Call], error: Exception) -> None:
        """Execute the halves of a group that failed. A call that fails alone is repeated once after a release of space."""
        is_full = isinstance(error, sqlite3.Error) and error.sqlite_errorcode in _FULL
        if is_full and self._headroom is not None and not self._headroom.is_released:
            self._headroom.release()
            self._execute_part(db, self._refuse_if_full(group))
        elif len(group) > 1:
            ordered = sorted(group, key=lambda call: call.kind in self._refused)
            self._execute_part(db, ordered[:len(group) // 2])
            self._execute_part(db, ordered[len(group) // 2:])
        elif is_full:
            group[0].error = StoreFull(f"{self._name}: {error}")
        elif isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            self._disconnect()
            group[0].error = StoreUnavailable(f"{self._name}: {error}")
        else:
            group[0].error = error

    def _execute_together(self, db: sqlite3.Connection, group: Sequence[_Call]) -> None:
        """Execute calls in one transaction: first all of one kind together, then the others in order."""
        db.execute(self._begin)
        by_kind: defaultdict[str, list[_Call]] = defaultdict(list)
        for call in group:
            by_kind[call.kind].append(call)
        for kind in self._bulk:
            if calls := by_kind.get(kind):
                replies, at = self._bulk[kind](db, [item for call in calls for item in call.items]), 0
                for call in calls:
                    call.reply = replies[at:at + len(call.items)]
                    at += len(call.items)
        for call in by_kind[""]:
            assert call.work is not None
            call.reply = call.work(db)
        db.execute("COMMIT")

    def _is_open(self, db: sqlite3.Connection) -> bool:
        return db is self._db

    def _disconnect(self) -> None:
        with self._opening:
            db, self._db = self._db, None
            if db is not None:
                with suppress(sqlite3.Error):
                    db.close()


def _resolve(group: Sequence[_Call]) -> None:
    for call in group:
        future = call.future
        if future is None or future.done():
            continue
        if call.error is not None:
            future.set_exception(call.error)
        else:
            future.set_result(call.reply)
