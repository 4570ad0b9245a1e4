"""Snapshots of the last hours on disk, in a bounded folder of segments.

A record is appended every 5 s: counts and times of requests in that slot, states of upstreams. Once a minute it also has
the sampled times of that minute (8 buckets an octave) and all other rows. A snapshot of an instant is made of the hour of
records before it: counts to the slot, sampled times and other rows up to a minute older.

    segment = records, record = length (4 bytes), CRC-32 (4 bytes), zlib(msgpack)        big-endian

A record that was cut short by a kill or a full disk ends its segment for readers. A writer begins a new segment at its start
and after an error. The oldest segments are removed when they are too old or all take more than `max_bytes`; the total stays
below that, as a segment has at most an eighth of it. Writing and reading block: call both in a thread.
"""

import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from stayfast.core.snapshot import Snapshot, TrafficRow
from stayfast.observe.snapshot.config import SnapshotsConfig
from stayfast.observe.snapshot.parts import TrafficPart
from stayfast.observe.snapshot.rows import rows_in_steps
from stayfast.observe.snapshot.traffic import SLOT_S, ClosedSlot
from stayfast.observe.snapshot.windows import SLOTS_PER_MINUTE, TrafficWindows
from stayfast.observe.snapshot.worker_part import UpstreamGauges

N_SEGMENTS = 8
_HEAD = struct.Struct(">II")
_SUFFIX = ".ring"
_HOUR_S = 3600.0
_SUM_UNIT_S = 1e-5  # of sums of stages in a record
_MAX_RECORD_BYTES = 16 << 20
Series = list[tuple[str, str, TrafficPart]]  # route, upstream, counts


class RingRecord(msgspec.Struct, omit_defaults=True):
    """One slot. at: its end, seconds since the epoch. details, state: once a minute."""

    at: float
    series: Series = []
    upstreams: list[UpstreamGauges] = []
    details: Series = []
    state: Snapshot | None = None


class RingSummary(msgspec.Struct, frozen=True):
    """What a ring holds. spans: (first, last) record of each time without a gap of more than a minute, in seconds since the
    epoch.
    """

    n_bytes: int
    n_records: int
    spans: list[tuple[float, float]]


class _Segment(NamedTuple):
    began_at: float
    path: Path


class SnapshotRing:
    """The folder of one gateway. One process writes, any may read."""

    def __init__(self, folder: Path, config: SnapshotsConfig) -> None:
        self.folder = folder
        self._config = config
        self._segment: Path | None = None  # of this writer

    def append(self, record: RingRecord) -> int:
        """Write one record; returns its bytes. Raises OSError."""
        data = zlib.compress(msgspec.msgpack.encode(record), 6)
        data = _HEAD.pack(len(data), zlib.crc32(data)) + data
        segment, self._segment = self._segment, None  # after an error the next record begins a new one
        if segment is None or segment.stat().st_size + len(data) > self._config.max_bytes // N_SEGMENTS:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            segment = self.folder / f"{int(record.at * 1000)}{_SUFFIX}"
            self._drop(record.at, len(data))
            segment.touch(mode=0o600)  # names of tenants and settings; the folder may be one that others read
        with segment.open("ab", buffering=0) as file:
            if file.write(data) != len(data):
                raise OSError(28, "the disk is full")
        self._segment = segment
        return len(data)

    def snapshot_at(self, at: float) -> Snapshot | None:
        """The last snapshot up to `at`; None: there is none in the hour before. Raises OSError."""
        windows, last, state = TrafficWindows(), None, None
        for record in self._records(at - _HOUR_S - 60.0, at):
            number = _slot_of(record)
            for _ in windows.advance_in_steps(number):
                pass
            details = [(route, upstream, _scale_sums(part, _SUM_UNIT_S)) for route, upstream, part in record.details]
            for _ in windows.add_in_steps([ClosedSlot(number, [*record.series, *details])]):
                pass
            last, state = record, record.state or state
        if last is None or state is None:
            return None
        for _ in windows.advance_in_steps(_slot_of(last) + 1):
            pass
        rows: list[TrafficRow] = []
        for _ in rows_in_steps(((key, series.sums) for key, series in windows.series.items()), rows):
            pass
        gauges = {one.name: one for one in last.upstreams}
        upstreams = tuple(msgspec.structs.replace(
            row, in_flight=one.in_flight, waiting=one.waiting, limit=one.limit, limit_why=one.limit_why, breaker=one.breaker,
            breaker_why=one.breaker_why or one.suspended_why, suspended_s=one.suspended_s)
            if (one := gauges.get(row.name)) is not None else row for row in state.upstreams)
        return msgspec.structs.replace(state, at=last.at, traffic=tuple(rows), upstreams=upstreams)

    def summary(self) -> RingSummary:
        """Raises OSError."""
        spans, n = list[tuple[float, float]](), 0
        for record in self._records(0.0, float("inf")):
            n += 1
            if spans and record.at - spans[-1][1] <= 60.0:
                spans[-1] = spans[-1][0], record.at
            else:
                spans.append((record.at, record.at))
        return RingSummary(sum(segment.path.stat().st_size for segment in self._segments()), n, spans)

    def _records(self, since: float, until: float) -> Iterator[RingRecord]:
        """The records with since <= at <= until, oldest first."""
        segments = self._segments()
        for number, segment in enumerate(segments):
            if segment.began_at > until or (number + 1 < len(segments) and segments[number + 1].began_at < since):
                continue
            with suppress(FileNotFoundError):  # removed by the writer meanwhile
                for record in _read_segment(segment.path.read_bytes()):
                    if since <= record.at <= until:
                        yield record

    def _segments(self) -> list[_Segment]:
        """Oldest first."""
        found = [_Segment(int(path.stem) / 1000, path) for path in self.folder.glob(f"*{_SUFFIX}") if path.stem.isdecimal()]
        return sorted(found)

    def _drop(self, now: float, n_bytes: int) -> None:
        """Remove what is too old or too much before a new segment begins with `n_bytes`."""
        segments = self._segments()
        room = self._config.max_bytes - max(n_bytes, self._config.max_bytes // N_SEGMENTS)
        sizes = [segment.path.stat().st_size for segment in segments]
        for number, segment in enumerate(segments):
            ended_at = segments[number + 1].began_at if number + 1 < len(segments) else now
            if sum(sizes[number:]) > room or ended_at < now - self._config.hours * _HOUR_S - _HOUR_S:
                segment.path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"<SnapshotRing {self.folder}>"


class RingWriter:
    """Makes records of slots. For one event loop; `ring` is used in threads by the caller."""

    def __init__(self, ring: SnapshotRing) -> None:
        self.ring = ring
        self._details = dict[tuple[str, str], TrafficPart]()
        self._n = 0

    @property
    def wants_state(self) -> bool:
        """Whether the next record has details and all other rows."""
        return self._n % SLOTS_PER_MINUTE == 0

    def make_record(self, at: float, slot: ClosedSlot | None, upstreams: list[UpstreamGauges], state: Snapshot | None
                    ) -> RingRecord:
        """state: without traffic; required where `wants_state`."""
        record = RingRecord(at, upstreams=upstreams)
        for route, upstream, part in slot.series if slot is not None else ():
            record.series.append((route, upstream, part.exact()))
            self._details.setdefault((route, upstream), TrafficPart()).merge(part.details().coarse())
        if self.wants_state:
            record.details = [(*key, _scale_sums(part, 1 / _SUM_UNIT_S)) for key, part in self._details.items()]
            record.state = msgspec.structs.replace(state, traffic=()) if state is not None else None
            self._details = {}
        self._n += 1
        return record


def _scale_sums(part: TrafficPart, factor: float) -> TrafficPart:
    """The part with sums of stages in another unit, with 3 significant digits: whole numbers take a third of the bytes."""
    return msgspec.structs.replace(part, by_ttft={
        quarter: [sums[0], *(_three_digits(seconds * factor) for seconds in sums[1:])]
        for quarter, sums in part.by_ttft.items()})


def _three_digits(value: float) -> float:
    rounded = float(f"{value:.3g}")
    return int(rounded) if rounded >= 1 else 0 if rounded < 1e-6 else rounded


def _slot_of(record: RingRecord) -> int:
    return int(record.at / SLOT_S + 0.5)


def _read_segment(data: bytes) -> Iterator[RingRecord]:
    """Its whole records, up to the first that is damaged."""
    at = 0
    while at + _HEAD.size <= len(data):
        n_bytes, check = _HEAD.unpack_from(data, at)
        packed = data[at + _HEAD.size: at + _HEAD.size + n_bytes]
        if n_bytes > _MAX_RECORD_BYTES or len(packed) < n_bytes or zlib.crc32(packed) != check:
            return
        try:
            yield msgspec.msgpack.decode(zlib.decompress(packed), type=RingRecord)
        except (msgspec.DecodeError, zlib.error):  # of another version
            return
        at += _HEAD.size + n_bytes


