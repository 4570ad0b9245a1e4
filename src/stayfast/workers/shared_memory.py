"""Numbers that all workers of one parent see at once: cells of eight bytes in a file that each has mapped into its memory.

Problem: what N workers share (places, quotas, breakers) is looked at for each request, and a question over a socket takes a
hundred times as long as the decision. Rule: the parent makes a file in the workers' folder, half names and half numbers; a
name is the hash of a text, and its number is found once, by open addressing, under a lock on the file. From then on a worker
reads and writes it as its own memory, which takes no system call. An eight-byte number is never seen half written.

The file is written out in full before anybody maps it: memory that cannot be had must fail then, and not at a request.
"""

import fcntl
import mmap
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from struct import unpack

from stayfast.policy.admission.response_owners import N_CELLS as N_OWNERS
from stayfast.policy.admission.response_owners import Words, own_words

N_CELLS = 65536
_BYTES = 8
_NAME = "board"
_OWNERS = "owners"


class OutOfSlots(Exception):
    """There are more names than cells."""


def prepare(folder: Path) -> None:
    """Make the files; called once, before any worker starts. Without it (no space) each worker goes on by itself."""
    for name, n_bytes in ((_NAME, 2 * N_CELLS * _BYTES), (_OWNERS, N_OWNERS * _BYTES)):
        path = folder / name
        try:
            path.write_bytes(bytes(n_bytes))
        except OSError:
            with suppress(OSError):
                path.unlink()


def common_words(folder: Path | None) -> Words:
    """Where the workers of one parent note whose a response is; this process's own where they share no memory."""
    if folder is None:
        return own_words()
    try:
        with (folder / _OWNERS).open("r+b") as file:
            return memoryview(mmap.mmap(file.fileno(), N_OWNERS * _BYTES)).cast("Q")
    except (OSError, ValueError):
        return own_words()


class SharedCounters:
    """One worker's view. The cells are 0 until somebody writes them."""

    __slots__ = ("_names", "_path", "_used", "numbers")

    def __init__(self, folder: Path) -> None:
        """Raises OSError where there is none."""
        self._path = folder / _NAME
        with self._path.open("r+b") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 2 * N_CELLS * _BYTES))
        self._names = memory[:N_CELLS * _BYTES].cast("Q")
        self.numbers = memory[N_CELLS * _BYTES:].cast("d")  # by cell
        self._used: dict[str, int] = {}

    def cell(self, name: str) -> int:
        """Where the number of this name is. Raises BoardFull."""
        found = self._used.get(name)
        if found is None:
            found = self._used[name] = self._find(name)
        return found

    def _find(self, name: str) -> int:
        (mark,) = unpack("Q", blake2b(name.encode(), digest_size=_BYTES).digest())
        names = self._names
        with self._path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            for step in range(N_CELLS):
                cell = (mark + step) % N_CELLS
                if not names[cell]:
                    names[cell] = mark
                if names[cell] == mark:
                    return int(cell)
        raise OutOfSlots(f"the workers share more than {N_CELLS} numbers")

    def __repr__(self) -> str:
        return f"<SharedCounters: {len(self._used)} of {N_CELLS} cells in use here>"
