"""What has been learned and is to survive a restart: numbers and bytes, in one file that is appended to.

    file      a line that says what wrote it and for what; then records
    record    length and CRC-32 of what follows (4 bytes each, little-endian), then msgpack of [key, body]; null: deleted

Reading stops at the first record that is not whole: a process that was killed leaves one at most. It is written by a thread,
SOON_S after something was put, so that nobody waits; the last SOON_S before a kill are lost. When more than half of the file
is over, it is written anew beside itself and moved into its place.
When wrong: two processes with one path. Whoever opens it names a file a process.
"""

import asyncio
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

SOON_S: Final = 1.0
LEAST_BYTES: Final = 4 * 1024 * 1024  # a file smaller than this is left as it is
_MAGIC: Final = b"stayfast learned 1 "
_HEAD: Final = 8
_Record = tuple[int, bytes | None]
_RECORD: Final = msgspec.msgpack.Decoder(_Record)


class LabelStore:
    """One file. `put` and `delete` on one loop; `read` before that, on any thread."""

    def __init__(self, path: Path, of: str) -> None:
        """of: what must be the same for the file to mean anything: the embedder."""
        self._path = path
        self._first = _MAGIC + of.encode() + b"\n"
        self._waiting: list[_Record] = []
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="learned")
        self._n_bytes = 0  # of the file
        self._sizes: dict[int, int] = {}  # of what is in it and not over

    def read(self) -> dict[int, bytes]:
        """All that is there, in the order it was put; empty for a file of something else. Blocks. Raises OSError."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._read()
        self._rewrite(found)
        return found

    def put(self, key: int, body: bytes) -> None:
        """Keep it in place of the key's last one."""
        self._add((key, body))

    def delete(self, key: int) -> None:
        self._add((key, None))

    def close(self) -> None:
        """Write what waits. Blocks for a moment; what is put after this is lost."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._thread.submit(self._write, self._waiting)
        self._thread.shutdown()

    def _add(self, record: _Record) -> None:
        if self._is_closed:
            return
        self._waiting.append(record)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, []
        self._thread.submit(self._write, waiting)

    def _write(self, records: Iterable[_Record]) -> None:
        """On the thread. A disk that is full or gone loses what was to be kept, and nothing else."""
        packed = [self._packed(key, body) for key, body in records]
        try:
            with self._path.open("ab") as file:
                file.write(b"".join(packed))
            if self._n_bytes > LEAST_BYTES and self._n_bytes > 2 * sum(self._sizes.values()):
                self._rewrite(self._read())
        except OSError:
            self._n_bytes = 0  # it is as it is; the next start reads what is whole

    def _packed(self, key: int, body: bytes | None) -> bytes:
        encoded = msgspec.msgpack.encode((key, body))
        record = len(encoded).to_bytes(4, "little") + zlib.crc32(encoded).to_bytes(4, "little") + encoded
        self._n_bytes += len(record)
        self._sizes.pop(key, None)
        if body is not None:
            self._sizes[key] = len(record)
        return record

    def _read(self) -> dict[int, bytes]:
        try:
            file = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        if not file.startswith(self._first):
            return {}
        found, at = dict[int, bytes](), len(self._first)
        while at + _HEAD <= len(file):
            end = at + _HEAD + int.from_bytes(file[at:at + 4], "little")
            record = file[at + _HEAD:end]
            if end > len(file) or zlib.crc32(record) != int.from_bytes(file[at + 4:at + _HEAD], "little"):
                break
            key, body = _RECORD.decode(record)
            found.pop(key, None)
            if body is not None:
                found[key] = body
            at = end
        return found

    def _rewrite(self, found: Mapping[int, bytes]) -> None:
        self._n_bytes, self._sizes = 0, {}
        temporary = self._path.with_name(f"{self._path.name}.new")
        temporary.write_bytes(self._first + b"".join([self._packed(key, body) for key, body in found.items()]))
        temporary.chmod(0o600)
        temporary.replace(self._path)
