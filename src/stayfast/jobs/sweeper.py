"""The upkeep of the store by one process: jobs of dead workers, ended leases, expired jobs, old records, files without a
record, the figures.

Several sweepers do no harm: each change happens once, in the store.

A process that was stopped, or whose clock was set, finds all leases ended, those of live workers too. Their jobs must not
run a second time for that, so heartbeats come before the next sweep.
"""

import asyncio
from collections.abc import Callable, Sequence

from stayfast.core.clock import Clock
from stayfast.core.events import JobsSwept, Sink
from stayfast.core.jobs import QueueDepth
from stayfast.jobs.attempts import ReportError, attempt
from stayfast.jobs.config import JobsConfig
from stayfast.jobs.presence import WorkerPresence
from stayfast.jobs.service import WORK, job_topic
from stayfast.stores.jobs.base import FileBodies, JobStore

SWEEP_S = 3.0
LATE_S = 1.0  # a sleep that took this much longer was a pause of the process, or the clock was set
MUCH = 100  # changes of one sweep after which the next follows at once
ORPHAN_TURNS = 20  # turns from one search for files without a record to the next
OnDepths = Callable[[Sequence[QueueDepth]], None]


class JobSweeper:
    """Belongs to one loop."""

    __slots__ = ("_clock", "_config", "_files", "_n_changes", "_n_turns", "_on_depths", "_presence", "_report", "_sink",
                 "_store")

    def __init__(self, store: JobStore, files: FileBodies, presence: WorkerPresence, config: Callable[[], JobsConfig], *,
                 clock: Clock, sink: Sink, on_depths: OnDepths, report: ReportError) -> None:
        """report: gets unexpected exceptions."""
        self._store = store
        self._files = files
        self._presence = presence
        self._config = config
        self._clock = clock
        self._sink = sink
        self._on_depths = on_depths
        self._report = report
        self._n_turns = 0
        self._n_changes = 0  # in the store, of the last turn

    async def run(self, *, sweeps: bool) -> None:
        """Until cancelled. sweeps: False: another process of this machine sweeps; only the queue's figures are read."""
        while True:
            self._n_changes = 0
            await attempt(self._turn(sweeps=sweeps), self._report)
            if self._n_changes < MUCH:
                until = self._clock.wall() + SWEEP_S
                await asyncio.sleep(SWEEP_S)
                if self._clock.wall() - until > LATE_S:
                    await asyncio.sleep(self._config().heartbeat_s + LATE_S)

    async def _turn(self, *, sweeps: bool) -> None:
        """Raises StoreUnavailable."""
        if sweeps:
            self._n_changes = await self.recover() + await self._sweep()
        self._on_depths(await self._store.depths())
        self._n_turns += 1
        if sweeps and self._n_turns % ORPHAN_TURNS == 1:
            await self._files.remove_orphans(self._has_record)

    async def _has_record(self, file_id: str) -> bool:
        return await self._store.find_file(file_id) is not None

    async def recover(self) -> int:
        """Put back the jobs of dead workers of this machine; returns how many. Raises StoreUnavailable."""
        n_jobs = 0
        with self._presence.dead_workers() as dead:
            for worker in dead:
                n_jobs += await self._store.recover(worker, max_claims=self._config().max_claims)
        if n_jobs:
            self._sink.emit(JobsSwept(n_jobs, 0, 0))
            await self._store.notify(WORK)
        return n_jobs

    async def _sweep(self) -> int:
        report = await self._store.sweep(max_claims=self._config().max_claims)
        for job_id in report.finished:
            await self._store.notify(job_topic(job_id))
        for file_id in report.expired_files:
            await self._files.delete(file_id)
            await self._store.delete_file(file_id)
        if report.n_recovered:
            await self._store.notify(WORK)
        if report.n_recovered or report.n_dead or report.n_expired:
            self._sink.emit(JobsSwept(report.n_recovered, report.n_dead, report.n_expired))
        return report.n_recovered + report.n_dead + report.n_expired + report.n_purged
