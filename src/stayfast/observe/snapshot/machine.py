"""What one worker process has of its machine: CPU, memory, descriptors, pauses, clocks. Over the last 5 minutes.

Growth of memory is the median of the slopes between all pairs of samples (Theil and Sen), so that a single large answer does
not look like a leak; it is unknown until the samples cover MIN_GROWTH_S. A step of the wall clock is the change of its
difference to the monotonic clock between two samples; the slewing of NTP, at most 0.5 ms a second, stays below STEP_S.
When wrong: an allocator that keeps freed memory grows without a leak, until its peak.
"""

import asyncio
import gc
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.events import LoopLag
from stayfast.core.snapshot import MachineRow, Spread
from stayfast.http.descriptors import descriptor_limit
from stayfast.observe.snapshot.process_files import CpuPeriods, ProcessFiles
from stayfast.observe.snapshot.tallies import spread_of
from stayfast.policy.histogram import LogHistogram, Packed, Window

SAMPLE_EVERY_S: Final = 5.0
SPAN_S: Final = 300.0
RSS_EVERY_S: Final = 30.0
RSS_SPAN_S: Final = 3600.0
MIN_GROWTH_S: Final = 600.0
STEP_S: Final = 0.02  # smaller steps are the clocks' own corrections
N_TRIES: Final = 5  # to read both clocks without an interruption
COLLECTED_FROM: Final = 1  # generation; younger ones take microseconds


class MachineSample(msgspec.Struct, frozen=True, gc=False):
    at: float
    cpu_s: float
    clock_offset_s: float | None  # of the wall clock; None: the reading was interrupted
    rss_bytes: int
    n_descriptors: int
    periods: CpuPeriods | None
    n_cpus: float | None
    memory_limit_bytes: int | None


class MachinePart(msgspec.Struct, frozen=True):
    """The row of one worker, and the histograms behind its spreads."""

    row: MachineRow
    loop_lag_s: Packed = ()
    gc_pause_s: Packed = ()


class MachineProbe:
    """Of this process. For one event loop; `sample` may run on another thread."""

    __slots__ = ("_began_at", "_clock", "_files", "_gc_began_at", "_growth", "_lags", "_log", "_pauses", "_rss", "_samples",
                 "_worker")

    def __init__(self, worker: int, clock: Clock, log: Callable[[], tuple[str, int]], files: ProcessFiles | None = None
                 ) -> None:
        """log: its level, and the lines that it has lost."""
        self._worker = worker
        self._clock = clock
        self._log = log
        self._files = files or ProcessFiles()
        self._began_at = clock.now()
        self._samples: deque[MachineSample] = deque()
        self._rss: deque[tuple[float, int]] = deque()
        self._growth: float | None = None  # bytes a second
        self._lags, self._pauses = Window(), Window()
        self._gc_began_at = 0.0

    async def run(self) -> None:
        """Sample until cancelled, on another thread."""
        gc.callbacks.append(self.note_collection)
        try:
            while True:
                self.add(await asyncio.to_thread(self.sample))
                await asyncio.sleep(SAMPLE_EVERY_S)
        finally:
            gc.callbacks.remove(self.note_collection)

    def consume(self, lags: Sequence[LoopLag]) -> None:
        for lag in lags:
            self._lags.add(lag.seconds, self._clock.now())

    def note_collection(self, phase: str, info: dict[str, int]) -> None:
        """A callback of `gc`. Collections of the youngest generation are not counted."""
        if info["generation"] < COLLECTED_FROM:
            return
        now = self._clock.now()
        if phase == "start":
            self._gc_began_at = now
        else:
            self._pauses.add(now - self._gc_began_at, now)

    def sample(self) -> MachineSample:
        """Read the files. Blocks for as long as the kernel needs."""
        files, clock = self._files, self._clock
        quota, affinity = files.cpu_quota(), usable_cpus()
        n_cpus = min((limit for limit in (quota, affinity) if limit is not None), default=None)
        return MachineSample(clock.now(), clock.cpu(), read_clock_offset_s(clock), files.rss_bytes(), files.n_descriptors(),
                             files.cpu_periods(), n_cpus, files.memory_limit_bytes())

    def add(self, sample: MachineSample) -> None:
        """Add the next sample."""
        samples, rss = self._samples, self._rss
        samples.append(sample)
        while samples[0].at < sample.at - SPAN_S:
            samples.popleft()
        if sample.rss_bytes and (not rss or sample.at >= rss[-1][0] + RSS_EVERY_S):
            rss.append((sample.at, sample.rss_bytes))
            while rss[0][0] < sample.at - RSS_SPAN_S:
                rss.popleft()
            self._growth = median_slope(rss) if sample.at - rss[0][0] >= MIN_GROWTH_S else None

    def collect(self, now: float) -> MachinePart:
        lags, pauses = self._lags.merge_last(SPAN_S, now), self._pauses.merge_last(SPAN_S, now)
        level, n_lost = self._log()
        row = MachineRow(self._worker, now - self._began_at, loop_lag_s=spread_of(lags), gc_pause_s=spread_of(pauses),
                         max_descriptors=descriptor_limit(), log_level=level, n_lost_lines=n_lost)
        return MachinePart(self._complete(row), lags.pack(), pauses.pack())

    def _complete(self, row: MachineRow) -> MachineRow:
        """The row with what the samples show."""
        if not self._samples:
            return row
        first, last = self._samples[0], self._samples[-1]
        spent_s = last.at - first.at
        offsets_s = [sample.clock_offset_s for sample in self._samples if sample.clock_offset_s is not None]
        step_s = max([abs(later_s - before_s) for before_s, later_s in pairwise(offsets_s)], default=0.0)
        return msgspec.structs.replace(
            row, cpu_ratio=(last.cpu_s - first.cpu_s) / spent_s if spent_s > 0 else None, n_cpus=last.n_cpus,
            throttled_ratio=_throttled_ratio(first.periods, last.periods), rss_bytes=last.rss_bytes,
            rss_growth_bytes_per_h=self._growth * 3600.0 if self._growth is not None else None,
            memory_limit_bytes=last.memory_limit_bytes, descriptors=last.n_descriptors,
            clock_step_s=step_s if step_s >= STEP_S else 0.0)


def read_clock_offset_s(clock: Clock) -> float | None:
    """The wall clock minus the monotonic one; None: the thread was interrupted at each try."""
    for _ in range(N_TRIES):
        before = clock.now()
        wall = clock.wall()
        after = clock.now()
        if after - before <= STEP_S / 10:
            return wall - after
    return None


def usable_cpus() -> float | None:
    """CPUs that this process may run on; None: unknown."""
    if hasattr(os, "sched_getaffinity"):
        return float(len(os.sched_getaffinity(0)))
    n = os.cpu_count()
    return float(n) if n is not None else None


def _throttled_ratio(first: CpuPeriods | None, last: CpuPeriods | None) -> float | None:
    if first is None or last is None:
        return None
    n = last.n - first.n
    return (last.n_throttled - first.n_throttled) / n if n > 0 else 0.0


def median_slope(points: Iterable[tuple[float, float]]) -> float | None:
    """The median of the slopes between all pairs of points with different instants; None without a pair."""
    known = list(points)
    slopes = [(later - before) / (later_at - at) for n, (at, before) in enumerate(known)
              for later_at, later in known[n + 1:] if later_at > at]
    return median(slopes) if slopes else None


def merge_machines(parts: Iterable[MachinePart]) -> tuple[MachineRow, ...]:
    """The rows of all workers."""
    return tuple(sorted([part.row for part in parts], key=lambda row: row.worker))


def merge_loop_lag(parts: Iterable[MachinePart]) -> Spread:
    """The delays of the event loops of all workers."""
    whole = LogHistogram()
    for part in parts:
        whole.merge(LogHistogram(part.loop_lag_s))
    return spread_of(whole)
