"""Eviction of cached answers by size: S3-FIFO.

Problem: with LRU, one batch job with ten thousand questions evicts all answers that are requested every day. Rule: three
first-in-first-out queues.

    small   SMALL of the memory, for new answers. At its head, an answer with HITS_TO_STAY hits moves to main; others are
            evicted, and their keys become ghosts
    main    the rest of the memory. At its head, an answer with hits since its last turn goes round again
    ghost   keys without answers. A ghost that is stored again goes to main directly

Hits are counted to MOST_HITS and change no order, so a look-up costs a dictionary access and an addition. One dictionary
holds all keys; a removed entry is only marked, and leaves its queue at the head.
Source: Yang, Zhang, Qiu, Yue, Rashmi, "FIFO queues are all you need for cache eviction" (SOSP 2023), there by count. SIEVE
is simpler, but by its authors' account does not resist scans.
When wrong: with memory for only a few answers, small holds one or none, and new answers are evicted at once.
"""

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")

SMALL = 0.1
MOST_HITS = 3
HITS_TO_STAY = 2
LEAST_GHOSTS = 64
SPARE_BITS = 6  # free one part in 64 of the memory at a time: evicting a dozen together is faster than one by one,
MOST_SPARE = 65_536  # but hundreds would block the event loop, and so would
MOST_SPARED = 1000  # going three times round a main queue in which all entries have hits
OVERHEAD_BYTES = 512  # of an entry beside its value: key, records, places in the queues
_GONE: Final = -1  # places of an entry
_GHOST: Final = 0
_SMALL: Final = 1
_MAIN: Final = 2


class _Entry(Struct, Generic[T], gc=False):  # not tracked by the garbage collector, as there are many
    key: bytes
    value: T | None  # None for ghosts and removed entries
    n_bytes: int
    place: int
    n_hits: int = 0


class S3Fifo(Generic[T]):
    """Values by key, of at most `max_bytes` in all. Used by one task at a time; nothing here awaits."""

    __slots__ = ("_entries", "_ghosts", "_main", "_n_ghosts", "_n_gone", "_small", "max_bytes", "n_bytes", "n_evicted",
                 "n_small_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self.n_small_bytes = 0  # of them in small
        self.n_evicted = 0
        self._entries: dict[bytes, _Entry[T]] = {}
        self._small: deque[_Entry[T]] = deque()
        self._main: deque[_Entry[T]] = deque()
        self._ghosts: deque[_Entry[T]] = deque()
        self._n_ghosts = 0  # of the entries
        self._n_gone = 0  # removed entries that are still in small or main

    def __len__(self) -> int:
        return len(self._entries) - self._n_ghosts

    @property
    def n_queued(self) -> int:
        """The length of its queues, including removed entries that are not yet dropped."""
        return len(self._small) + len(self._main)

    def get(self, key: bytes) -> T | None:
        """The value of a key, or None. Counts a hit."""
        entry = self._entries.get(key)
        if entry is None or entry.place <= _GHOST:
            return None
        if entry.n_hits < MOST_HITS:
            entry.n_hits += 1
        return entry.value

    def peek(self, key: bytes) -> T | None:
        """The value of a key, or None, without counting a hit."""
        entry = self._entries.get(key)
        return entry.value if entry is not None else None

    def items(self) -> Iterator[tuple[bytes, T]]:
        """All keys and values. Nothing may be stored or removed during the iteration."""
        return ((entry.key, entry.value) for entry in chain(self._small, self._main) if entry.value is not None)

    def put(self, key: bytes, value: T, n_bytes: int) -> None:
        """Store or replace a value of about `n_bytes`. A value larger than the memory is not stored."""
        n_bytes += OVERHEAD_BYTES
        entry, place = self._entries.get(key), _SMALL
        if entry is not None:
            if entry.place != _GHOST:
                self._replace(entry, value, n_bytes)
                return
            entry.place, place = _GONE, _MAIN
            self._n_ghosts -= 1
            del self._entries[key]
        if n_bytes > self.max_bytes:
            return
        self._entries[key] = entry = _Entry(key, value, n_bytes, place)
        if place == _MAIN:
            self._main.append(entry)
        else:
            self._small.append(entry)
            self.n_small_bytes += n_bytes
        self.n_bytes += n_bytes
        if self.n_bytes > self.max_bytes:
            self._make_room()

    def remove(self, key: bytes) -> None:
        entry = self._entries.get(key)
        if entry is None or entry.place == _GHOST:
            return
        if entry.place == _SMALL:
            self.n_small_bytes -= entry.n_bytes
        self.n_bytes -= entry.n_bytes
        entry.place, entry.value = _GONE, None
        del self._entries[key]
        self._n_gone += 1
        if self._n_gone > len(self) + LEAST_GHOSTS:
            self._small = deque(entry for entry in self._small if entry.place != _GONE)
            self._main = deque(entry for entry in self._main if entry.place != _GONE)
            self._n_gone = 0

    def _replace(self, entry: _Entry[T], value: T, n_bytes: int) -> None:
        """Replace a value; its hits and its place in the queue stay."""
        if n_bytes > self.max_bytes:
            self.remove(entry.key)
            return
        n_more = n_bytes - entry.n_bytes
        entry.value, entry.n_bytes = value, n_bytes
        if entry.place == _SMALL:
            self.n_small_bytes += n_more
        self.n_bytes += n_more
        if self.n_bytes > self.max_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Evict entries, or move them to main, until there is a little room again."""
        small, main, ghosts, entries = self._small, self._main, self._ghosts, self._entries
        slack = min(self.max_bytes >> SPARE_BITS, MOST_SPARE)
        target, most_small = self.max_bytes - slack, self.max_bytes * SMALL
        n_bytes, n_small_bytes, n_ghosts, n_spared = self.n_bytes, self.n_small_bytes, len(ghosts), 0
        while n_bytes > target:
            is_small = n_small_bytes > most_small or n_small_bytes == n_bytes
            entry = small.popleft() if is_small else main.popleft()
            if entry.place == _GONE:
                self._n_gone -= 1
                continue
            if entry.n_bytes > slack and n_bytes <= self.max_bytes:
                (small if is_small else main).appendleft(entry)  # all fits now, and evicting it would free too much
                break
            if is_small:
                n_small_bytes -= entry.n_bytes
                if entry.n_hits >= HITS_TO_STAY:
                    entry.n_hits, entry.place = 0, _MAIN
                    main.append(entry)
                    continue
                entry.place = _GHOST
                ghosts.append(entry)
            elif entry.n_hits and n_spared < MOST_SPARED:
                n_spared += 1
                entry.n_hits -= 1
                main.append(entry)
                continue
            else:
                entry.place = _GONE
                del entries[entry.key]
                self.n_evicted += 1
            entry.value = None
            n_bytes -= entry.n_bytes
        n_ghosts = len(ghosts) - n_ghosts
        self.n_bytes, self.n_small_bytes = n_bytes, n_small_bytes
        self.n_evicted += n_ghosts
        for _ in range(len(ghosts) - max(len(main), LEAST_GHOSTS)):
            ghost = ghosts.popleft()
            if ghost.place == _GHOST:
                del entries[ghost.key]
                n_ghosts -= 1
        self._n_ghosts += n_ghosts

    def __repr__(self) -> str:
        return f"<S3Fifo {len(self)} entries, {self.n_bytes} of {self.max_bytes} bytes>"
