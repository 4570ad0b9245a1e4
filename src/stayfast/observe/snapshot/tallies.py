"""Counts, histograms and pair sums by name: the one form of what a worker observes, which other workers' can be added to.

A `TallyWindow` has one `RowTally` for each key (a route, an upstream, a tenant) in each slot of time, and drops slots older
than its span. At most `max_keys` keys a slot: further ones share the key OTHER.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from stayfast.core.snapshot import Spread
from stayfast.policy.findings.correlation import PairSums
from stayfast.policy.histogram import LogHistogram, Packed

OTHER: Final = "(other)"  # settings cannot name anything like this
MAX_KEYS: Final = 256
_LEAST: Final = 2.0**-29  # what a histogram cannot tell from 0


class PackedTally(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `RowTally` to send to other processes."""

    counts: dict[str, float] = {}
    histograms: dict[str, Packed] = {}
    pairs: dict[str, PairSums] = {}
    marks: dict[str, tuple[int, ...]] = {}


class RowTally:
    """What is known of one row. `marks`: small sets of digests."""

    __slots__ = ("counts", "histograms", "marks", "pairs")

    def __init__(self) -> None:
        self.counts: defaultdict[str, float] = defaultdict(float)
        self.histograms: defaultdict[str, LogHistogram] = defaultdict(LogHistogram)
        self.pairs: defaultdict[str, PairSums] = defaultdict(PairSums)
        self.marks: defaultdict[str, set[int]] = defaultdict(set)

    def merge(self, other: "RowTally") -> None:
        for name, count in other.counts.items():
            self.counts[name] += count
        for name, histogram in other.histograms.items():
            self.histograms[name].merge(histogram)
        for name, sums in other.pairs.items():
            self.pairs[name].merge(sums)
        for name, marks in other.marks.items():
            self.marks[name] |= marks

    def pack(self) -> PackedTally:
        return PackedTally(dict(self.counts), {name: one.pack() for name, one in self.histograms.items()},
                           dict(self.pairs), {name: tuple(sorted(marks)) for name, marks in self.marks.items()})

    def add_packed(self, packed: PackedTally) -> None:
        """Add the tally of another process."""
        for name, count in packed.counts.items():
            self.counts[name] += count
        for name, buckets in packed.histograms.items():
            self.histograms[name].merge(LogHistogram(buckets))
        for name, sums in packed.pairs.items():
            self.pairs[name].merge(sums)
        for name, marks in packed.marks.items():
            self.marks[name].update(marks)

    def n(self, name: str = "n") -> int:
        return round(self.counts.get(name, 0.0))

    def spread(self, name: str) -> Spread:
        histogram = self.histograms.get(name)
        return spread_of(histogram) if histogram is not None else Spread()

    def correlation(self, name: str) -> float | None:
        sums = self.pairs.get(name)
        return sums.correlation if sums is not None else None


def spread_of(histogram: LogHistogram) -> Spread:
    """Percentiles of a histogram."""
    n = histogram.n
    return Spread(n, *[_quantile(histogram, q) for q in (0.5, 0.95, 0.99, 1.0)]) if n else Spread()


def _quantile(histogram: LogHistogram, q: float) -> float:
    value = histogram.quantile(q) or 0.0
    return value if value > _LEAST else 0.0


def merge_tallies(parts: Iterable[Mapping[str, PackedTally]]) -> dict[str, RowTally]:
    """The tallies of several workers, added by key."""
    whole: dict[str, RowTally] = {}
    for part in parts:
        for key, packed in part.items():
            whole.setdefault(key, RowTally()).add_packed(packed)
    return whole


class TallyWindow:
    """The tallies of the last `span_s`, in slots. Instants must not go back."""

    __slots__ = ("_closed", "_ends_at", "_max_keys", "_open", "_slot_s", "_slots", "_span_s")

    def __init__(self, span_s: float, slot_s: float, max_keys: int = MAX_KEYS) -> None:
        self._span_s = span_s
        self._slot_s = slot_s
        self._max_keys = max_keys
        self._slots: deque[tuple[float, dict[str, RowTally]]] = deque()  # (start, by key), oldest first
        self._open: dict[str, RowTally] = {}
        self._ends_at = float("-inf")
        self._closed: dict[str, RowTally] | None = None  # sum of all slots but the open one; None: not computed

    def at(self, key: str, now: float) -> RowTally:
        """The tally of a key in the slot of `now`."""
        if now >= self._ends_at:
            self._open_slot(now)
        tally = self._open.get(key)
        if tally is None:
            if len(self._open) >= self._max_keys and key != OTHER:
                return self.at(OTHER, now)
            self._open[key] = tally = RowTally()
        return tally

    def collect(self, now: float) -> dict[str, PackedTally]:
        """All keys of the last `span_s`, and of up to one slot more."""
        if now >= self._ends_at:
            self._open_slot(now)
        if self._closed is None:
            self._closed = {}
            for _, slot in self._slots:
                if slot is not self._open:
                    _add_slot(self._closed, slot)
        whole: dict[str, RowTally] = {}
        _add_slot(whole, self._closed)
        _add_slot(whole, self._open)
        return {key: tally.pack() for key, tally in whole.items()}

    def _open_slot(self, now: float) -> None:
        began_at = now // self._slot_s * self._slot_s
        self._ends_at = began_at + self._slot_s
        self._open, self._closed = {}, None
        self._slots.append((began_at, self._open))
        while self._slots[0][0] + self._slot_s + self._span_s <= now:
            self._slots.popleft()


def _add_slot(whole: dict[str, RowTally], slot: Mapping[str, RowTally]) -> None:
    for key, tally in slot.items():
        known = whole.get(key)
        if known is None:
            whole[key] = known = RowTally()
        known.merge(tally)
