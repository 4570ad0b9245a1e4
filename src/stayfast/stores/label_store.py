"""What a semantic cache has learned, kept across restarts: numbered byte strings in one SQLite file.

A thread of its own writes all pending changes in one transaction, FLUSH_S after the first of them, so no request waits.
With a write-ahead log, `kill -9` loses at most the batch not yet committed. The file reuses the space of deleted labels.
A damaged file is renamed to `NAME.damaged` (an older one of that name is replaced), and a new file is started. SQLite
has no checksums: a flipped bit inside a label is found only if the label cannot be decoded.
When wrong: two processes with one path. Give each process its own file.
"""

import asyncio
import sqlite3
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

FLUSH_S: Final = 1.0
WAL_BYTES: Final = 4 * 1024 * 1024
APPLICATION_ID: Final = 0x53_46_4C_31  # "SFL1", in the header of the file
_SETUP: Final = f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = {WAL_BYTES};"
_TABLES: Final = f"""
BEGIN IMMEDIATE;
PRAGMA application_id = {APPLICATION_ID};
CREATE TABLE labels (n INTEGER PRIMARY KEY AUTOINCREMENT, key INTEGER NOT NULL UNIQUE, body BLOB NOT NULL);
CREATE TABLE embedder (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL);
COMMIT;
"""
_Change = tuple[int, bytes | None]  # key, and the new body; None: delete


class LabelStore:
    """One file. `put` and `delete` are called on one loop; `read` before them, on any thread."""

    def __init__(self, path: Path, embedder: str) -> None:
        """embedder: its id, and the version of the labels. Labels of another one are deleted."""
        self.damaged: Path | None = None  # where a file that could not be read is now
        self._path = path
        self._embedder = embedder
        self._file: sqlite3.Connection | None = None
        self._pending: list[_Change] = []
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="labels")

    def read(self) -> dict[int, bytes]:
        """All labels by key, in the order of their last `put`. Blocks. Raises OSError if the file cannot be opened."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return self._open()
        except sqlite3.OperationalError as error:  # locked, read-only, no space: not damaged
            raise OSError(f"{self._path}: {error}") from error
        except sqlite3.DatabaseError:
            self.set_aside()
            return {}

    def set_aside(self) -> None:
        """Rename the file, whose content is damaged, and start a new one; SQLite deletes the log of an empty file.

        Blocks. Raises OSError.
        """
        self._disconnect()
        self.damaged = self._path.replace(self._path.with_name(f"{self._path.name}.damaged"))
        try:
            self._open()
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}") from error

    def put(self, key: int, body: bytes) -> None:
        self._change(key, body)

    def delete(self, key: int) -> None:
        self._change(key, None)

    def close(self) -> None:
        """Write pending changes. Blocks for a moment; later changes are lost."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._thread.submit(self._write, self._pending)
        self._thread.submit(self._disconnect)
        self._thread.shutdown()

    def _change(self, key: int, body: bytes | None) -> None:
        if self._is_closed:
            return
        self._pending.append((key, body))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        pending, self._pending = self._pending, []
        self._thread.submit(self._write, pending)

    def _write(self, changes: Iterable[_Change]) -> None:
        if self._file is None:
            return
        with suppress(sqlite3.Error), self._file:  # a full or missing disk loses this batch, and nothing else
            self._file.execute("BEGIN IMMEDIATE")
            for key, body in changes:
                if body is None:
                    self._file.execute("DELETE FROM labels WHERE key = ?", (key,))
                else:  # a replaced row gets a new number, so it is the newest one
                    self._file.execute("INSERT OR REPLACE INTO labels (key, body) VALUES (?, ?)", (key, body))

    def _open(self) -> dict[int, bytes]:
        """Open the file and read it. Raises OperationalError, or DatabaseError if its content is damaged."""
        self._path.touch(0o600)
        file = self._file = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        has_tables = file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if has_tables and (file.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID
                           or file.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok"):
            raise sqlite3.DatabaseError("damaged, or written by another application")
        file.executescript(f"{_SETUP} {'' if has_tables else _TABLES}")
        if file.execute("SELECT id FROM embedder").fetchone() != (self._embedder,):
            with file:
                file.execute("BEGIN IMMEDIATE")
                file.execute("DELETE FROM labels")
                file.execute("INSERT OR REPLACE INTO embedder VALUES (1, ?)", (self._embedder,))
        return dict(file.execute("SELECT key, body FROM labels ORDER BY n"))

    def _disconnect(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(sqlite3.Error):
                file.close()
