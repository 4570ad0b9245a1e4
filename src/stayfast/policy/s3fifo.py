"""What is thrown away when there is no room: S3-FIFO, by bytes.

Problem: most answers are never asked for again, and with LRU a batch job that runs through ten thousand questions once
throws out all those that are asked every day. Rule: three queues, first in, first out.

    small   SMALL of the room: where everything new comes in. What was asked for more than once meanwhile goes on to main,
            the rest goes, and its key is remembered
    main    the rest of the room. At its head, what was asked for since it came there goes round again
    ghost   the keys, without answers, that left small: who comes back while remembered comes into main at once

What is asked for counts to MOST_HITS, and no order changes at a hit: a look-up costs a dictionary and an addition. SIEVE is
a queue less, and as good on web traces, but its authors say themselves that it does not resist scans.
Source: Yang, Zhang, Qiu, Yue, Rashmi, "FIFO queues are all you need for cache eviction" (SOSP 2023), there by count.
When wrong: with room for a few answers only, small holds one or none, and everything new goes at once.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")

SMALL = 0.1
MOST_HITS = 3
HITS_TO_STAY = 2
OVERHEAD_BYTES = 512  # of an entry beside its value: key, records, places in the queues


class _Entry(Struct, Generic[T], gc=False):  # of ten thousand, none is to be looked at by the collector
    value: T
    n_bytes: int
    n_hits: int = 0


class S3Fifo(Generic[T]):
    """Values by key, of at most `max_bytes` in all. One task at a time; nothing here waits."""

    __slots__ = ("_ghost", "_main", "_small", "max_bytes", "n_bytes", "n_evicted", "n_small_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self.n_small_bytes = 0  # of those
        self.n_evicted = 0
        self._small: OrderedDict[bytes, _Entry[T]] = OrderedDict()
        self._main: OrderedDict[bytes, _Entry[T]] = OrderedDict()
        self._ghost: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def get(self, key: bytes) -> T | None:
        """The value of a key, if it is here; that it was asked for is remembered."""
        entry = self._small.get(key) or self._main.get(key)
        if entry is None:
            return None
        if entry.n_hits < MOST_HITS:
            entry.n_hits += 1
        return entry.value

    def peek(self, key: bytes) -> T | None:
        """The same, and nothing is remembered of it."""
        entry = self._small.get(key) or self._main.get(key)
        return entry.value if entry is not None else None

    def items(self) -> Iterator[tuple[bytes, T]]:
        """All keys and values; nothing may be put or removed meanwhile."""
        return ((key, entry.value) for key, entry in chain(self._small.items(), self._main.items()))

    def put(self, key: bytes, value: T, n_bytes: int) -> None:
        """Remember a value of about so many bytes, in place of the key's last one. What is larger than all is not taken."""
        is_proven, n_hits = key in self._ghost, 0
        if key in self._small or key in self._main:
            is_proven = is_proven or key in self._main
            n_hits = self.remove(key) or 0
        n_bytes += OVERHEAD_BYTES
        if n_bytes > self.max_bytes:
            return
        entry = _Entry(value, n_bytes, n_hits)
        if is_proven:
            self._ghost.pop(key, None)
            self._main[key] = entry
        else:
            self._small[key] = entry
            self.n_small_bytes += n_bytes
        self.n_bytes += n_bytes
        while self.n_bytes > self.max_bytes:
            self._make_room()

    def remove(self, key: bytes) -> int | None:
        """Forget a key; returns how often it was asked for, as far as that was counted. None: it was not here."""
        entry = self._small.pop(key, None)
        if entry is not None:
            self.n_small_bytes -= entry.n_bytes
        else:
            entry = self._main.pop(key, None)
        if entry is None:
            return None
        self.n_bytes -= entry.n_bytes
        return entry.n_hits

    def _make_room(self) -> None:
        """One step: something goes, or moves to where it goes later."""
        if self._small and (self.n_small_bytes > self.max_bytes * SMALL or not self._main):
            key, entry = self._small.popitem(last=False)
            self.n_small_bytes -= entry.n_bytes
            if entry.n_hits >= HITS_TO_STAY:
                entry.n_hits = 0
                self._main[key] = entry
                return
            self._ghost[key] = None
            while len(self._ghost) > max(len(self._main), 64):
                self._ghost.popitem(last=False)
        else:
            key, entry = self._main.popitem(last=False)
            if entry.n_hits:
                entry.n_hits -= 1
                self._main[key] = entry
                return
        self.n_bytes -= entry.n_bytes
        self.n_evicted += 1

    def __repr__(self) -> str:
        return f"<S3Fifo {len(self)} entries, {self.n_bytes} of {self.max_bytes} bytes>"
