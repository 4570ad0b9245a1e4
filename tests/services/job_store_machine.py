"""A store of durable work against a model of it: random sequences of calls by several workers."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from stayfast.core.jobs import ClaimedJob, JobState, Release
from stayfast.stores.jobs.base import HeldJob
from tests.services.job_store_rig import MODEL, JobStoreRig, events_from, find_stored, new_job, result_of

LEASE_S, MAX_CLAIMS = 30.0, 3
WORKERS = st.sampled_from(["h:1:0", "h:1:1", "g:1:0"])
TENANTS = st.sampled_from(["a", "b", None])
ENDS = st.sampled_from([JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED])
PICK = st.integers(0, 1 << 16)


@dataclass
class ModelJob:
    """A job as it should be stored."""

    tenant: str | None
    rank: int
    key: str | None
    run_at: float
    deadline_at: float | None
    state: JobState = JobState.QUEUED
    token: int = 0
    worker: str | None = None
    lease_until: float = 0.0
    is_cancelling: bool = False
    n_failures: int = 0
    n_results: int = 0
    n_lost: int = 0  # workers that died with it
    before: set[str] = field(default_factory=set)  # jobs that run before it, since it has failed, if they are due
    events: list[tuple[int, int]] = field(default_factory=list)

    def lose_worker(self) -> None:
        """Its lease ended."""
        self.n_lost += 1
        self.run_at = 0.0
        self.state = (JobState.CANCELLED if self.is_cancelling else JobState.DEAD if self.n_lost >= MAX_CLAIMS
                      else JobState.QUEUED)


class JobStoreMachine(RuleBasedStateMachine):
    """Calls of clients, workers and a sweeper, in any order, with stale tokens among them."""

    def __init__(self, opened: AbstractAsyncContextManager[JobStoreRig]) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._opened = opened
        self._rig = self._run(opened.__aenter__())
        self._jobs: dict[str, ModelJob] = {}
        self._claims: list[ClaimedJob] = []
        self._refunded: set[tuple[str | None, int]] = set()  # tenants and ranks of which a queued job has ended

    def teardown(self) -> None:
        self._run(self._opened.__aexit__(None, None, None))
        self._runner.close()

    @rule(tenant=TENANTS, rank=st.integers(0, 2), key=st.sampled_from([None, None, "k1", "k2"]),
          delay_s=st.sampled_from([0.0, 0.0, 20.0]), deadline_s=st.sampled_from([None, 45.0]))
    def submit(self, tenant: str | None, rank: int, key: str | None, delay_s: float, deadline_s: float | None) -> None:
        job_id, now = f"j{len(self._jobs)}", self._rig.now()
        run_at, deadline_at = now + delay_s if delay_s else 0.0, None if deadline_s is None else now + deadline_s
        earlier = [other for other, job in self._jobs.items() if key is not None and (job.tenant, job.key) == (tenant, key)]
        (submitted,) = self._run(self._rig.store.submit([new_job(
            job_id, tenant=tenant, rank=rank, idempotency_key=key, run_at=run_at, deadline_at=deadline_at)]))
        assert (submitted.is_new, submitted.job.id) == (not earlier, earlier[0] if earlier else job_id)
        if not earlier:
            self._jobs[job_id] = ModelJob(tenant, rank, key, run_at, deadline_at)

    @rule(worker=WORKERS, n=st.integers(0, 4))
    def claim(self, worker: str, n: int) -> None:
        now = self._rig.now()
        claims = self._run(self._rig.store.claim(worker, {MODEL: n}, LEASE_S))
        ready = [job for job in self._jobs.values() if job.state is JobState.QUEUED and job.run_at <= now
                 and (job.deadline_at is None or job.deadline_at > now)]
        assert len(claims) == min(n, len(ready))
        expected_ranks = sorted(job.rank for job in ready)[:len(claims)]
        assert [claimed.job.rank for claimed in claims] == expected_ranks
        due = {job_id for job_id, job in self._jobs.items() if job in ready}
        for claimed in claims:
            job = self._jobs[claimed.job.id]
            assert job in ready
            assert not job.before & due, (claimed.job.id, job.before & due)
            self._forget_place(claimed.job.id)
            due.discard(claimed.job.id)
            job.state, job.token, job.worker, job.lease_until = JobState.RUNNING, job.token + 1, worker, now + LEASE_S
            assert (claimed.job.token, claimed.job.worker, claimed.job.state) == (job.token, worker, JobState.RUNNING)
            self._claims.append(claimed)

    def _holds(self, claimed: ClaimedJob) -> bool:
        job = self._jobs[claimed.job.id]
        return job.state is JobState.RUNNING and job.token == claimed.job.token

    @precondition(lambda self: self._claims)
    @rule(pick=PICK, state=ENDS)
    def finish(self, pick: int, state: JobState) -> None:
        claimed = self._claims[pick % len(self._claims)]
        job, holds = self._jobs[claimed.job.id], self._holds(claimed)
        was_finished = job.state.is_final and job.token == claimed.job.token and job.n_results == 1
        assert self._run(self._rig.store.finish([result_of(claimed, state=state)])) == [holds or was_finished]
        if holds:
            job.state, job.n_results = state, job.n_results + 1

    @precondition(lambda self: self._claims)
    @rule(pick=PICK, is_failure=st.booleans())
    def release(self, pick: int, *, is_failure: bool) -> None:
        claimed = self._claims.pop(pick % len(self._claims))
        job, holds = self._jobs[claimed.job.id], self._holds(claimed)
        released = self._run(self._rig.store.release([Release(claimed.job.id, claimed.job.token, 0.0, "x", is_failure)]))
        if holds:
            assert released == [True]
            job.state = JobState.CANCELLED if job.is_cancelling else JobState.QUEUED
            job.run_at, job.n_failures = 0.0, job.n_failures + (is_failure and not job.is_cancelling)
            if is_failure and job.state is JobState.QUEUED:
                self._put_behind(claimed.job.id)

    @rule(worker=WORKERS, n=st.integers(2, 5))
    def fail_in_turn(self, worker: str, n: int) -> None:
        """Some jobs of one tenant and rank, and a worker whose every attempt fails."""
        for _ in range(3):
            self.submit("a", 1, None, 0.0, None)
        for _ in range(n):
            n_before = len(self._claims)
            self.claim(worker, 1)
            if len(self._claims) > n_before:
                self.release(n_before, is_failure=True)

    def _put_behind(self, job_id: str) -> None:
        """Behind all queued jobs of its tenant and rank; unless its tenant was refunded, by a store that refunds."""
        job = self._jobs[job_id]
        if (job.tenant, job.rank) not in self._refunded:
            job.before = {other_id for other_id, other in self._jobs.items() if other is not job
                          and other.state is JobState.QUEUED and (other.tenant, other.rank) == (job.tenant, job.rank)}

    def _forget_place(self, job_id: str) -> None:
        self._jobs[job_id].before.clear()
        for other in self._jobs.values():
            other.before.discard(job_id)

    @precondition(lambda self: self._claims)
    @rule(pick=PICK)
    def bury(self, pick: int) -> None:
        claimed = self._claims.pop(pick % len(self._claims))
        holds = self._holds(claimed)
        buried = self._run(self._rig.store.bury(claimed.job.id, claimed.job.token, "poison"))
        if holds:
            assert buried
            self._jobs[claimed.job.id].state = JobState.DEAD

    @precondition(lambda self: self._claims)
    @rule(pick=PICK, n=st.integers(1, 3))
    def append_events(self, pick: int, n: int) -> None:
        claimed = self._claims[pick % len(self._claims)]
        job, holds, epoch = self._jobs[claimed.job.id], self._holds(claimed), claimed.job.token
        first = len(job.events)
        assert self._run(self._rig.store.append_events(claimed.job.id, epoch, events_from(first, n, epoch))) is holds
        if holds:
            job.events += [(k, epoch) for k in range(first, first + n)]

    @rule(worker=WORKERS)
    def extend(self, worker: str) -> None:
        latest = {claimed.job.id: claimed for claimed in self._claims if claimed.job.worker == worker}
        mine = list(latest.values())
        lost = {claimed.job.id for claimed in mine if not self._holds(claimed)}
        cancelled = {claimed.job.id for claimed in mine if self._holds(claimed) and self._jobs[claimed.job.id].is_cancelling}
        beat = self._run(self._rig.store.extend(worker, [HeldJob(one.job.id, one.job.token) for one in mine], LEASE_S))
        assert (set(beat.lost), set(beat.cancelled)) == (lost, cancelled)
        for claimed in mine:
            if self._holds(claimed):
                self._jobs[claimed.job.id].lease_until = self._rig.now() + LEASE_S

    @precondition(lambda self: self._jobs)
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        job_id, job = self._pick(pick)
        if job.state is JobState.QUEUED:
            job.state = JobState.CANCELLED
            self._forget_place(job_id)
            self._refunded.add((job.tenant, job.rank))
        elif job.state is JobState.RUNNING:
            job.is_cancelling = True
        cancelled = self._run(self._rig.store.cancel(job_id))
        assert cancelled is not None
        assert cancelled.state is job.state

    @precondition(lambda self: self._jobs)
    @rule(pick=PICK)
    def retry_dead(self, pick: int) -> None:
        job_id, job = self._pick(pick)
        may_retry = job.state in (JobState.FAILED, JobState.DEAD, JobState.EXPIRED, JobState.CANCELLED)
        assert (self._run(self._rig.store.retry_dead(job_id)) is not None) is may_retry
        if may_retry:
            job.state, job.n_results, job.is_cancelling, job.n_failures = JobState.QUEUED, 0, False, 0
            job.run_at, job.deadline_at, job.n_lost = 0.0, None, 0

    @rule(s=st.sampled_from([1.0, 10.0, 25.0]))
    def advance(self, s: float) -> None:
        self._run(self._rig.advance(s))

    @rule()
    def sweep(self) -> None:
        now, before = self._rig.now(), {job_id for job_id, job in self._jobs.items() if job.state.is_final}
        reports = [self._run(self._rig.store.sweep(max_claims=MAX_CLAIMS)) for _ in range(2)]
        for job_id, job in self._jobs.items():
            if job.state is JobState.RUNNING and job.lease_until <= now:
                job.lose_worker()
            if job.state is JobState.QUEUED and job.deadline_at is not None and job.deadline_at <= now:
                job.state = JobState.EXPIRED  # in the same sweep as its lease ends, or in the next one
                self._forget_place(job_id)
                self._refunded.add((job.tenant, job.rank))
        ended = {job_id for job_id, job in self._jobs.items() if job.state.is_final} - before
        finished = [job_id for report in reports for job_id in report.finished]
        assert sorted(finished) == sorted(ended)
        states = [self._jobs[job_id].state for job_id in ended]
        assert sum(report.n_dead for report in reports) == states.count(JobState.DEAD)
        assert sum(report.n_expired for report in reports) == states.count(JobState.EXPIRED)

    @rule(prefix=st.sampled_from(["h:", "g:", "h:1:1"]))
    def recover(self, prefix: str) -> None:
        running = [job for job in self._jobs.values() if job.state is JobState.RUNNING]
        dead = [job for job in running if (job.worker or "").startswith(prefix)]
        assert self._run(self._rig.store.recover(prefix, max_claims=MAX_CLAIMS)) == len(dead)
        for job in dead:
            job.lose_worker()

    @rule()
    def restart(self) -> None:
        self._run(self._rig.restart())

    @invariant()
    def states_are_equal(self) -> None:
        for job_id, job in self._jobs.items():
            stored = self._run(find_stored(self._rig.store, job_id))
            assert (stored.state, stored.token, stored.n_failures) == (job.state, job.token, job.n_failures), job_id
            assert stored.is_cancelling is (job.is_cancelling and job.state is JobState.RUNNING)
            result = self._run(self._rig.store.find_result(job_id))
            assert (result is not None) == bool(job.n_results)
            page = self._run(self._rig.store.read_events(job_id, -1))
            assert [(event.n, event.epoch) for event in page.events] == job.events
        unfinished = [job for job in self._jobs.values() if not job.state.is_final]
        for tenant in ("a", None):
            assert self._run(self._rig.store.count_unfinished(tenant)) == sum(job.tenant == tenant for job in unfinished)
        depths = self._run(self._rig.store.depths())
        assert sum(depth.n_queued + depth.n_deferred + depth.n_running for depth in depths) == len(unfinished)

    def _pick(self, pick: int) -> tuple[str, ModelJob]:
        return list(self._jobs.items())[pick % len(self._jobs)]

    def _run(self, work: Any) -> Any:
        return self._runner.run(work)


def check_store(opened: Callable[[], AbstractAsyncContextManager[JobStoreRig]], n_examples: int = 25) -> None:
    """Run the machine on fresh stores."""
    run_state_machine_as_test(cast("Any", lambda: JobStoreMachine(opened())), settings=settings(
        max_examples=n_examples, stateful_step_count=40, deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]))
