"""Runs the jobs of the store in this process: claims what the upstreams have room for, and gives nothing up.

    claim      one call for all routes, with the room of each; woken by the topic `work`, else every POLL_S
    run        a Task for each job (jobs/execution.py)
    heartbeat  extends all leases every lease / 3; stops the Tasks of lost and cancelled jobs
    outcome    written in groups, and held until the store has it (jobs/outcomes.py)
    recover    at the start, and with each sweep: the jobs of dead workers of this machine
    drain      no new claims; what still runs at the end goes back to the queue, and counts as no failure

A route that this gateway does not have is never claimed, so its jobs stay for other gateways.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from stayfast.core.clock import Clock, Rng
from stayfast.core.errors import StayfastError
from stayfast.core.events import JobEnded, JobLeaseLost, JobReturned, Sink
from stayfast.core.jobs import ClaimedJob, Door, QueueDepth, Release
from stayfast.jobs.attempts import ReportError, attempt
from stayfast.jobs.capacity import JobCapacity
from stayfast.jobs.config import JobsConfig
from stayfast.jobs.execution import JobExecution, JobOutcome
from stayfast.jobs.outcomes import OutcomeWriter
from stayfast.jobs.service import WORK, job_topic
from stayfast.pipeline.tasks import BackgroundTasks
from stayfast.policy.resilience.retry import backoff_s
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import Heartbeat, HeldJob, JobStore

POLL_S = 2.0  # a lost notification delays a job by this much
ROOM_POLL_S = 0.2  # while jobs wait for room
DEPTHS_S = 5.0  # age of the queue's figures
RETRY_S, RETRY_CAP_S = 0.2, 10.0
CANCEL_CHECK_S = 1.0  # at most one check for cancellations in this time, besides the heartbeats
_INTERNAL_ERROR = "Internal error. The gateway's log has the cause."
_SILENT = (Door.BATCH, Door.MESSAGE_BATCH)  # no client waits for a single line


class RunningJob:
    """One claim of this worker, from the claim until the store has its outcome."""

    __slots__ = ("claimed", "is_cancelled", "is_decided", "is_lost", "started_at", "task")

    def __init__(self, claimed: ClaimedJob, started_at: float) -> None:
        self.claimed = claimed
        self.started_at = started_at  # monotonic
        self.task: asyncio.Task[None] | None = None
        self.is_cancelled = False  # by its client
        self.is_lost = False
        self.is_decided = False  # it has an outcome, which waits for the store


class RouteQueues:
    """What this process knows about the queues of routes."""

    __slots__ = ("_idle_since", "idle", "waiting")

    def __init__(self, now: float) -> None:
        self._idle_since = now
        self.idle: set[str] = set()  # routes that had no queued job at the last claim
        self.waiting: tuple[str, ...] = ()  # models with queued jobs, by the last figures

    def forget_idle(self, now: float) -> None:
        """Once in POLL_S, every route may have jobs again."""
        if now - self._idle_since >= POLL_S:
            self._idle_since = now
            self.idle.clear()

    def note_waiting(self, models: Sequence[str]) -> bool:
        """Returns whether one of them was thought idle."""
        self.waiting = tuple(models)
        is_news = not self.idle.isdisjoint(models)
        self.idle.difference_update(models)
        return is_news

    def note_claim(self, room: Mapping[str, int], claimed: Sequence[ClaimedJob]) -> None:
        """Routes that gave fewer jobs than they had room for have no more."""
        n_claimed = Counter(job.job.model for job in claimed)
        self.idle.update(model for model, n in room.items() if n_claimed[model] < n)


class JobRunner:
    """The jobs of one process. Belongs to one loop; construct it while the loop runs."""

    __slots__ = ("_capacity", "_clock", "_config", "_execution", "_heartbeat_now", "_is_draining", "_loops",
                 "_outcomes", "_queues", "_report", "_rng", "_running", "_sink", "_store", "_tasks", "_wake")

    def __init__(self, store: JobStore, execution: JobExecution, capacity: JobCapacity, config: Callable[[], JobsConfig], *,
                 clock: Clock, rng: Rng, sink: Sink, report: ReportError) -> None:
        """config: the settings that are in force. report: gets unexpected exceptions."""
        self._store = store
        self._execution = execution
        self._capacity = capacity
        self._config = config
        self._clock = clock
        self._rng = rng
        self._sink = sink
        self._report = report
        self._outcomes = OutcomeWriter(store, rng, report)
        self._running: dict[str, RunningJob] = {}
        self._tasks = BackgroundTasks()
        self._loops: list[asyncio.Task[None]] = []  # the claims first
        self._wake = asyncio.Event()
        self._heartbeat_now = asyncio.Event()
        self._is_draining = False
        self._queues = RouteQueues(clock.now())

    @property
    def n_running(self) -> int:
        return len(self._running)

    def start(self, worker: str) -> None:
        """Begin to claim as this worker."""
        self._loops = [self._tasks.spawn(loop) for loop in (
            self._claim(worker), self._outcomes.run(), self._beat(worker), self._listen())]

    def note_depths(self, depths: Iterable[QueueDepth]) -> None:
        """The queue's figures are known: a route to any model claims the models that they name."""
        if self._queues.note_waiting([depth.model for depth in depths if depth.n_queued]):
            self._wake.set()

    def drain(self) -> None:
        """Claim no more jobs."""
        self._is_draining = True
        self._wake.set()

    async def stop(self, wait_s: float) -> None:
        """Wait up to `wait_s` for the running jobs, then give the rest back."""
        self.drain()
        if self._loops:
            await asyncio.wait(self._loops[:1], timeout=RETRY_CAP_S)  # the last claim
        await self._wait_for_jobs(wait_s)
        for running in list(self._running.values()):
            if not running.is_decided:
                _cancel(running)
        await self._wait_for_jobs(RETRY_CAP_S)
        for task in self._loops:
            task.cancel()
        if self._loops:
            await asyncio.wait(self._loops)

    async def _wait_for_jobs(self, seconds: float) -> None:
        await asyncio.sleep(0)  # a Task that is cancelled before its first step gives nothing back
        tasks = [running.task for running in self._running.values() if running.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def _claim(self, worker: str) -> None:
        n_failures = 0
        while not self._is_draining:
            if await attempt(self._claim_once(worker), self._report):
                n_failures = 0
                continue
            n_failures += 1
            await self._pause(backoff_s(n_failures, RETRY_S, RETRY_CAP_S, self._rng, jitter=0.5))

    async def _claim_once(self, worker: str) -> None:
        """Claim what has room; without any, wait for the next reason to look. Raises StoreUnavailable."""
        self._wake.clear()
        config = self._config()
        self._queues.forget_idle(self._clock.now())
        n_active = sum(not running.is_decided for running in self._running.values())
        room, is_short = self._capacity.room(self._queues.waiting, config.concurrency - self.n_running,
                                             self._queues.idle, n_active=n_active)
        claimed = await self._store.claim(worker, room, config.lease_s) if room else []
        for job in claimed:
            self._start_job(job)
        self._queues.note_claim(room, claimed)
        if not claimed:
            await self._pause(ROOM_POLL_S if is_short else POLL_S)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _listen(self) -> None:
        """Wake the claims at new work."""
        while True:
            if not await attempt(self._listen_once(), self._report):
                await asyncio.sleep(POLL_S)

    async def _listen_once(self) -> None:
        """Raises StoreUnavailable."""
        began_at = self._clock.now()
        await self._store.wait(WORK, POLL_S)
        if self._clock.now() - began_at >= POLL_S:
            return
        self._queues.idle.clear()
        self._wake.set()
        if self._running:
            self._heartbeat_now.set()

    def _start_job(self, claimed: ClaimedJob) -> None:
        running = RunningJob(claimed, self._clock.now())
        before = self._running.get(claimed.job.id)
        if before is not None:  # its lease ended before its heartbeat
            self._lose(before)
        self._running[claimed.job.id] = running
        running.task = self._tasks.spawn(self._run(running))

    async def _run(self, running: RunningJob) -> None:
        """One job from its claim to its outcome in the store."""
        claimed = running.claimed
        job = claimed.job
        outcome: JobOutcome | None = self._execution.decide_failure(job, StayfastError(_INTERNAL_ERROR))
        try:
            try:
                outcome = await self._execution.run(claimed)
            except asyncio.CancelledError:
                outcome = Release(job.id, job.token, self._clock.wall(), "drained", is_failure=False)
                if running.is_cancelled:
                    outcome = await self._execution.record_cancellation(claimed)
            finally:  # also after an unexpected exception, which is reported
                running.is_decided = True
                await self._settle(running, outcome)
        finally:
            if self._running.get(job.id) is running:  # else this worker has claimed it again
                del self._running[job.id]
            self._wake.set()

    async def _settle(self, running: RunningJob, outcome: JobOutcome | None) -> None:
        """Store the outcome, unless another worker has the job by now."""
        if running.is_lost:
            return
        if outcome is not None and await self._outcomes.write(outcome):
            await self._announce(running, outcome)
        elif not running.is_lost:
            self._sink.emit(JobLeaseLost(self._capacity.route_of(running.claimed.job.model)))

    async def _announce(self, running: RunningJob, outcome: JobOutcome) -> None:
        job, now = running.claimed.job, self._clock.now()
        run_s = now - running.started_at
        if isinstance(outcome, Release):
            self._sink.emit(JobReturned(self._capacity.route_of(job.model), outcome.why, is_failure=outcome.is_failure))
            return
        waited_s = max(0.0, self._clock.wall() - run_s - max(job.created_at, job.run_at))
        self._sink.emit(JobEnded(self._capacity.route_of(job.model), job.door, outcome.state, waited_s, run_s))
        if job.door not in _SILENT:
            with suppress(StoreUnavailable):
                await self._store.notify(job_topic(job.id))

    async def _beat(self, worker: str) -> None:
        """Extend the leases, and stop the jobs that are lost or cancelled."""
        beat_at = 0.0
        while True:
            config = self._config()
            self._heartbeat_now.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(config.heartbeat_s):
                    await self._heartbeat_now.wait()
            await asyncio.sleep(max(0.0, beat_at + CANCEL_CHECK_S - self._clock.now()))
            beat_at = self._clock.now()
            if not await attempt(self._beat_once(worker, config.lease_s), self._report):
                await asyncio.sleep(min(CANCEL_CHECK_S, config.heartbeat_s))
                self._heartbeat_now.set()

    async def _beat_once(self, worker: str, lease_s: float) -> None:
        """Raises StoreUnavailable."""
        held = dict(self._running)
        if held:
            self._stop_jobs(held, await self._store.extend(
                worker, [HeldJob(job_id, running.claimed.job.token) for job_id, running in held.items()], lease_s))

    def _stop_jobs(self, held: Mapping[str, RunningJob], heartbeat: Heartbeat) -> None:
        """held: the claims that were extended. The store decides about those with an outcome: an ended job has no lease."""
        for running in (held[job_id] for job_id in heartbeat.lost):
            if not running.is_decided:
                self._lose(running)
        for running in (held[job_id] for job_id in heartbeat.cancelled):
            if not (running.is_cancelled or running.is_lost or running.is_decided):
                running.is_cancelled = True
                _cancel(running)

    def _lose(self, running: RunningJob) -> None:
        """Stop a job that another claim has by now."""
        if not running.is_lost:
            running.is_lost = True
            self._sink.emit(JobLeaseLost(self._capacity.route_of(running.claimed.job.model)))
            _cancel(running)

    def __repr__(self) -> str:
        return f"<JobRunner: {self.n_running} jobs{', draining' if self._is_draining else ''}>"


def _cancel(running: RunningJob) -> None:
    if running.task is not None:
        running.task.cancel()
