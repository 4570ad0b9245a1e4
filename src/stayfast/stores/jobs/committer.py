"""The process that commits for all processes of a machine: it holds the folder's lock, opens the file, and serves it."""

import asyncio
import fcntl
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec

from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.calls import (
    ERRORS,
    NOTIFIED,
    CallMessage,
    FrameConnection,
    ReplyMessage,
    call_method,
    decode_request,
    decode_text,
    describe_method,
    encode,
)
from stayfast.stores.jobs.sqlite import SqliteJobStore

LOCK_NAME: Final = "jobs.lock"
SOCKET_NAME: Final = "jobs.sock"
MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
MAX_PATH_BYTES: Final = 100  # of a Unix socket: 104 on macOS, 108 on Linux
CLOSE_S: Final = 5.0  # for the calls of other processes when this one ends
_CALLED: Final = frozenset(name for name, value in vars(SqliteJobStore).items()
                           if asyncio.iscoroutinefunction(value) and name not in ("close", "wait"))


def acquire_lock(folder: Path) -> int | None:
    """Become the folder's committer: the descriptor of the lock, which ends with the process. None: another process is.
    Raises StoreUnavailable if the folder cannot be used.
    """
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, MODE)
    except OSError as error:
        raise StoreUnavailable(f"{folder}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError as error:
        os.close(lock)
        raise StoreUnavailable(f"{folder}: the file system has no locks: {error.strerror}") from None
    return lock


class SocketPath:
    """The path of a folder's socket. A long one goes through the folder's descriptor, which Linux alone allows."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / SOCKET_NAME
        self._folder: int | None = None
        self.short = str(self.path)
        if len(os.fsencode(self.path)) > MAX_PATH_BYTES and sys.platform == "linux":
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.short = f"/proc/self/fd/{self._folder}/{SOCKET_NAME}"

    def close(self) -> None:
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None


class Committer:
    """The store's file, and its service to other processes. It owns the lock."""

    def __init__(self, folder: Path, lock: int, store: SqliteJobStore) -> None:
        self.store = store
        self._folder = folder
        self._lock = lock
        self._server: asyncio.AbstractServer | None = None
        self._waits: dict[FrameConnection, dict[str, Callable[[], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Serve other processes. Raises StoreUnavailable."""
        try:
            address = SocketPath(self._folder)
            try:
                address.path.unlink(missing_ok=True)
                loop = asyncio.get_running_loop()
                self._server = await loop.create_unix_server(self._connect, address.short)
                address.path.chmod(MODE)
            finally:
                address.close()
        except OSError as error:
            raise StoreUnavailable(f"{self._folder}: {error.strerror or error}") from None

    async def close(self) -> None:
        """Finish the calls of other processes, close the file and give up the lock."""
        if self._server is not None:
            self._server.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        for connection in list(self._waits):
            connection.close()
        await self.store.close()
        os.close(self._lock)

    def _connect(self) -> FrameConnection:
        connection = FrameConnection(self._receive, self._forget)
        self._waits[connection] = {}
        return connection

    def _forget(self, connection: FrameConnection) -> None:
        for topic, wake in self._waits.pop(connection, {}).items():
            self.store.topics.remove(topic, wake)

    def _receive(self, connection: FrameConnection, message: bytes) -> None:
        try:
            request = decode_request(message)
            if request.method == "!":
                self.store.topics.notify(decode_text(request.arguments))
            elif request.method == "?":
                connection.send(encode(ReplyMessage(NOTIFIED, "", request.arguments)))
            elif request.method in ("+", "-"):
                self._change_wait(connection, request.method, decode_text(request.arguments))
            else:
                self._start(self._answer(connection, request))
        except msgspec.MsgspecError:
            connection.close()

    def _change_wait(self, connection: FrameConnection, method: str, topic: str) -> None:
        waits = self._waits.get(connection)
        if waits is None:
            return

        def wake() -> None:
            waits.pop(topic, None)
            self.store.topics.mark_seen(topic, connection)
            connection.send(encode(ReplyMessage(NOTIFIED, "", msgspec.Raw(encode(topic)))))

        if method == "-":
            if known := waits.pop(topic, None):
                self.store.topics.remove(topic, known)
        elif self.store.topics.was_notified(topic, connection):
            wake()
        elif topic not in waits:
            waits[topic] = wake
            self.store.topics.add(topic, wake)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, connection: FrameConnection, request: CallMessage) -> None:
        error, value = "", b""
        try:
            if request.method not in _CALLED:
                raise StoreUnavailable(f"the committer has no method {request.method[:40]!r}: it is another version")
            arguments = describe_method(request.method).decode_arguments(request.arguments)
            value = encode(await call_method(self.store, request.method, arguments))
        except tuple(ERRORS.values()) as problem:
            error = next(name for name, kind in ERRORS.items() if isinstance(problem, kind))
            value = encode(str(problem))
        except (msgspec.MsgspecError, ArithmeticError, TypeError, LookupError, AttributeError, AssertionError) as problem:
            error, value = "ValueError", encode(f"{type(problem).__name__}: {problem}")
        connection.send(encode(ReplyMessage(request.number, error, msgspec.Raw(value))))
