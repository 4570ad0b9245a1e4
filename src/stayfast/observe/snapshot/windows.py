"""The traffic of the last hour, of all workers: what worker 0 collects, in slots of 5 s and then in minutes.

The sums of each of WINDOWS_S are kept up to date: a slot is added when it has closed and subtracted when it leaves the
window. Counts are whole numbers, so nothing is lost; slots wait in packed form. The hour begins with a whole minute, so it
covers up to a minute more.

Memory: a busy series takes three sums, 60 packed slots and 61 packed minutes; tests/unit/observe/test_traffic_windows.py
prints the bytes.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from stayfast.core.snapshot import WINDOWS_S
from stayfast.observe.snapshot.parts import OTHER, SeriesKey, TrafficPart
from stayfast.observe.snapshot.traffic import MAX_SERIES, SLOT_S, ClosedSlot

SLOTS_PER_MINUTE, SLOTS_PER_FIVE, SLOTS_PER_HOUR = (int(window_s / SLOT_S) for window_s in WINDOWS_S)
Packed = deque[tuple[int, bytes]]  # number of the (first) slot, its counts; oldest first
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TrafficPart).decode


class SeriesWindows:
    """One route and upstream."""

    __slots__ = ("_minutes", "_older", "_open_minute", "_young", "sums")

    def __init__(self) -> None:
        self.sums = TrafficPart(), TrafficPart(), TrafficPart()  # of WINDOWS_S, without the open slot
        self._young: Packed = deque()  # slots of the last minute
        self._older: Packed = deque()  # slots of the four minutes before
        self._minutes: Packed = deque()  # whole minutes of the last hour
        self._open_minute = 0, TrafficPart()

    @property
    def is_idle(self) -> bool:
        """Whether nothing happened for an hour."""
        return not (self._young or self._older or self._minutes or self._open_minute[1].n)

    def add(self, number: int, part: TrafficPart) -> None:
        """Add a slot."""
        for whole in self.sums:
            whole.merge(part)
        self._young.append((number, _encode(part)))
        minute = number // SLOTS_PER_MINUTE * SLOTS_PER_MINUTE
        if minute > self._open_minute[0]:
            self._open_next_minute(minute)
        self._open_minute[1].merge(part)

    def advance(self, number: int) -> None:
        """Subtract what has left the windows, which end where the slot `number` begins. Must not go back."""
        minute, five, hour = self.sums
        for left in _leave(self._young, number - SLOTS_PER_MINUTE):
            minute.subtract(_decode(left[1]))
            self._older.append(left)
        for left in _leave(self._older, number - SLOTS_PER_FIVE):
            five.subtract(_decode(left[1]))
        if number >= self._open_minute[0] + SLOTS_PER_MINUTE:
            self._open_next_minute(number // SLOTS_PER_MINUTE * SLOTS_PER_MINUTE)
        for left in _leave(self._minutes, number - SLOTS_PER_HOUR - SLOTS_PER_MINUTE + 1):
            hour.subtract(_decode(left[1]))

    def _open_next_minute(self, minute: int) -> None:
        began_at, whole = self._open_minute
        if whole != TrafficPart():
            self._minutes.append((began_at, _encode(whole)))
        self._open_minute = minute, TrafficPart()


def _leave(slots: Packed, first: int) -> Iterator[tuple[int, bytes]]:
    """Remove and return the slots with numbers below `first`."""
    while slots and slots[0][0] < first:
        yield slots.popleft()


class TrafficWindows:
    """All series. At most MAX_SERIES; further ones are summed as `(other)`."""

    def __init__(self) -> None:
        self.series: dict[SeriesKey, SeriesWindows] = {}
        self._number = 0  # of the open slot

    def add_in_steps(self, slots: Sequence[ClosedSlot]) -> Iterator[None]:
        """Add closed slots of one or several workers; the loop can run between two series."""
        for slot in slots:
            for route, upstream, part in slot.series:
                self._find((route, upstream)).add(slot.number, part)
                yield

    def advance_in_steps(self, number: int) -> Iterator[None]:
        """Let the windows end where the slot `number` begins."""
        if number <= self._number:
            return
        self._number = number
        for windows in list(self.series.values()):
            windows.advance(number)
            yield
        if len(self.series) >= MAX_SERIES:
            self.series = {key: windows for key, windows in self.series.items() if not windows.is_idle}

    def _find(self, key: SeriesKey) -> SeriesWindows:
        if key not in self.series and len(self.series) >= MAX_SERIES:
            key = OTHER, OTHER
        windows = self.series.get(key)
        if windows is None:
            windows = self.series[key] = SeriesWindows()
        return windows


def merge_slots(slots: Iterable[ClosedSlot]) -> list[ClosedSlot]:
    """The slots of several workers as one for each number, in ascending order. The parts are new."""
    whole: dict[int, dict[SeriesKey, TrafficPart]] = {}
    for slot in slots:
        series = whole.setdefault(slot.number, {})
        for route, upstream, part in slot.series:
            series.setdefault((route, upstream), TrafficPart()).merge(part)
    return [ClosedSlot(number, [(*key, part) for key, part in whole[number].items()]) for number in sorted(whole)]
