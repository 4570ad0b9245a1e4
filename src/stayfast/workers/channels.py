"""Channels between the processes of one gateway. A message is a frame: its length (4 bytes, big-endian) and its bytes.

Parent and worker. Problem: a worker must not outlive its parent, must use the settings that the parent has checked (the file
may have changed since), and must report that it is ready. Rule: they share a socket pair, which is the worker's stdin. The
parent sends snapshots of the configuration; the worker sends one line, READY. EOF means that the parent has ended or was
killed: the worker drains as after SIGTERM. Each later snapshot is a reload, and raises SIGHUP in the worker.

Worker and worker. Problem: a client's connection reaches a random worker, but admin queries concern all workers. Rule: each
worker listens on a Unix socket in a directory of mode 0700. The worker that receives an admin query queries all others
concurrently, and waits for `patience_s` at most. The result lacks workers that do not reply in time.
"""

import asyncio
import fcntl
import os
import signal
import socket
import stat
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from stayfast.workers import shared_memory

READY = b"ready\n"
MAX_QUERY_BYTES = 64 * 1024
MAX_REPLY_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_PREFIX = "stayfast-workers-"
_SETTLED_S = 60.0  # the locks of a younger directory may not be taken yet


def encode_frame(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message


async def read_frame(reader: asyncio.StreamReader, max_bytes: int) -> bytes | None:
    """One message; None if it is incomplete or longer than `max_bytes`."""
    try:
        (n_bytes,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(n_bytes) if n_bytes <= max_bytes else None
    except asyncio.IncompleteReadError:
        return None


def receive_frame(sock: socket.socket) -> bytes | None:
    """One message from a blocking socket; None at EOF."""
    head = _receive_exactly(sock, _LENGTH.size)
    return None if head is None else _receive_exactly(sock, _LENGTH.unpack(head)[0])


def _receive_exactly(sock: socket.socket, n_bytes: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < n_bytes:
        try:
            part = sock.recv(n_bytes - len(parts))
        except ConnectionError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


class ParentChannel:
    """The worker's end of the channel to its parent. `config_snapshot` is the latest one."""

    def __init__(self, line: socket.socket) -> None:
        """Wait for the first snapshot. Raises EOFError if the parent ends before it."""
        self._socket = line
        first = receive_frame(self._socket)
        if first is None:
            raise EOFError("the parent process ended before it sent the settings")
        self.config_snapshot = first

    @classmethod
    def from_stdin(cls) -> "ParentChannel":
        return cls(socket.socket(fileno=os.dup(0)))

    def watch(self, drain_s: float) -> None:
        """Start a thread that raises SIGHUP at each new snapshot, and SIGTERM when the parent ends. `drain_s` after that, it
        ends the process.
        """
        threading.Thread(target=self._watch, args=(drain_s,), name="lifeline", daemon=True).start()

    def send_ready(self) -> None:
        """Report to the parent that this worker is serving and handles signals."""
        self._socket.sendall(READY)

    def _watch(self, drain_s: float) -> None:
        while (snapshot := receive_frame(self._socket)) is not None:
            self.config_snapshot = snapshot
            os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(drain_s)
        os._exit(1)  # the drain hangs, and the parent, which would kill this process, has ended


@contextmanager
def runtime_directory() -> Iterator[str | None]:
    """A directory for one parent's workers, of mode 0700; None if none can be created.

    In /dev/shm if possible: a container's root may be read-only, and a path in $TMPDIR too long for a socket. A killed
    parent does not remove its directory; the next parent does. Parent and workers hold a shared lock on their directory
    (`lock_directory`), so one that can be locked exclusively is abandoned.
    """
    folder, lock = None, None
    for parent in ("/dev/shm", None):  # noqa: S108 - mkdtemp makes a new directory in it, with mode 0700
        with suppress(OSError):
            folder = mkdtemp(prefix=_PREFIX, dir=parent)
            lock = lock_directory(Path(folder))
            _remove_abandoned(Path(folder))
            shared_memory.create_files(Path(folder))
            break
    try:
        yield folder
    finally:
        if folder is not None:
            rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def lock_directory(folder: Path) -> int | None:
    """Lock a directory against removal as abandoned, until the returned descriptor is closed. None: it does not exist."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    with suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return lock


def _remove_abandoned(new: Path) -> None:
    """Remove the directories of killed parents that have no running workers."""
    now = new.stat().st_mtime
    for folder in new.parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode) or now - status.st_mtime < _SETTLED_S:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


class WorkerPeers:
    """The other workers, as one worker reaches them. Used on one event loop. Without a directory there are none."""

    def __init__(self, folder: Path | None = None, n: int = 0, n_workers: int = 1, patience_s: float = 1.0) -> None:
        self.directory = folder
        self._lock = lock_directory(folder) if folder is not None else None
        self.n = n
        self.others = tuple(other for other in range(n_workers) if other != n) if folder is not None else ()
        self._patience_s = patience_s
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Answer the queries of other workers; `answer` must not raise. Raises OSError."""
        if self.directory is None:
            return

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                with suppress(OSError, TimeoutError):  # the other worker has ended, or no longer waits
                    async with asyncio.timeout(self._patience_s):
                        query = await read_frame(reader, MAX_QUERY_BYTES)
                        if query is not None:
                            writer.write(encode_frame(await answer(query)))
                            await writer.drain()
            finally:
                writer.close()

        self._server = await asyncio.start_unix_server(serve, self._socket_path(self.n))

    async def query(self, message: bytes) -> dict[int, bytes | None]:
        """The reply of every other worker, by its number; None: it did not reply in time."""
        return await self.query_each(lambda other: message)

    async def query_each(self, message: Callable[[int], bytes]) -> dict[int, bytes | None]:
        """As `query`, with a message for each worker."""
        if not self.others:
            return {}
        async with asyncio.TaskGroup() as group:
            tasks = {other: group.create_task(self._query(other, message(other))) for other in self.others}
        return {other: task.result() for other, task in tasks.items()}

    async def query_one(self, other: int, message: bytes) -> bytes | None:
        """The reply of one other worker; None: it did not reply in time."""
        return await self._query(other, message)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _query(self, other: int, query: bytes) -> bytes | None:
        try:
            async with asyncio.timeout(self._patience_s):
                reader, writer = await asyncio.open_unix_connection(self._socket_path(other))
                try:
                    writer.write(encode_frame(query))
                    return await read_frame(reader, MAX_REPLY_BYTES)
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return None

    def _socket_path(self, n: int) -> str:
        assert self.directory is not None
        return str(self.directory / f"{n}.sock")
