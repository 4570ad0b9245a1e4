"""What all endpoints of durable work share: submit, find, wait, cancel, read a stream."""

import asyncio
from collections.abc import Sequence
from math import inf, sqrt
from os import getpid
from secrets import token_hex
from typing import NamedTuple

from msgspec import structs

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected, Shed, StayfastError
from stayfast.core.jobs import Door, Job, JobEvent, JobFilter, JobResult, JobState, NewJob, Submitted
from stayfast.jobs.config import JobsConfig
from stayfast.jobs.terms import QueueTerms
from stayfast.policy.admission.priority import Points
from stayfast.policy.jobs.order import MIN_POLL_S, poll_after_s
from stayfast.policy.jobs.pace import JobPace
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import FileBodies, JobStore, StoreFull

WORK = "work"  # the topic of new jobs
POLL_S = 1.0  # a lost notification delays a waiter by this much
COUNT_S = 1.0  # for so long `max_queued` may be exceeded by what other processes add
FULL_RETRY_S = 30.0
UNAVAILABLE_RETRY_S = 5.0
REPORTED_DOORS = frozenset((Door.JOBS, Door.ASYNC, Door.RESPONSES))  # a batch is reported as a whole


def job_topic(job_id: str) -> str:
    """The topic of a job's events and its end."""
    return f"job:{job_id}"


class JobPlace(NamedTuple):
    """Where a job is in its queue. place: 1 for the job that runs next; None unless it waits. left_s: until its end; None:
    unknown.
    """

    place: int | None
    left_s: float | None

    @property
    def poll_after_s(self) -> int:
        """When to look again. Without known times: the sooner, the fewer jobs run before."""
        if self.left_s is not None:
            return poll_after_s(self.left_s)
        return poll_after_s(MIN_POLL_S if self.place is None else sqrt(self.place))


class JobService:
    """Durable work of one gateway. Every method raises StayfastError: 404 for another tenant's job, 429 for too many jobs,
    503 for a store that is full or unavailable.
    """

    def __init__(self, store: JobStore, files: FileBodies, config: JobsConfig, clock: Clock,
                 terms: QueueTerms | None = None, *, worker: str = "", pace: JobPace | None = None) -> None:
        """terms: None: every tenant has the same. worker: of the streams that this process generates itself. pace: None: no
        times are known.
        """
        self.store = store
        self.files = files
        self.config = config
        self.clock = clock
        self.worker = worker or f"gateway:{token_hex(6)}:{getpid()}"
        self.terms = terms or QueueTerms(config, {}, Points())
        self._counted_at = -inf
        self._n_unfinished: dict[str | None, int] = {}  # by tenant, since _counted_at
        self._pace = pace

    async def submit(self, jobs: Sequence[NewJob], *, is_served: bool = False) -> list[Submitted]:
        """Store jobs of one tenant; durable when it returns. Raises Shed (429 beyond `max_queued`, 503). is_served: they
        run already, for a client that waits: they count, and are not refused.
        """
        try:
            n_unfinished = await self._count_unfinished(jobs[0].tenant, len(jobs))
            if not is_served and n_unfinished + len(jobs) > self.config.max_queued:
                raise Shed(f"Too many unfinished jobs: {n_unfinished} of at most {self.config.max_queued}. Wait until some "
                           "have ended.", reason="jobs_queued", status=429, code="too_many_jobs",
                           retry_after_s=FULL_RETRY_S)
            submitted = await self.store.submit([self._mark_reported(job) for job in jobs])
            await self.store.notify(WORK)
        except StoreUnavailable as error:
            raise store_error(error) from None
        return submitted

    def has_webhook(self, tenant: str | None) -> bool:
        """Whether a webhook may report the work of a tenant."""
        return any(not webhook.tenants or tenant in webhook.tenants for webhook in self.config.webhooks)

    def _mark_reported(self, job: NewJob) -> NewJob:
        if job.door not in REPORTED_DOORS or not self.has_webhook(job.tenant):
            return job
        return structs.replace(job, is_reported=True)

    async def _count_unfinished(self, tenant: str | None, n_new: int) -> int:
        """The unfinished jobs of a tenant, before n_new are added: a figure of the store that is at most COUNT_S old, and
        what this process has added since. A figure that is too high for n_new is read again.
        """
        now = self.clock.now()
        if now - self._counted_at >= COUNT_S:
            self._counted_at, self._n_unfinished = now, {}
        n = self._n_unfinished.get(tenant)
        if n is None or n + n_new > self.config.max_queued:
            n = await self.store.count_unfinished(tenant)
        self._n_unfinished[tenant] = max(n, self._n_unfinished.get(tenant, 0)) + n_new
        return n

    async def submit_one(self, job: NewJob) -> Submitted:
        """The stored job: this one, or the earlier one of the same idempotency key. Raises Rejected (409) for a conflict."""
        (submitted,) = await self.submit([job])
        if submitted.is_conflict:
            raise Rejected("The idempotency key was used for another request.", status=409, code="idempotency_conflict",
                           param="idempotency-key")
        return submitted

    async def find(self, job_id: str, tenant: str | None) -> Job:
        """Raises Rejected (404) if it is unknown, has expired or belongs to another tenant."""
        try:
            job = await self.store.find(job_id)
        except StoreUnavailable as error:
            raise store_error(error) from None
        if job is None or job.tenant != tenant:
            raise unknown_job(job_id)
        return job

    async def result(self, job: Job) -> JobResult | None:
        """None: it has not ended."""
        try:
            return await self.store.find_result(job.id)
        except StoreUnavailable as error:
            raise store_error(error) from None

    async def place_of(self, job: Job, n_ahead: int | None = None) -> JobPlace:
        """Where a job is in its queue. n_ahead: how many run before it, if known."""
        if job.state is not JobState.QUEUED:
            n_ahead = 0
        elif n_ahead is None:
            try:
                n_ahead = await self.store.count_ahead(job.id)
            except StoreUnavailable as error:
                raise store_error(error) from None
        left_s = self._pace.left_s(job, n_ahead, self.clock.wall()) if self._pace is not None else None
        return JobPlace(n_ahead + 1 if job.state is JobState.QUEUED else None, left_s)

    async def list_jobs(self, what: JobFilter) -> list[Job]:
        """The jobs of a filter, newest first."""
        try:
            return await self.store.list_jobs(what)
        except StoreUnavailable as error:
            raise store_error(error) from None

    async def wait(self, job_id: str, tenant: str | None, timeout_s: float) -> Job:
        """The job once it has ended, or as it is after `timeout_s`."""
        until = self.clock.now() + timeout_s
        while True:
            job = await self.find(job_id, tenant)
            left_s = until - self.clock.now()
            if job.state.is_final or left_s <= 0:
                return job
            await self.store.wait(job_topic(job_id), min(left_s, POLL_S))

    async def cancel(self, job_id: str, tenant: str | None) -> Job:
        """Cancel a job; a second call, or one after its end, changes nothing."""
        await self.find(job_id, tenant)
        try:
            job = await self.store.cancel(job_id)
            await self.store.notify(job_topic(job_id))
            await self.store.notify(WORK)
        except StoreUnavailable as error:
            raise store_error(error) from None
        if job is None:
            raise unknown_job(job_id)
        return job

    def read_events(self, job: Job, after_n: int) -> "JobEventReader":
        """The events after number `after_n`, stored and live ones, up to the last one."""
        return JobEventReader(self.store, job, after_n, self.clock)


class JobEventReader:
    """One client that reads the stream of a job. One task reads it."""

    def __init__(self, store: JobStore, job: Job, after_n: int, clock: Clock) -> None:
        self._store = store
        self._job_id = job.id
        self._after_n = after_n
        self._clock = clock
        self.is_over = False

    async def read(self, timeout_s: float) -> list[JobEvent]:
        """The next events; empty after `timeout_s` without any, or at the end (`is_over`). Raises Shed (503), and Rejected
        (410) if the next event is gone.
        """
        until = self._clock.now() + timeout_s
        try:
            while not self.is_over:
                page = await self._store.read_events(self._job_id, self._after_n)
                if page.first_n > self._after_n + 1:
                    raise gone_error(self._job_id)
                if page.events:
                    self._after_n, self.is_over = page.events[-1].n, page.events[-1].is_last
                    return list(page.events)
                left_s = until - self._clock.now()
                if left_s <= 0:
                    break
                await self._store.wait(job_topic(self._job_id), min(left_s, POLL_S))
        except StoreUnavailable as error:
            raise store_error(error) from None
        return []


def gone_error(job_id: str) -> Rejected:
    """The error for a position in a stream that is no longer stored."""
    return Rejected(f"This part of the stream is no longer stored. The result is at /v1/jobs/{job_id}.", status=410,
                    code="stream_gone", param="last-event-id")


def unknown_job(job_id: str) -> Rejected:
    """The error for an unknown job, and for one of another tenant."""
    return Rejected(f"No job has the id {job_id[:80]!r}: it has expired, or belongs to another key.", status=404,
                    code="job_not_found", param="id")


def store_error(error: StoreUnavailable) -> StayfastError:
    """The error for a store that is full or unavailable; its cause is for the operator's log."""
    if isinstance(error, StoreFull):
        return Shed("No space is left for new jobs. Accepted jobs go on.", reason="jobs_full", code="jobs_full",
                    retry_after_s=FULL_RETRY_S)
    return Shed("The store of jobs is unavailable. Try again later; requests without jobs are served.",
                reason="jobs_unavailable", code="jobs_unavailable", retry_after_s=UNAVAILABLE_RETRY_S)


async def sleep_until_notified(store: JobStore, topic: str, timeout_s: float) -> None:
    """Wait for a topic; if the store is unavailable, for the whole time."""
    try:
        await store.wait(topic, timeout_s)
    except StoreUnavailable:
        await asyncio.sleep(timeout_s)
