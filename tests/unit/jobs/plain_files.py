"""File bodies in a folder, unsynchronised: for tests whose subject is who writes and reads them."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

PART_BYTES = 40  # small, so that lines are cut


class PlainWriter:
    """A file that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.with_suffix(".tmp").open("wb")
        self._sha256 = hashlib.sha256()

    async def write(self, data: bytes) -> None:
        """Append."""
        self._file.write(data)
        self._sha256.update(data)

    async def commit(self) -> tuple[int, str]:
        """Make it visible."""
        n_bytes = self._file.tell()
        self._file.close()
        self._path.with_suffix(".tmp").rename(self._path)
        return n_bytes, self._sha256.hexdigest()

    async def abort(self) -> None:
        """Remove it."""
        self._file.close()
        self._path.with_suffix(".tmp").unlink(missing_ok=True)


class PlainFiles:
    """All files of a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder

    async def create(self, file_id: str) -> PlainWriter:
        """Begin to write."""
        return PlainWriter(self._folder / file_id)

    async def read(self, file_id: str, at: int = 0) -> AsyncIterator[bytes]:
        """The contents in parts."""
        try:
            data = (self._folder / file_id).read_bytes()
        except FileNotFoundError:
            raise KeyError(file_id) from None
        for start in range(at, len(data), PART_BYTES):
            yield data[start:start + PART_BYTES]

    async def delete(self, file_id: str) -> None:
        """Delete; an unknown one is no error."""
        (self._folder / file_id).unlink(missing_ok=True)
