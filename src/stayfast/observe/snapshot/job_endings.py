"""Jobs that ended in the last hour, and completion times of batches: what queues' gauges lack for a snapshot's job rows."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.events import JobEnded
from stayfast.core.snapshot import JobRow
from stayfast.observe.snapshot.batch_times import HOUR_S, BatchTimes, Times, merge_batch_times
from stayfast.observe.snapshot.tallies import PackedTally, RowTally, TallyWindow, merge_tallies

SLOT_S: Final = 120.0
_WAIT, _RUN = "wait_s", "run_s"


class JobParts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one process. ended: by route; counts by state."""

    ended: dict[str, PackedTally] = {}
    batches: Times = ()


class JobEndings:
    """Of one process. For one event loop."""

    __slots__ = ("_clock", "_ended", "batches")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended = TallyWindow(HOUR_S, SLOT_S)
        self.batches = BatchTimes(clock)

    def consume(self, jobs: Sequence[JobEnded]) -> None:
        now = self._clock.now()
        for job in jobs:
            tally = self._ended.at(job.route, now)
            tally.counts[job.state] += 1
            tally.histograms[_WAIT].add(job.waited_s)
            tally.histograms[_RUN].add(job.run_s)

    def collect(self) -> JobParts:
        return JobParts(self._ended.collect(self._clock.now()), self.batches.collect())


def complete_jobs(rows: Iterable[JobRow], parts: Iterable[JobParts]) -> tuple[JobRow, ...]:
    """The rows of queues with what ended in the last hour. Routes without a queue that had jobs get a row, too."""
    parts = list(parts)
    ended, batches = merge_tallies(part.ended for part in parts), merge_batch_times(part.batches for part in parts)
    known = {row.route: row for row in rows}
    completed = []
    for route in sorted({*known, *ended, *batches}):
        tally = ended.get(route, RowTally())
        n_ended = {state: tally.n(state) for state in tally.counts}
        row = msgspec.structs.replace(known.get(route, JobRow(route)), n_ended=n_ended, wait_s=tally.spread(_WAIT),
                                      run_s=tally.spread(_RUN))
        if route in batches:
            batch_s, deviation = batches[route]
            row = msgspec.structs.replace(row, batch_s=batch_s, batch_deviation=deviation)
        completed.append(row)
    return tuple(completed)
