"""The records of files, and their contents in parts."""

from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

import msgspec

from stayfast.core.jobs import FileInfo
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import MAX_CHECKED, ORPHAN_AGE_S, IsKnown
from stayfast.stores.jobs.postgres.connections import PostgresPool, make_sql, to_text
from stayfast.stores.jobs.postgres.records import encode

PART_BYTES: Final = 256 * 1024
ABANDONED_S: Final = 86_400.0  # after this an incomplete writing is deleted
_decode: Final = msgspec.msgpack.Decoder(FileInfo).decode
_FIND: Final = """
SELECT record FROM stayfast_files WHERE id = $1 AND (expires_at IS NULL OR expires_at > (SELECT stayfast_now()))"""
_LIST: Final = """
SELECT record FROM stayfast_files WHERE tenant = $1 AND (expires_at IS NULL OR expires_at > (SELECT stayfast_now()))
  {conditions} ORDER BY seq {order} LIMIT $2"""
_INSERT: Final = """
INSERT INTO stayfast_files (id, tenant, purpose, expires_at, record) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"""
_OLD: Final = """
SELECT file_id FROM stayfast_bodies WHERE is_complete AND file_id > $1
  AND written_at < (SELECT stayfast_now()) - $2::float8 ORDER BY file_id LIMIT $3"""
_DELETE_PARTS: Final = """
DELETE FROM stayfast_parts WHERE write_id = $1 AND n = ANY(ARRAY(
  SELECT n FROM stayfast_parts WHERE write_id = $1 LIMIT 64)) RETURNING n"""
# Not durable by itself: `commit` syncs the log, which contains all parts before it.
_WRITE: Final = """
WITH o AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
INSERT INTO stayfast_parts (write_id, n, data) SELECT $1, $2, $3 FROM o ON CONFLICT DO NOTHING"""


class PostgresFileRecords:
    """The part of the store that has the records of files."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    async def add_file(self, info: FileInfo) -> None:
        await self._pool.fetch(_INSERT, to_text(info.id), info.tenant or "", to_text(info.purpose), info.expires_at,
                               encode(info))

    async def find_file(self, file_id: str) -> FileInfo | None:
        row = await self._pool.fetch_row(_FIND, to_text(file_id))
        return None if row is None else _decode(row["record"])

    async def list_files(self, tenant: str | None, purpose: str | None, after_id: str | None, limit: int, *,
                         newest_first: bool = True) -> list[FileInfo]:
        sign, order = ("<", "DESC") if newest_first else (">", "ASC")
        values: list[object] = [tenant or "", limit]
        conditions = ""
        if purpose is not None:
            values.append(to_text(purpose))
            conditions += f" AND purpose = ${len(values)}"
        if after_id is not None:
            values.append(to_text(after_id))
            conditions += make_sql(" AND seq {sign} (SELECT seq FROM stayfast_files WHERE id = {id})", sign=sign,
                                   id=f"${len(values)}")
        rows = await self._pool.fetch(make_sql(_LIST, conditions=conditions, order=order), *values)
        return [_decode(row["record"]) for row in rows]

    async def delete_file(self, file_id: str) -> bool:
        return bool(await self._pool.fetch("DELETE FROM stayfast_files WHERE id = $1 RETURNING id", to_text(file_id)))

    async def expired_files(self) -> tuple[str, ...]:
        """Ids of files whose time is over, at most 100."""
        rows = await self._pool.fetch("SELECT id FROM stayfast_files WHERE expires_at <= (SELECT stayfast_now()) LIMIT 100")
        return tuple(row["id"] for row in rows)


class PostgresFileBodies:
    """Files as parts of PART_BYTES, so that memory does not grow with their size, in a database that all machines share."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._checked = ""  # the last id that was checked for its record

    async def create(self, file_id: str, *, spare_bytes: int = 0) -> "PostgresFileWriter":  # the free space is not known
        write_id = uuid4().hex
        await self._pool.fetch("INSERT INTO stayfast_bodies (write_id, file_id, written_at) VALUES ($1, $2, stayfast_now())",
                               write_id, to_text(file_id))
        return PostgresFileWriter(self._pool, to_text(file_id), write_id)

    async def read(self, file_id: str, at: int = 0) -> AsyncIterator[bytes]:
        row = await self._pool.fetch_row("SELECT write_id FROM stayfast_bodies WHERE file_id = $1 AND is_complete",
                                         to_text(file_id))
        if row is None:
            raise KeyError(file_id)
        write_id, (n, skipped) = row["write_id"], divmod(at, PART_BYTES)
        while (part := await self._pool.fetch_row("SELECT data FROM stayfast_parts WHERE write_id = $1 AND n = $2",
                                                  write_id, n)) is not None:
            data: bytes = part["data"]
            if skipped < len(data):
                yield data[skipped:] if skipped else data
            n, skipped = n + 1, 0

    async def delete(self, file_id: str) -> None:
        rows = await self._pool.fetch("UPDATE stayfast_bodies SET is_complete = false WHERE file_id = $1 AND is_complete "
                                      "RETURNING write_id", to_text(file_id))
        for row in rows:
            await delete_writing(self._pool, row["write_id"])

    async def remove_orphans(self, is_known: IsKnown) -> int:
        """See `FileBodies`."""
        rows = await self._pool.fetch(_OLD, self._checked, ORPHAN_AGE_S, MAX_CHECKED)
        self._checked = rows[-1]["file_id"] if len(rows) == MAX_CHECKED else ""
        n_removed = 0
        for row in rows:
            if not await is_known(row["file_id"]):
                await self.delete(row["file_id"])
                n_removed += 1
        return n_removed


class PostgresFileWriter:
    """One writing of a file."""

    def __init__(self, pool: PostgresPool, file_id: str, write_id: str) -> None:
        self._pool = pool
        self._file_id = file_id
        self._write_id = write_id
        self._buffer = bytearray()
        self._digest = sha256()
        self._n_parts = 0
        self._n_bytes = 0

    async def write(self, data: bytes) -> None:
        self._digest.update(data)
        self._n_bytes += len(data)
        self._buffer += data
        while len(self._buffer) >= PART_BYTES:
            await self._flush(PART_BYTES)

    async def commit(self) -> tuple[int, str]:
        if self._buffer:
            await self._flush(len(self._buffer))
        replaced = await self._pool.run_transaction(self._complete)
        for write_id in replaced:
            await delete_writing(self._pool, write_id)
        return self._n_bytes, self._digest.hexdigest()

    async def abort(self) -> None:
        self._buffer.clear()
        await delete_writing(self._pool, self._write_id)

    async def _flush(self, n_bytes: int) -> None:
        await self._pool.fetch(_WRITE, self._write_id, self._n_parts, bytes(self._buffer[:n_bytes]))
        self._n_parts += 1
        del self._buffer[:n_bytes]

    async def _complete(self, connection: Any) -> list[str]:
        """Replace an earlier content of the same file; returns its writing."""
        rows = await connection.fetch("UPDATE stayfast_bodies SET is_complete = false WHERE file_id = $1 AND is_complete "
                                      "AND write_id <> $2 RETURNING write_id", self._file_id, self._write_id)
        if not await connection.fetch("UPDATE stayfast_bodies SET is_complete = true WHERE write_id = $1 RETURNING 1",
                                      self._write_id):
            raise StoreUnavailable("the file was aborted, or took too long to write")
        return [row["write_id"] for row in rows]


async def delete_writing(pool: PostgresPool, write_id: str) -> None:
    """Delete a writing that is invisible: its parts in steps, then its row."""
    while await pool.fetch(_DELETE_PARTS, write_id):
        pass
    await pool.fetch("DELETE FROM stayfast_bodies WHERE write_id = $1", write_id)


async def delete_abandoned(pool: PostgresPool) -> None:
    """Delete writings whose process died."""
    rows = await pool.fetch("SELECT write_id FROM stayfast_bodies WHERE NOT is_complete "
                            "AND written_at < (SELECT stayfast_now()) - $1::float8 LIMIT 5", ABANDONED_S)
    for row in rows:
        await delete_writing(pool, row["write_id"])
