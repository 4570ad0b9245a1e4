"""Answers in an SQLite file on this machine, shared by all processes that open it. One thread of its own uses the file.

Committed answers survive `kill -9` of any process (write-ahead log, `synchronous = NORMAL`: a power failure may lose the
last answers, never the file). Triggers keep the total size, which is bounded, for all processes. Eviction: the oldest answer
not used since it was stored or last spared (FIFO with reinsertion, Corbato's CLOCK), so that a batch of ten thousand
different questions evicts little of what is in use. The file never shrinks; free space in it is reused.

A file of another version of this schema is emptied. Any other file is not touched, and the store is unavailable.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from stayfast.core.clock import Clock
from stayfast.stores.base import (
    AcquireLead,
    Get,
    IsLed,
    Put,
    ReleaseLead,
    Remove,
    StoreCommand,
    StoreReply,
    StoreStats,
    StoreUnavailable,
)

T = TypeVar("T")

APPLICATION_ID: Final = 0x53_46_43_31  # "SFC1", in the file's head
VERSION: Final = 1
OVERHEAD_BYTES: Final = 512  # of an answer, in addition to its data: rows, indexes
MAX_HITS: Final = 3
PURGE_BATCH: Final = 64  # answers checked for eviction at a time, or purged in one transaction
BUSY_S: Final = 1.0  # wait for another process's transaction
LOG_BYTES: Final = 8 * 1024 * 1024
MODE: Final = 0o600

_SETUP: Final = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA foreign_keys = ON;
"""
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS answers (
    n INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE, data BLOB NOT NULL, n_bytes INTEGER NOT NULL,
    n_hits INTEGER NOT NULL DEFAULT 0, drop_at REAL NOT NULL, route TEXT NOT NULL, tenant TEXT);
CREATE INDEX IF NOT EXISTS by_whom ON answers (route, tenant);
CREATE TABLE IF NOT EXISTS tags (
    tag TEXT NOT NULL, key BLOB NOT NULL REFERENCES answers (key) ON DELETE CASCADE, PRIMARY KEY (tag, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_key ON tags (key);
CREATE TABLE IF NOT EXISTS leads (key BLOB PRIMARY KEY, owner BLOB NOT NULL, until REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS told (n INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, record BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS by_name ON told (name, n);
CREATE TABLE IF NOT EXISTS room (
    one INTEGER PRIMARY KEY CHECK (one = 1), n_entries INTEGER NOT NULL, n_bytes INTEGER NOT NULL);
INSERT OR IGNORE INTO room VALUES (1, 0, 0);
CREATE TRIGGER IF NOT EXISTS came AFTER INSERT ON answers BEGIN
    UPDATE room SET n_entries = n_entries + 1, n_bytes = n_bytes + NEW.n_bytes; END;
CREATE TRIGGER IF NOT EXISTS went AFTER DELETE ON answers BEGIN
    UPDATE room SET n_entries = n_entries - 1, n_bytes = n_bytes - OLD.n_bytes; END;
"""
_IS_OURS: Final = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
_PURGED: Final = """SELECT n FROM answers
    WHERE (?1 IS NULL OR route = ?1) AND (?2 IS NULL OR tenant = ?2) AND ?3 IS NULL"""
_PURGED_BY_TAG: Final = """SELECT n FROM tags JOIN answers USING (key)
    WHERE (?1 IS NULL OR route = ?1) AND (?2 IS NULL OR tenant = ?2) AND tag = ?3"""
_PUT: Final = "INSERT INTO answers (key, data, n_bytes, drop_at, route, tenant) VALUES (?, ?, ?, ?, ?, ?)"
_LEAD: Final = """INSERT INTO leads VALUES (?1, ?2, ?3) ON CONFLICT (key) DO
    UPDATE SET owner = ?2, until = ?3 WHERE owner = ?2 OR until <= ?4"""

_READ_LOG: Final = "SELECT n, record FROM told WHERE name = ? AND n > ? ORDER BY n LIMIT ?"
_TRIM: Final = """DELETE FROM told WHERE name = ?1 AND n <= (
    SELECT n FROM told WHERE name = ?1 ORDER BY n DESC LIMIT 1 OFFSET ?2)"""


class SqliteBackend:
    """A file of answers. Opened at its first use, and again after an error; used by its own thread only."""

    kind = "sqlite"

    def __init__(self, path: Path, max_bytes: int, clock: Clock) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "stayfast-sqlite")
        self._file: sqlite3.Connection | None = None
        self._hits: set[bytes] = set()  # keys whose use is not yet written
        self._n_evicted = 0

    async def execute(self, orders: Sequence[StoreCommand]) -> list[StoreReply]:
        """Look-ups alone need no transaction; other commands share one."""
        if all(isinstance(order, Get) for order in orders):
            return await self._run(lambda file: [self._read(file, order.key) for order in orders])
        return await self._run(lambda file: self._write(file, orders))

    async def append_log(self, name: str, records: Sequence[bytes], most: int) -> None:
        await self._run(partial(_append_log, name, records, most))

    async def read_log(self, name: str, after: str, n: int) -> list[tuple[str, bytes]]:
        """Positions are row numbers."""
        rows: list[tuple[int, bytes]] = await self._run(
            lambda file: file.execute(_READ_LOG, (name, int(after or 0), n)).fetchall())
        return [(str(position), record) for position, record in rows]

    async def purge(self, route: str | None, tenant: str | None, tag: str | None) -> int:
        """In steps of STEP, so that look-ups can run in between."""
        query, parameters = _PURGED if tag is None else _PURGED_BY_TAG, (route, tenant, tag)
        found: list[tuple[int]] = await self._run(lambda file: file.execute(query, parameters).fetchall())
        n_removed = 0
        for at in range(0, len(found), PURGE_BATCH):
            n_removed += await self._run(partial(_delete, found[at:at + PURGE_BATCH]))
        return n_removed

    async def stats(self) -> StoreStats:
        n_entries, n_bytes = await self._run(_size)
        return StoreStats(self.kind, n_entries, n_bytes, self._max_bytes, self._n_evicted)

    async def close(self) -> None:
        """Close the file after the commands that are queued. Does not wait."""
        self._thread.submit(self._disconnect)
        self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._run_on_thread, work)
        except RuntimeError:
            raise StoreUnavailable("closed") from None

    def _run_on_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._file is None:
                self._file = _open(self._path)
            return work(self._file)
        except (sqlite3.Error, OSError) as error:
            self._disconnect()
            raise StoreUnavailable(f"{self._path}: {error}") from None

    def _disconnect(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _read(self, file: sqlite3.Connection, key: bytes) -> bytes | None:
        row = file.execute("SELECT data FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        self._hits.add(key)
        return bytes(row[0])

    def _write(self, file: sqlite3.Connection, orders: Sequence[StoreCommand]) -> list[StoreReply]:
        with file:
            file.execute("BEGIN IMMEDIATE")
            hits, self._hits = self._hits, set()
            file.executemany("UPDATE answers SET n_hits = min(n_hits + 1, ?) WHERE key = ?",
                             [(MAX_HITS, key) for key in hits])
            replies = [self._execute_one(file, order) for order in orders]
            self._evict(file)
        return replies

    def _execute_one(self, file: sqlite3.Connection, order: StoreCommand) -> StoreReply:
        now = self._clock.wall()
        match order:
            case Get(key):
                return self._read(file, key)
            case Put():
                self._put(file, order)
            case Remove(key):
                file.execute("DELETE FROM answers WHERE key = ?", (key,))
            case AcquireLead(key, owner, for_s):
                return file.execute(_LEAD, (key, owner, now + for_s, now)).rowcount > 0
            case IsLed(key):
                return file.execute("SELECT 1 FROM leads WHERE key = ? AND until > ?", (key, now)).fetchone() is not None
            case ReleaseLead(key, owner):
                file.execute("DELETE FROM leads WHERE (key = ? AND owner = ?) OR until <= ?", (key, owner, now))
        return None

    def _put(self, file: sqlite3.Connection, order: Put) -> None:
        """An answer larger than the whole store is not stored, and evicts none."""
        key, answer, n_bytes = order.key, order.answer, len(order.data) + OVERHEAD_BYTES
        file.execute("DELETE FROM answers WHERE key = ?", (key,))
        if n_bytes > self._max_bytes:
            return
        file.execute(_PUT, (key, order.data, n_bytes, answer.drop_at, answer.route, answer.tenant))
        file.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?)", [(tag, key) for tag in answer.tags])

    def _evict(self, file: sqlite3.Connection) -> None:
        """Delete the oldest answers until the rest fits. A used answer is spared once for each use."""
        while (over := _size(file)[1] - self._max_bytes) > 0:
            oldest = file.execute("SELECT n, n_hits, n_bytes, drop_at FROM answers ORDER BY n LIMIT ?",
                                  (PURGE_BATCH,)).fetchall()
            for n, n_hits, n_bytes, drop_at in oldest:
                if n_hits and drop_at > self._clock.wall():
                    file.execute("UPDATE answers SET n = (SELECT max(n) + 1 FROM answers), n_hits = n_hits - 1 WHERE n = ?",
                                 (n,))
                    continue
                file.execute("DELETE FROM answers WHERE n = ?", (n,))
                self._n_evicted += 1
                over -= n_bytes
                if over <= 0:
                    break

    def __repr__(self) -> str:
        return f"<SqliteBackend {self._path}>"


def describe_problem(path: Path) -> str:
    """Why an existing file cannot be a store; empty if it can, or if it cannot be opened now. Does not change the file."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=0.0, uri=True)) as file:
            _check_ours(file)
    except sqlite3.OperationalError:  # in use, or not readable for this user
        return ""
    except sqlite3.DatabaseError as error:
        return str(error)
    return ""


def _check_ours(file: sqlite3.Connection) -> bool:
    """Whether it is empty. Raises DatabaseError for a file that is not a database, or a database of another application."""
    is_new = not file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not is_new and file.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise sqlite3.DatabaseError("not a store of Stayfast; the file is not changed")
    return is_new


def _open(path: Path) -> sqlite3.Connection:
    """Raises sqlite3.Error and OSError; does not change a file of another application."""
    path.touch(MODE)
    file = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        is_new = _check_ours(file)
        file.executescript(f"{_SETUP} PRAGMA journal_size_limit = {LOG_BYTES};")
        if not is_new and file.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            file.execute("PRAGMA foreign_keys = OFF")
            tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            for name, in file.execute(tables).fetchall():
                file.execute(f'DROP TABLE "{name}"')
            file.execute("PRAGMA foreign_keys = ON")
        file.executescript(f"BEGIN IMMEDIATE; {_TABLES} {_IS_OURS} COMMIT;")
    except BaseException:
        file.close()
        raise
    return file


def _size(file: sqlite3.Connection) -> tuple[int, int]:
    """The number of answers, and their bytes."""
    n_entries, n_bytes = file.execute("SELECT n_entries, n_bytes FROM room").fetchone()
    return n_entries, n_bytes


def _append_log(name: str, records: Sequence[bytes], most: int, file: sqlite3.Connection) -> None:
    with file:
        file.execute("BEGIN IMMEDIATE")
        file.executemany("INSERT INTO told (name, record) VALUES (?, ?)", [(name, record) for record in records])
        file.execute(_TRIM, (name, most))


def _delete(rows: Sequence[tuple[int]], file: sqlite3.Connection) -> int:
    """In one transaction; returns how many rows were still there."""
    with file:
        file.execute("BEGIN IMMEDIATE")
        return file.executemany("DELETE FROM answers WHERE n = ?", rows).rowcount
