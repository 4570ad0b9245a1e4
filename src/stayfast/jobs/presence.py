"""Which workers of this machine are alive, so that the jobs of a dead one go on at once, before their leases end.

Problem: a lease protects the jobs of a worker that may be alive, for 30 s. On the same machine the kernel knows better.
Rule: each worker holds a lock on a file of its own, named by its host and boot (a random word for each process). The kernel
drops the lock when the process ends, however it ends. A file that can be locked is a dead worker's.
When wrong: on a network file system without locks; then the lease decides, as between machines.
"""

import fcntl
import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_SUFFIX = ".worker"


class WorkerPresence:
    """The lock of this process, and the search for dead ones."""

    def __init__(self, folder: Path, host: str | None = None) -> None:
        self._folder = folder
        self._host = _UNSAFE.sub("-", host or socket.gethostname()) or "host"
        self._boot = secrets.token_hex(6)
        self._lock: int | None = None

    @property
    def worker(self) -> str:
        """The id of this worker: host, boot and process."""
        return f"{self._host}:{self._boot}:{os.getpid()}"

    def announce(self) -> None:
        """Create and lock this worker's file. Without a writable folder the lease alone protects its jobs."""
        path = self._folder / f"{self._host}+{self._boot}{_SUFFIX}"
        fresh = path.with_suffix(".new")
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fresh.rename(path)  # visible only with its lock

    @contextmanager
    def dead_workers(self) -> Iterator[list[str]]:
        """The prefixes of dead workers of this host. They are forgotten if the block ends without an exception."""
        found: list[tuple[Path, int]] = []
        try:
            for path in self._folder.glob(f"{self._host}+*{_SUFFIX}"):
                with suppress(OSError):
                    lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except OSError:
                        os.close(lock)
                        continue
                    found.append((path, lock))
            yield [f"{self._host}:{path.stem.partition('+')[2]}:" for path, _ in found]
            for path, _ in found:
                path.unlink(missing_ok=True)
        finally:
            for _, lock in found:
                os.close(lock)

    def leave(self) -> None:
        """This worker holds no claims any more."""
        if self._lock is not None:
            with suppress(OSError):
                (self._folder / f"{self._host}+{self._boot}{_SUFFIX}").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None
