"""The contents of files in a folder of this machine. Memory is flat: a file is written and read in parts.

A file is written under a temporary name, synchronised, renamed, and then its folder is synchronised: after a crash it is
either whole or missing. The writer holds a lock on a temporary file, so one that can be locked is of a process that has
died, and is removed by the next process that starts. An id is a path only if it is a plain word.
"""

import asyncio
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from errno import EDQUOT, EFBIG, ENOSPC
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import Final, TypeVar

from stayfast.core.clock import Clock
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import MAX_CHECKED, ORPHAN_AGE_S, IsKnown, StoreFull

T = TypeVar("T")

PART_BYTES: Final = 256 * 1024
MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
_TEMPORARY: Final = ".part-"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


class DiskFileBodies:
    """`FileBodies` in a folder, which several processes may share."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._threads = ThreadPoolExecutor(2, "stayfast-files")
        self._is_ready = False
        self._checked = ""  # the last id that was checked for its record

    async def create(self, file_id: str, *, spare_bytes: int = 0) -> "DiskFileWriter":
        """Raises ValueError for an id that is not a word, StoreFull and StoreUnavailable."""
        if not _ID.fullmatch(file_id):
            raise ValueError("a file's id consists of up to 128 letters, digits, - and _")
        await self.run(partial(self.check_space, spare_bytes))
        file, temporary = await self.run(self._create_temporary)
        return DiskFileWriter(self, file, temporary, self._folder / file_id, spare_bytes)

    async def read(self, file_id: str, at: int = 0) -> AsyncIterator[bytes]:
        """The bytes from offset `at`. Raises KeyError for an unknown file."""
        if not _ID.fullmatch(file_id):
            raise KeyError(file_id)
        try:
            file = await self.run(lambda: os.open(self._folder / file_id, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW),
                                  passes=FileNotFoundError)
        except FileNotFoundError:
            raise KeyError(file_id) from None
        try:
            while part := await self.run(partial(os.pread, file, PART_BYTES, at)):
                yield part
                at += len(part)
        finally:
            os.close(file)

    async def delete(self, file_id: str) -> None:
        """Delete a file; an unknown one is no error."""
        if _ID.fullmatch(file_id):
            await self.run(lambda: (self._folder / file_id).unlink(missing_ok=True))

    async def remove_orphans(self, is_known: IsKnown) -> int:
        """See `FileBodies`."""
        names = await self.run(partial(self._find_old, self._checked, self._clock.wall() - ORPHAN_AGE_S))
        self._checked = names[-1] if len(names) == MAX_CHECKED else ""
        n_removed = 0
        for name in names:
            if not await is_known(name):
                await self.delete(name)
                n_removed += 1
        return n_removed

    def _find_old(self, after: str, oldest: float) -> list[str]:
        """The first ids after one, of files that were written before `oldest`."""
        with os.scandir(self._folder) as entries:
            old = (entry.name for entry in entries if entry.name > after and _ID.fullmatch(entry.name)
                   and entry.stat(follow_symlinks=False).st_mtime < oldest)
            return nsmallest(MAX_CHECKED, old)

    async def run(self, work: Callable[[], T], passes: type[OSError] | tuple[()] = ()) -> T:
        """Do file work on a thread. Its errors of the operating system become StoreFull and StoreUnavailable."""
        def on_thread() -> T:
            try:
                self._prepare()
                return work()
            except passes:
                raise
            except OSError as error:
                kind = StoreFull if error.errno in (ENOSPC, EDQUOT, EFBIG) else StoreUnavailable
                raise kind(f"{self._folder}: {error.strerror}") from None

        return await asyncio.get_running_loop().run_in_executor(self._threads, on_thread)

    def check_space(self, spare_bytes: int) -> None:
        """Raises OSError (ENOSPC) if less is free."""
        if spare_bytes:
            volume = os.statvfs(self._folder)
            if volume.f_bavail * volume.f_frsize < spare_bytes:
                raise OSError(ENOSPC, os.strerror(ENOSPC))

    def sync_folder(self) -> None:
        """Make renames durable."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _prepare(self) -> None:
        if self._is_ready:
            return
        self._folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        for path in self._folder.glob(f"{_TEMPORARY}*"):
            with suppress(OSError):
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(file)
        self._is_ready = True

    def _create_temporary(self) -> tuple[int, Path]:
        while True:
            path = self._folder / f"{_TEMPORARY}{secrets.token_hex(12)}"
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, MODE)
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:  # else a process that started locked and removed it before this one had the lock
                return file, path
            os.close(file)

    async def close(self) -> None:
        """End the threads. Open writers are then aborted at the next start."""
        self._threads.shutdown(wait=False)


class DiskFileWriter:
    """A file that is being written. One task uses it."""

    def __init__(self, bodies: DiskFileBodies, file: int, temporary: Path, path: Path,
                 spare_bytes: int) -> None:
        self._bodies = bodies
        self._file = file
        self._temporary = temporary
        self._path = path
        self._spare_bytes = spare_bytes
        self._waiting = bytearray()
        self._n_bytes = 0
        self._sha256 = hashlib.sha256()

    async def write(self, data: bytes) -> None:
        """Raises StoreFull and StoreUnavailable; then only `abort` is left to do."""
        self._waiting += data
        if len(self._waiting) >= PART_BYTES:
            await self._bodies.run(self._flush)

    async def commit(self) -> tuple[int, str]:
        """Make it durable and visible; returns its size in bytes and its SHA-256 in hex."""
        await self._bodies.run(self._commit)
        return self._n_bytes, self._sha256.hexdigest()

    async def abort(self) -> None:
        """Remove it. After `commit` it changes nothing."""
        if self._file >= 0:
            with suppress(StoreUnavailable):
                await self._bodies.run(self._abort)

    def _flush(self) -> None:
        self._bodies.check_space(self._spare_bytes)
        data, self._waiting = self._waiting, bytearray()
        self._sha256.update(data)
        view = memoryview(data)
        while view:
            n = os.write(self._file, view)
            view = view[n:]
            self._n_bytes += n

    def _commit(self) -> None:
        self._flush()
        os.fsync(self._file)
        self._temporary.rename(self._path)
        self._bodies.sync_folder()
        self._close()

    def _abort(self) -> None:
        self._temporary.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
