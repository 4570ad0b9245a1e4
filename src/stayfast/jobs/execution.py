"""One claim of one job: the request to the gateway, its answer, and what becomes of the job.

A job is served like a request of its tenant, from the same routes and with the same quota, as an attempt of role `job`:
lowest priority, no hedges, no substitute answer. Every claim is a request of its own in `stayfast explain`, with the id
`<job>-<claim>`. The upstream gets the job's id as `idempotency-key`, the same for every claim.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from stayfast.core.clock import Clock, Rng
from stayfast.core.constants import KEY_HEADER, LARGE_REQUEST_BYTES
from stayfast.core.errors import DeadlineExceeded, StayfastError
from stayfast.core.jobs import ClaimedJob, Job, JobEvent, JobResult, JobState, Release
from stayfast.core.types import JOB, Request, Stage
from stayfast.jobs.config import JobsConfig
from stayfast.jobs.stream_log import ClaimSuperseded, StreamLog, read_stored_stream
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.relay import Reply
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.jobs.retries import LEAST_PAUSE_S, NextStep, decide_retry
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import JobStore
from stayfast.wire.errors import encode_error, encode_error_event
from stayfast.wire.jobs.collected_answer import collect_events
from stayfast.wire.jobs.response_objects import data_of
from stayfast.wire.request_body import decode

IDEMPOTENCY_KEY = "idempotency-key"
_OWN_HEADERS = (IDEMPOTENCY_KEY, KEY_HEADER)
CLIENT_CLOSED = 499
Serve = Callable[[Request, Arrival], Awaitable[Reply]]
JobOutcome = JobResult | Release


class JobCancelled(StayfastError):
    """The client cancelled the job."""

    status = CLIENT_CLOSED
    code = "cancelled"

    def __init__(self) -> None:
        super().__init__("The job was cancelled.")


class JobExecution:
    """Runs claimed jobs. Holds no state of a job."""

    __slots__ = ("_clock", "_config", "_rng", "_serve", "_store")

    def __init__(self, serve: Serve, store: JobStore, config: Callable[[], JobsConfig], *, clock: Clock, rng: Rng) -> None:
        """serve: by the running system, also after a reload."""
        self._serve = serve
        self._store = store
        self._config = config
        self._clock = clock
        self._rng = rng

    async def run(self, claimed: ClaimedJob) -> JobOutcome | None:
        """Run a job; None: the claim is no longer ours. If cancelled, nothing of the job is decided."""
        job = claimed.job
        try:
            next_n, whole = (0, []) if not job.is_stream or job.token <= 1 else await read_stored_stream(self._store, job.id)
        except StoreUnavailable:
            return Release(job.id, job.token, self._clock.wall() + LEAST_PAUSE_S, "store_unavailable", is_failure=False)
        if whole:
            return self._take_stored_answer(job, whole)
        outcome: JobOutcome | None = None
        try:
            log = StreamLog(self._store, claimed, next_n, self._rng)
            async with asyncio.TaskGroup() as group:
                storing = group.create_task(log.run())
                outcome = await self._run_logged(claimed, log)
                if isinstance(outcome, Release):
                    storing.cancel()
        except* ClaimSuperseded:
            outcome = None
        return outcome

    async def record_cancellation(self, claimed: ClaimedJob) -> JobResult:
        """The end of a job that its client cancelled, after its Task has ended."""
        job = claimed.job
        error = JobCancelled()
        if job.is_stream:
            with suppress(StoreUnavailable):
                next_n, whole = await read_stored_stream(self._store, job.id)
                if not whole:
                    event = JobEvent(next_n, job.token, encode_error_event(error, job.api, request_id_of(job)), is_last=True)
                    await self._store.append_events(job.id, job.token, [event])
        _, _, body = encode_error(error, job.api, request_id_of(job))
        return JobResult(job.id, job.token, JobState.CANCELLED, CLIENT_CLOSED, body, request_id_of(job), why=error.code)

    async def _run_logged(self, claimed: ClaimedJob, log: StreamLog) -> JobOutcome:
        """Serve the job. Its last event is appended only with a result."""
        job = claimed.job
        try:
            result = await self._answer(claimed, log)
        except StayfastError as error:
            outcome = self.decide_failure(job, error)
            if isinstance(outcome, JobResult):
                log.end(encode_error_event(error, job.api, request_id_of(job)))
            return outcome
        log.end()
        return result

    async def _answer(self, claimed: ClaimedJob, log: StreamLog) -> JobResult:
        """The whole answer. Raises StayfastError."""
        job, now, wall = claimed.job, self._clock.now(), self._clock.wall()
        left_s = job.deadline_at - wall if job.deadline_at is not None else None
        if left_s is not None and left_s <= 0:
            raise DeadlineExceeded(Stage.ADMIT, "total_s", max(0.0, wall - job.created_at))
        body = claimed.body
        request = (decode(job.api, body) if len(body) <= LARGE_REQUEST_BYTES
                   else await asyncio.to_thread(decode, job.api, body))
        waited_s = max(0.0, wall - max(job.created_at, job.run_at))
        headers = [pair for pair in claimed.headers if pair[0] not in _OWN_HEADERS]
        key_id = dict(claimed.headers).get(KEY_HEADER, "")
        arrival = Arrival(
            request_id_of(job), now, job.tenant, (*headers, (IDEMPOTENCY_KEY, job.id)), left_s, urgency=Urgency.BATCH,
            role=JOB, notes=(f"job {job.id}, claim {job.token}, waited {waited_s:.1f} s",), key_id=key_id)
        reply = await self._serve(request, arrival)
        parts: list[bytes] = []
        try:
            while (chunk := await reply.next()) is not None:
                if request.stream:
                    await log.add(chunk.data)
                else:
                    parts.append(chunk.data)
        finally:
            reply.close()
        if reply.summary.is_cut:  # a part of an answer is no result
            raise DeadlineExceeded(Stage.RELAY, "total_s", self._clock.now() - now)
        answer = b"".join(parts) if not request.stream else log.build_body()
        if answer is None:
            raise StayfastError("The events of the answer do not form a whole one.", code="malformed_stream")
        return JobResult(job.id, job.token, JobState.COMPLETED, 200, answer, request_id_of(job), reply.upstream,
                         reply.summary.usage, reply.cost_usd)

    def decide_failure(self, job: Job, error: StayfastError) -> JobOutcome:
        """Another attempt, or the error as the result."""
        decision = decide_retry(error, n_failures=job.n_failures, max_attempts=self._config().max_attempts,
                                now=self._clock.wall(), deadline_at=job.deadline_at, rng=self._rng)
        if decision.step in (NextStep.REPEAT, NextStep.REQUEUE):
            return Release(job.id, job.token, decision.run_at, error.code, is_failure=decision.step is NextStep.REPEAT)
        status, _, body = encode_error(error, job.api, request_id_of(job))
        is_late = job.deadline_at is not None and self._clock.wall() >= job.deadline_at
        state = JobState.DEAD if decision.step is NextStep.BURY else JobState.EXPIRED if is_late else JobState.FAILED
        return JobResult(job.id, job.token, state, status, body, request_id_of(job), why=error.code)

    def _take_stored_answer(self, job: Job, events: list[JobEvent]) -> JobResult:
        """An earlier claim stored its whole stream and died before it stored the result: clients have this answer."""
        body = collect_events(job.api, [event.data for event in events])
        if body is None:
            return JobResult(job.id, job.token, JobState.FAILED, 502, data_of(events[-1].data),
                             f"{job.id}-{events[-1].epoch}", why="upstream_failed")
        return JobResult(job.id, job.token, JobState.COMPLETED, 200, body, f"{job.id}-{events[-1].epoch}")


def request_id_of(job: Job) -> str:
    """The id of the request that a claim makes."""
    return f"{job.id}-{job.token}"
