"""Messages between the processes of one gateway, each a frame: its length (4 bytes, big-endian) and its bytes.

Parent and worker. Problem: a worker must never outlive its parent, must start from the very settings that the parent has
checked (the file may have changed since), and must say when it serves. Rule: a socket pair, on the worker's standard input,
carries all three. Down come briefings; up goes one line, `ready`. The end of the line is the end of the parent, even one
that was killed: the worker drains as for SIGTERM. A briefing after the first one is a reload: it raises SIGHUP.

Worker and worker. Problem: a client reaches one worker by chance, but asks about all of them. Rule: each worker listens on a
Unix socket in a folder that only their user can enter; whoever is asked something asks the others, all at once, and waits
for them no longer than `patience_s`. One that does not answer is left out, never waited for.
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

from stayfast.workers import shared_memory as board

READY = b"ready\n"
MAX_QUESTION_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_PREFIX = "stayfast-workers-"
_SETTLED_S = 60.0  # a folder younger than this may not have its locks yet


def encode_frame(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message


async def read_frame(reader: asyncio.StreamReader, max_bytes: int) -> bytes | None:
    """One message; None for one that breaks off or is longer than `max_bytes`."""
    try:
        (n_bytes,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(n_bytes) if n_bytes <= max_bytes else None
    except asyncio.IncompleteReadError:
        return None


def receive_frame(sock: socket.socket) -> bytes | None:
    """One message from a blocking socket; None when the peer has closed it."""
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
    """The worker's end. `briefing` is the latest one; a thread of its own waits for the next."""

    def __init__(self, line: socket.socket) -> None:
        """Wait for the first briefing. Raises EOFError when the parent is gone before it came."""
        self._line = line
        first = receive_frame(self._line)
        if first is None:
            raise EOFError("the parent process ended before it said what to serve")
        self.briefing = first

    @classmethod
    def on_standard_input(cls) -> "ParentChannel":
        return cls(socket.socket(fileno=os.dup(0)))

    def watch(self, drain_s: float) -> None:
        """From now on raise SIGHUP for a new briefing and SIGTERM for the parent's end; `drain_s` later, exit at once."""
        threading.Thread(target=self._watch, args=(drain_s,), name="lifeline", daemon=True).start()

    def ready(self) -> None:
        """Tell the parent that this worker serves, and takes signals."""
        self._line.sendall(READY)

    def _watch(self, drain_s: float) -> None:
        while (briefing := receive_frame(self._line)) is not None:
            self.briefing = briefing
            os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(drain_s)
        os._exit(1)  # the drain hangs, and nobody is left to see it


@contextmanager
def meeting_place() -> Iterator[str | None]:
    """A folder for one parent's workers, that only its user can enter; None where nothing can be written.

    In memory where there is such a place: a container's root may be read-only, and a path in $TMPDIR longer than a socket's.
    A parent that is killed leaves its folder behind; the next one removes it. Parent and workers each hold a shared lock on
    their folder (`hold`) for as long as they live, so one that can be locked by a third is nobody's.
    """
    folder, lock = None, None
    for parent in ("/dev/shm", None):  # noqa: S108 - mkdtemp makes a new folder in it, with mode 0700
        with suppress(OSError):
            folder = mkdtemp(prefix=_PREFIX, dir=parent)
            lock = hold(Path(folder))
            _remove_abandoned(Path(folder))
            board.prepare(Path(folder))
            break
    try:
        yield folder
    finally:
        if folder is not None:
            rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def hold(folder: Path) -> int | None:
    """Keep a folder from being taken for abandoned while the descriptor that this returns is open. None: it is gone."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    with suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return lock


def _remove_abandoned(new: Path) -> None:
    """Remove the folders beside a new one whose parents were killed, once none of their workers lives."""
    now = new.stat().st_mtime
    for folder in new.parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            about = folder.lstat()
            if about.st_uid != os.geteuid() or not stat.S_ISDIR(about.st_mode) or now - about.st_mtime < _SETTLED_S:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


class WorkerPeers:
    """One worker's place among the others. One loop's. Without a folder it is alone."""

    def __init__(self, folder: Path | None = None, n: int = 0, n_workers: int = 1, patience_s: float = 1.0) -> None:
        self.folder = folder
        self._lock = hold(folder) if folder is not None else None
        self.n = n
        self.others = tuple(other for other in range(n_workers) if other != n) if folder is not None else ()
        self._patience_s = patience_s
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Answer the others from now on; `answer` must not raise. Raises OSError."""
        if self.folder is None:
            return

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                with suppress(OSError, TimeoutError):  # it went away, or has stopped waiting
                    async with asyncio.timeout(self._patience_s):
                        question = await read_frame(reader, MAX_QUESTION_BYTES)
                        if question is not None:
                            writer.write(encode_frame(await answer(question)))
                            await writer.drain()
            finally:
                writer.close()

        self._server = await asyncio.start_unix_server(serve, self._socket(self.n))

    async def ask(self, question: bytes) -> dict[int, bytes | None]:
        """Every other worker's answer, by its number; None: it gave none in time."""
        if not self.others:
            return {}
        async with asyncio.TaskGroup() as group:
            questions = {other: group.create_task(self._ask(other, question)) for other in self.others}
        return {other: task.result() for other, task in questions.items()}

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _ask(self, other: int, question: bytes) -> bytes | None:
        try:
            async with asyncio.timeout(self._patience_s):
                reader, writer = await asyncio.open_unix_connection(self._socket(other))
                try:
                    writer.write(encode_frame(question))
                    return await read_frame(reader, MAX_ANSWER_BYTES)
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return None

    def _socket(self, n: int) -> str:
        assert self.folder is not None
        return str(self.folder / f"{n}.sock")
