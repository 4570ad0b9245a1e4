"""Uploaded files and the files of batches: contents in `FileBodies`, records in the store.

The contents are made durable before the record, and deleted before it: a crash leaves no record without contents, and at
worst contents that nothing refers to.
"""

import secrets
from collections.abc import AsyncIterator, Collection

from stayfast.core.errors import Rejected
from stayfast.core.jobs import Door, FileInfo
from stayfast.jobs.service import JobService, store_error
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import FileWriter, JobStore

LONGEST_BATCH_S = 3 * 86_400.0  # no batch runs longer: its lines expire after one day
SPARE_BYTES = 64 << 20  # of the disk, which uploads leave to what was accepted
_PAGE = 100
_MAX_PAGE = 1000


def make_id(prefix: str, wall_at: float) -> str:
    """An id that cannot be guessed; later ones sort after earlier ones, so that an index grows at its end."""
    return f"{prefix}{int(wall_at * 1e3):012x}{secrets.token_hex(10)}"


class FileService:
    """The files of one gateway. Every method raises StayfastError."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._store = service.store

    async def create(self, prefix: str = "file-") -> "Upload":
        """Begin to write a file."""
        file_id = make_id(prefix, self._service.clock.wall())
        try:
            return Upload(file_id, await self._service.files.create(file_id, spare_bytes=SPARE_BYTES))
        except StoreUnavailable as error:
            raise store_error(error) from None

    async def add(self, upload: "Upload", *, tenant: str | None, purpose: str, filename: str, expires_s: float | None
                  ) -> FileInfo:
        """Complete a file: from then on it is visible."""
        now = self._service.clock.wall()
        n_bytes, sha256 = await upload.commit()
        expires_at = now + expires_s if expires_s is not None else None
        info = FileInfo(upload.id, tenant, purpose, filename, n_bytes, now, expires_at, sha256)
        try:
            await self._store.add_file(info)
        except StoreUnavailable as error:
            await delete_contents(self._service, info.id)
            raise store_error(error) from None
        return info

    async def find(self, file_id: str, tenant: str | None, purposes: Collection[str]) -> FileInfo:
        """Raises Rejected (404) for an unknown file, another tenant's, and one for another purpose."""
        try:
            info = await self._store.find_file(file_id)
        except StoreUnavailable as error:
            raise store_error(error) from None
        if info is None or info.tenant != tenant or info.purpose not in purposes:
            raise unknown_file(file_id)
        return info

    async def list_files(self, tenant: str | None, purpose: str | None, purposes: Collection[str], after_id: str | None,
                         limit: int, *, newest_first: bool) -> tuple[list[FileInfo], bool]:
        """A page, and whether there are more files after it. Others than those for `purposes` are left out."""
        found: list[FileInfo] = []
        try:
            while len(found) <= limit:
                page = await self._store.list_files(tenant, purpose, after_id, min(limit + 1, _MAX_PAGE),
                                                    newest_first=newest_first)
                found.extend(info for info in page if info.purpose in purposes)
                if len(page) < min(limit + 1, _MAX_PAGE):
                    break
                after_id = page[-1].id
        except StoreUnavailable as error:
            raise store_error(error) from None
        return found[:limit], len(found) > limit

    async def delete(self, info: FileInfo) -> None:
        """Raises Rejected (409) while a batch reads the file."""
        try:
            batch_id = await find_reader(self._store, info, self._service.clock.wall())
            if batch_id is not None:
                raise Rejected(f"The file is the input of {batch_id}, which has not ended. Cancel the batch first.",
                               status=409, code="file_in_use", param="file_id")
            await self._remove(info.id)
        except StoreUnavailable as error:
            raise store_error(error) from None

    async def discard(self, info: FileInfo) -> None:
        """Delete a file that nothing refers to. An unavailable store is no error: the file expires."""
        try:
            await self._remove(info.id)
        except StoreUnavailable:
            return

    async def _remove(self, file_id: str) -> None:
        await delete_contents(self._service, file_id)
        await self._store.delete_file(file_id)

    async def read(self, info: FileInfo) -> AsyncIterator[bytes]:
        """The contents. Raises Rejected (404) if they are gone."""
        parts = self._service.files.read(info.id)
        try:
            first = await anext(parts, b"")
        except KeyError:
            raise unknown_file(info.id) from None
        except StoreUnavailable as error:
            raise store_error(error) from None
        return _chain(first, parts)


class Upload:
    """A file that is being written."""

    def __init__(self, file_id: str, writer: FileWriter) -> None:
        self.id = file_id
        self.n_bytes = 0
        self._writer: FileWriter | None = writer

    async def write(self, data: bytes) -> None:
        """Raises Shed (503) if no space is left."""
        assert self._writer is not None
        self.n_bytes += len(data)
        try:
            await self._writer.write(data)
        except StoreUnavailable as error:
            raise store_error(error) from None

    async def commit(self) -> tuple[int, str]:
        """Size in bytes and SHA-256 of the contents, which are durable."""
        assert self._writer is not None
        try:
            done = await self._writer.commit()
        except StoreUnavailable as error:
            raise store_error(error) from None
        self._writer = None
        return done

    async def close(self) -> None:
        """Remove what was written, unless it is complete."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.abort()


async def _chain(first: bytes, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        if first:
            yield first
        async for part in parts:
            yield part
    finally:
        close = getattr(parts, "aclose", None)
        if close is not None:
            await close()


async def delete_contents(service: JobService, file_id: str) -> None:
    """Delete contents; those that are gone are no error."""
    try:
        await service.files.delete(file_id)
    except KeyError:
        return


async def find_reader(store: JobStore, info: FileInfo, now_wall: float) -> str | None:
    """The batch that still reads a file."""
    after_id = None
    while True:
        page = await store.list_batches(info.tenant, (Door.BATCH,), after_id, _PAGE)
        for batch in page:
            if batch.input_file_id == info.id and not batch.state.is_final:
                return batch.id
        if len(page) < _PAGE or page[-1].created_at < now_wall - LONGEST_BATCH_S:
            return None
        after_id = page[-1].id


def unknown_file(file_id: str) -> Rejected:
    """The error for an unknown file, and for one of another tenant."""
    return Rejected(f"No file has the id {file_id[:80]!r}: it has expired, was deleted, or belongs to another key.",
                    status=404, code="file_not_found", param="file_id")
