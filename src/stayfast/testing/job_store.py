"""A store of jobs in memory, on virtual time: for flow tests and simulations of the runner. Batches and files aside, it
behaves as `stores.jobs.base.JobStore` demands.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from stayfast.core.clock import Clock
from stayfast.core.jobs import (
    ClaimedJob,
    Job,
    JobEvent,
    JobResult,
    JobState,
    NewJob,
    QueueDepth,
    Release,
    Submitted,
)
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import EventsPage, Heartbeat, HeldJob, JobStore, SweepReport


class StoredJob:
    """One job. `lease_until`: Unix seconds."""

    def __init__(self, new: NewJob, job: Job) -> None:
        self.new = new
        self.job = job
        self.lease_until = 0.0
        self.n_deaths = 0
        self.result: JobResult | None = None
        self.events: list[JobEvent] = []

    def is_of(self, token: int) -> bool:
        """Whether a claim with this token may write."""
        return self.job.state is JobState.RUNNING and self.job.token == token


class MemoryJobStore:
    """Belongs to one loop. `is_down`: every call fails."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.jobs: dict[str, StoredJob] = {}
        self.is_down = False
        self.n_calls: defaultdict[str, int] = defaultdict(int)
        self._waiters: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)

    def as_store(self) -> JobStore:
        return cast("JobStore", self)

    def _enter(self, name: str) -> float:
        self.n_calls[name] += 1
        if self.is_down:
            raise StoreUnavailable("it is down")
        return self._clock.wall()

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        now, submitted = self._enter("submit"), []
        for new in jobs:
            job = Job(new.id, new.door, new.api, new.model, JobState.QUEUED, new.tenant, now, new.is_stream, new.rank,
                      new.n_tokens, new.run_at, new.deadline_at, new.keep_s, batch_id=new.batch_id, line=new.line)
            self.jobs[new.id] = StoredJob(new, job)
            submitted.append(Submitted(job))
        return submitted

    async def find(self, job_id: str) -> Job | None:
        self._enter("find")
        stored = self.jobs.get(job_id)
        return stored.job if stored is not None else None

    async def find_result(self, job_id: str) -> JobResult | None:
        self._enter("find_result")
        return self.jobs[job_id].result

    async def count_unfinished(self, tenant: str | None) -> int:
        self._enter("count_unfinished")
        return sum(stored.job.tenant == tenant and not stored.job.state.is_final for stored in self.jobs.values())

    async def claim(self, worker: str, room: Mapping[str, int], lease_s: float) -> list[ClaimedJob]:
        now, claimed = self._enter("claim"), []
        for model, n in room.items():
            due = [stored for stored in self.jobs.values() if stored.job.model == model and stored.job.run_at <= now
                   and stored.job.state is JobState.QUEUED and (stored.job.deadline_at or now + 1) > now]
            due.sort(key=lambda stored: (stored.new.aged_at is None or stored.new.aged_at > now, stored.job.rank,
                                         stored.job.created_at))
            for stored in due[:n]:
                stored.job = replace(stored.job, state=JobState.RUNNING, token=stored.job.token + 1, worker=worker,
                                     started_at=now)
                stored.lease_until = now + lease_s
                claimed.append(ClaimedJob(stored.job, stored.new.body, stored.new.headers))
        return claimed

    async def extend(self, worker: str, held: Sequence[HeldJob], lease_s: float) -> Heartbeat:
        now, lost, cancelled = self._enter("extend"), [], []
        for one in held:
            stored = self.jobs[one.job_id]
            if not stored.is_of(one.token) or stored.job.worker != worker:
                lost.append(one.job_id)
                continue
            stored.lease_until = now + lease_s
            if stored.job.is_cancelling:
                cancelled.append(one.job_id)
        return Heartbeat(tuple(lost), tuple(cancelled))

    async def finish(self, results: Sequence[JobResult]) -> list[bool]:
        now = self._enter("finish")
        return [self._end(result, now) for result in results]

    def _end(self, result: JobResult, now: float) -> bool:
        stored = self.jobs[result.job_id]
        if not stored.is_of(result.token):
            return False
        assert stored.result is None
        stored.result = result
        stored.job = replace(stored.job, state=result.state, finished_at=now, why=result.why)
        return True

    async def release(self, released: Sequence[Release]) -> list[bool]:
        self._enter("release")
        return [self._requeue(one) for one in released]

    def _requeue(self, one: Release) -> bool:
        stored = self.jobs[one.job_id]
        if not stored.is_of(one.token):
            return False
        state = JobState.CANCELLED if stored.job.is_cancelling else JobState.QUEUED
        stored.job = replace(stored.job, state=state, run_at=one.run_at, why=one.why, worker=None,
                             n_failures=stored.job.n_failures + one.is_failure)
        return True

    async def cancel(self, job_id: str) -> Job | None:
        self._enter("cancel")
        stored = self.jobs.get(job_id)
        if stored is None:
            return None
        if stored.job.state is JobState.QUEUED:
            stored.job = replace(stored.job, state=JobState.CANCELLED)
        elif stored.job.state is JobState.RUNNING:
            stored.job = replace(stored.job, is_cancelling=True)
        return stored.job

    async def recover(self, worker: str, *, max_claims: int = 3) -> int:
        self._enter("recover")
        held = [stored for stored in self.jobs.values() if stored.job.state is JobState.RUNNING
                and (stored.job.worker or "").startswith(worker)]
        for stored in held:
            self._take_back(stored, max_claims)
        return len(held)

    def _take_back(self, stored: StoredJob, max_claims: int) -> None:
        stored.n_deaths += 1
        state = JobState.DEAD if stored.n_deaths >= max_claims else JobState.QUEUED
        stored.job = replace(stored.job, state=state, worker=None)

    async def sweep(self, *, max_claims: int) -> SweepReport:
        now, finished, n_recovered = self._enter("sweep"), [], 0
        for stored in self.jobs.values():
            job = stored.job
            if job.state is JobState.RUNNING and stored.lease_until <= now:
                n_recovered += 1
                self._take_back(stored, max_claims)
                if stored.job.state is JobState.DEAD:
                    finished.append(job.id)
            elif job.state is JobState.QUEUED and job.deadline_at is not None and job.deadline_at <= now:
                stored.job = replace(job, state=JobState.EXPIRED)
                finished.append(job.id)
        return SweepReport(n_recovered, finished=tuple(finished))

    async def depths(self) -> list[QueueDepth]:
        self._enter("depths")
        models = {stored.job.model for stored in self.jobs.values() if not stored.job.state.is_final}
        return [QueueDepth(model, *[sum(stored.job.model == model and stored.job.state is state
                                        for stored in self.jobs.values())
                                    for state in (JobState.QUEUED, JobState.RUNNING)]) for model in sorted(models)]

    async def append_events(self, job_id: str, token: int, events: Sequence[JobEvent]) -> bool:
        self._enter("append_events")
        stored = self.jobs[job_id]
        if not stored.is_of(token):
            return False
        stored.events += events
        return True

    async def read_events(self, job_id: str, after_n: int, limit: int = 500) -> EventsPage:
        self._enter("read_events")
        return EventsPage(tuple(event for event in self.jobs[job_id].events if event.n > after_n)[:limit])

    async def notify(self, topic: str) -> None:
        self._enter("notify")
        for waiter in self._waiters.pop(topic, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, topic: str, timeout_s: float) -> None:
        self._enter("wait")
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiters[topic].add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return
        finally:
            self._waiters[topic].discard(waiter)

    async def close(self) -> None:
        """Holds nothing."""
