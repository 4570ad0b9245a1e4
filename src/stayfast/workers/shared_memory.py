"""Counters that all workers of one parent share: eight-byte slots in a memory-mapped file.

Problem: each request checks state that N workers share (slots, quotas, breakers), and a query over a socket takes a hundred
times as long as the check. Rule: the parent creates a file in the workers' directory, half names and half numbers. A name is
the hash of a text; a worker finds its slot once, by open addressing, under a lock on the file, and then reads and writes the
number as its own memory, without system calls. Reads and writes of eight bytes are atomic.

The file is written in full before it is mapped, so that a lack of memory fails at the start and not at a request.
"""

import fcntl
import mmap
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from struct import unpack

from stayfast.policy.admission.response_owners import N_CELLS as N_OWNERS
from stayfast.policy.admission.response_owners import Words, allocate_words

N_SLOTS = 65536
_BYTES = 8
_NAME = "board"
_OWNERS = "owners"


class OutOfSlots(Exception):
    """There are more names than slots."""


def create_files(folder: Path) -> None:
    """Create the files; called once, before any worker starts. Without them (no space) workers share no state."""
    for name, n_bytes in ((_NAME, 2 * N_SLOTS * _BYTES), (_OWNERS, N_OWNERS * _BYTES)):
        path = folder / name
        try:
            path.write_bytes(bytes(n_bytes))
        except OSError:
            with suppress(OSError):
                path.unlink()


def shared_owner_table(folder: Path | None) -> Words:
    """The table of response owners that the workers of one parent share; a private one without shared memory."""
    if folder is None:
        return allocate_words()
    try:
        with (folder / _OWNERS).open("r+b") as file:
            return memoryview(mmap.mmap(file.fileno(), N_OWNERS * _BYTES)).cast("Q")
    except (OSError, ValueError):
        return allocate_words()


class SharedCounters:
    """One worker's view. Slots are 0 initially."""

    __slots__ = ("_names", "_path", "_used", "numbers")

    def __init__(self, folder: Path) -> None:
        """Raises OSError if the file does not exist."""
        self._path = folder / _NAME
        with self._path.open("r+b") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 2 * N_SLOTS * _BYTES))
        self._names = memory[:N_SLOTS * _BYTES].cast("Q")
        self.numbers = memory[N_SLOTS * _BYTES:].cast("d")  # by cell
        self._used: dict[str, int] = {}

    def slot(self, name: str) -> int:
        """The slot of a name, an index into `numbers`. Raises OutOfSlots."""
        found = self._used.get(name)
        if found is None:
            found = self._used[name] = self._find(name)
        return found

    def _find(self, name: str) -> int:
        (mark,) = unpack("Q", blake2b(name.encode(), digest_size=_BYTES).digest())
        names = self._names
        with self._path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            for step in range(N_SLOTS):
                cell = (mark + step) % N_SLOTS
                if not names[cell]:
                    names[cell] = mark
                if names[cell] == mark:
                    return int(cell)
        raise OutOfSlots(f"the workers share more than {N_SLOTS} numbers")

    def __repr__(self) -> str:
        return f"<SharedCounters: {len(self._used)} of {N_SLOTS} cells in use here>"
