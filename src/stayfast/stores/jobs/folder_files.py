"""The contents of uploaded files in a folder, one file each.

Written to a temporary name, synchronised, renamed, and the folder synchronised: a crash leaves the whole file or none.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import StoreFull

PART_BYTES = 256 * 1024
_FULL = (ENOSPC, EDQUOT)
_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")


class FolderFileBodies:
    """All file operations run in threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def create(self, file_id: str) -> "FolderFileWriter":
        """Raises StoreUnavailable, StoreFull."""
        return FolderFileWriter(self._path(file_id), await asyncio.to_thread(self._create, file_id))

    async def read(self, file_id: str, at: int = 0) -> AsyncIterator[bytes]:
        """The bytes from offset `at`. Raises KeyError for an unknown file."""
        try:
            file = await asyncio.to_thread(self._path(file_id).open, "rb")
        except FileNotFoundError:
            raise KeyError(file_id) from None
        try:
            file.seek(at)
            while part := await asyncio.to_thread(file.read, PART_BYTES):
                yield part
        finally:
            file.close()

    async def delete(self, file_id: str) -> None:
        await asyncio.to_thread(self._path(file_id).unlink, missing_ok=True)

    def _create(self, file_id: str) -> BinaryIO:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._path(file_id).with_suffix(".part").open("xb")
        except OSError as error:
            raise _store_error(error) from None

    def _path(self, file_id: str) -> Path:
        if _ID.fullmatch(file_id) is None:
            raise KeyError(file_id)
        return self._folder / file_id


class FolderFileWriter:
    """One file that is being written. One task uses it."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._digest = sha256()
        self._n_bytes = 0

    async def write(self, data: bytes) -> None:
        """Raises StoreUnavailable, StoreFull."""
        await asyncio.to_thread(self._write, data)

    async def commit(self) -> tuple[int, str]:
        """Make it durable and visible; returns its size and SHA-256."""
        await asyncio.to_thread(self._commit)
        return self._n_bytes, self._digest.hexdigest()

    async def abort(self) -> None:
        """Remove it; without effect after `commit`."""
        self._file.close()
        await asyncio.to_thread(self._path.with_suffix(".part").unlink, missing_ok=True)

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise _store_error(error) from None
        self._digest.update(data)
        self._n_bytes += len(data)

    def _commit(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._path.with_suffix(".part").replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            with suppress(OSError):
                self._path.with_suffix(".part").unlink(missing_ok=True)
            raise _store_error(error) from None


def _store_error(error: OSError) -> StoreUnavailable:
    kind = StoreFull if error.errno in _FULL else StoreUnavailable
    return kind(error.strerror or type(error).__name__)
