"""Writes the outcomes of jobs: results and releases of many jobs in one commit, and none is lost while the store is down.

An outcome waits here until the store has it; its lease is extended meanwhile, like that of a running job. One that the store
cannot take (an unexpected error, even for it alone) is given up: its job runs again after its lease, or becomes dead.
"""

import asyncio
from functools import partial

from stayfast.core.clock import Rng
from stayfast.core.jobs import JobResult, Release
from stayfast.jobs.attempts import ReportError, attempt
from stayfast.jobs.execution import JobOutcome
from stayfast.policy.resilience.retry import backoff_s
from stayfast.stores.jobs.base import JobStore

MAX_GROUP = 128
RETRY_S, RETRY_CAP_S = 0.1, 5.0
PendingOutcome = tuple[JobOutcome, "asyncio.Future[bool]"]


class OutcomeWriter:
    """Belongs to one loop. `run` writes until it is cancelled."""

    __slots__ = ("_has_work", "_max_group", "_pending", "_report", "_rng", "_store", "n_failures")

    def __init__(self, store: JobStore, rng: Rng, report: ReportError) -> None:
        """report: gets unexpected exceptions."""
        self._store = store
        self._rng = rng
        self._report = report
        self._max_group = MAX_GROUP
        self._pending: list[PendingOutcome] = []
        self._has_work = asyncio.Event()
        self.n_failures = 0  # of the store, in a row

    async def write(self, outcome: JobOutcome) -> bool:
        """Returns once the store has it. False: the claim was superseded, and the outcome is discarded."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pending.append((outcome, done))
        self._has_work.set()
        return await done

    async def run(self) -> None:
        while True:
            while not self._pending:
                self._has_work.clear()
                await self._has_work.wait()
            self._pending = [pair for pair in self._pending if not pair[1].done()]
            group = self._pending[:self._max_group]
            if await attempt(self._write_group(group), partial(self._isolate, group)):
                self.n_failures = 0
                self._max_group = min(MAX_GROUP, 2 * self._max_group)
                continue
            self.n_failures += 1
            await asyncio.sleep(backoff_s(self.n_failures, RETRY_S, RETRY_CAP_S, self._rng, jitter=0.5))

    def _isolate(self, group: list[PendingOutcome], error: BaseException) -> None:
        """After an unexpected error each outcome is written alone; the one that fails alone is given up."""
        if len(group) > 1:
            self._report(error)
            self._max_group = 1
            return
        for _, done in group:
            if not done.done():
                done.set_exception(error)  # reported where it is awaited

    async def _write_group(self, group: list[PendingOutcome]) -> None:
        """Raises StoreUnavailable; what was written by then is not written again."""
        results = [pair for pair in group if isinstance(pair[0], JobResult)]
        releases = [pair for pair in group if isinstance(pair[0], Release)]
        if results:
            _settle(results, await self._store.finish([one for one, _ in results if isinstance(one, JobResult)]))
        if releases:
            _settle(releases, await self._store.release([one for one, _ in releases if isinstance(one, Release)]))


def _settle(pairs: list[PendingOutcome], are_ours: list[bool]) -> None:
    for (_, done), is_ours in zip(pairs, are_ours, strict=True):
        if not done.done():
            done.set_result(is_ours)
