"""Everything that `JobStore` states about jobs and their events, as tests that run on any store."""

import asyncio
from typing import Any

import pytest

from stayfast.core.jobs import Door, JobEvent, JobFilter, JobState, QueueDepth, Release
from stayfast.core.types import Api
from tests.services.job_claim_suite import ClaimSuite
from tests.services.job_store_rig import (
    MODEL,
    USAGE,
    JobStoreRig,
    RiggedSuite,
    claim_ids,
    claim_one,
    events_from,
    find_stored,
    new_job,
    on_store,
    result_of,
    state_of,
)


class JobSuite(RiggedSuite):
    """Submission, results, deletion."""

    @on_store
    async def test_submit_job_is_stored_with_all_fields(self, rig: JobStoreRig) -> None:
        """A job is stored with everything that was submitted, and after a restart too."""
        job = new_job("j1", door=Door.RESPONSES, api=Api.RESPONSES, model="m/ü", body=bytes(range(256)), tenant="t",
                      headers=(("a", "1"), ("a", "2")), is_stream=True, rank=2, n_tokens=77, weight=2.0,
                      deadline_at=rig.now() + 100.0, aged_at=rig.now() + 50.0, keep_s=60.0, idempotency_key="k",
                      digest=b"\0d", custom_id="c", metadata={"k": "v"})
        (submitted,) = await rig.store.submit([job])
        assert submitted.is_new
        assert not submitted.is_conflict
        await rig.restart()
        stored = await find_stored(rig.store, "j1")
        assert stored == submitted.job
        assert (stored.door, stored.api, stored.model, stored.tenant) == (Door.RESPONSES, Api.RESPONSES, "m/ü", "t")
        assert (stored.state, stored.is_stream, stored.rank, stored.n_tokens) == (JobState.QUEUED, True, 2, 77)
        assert (stored.deadline_at, stored.keep_s, stored.custom_id) == (job.deadline_at, 60.0, "c")
        assert stored.metadata == {"k": "v"}
        assert stored.created_at == pytest.approx(rig.now(), abs=60.0)
        assert (stored.token, stored.n_failures, stored.worker, stored.started_at) == (0, 0, None, None)
        assert (stored.finished_at, stored.expires_at) == (None, None)
        assert await rig.store.find_body("j1") == bytes(range(256))
        (claimed,) = await rig.store.claim("host:1:0", {"m/ü": 5}, 30.0)
        assert (claimed.body, claimed.headers) == (job.body, job.headers)

    @on_store
    async def test_unknown_ids_return_nothing(self, rig: JobStoreRig) -> None:
        """Unknown ids are None, False or empty, never an error."""
        store = rig.store
        assert (await store.find("x"), await store.find_body("x"), await store.find_result("x")) == (None, None, None)
        assert (await store.cancel("x"), await store.retry_dead("x"), await store.delete("x")) == (None, None, False)
        assert (await store.bury("x", 1, "w"), await store.count_ahead("x")) == (False, 0)
        assert (await store.read_events("x", -1)).events == ()
        assert not await store.append_events("x", 1, events_from(0, 1, 1))
        assert await store.list_jobs(JobFilter(is_for_tenant=False)) == []
        assert await store.claim("host:1:0", {MODEL: 4, "other": 0}, 30.0) == []
        assert await store.submit([]) == []

    @on_store
    async def test_submit_repeated_id_is_the_stored_job(self, rig: JobStoreRig) -> None:
        """A submission can be repeated."""
        await rig.store.submit([new_job("j1")])
        again = await rig.store.submit([new_job("j1", body=b"other"), new_job("j2"), new_job("j2")])
        assert [(one.job.id, one.is_new) for one in again] == [("j1", False), ("j2", True), ("j2", False)]
        assert await rig.store.find_body("j1") == b"body of j1"
        assert sorted(await claim_ids(rig.store)) == ["j1", "j2"]

    @on_store
    async def test_submit_same_idempotency_key_is_the_earlier_job(self, rig: JobStoreRig) -> None:
        """Also after its end; by tenant and door; another request with the same key is a conflict."""
        first = new_job("j1", tenant="t", idempotency_key="k", digest=b"1")
        await rig.store.submit([first])
        claimed = await claim_one(rig.store)
        await rig.store.finish([result_of(claimed)])
        again, other, tenant, nobody, door = await rig.store.submit([
            new_job("j2", tenant="t", idempotency_key="k", digest=b"1"),
            new_job("j3", tenant="t", idempotency_key="k", digest=b"2"),
            new_job("j4", tenant="u", idempotency_key="k", digest=b"2"),
            new_job("j5", tenant=None, idempotency_key="k", digest=b"2"),
            new_job("j6", tenant="t", door=Door.ASYNC, idempotency_key="k", digest=b"2")])
        assert (again.is_new, again.is_conflict, again.job.id, again.job.state) == (False, False, "j1", JobState.COMPLETED)
        assert (other.is_new, other.is_conflict, other.job.id) == (False, True, "j1")
        assert all(one.is_new for one in (tenant, nobody, door))
        (same,) = await rig.store.submit([new_job("j7", tenant=None, idempotency_key="k", digest=b"2")])
        assert (same.is_new, same.job.id) == (False, "j5")

    @on_store
    async def test_submit_concurrently_stores_each_once(self, rig: JobStoreRig) -> None:
        """Many callers at once: each gets its own job, one key has one job."""
        submitted = await asyncio.gather(*(
            rig.store.submit([new_job(f"j{n}", tenant="t", idempotency_key=f"k{n % 5}")]) for n in range(40)))
        assert len({one.job.id for (one,) in submitted}) == 5
        assert sum(one.is_new for (one,) in submitted) == 5
        assert await rig.store.count_unfinished("t") == 5

    @on_store
    async def test_finish_stores_one_result(self, rig: JobStoreRig) -> None:
        """The result with all fields; a repetition changes nothing; a stale token is discarded."""
        await rig.store.submit([new_job("j1", keep_s=100.0)])
        claimed = await claim_one(rig.store)
        assert (claimed.job.state, claimed.job.token, claimed.job.worker) == (JobState.RUNNING, 1, "host:1:0")
        assert claimed.job.started_at == pytest.approx(rig.now(), abs=60.0)
        result = result_of(claimed, status_code=201, request_id="r", upstream="u", usage=USAGE, cost_usd=0.5)
        assert await rig.store.finish([result_of(claimed, token=2), result]) == [False, True]
        assert await rig.store.finish([result, result_of(claimed, token=9, body=b"x")]) == [True, False]
        await rig.restart()
        assert await rig.store.find_result("j1") == result
        job = await find_stored(rig.store, "j1")
        assert job.state is JobState.COMPLETED
        assert job.finished_at is not None
        assert job.expires_at == pytest.approx(job.finished_at + 100.0)
        assert await rig.store.claim("w", {MODEL: 1}, 30.0) == []

    @on_store
    async def test_finish_failed_records_why(self, rig: JobStoreRig) -> None:
        """A failure's code is in the job and in the result."""
        await rig.store.submit([new_job("j1")])
        result = result_of(await claim_one(rig.store), state=JobState.FAILED, status_code=400, why="bad_request")
        assert await rig.store.finish([result]) == [True]
        job = await find_stored(rig.store, "j1")
        assert (job.state, job.why) == (JobState.FAILED, "bad_request")
        assert await rig.store.find_result("j1") == result

    @on_store
    async def test_delete_ended_job_is_gone(self, rig: JobStoreRig) -> None:
        """With its events and result; a job that has not ended is not deleted."""
        await rig.store.submit([new_job("j1", is_stream=True)])
        assert not await rig.store.delete("j1")
        claimed = await claim_one(rig.store)
        await rig.store.append_events("j1", 1, events_from(0, 3, 1))
        assert not await rig.store.delete("j1")
        await rig.store.finish([result_of(claimed)])
        assert await rig.store.delete("j1")
        assert (await rig.store.find("j1"), await rig.store.find_result("j1"), await rig.store.find_body("j1")) == (
            None, None, None)
        assert (await rig.store.read_events("j1", -1)).events == ()
        assert not await rig.store.delete("j1")

    @on_store
    async def test_list_jobs_filters_and_pages(self, rig: JobStoreRig) -> None:
        """Newest first, by tenant, state, door and batch."""
        store = rig.store
        for n in range(6):
            await store.submit([new_job(f"j{n}", tenant="a" if n % 2 else None, door=Door.ASYNC if n == 5 else Door.JOBS)])
        await store.cancel("j3")

        async def ids(**fields: Any) -> list[str]:
            return [job.id for job in await store.list_jobs(JobFilter(**fields))]

        assert await ids(is_for_tenant=False) == ["j5", "j4", "j3", "j2", "j1", "j0"]
        assert await ids(is_for_tenant=False, limit=2, after_id="j4") == ["j3", "j2"]
        assert await ids(tenant="a") == ["j5", "j3", "j1"]
        assert await ids(tenant=None) == ["j4", "j2", "j0"]
        assert await ids(tenant="a", states=(JobState.QUEUED,)) == ["j5", "j1"]
        assert await ids(tenant="a", doors=(Door.ASYNC,)) == ["j5"]
        assert await ids(is_for_tenant=False, batch_id="b") == []


class CancelSuite(RiggedSuite):
    """Cancellation, purge, counts, events, notifications."""

    @on_store
    async def test_cancel_queued_job_ends_at_once(self, rig: JobStoreRig) -> None:
        """A second cancel changes nothing."""
        await rig.store.submit([new_job("j1"), new_job("j2", run_at=rig.now() + 100.0)])
        for job_id in ("j1", "j2"):
            job = await rig.store.cancel(job_id)
            assert job is not None
            assert (job.state, job.is_cancelling) == (JobState.CANCELLED, False)
            assert job.expires_at is not None
            assert await rig.store.cancel(job_id) == job
        assert await claim_ids(rig.store) == []

    @on_store
    async def test_cancel_running_job_is_marked_until_its_worker_confirms(self, rig: JobStoreRig) -> None:
        """Released: it ends instead. Its worker dead: the sweep ends it. Finished first: the result stands."""
        await rig.store.submit([new_job(f"j{n}") for n in range(4)])
        claims = {one.job.id: one for one in await rig.store.claim("host:1:0", {MODEL: 4}, 30.0)}
        for job_id in claims:
            job = await rig.store.cancel(job_id)
            assert job is not None
            assert (job.state, job.is_cancelling) == (JobState.RUNNING, True)
        assert await rig.store.release([Release("j0", 1, 0.0)]) == [True]
        assert await rig.store.finish([result_of(claims["j1"])]) == [True]
        assert await rig.store.finish([result_of(claims["j2"], state=JobState.CANCELLED)]) == [True]
        await rig.advance(31.0)
        report = await rig.store.sweep(max_claims=3)
        assert (report.n_recovered, report.finished) == (0, ("j3",))
        states = [await state_of(rig.store, f"j{n}") for n in range(4)]
        assert states == [JobState.CANCELLED, JobState.COMPLETED, JobState.CANCELLED, JobState.CANCELLED]
        assert await claim_ids(rig.store) == []

    @on_store
    async def test_sweep_purges_what_is_over(self, rig: JobStoreRig) -> None:
        """A job's record, result and events go `keep_s` after its end; its idempotency key is then free."""
        await rig.store.submit([new_job("j1", keep_s=100.0, idempotency_key="k"), new_job("j2", keep_s=1000.0)])
        await rig.store.finish([result_of(one) for one in await rig.store.claim("w", {MODEL: 2}, 30.0)])
        await rig.advance(50.0)
        assert (await rig.store.sweep(max_claims=3)).n_purged == 0
        await rig.advance(51.0)
        assert (await rig.store.sweep(max_claims=3)).n_purged == 1
        assert (await rig.store.find("j1"), await rig.store.find_result("j1")) == (None, None)
        assert await rig.store.find_result("j2") is not None
        (again,) = await rig.store.submit([new_job("j3", idempotency_key="k")])
        assert again.is_new

    @on_store
    async def test_sweep_much_work_is_done_in_steps(self, rig: JobStoreRig) -> None:
        """Repeated sweeps end everything."""
        n_jobs = 3000
        for first in range(0, n_jobs, 500):
            await rig.store.submit([new_job(f"j{n}", deadline_at=rig.now() + 10.0, keep_s=60.0)
                                    for n in range(first, first + 500)])
        await rig.advance(11.0)
        n_expired = 0
        while (n := (await rig.store.sweep(max_claims=3)).n_expired):
            n_expired += n
        assert n_expired == n_jobs
        await rig.advance(61.0)
        n_purged = 0
        while (n := (await rig.store.sweep(max_claims=3)).n_purged):
            n_purged += n
        assert n_purged == n_jobs

    @on_store
    async def test_depths_and_counts_follow_the_queue(self, rig: JobStoreRig) -> None:
        """By route and by tenant, through every change of state."""
        now = rig.now()
        await rig.store.submit([
            new_job("j0", tenant="a", n_tokens=10, deadline_at=now + 500.0), new_job("j1", tenant="a", n_tokens=20),
            new_job("j2", tenant=None, n_tokens=30, deadline_at=now + 300.0),
            new_job("j3", tenant="b", n_tokens=40, run_at=now + 100.0), new_job("k0", tenant="b", model="other")])
        (fast, other) = sorted(await rig.store.depths(), key=lambda depth: depth.model)
        assert (fast.n_queued, fast.n_running, fast.n_deferred, fast.n_queued_tokens) == (3, 0, 1, 60)
        assert fast.oldest_at == pytest.approx(now, abs=60.0)
        assert fast.earliest_deadline_at == pytest.approx(now + 300.0)
        assert (other.model, other.n_queued, other.earliest_deadline_at) == ("other", 1, None)
        assert [await rig.store.count_unfinished(tenant) for tenant in ("a", "b", None, "x")] == [2, 2, 1, 0]
        claimed = await claim_one(rig.store)
        (fast, _) = sorted(await rig.store.depths(), key=lambda depth: depth.model)
        assert (fast.n_queued, fast.n_running) == (2, 1)
        await rig.store.finish([result_of(claimed)])
        for job_id in ("j0", "j1", "j2", "j3", "k0"):
            await rig.store.cancel(job_id)
        left = [depth for depth in await rig.store.depths() if depth != QueueDepth(depth.model)]
        assert left == []
        assert [await rig.store.count_unfinished(tenant) for tenant in ("a", "b", None)] == [0, 0, 0]

    @on_store
    async def test_count_ahead_is_the_place_in_the_queue(self, rig: JobStoreRig) -> None:
        """Jobs of the same route that run before it."""
        await rig.store.submit([new_job(f"j{n}", tenant="a") for n in range(5)] + [new_job("k", model="other", tenant="a")])
        await rig.store.submit([new_job("first", rank=0)])
        assert [await rig.store.count_ahead(job_id) for job_id in ("first", "j0", "j4", "k")] == [0, 1, 5, 0]
        assert await claim_ids(rig.store, 2) == ["first", "j0"]
        assert [await rig.store.count_ahead(job_id) for job_id in ("first", "j1", "j4")] == [0, 0, 3]
        await rig.store.submit([new_job(f"a{n}", model="long", tenant="a") for n in range(700)])
        assert [await rig.store.count_ahead(f"a{n}") for n in (0, 300, 650, 699)] == [0, 300, 650, 699]

    @on_store
    async def test_submission_counts_the_jobs_before_it_or_leaves_that_open(self, rig: JobStoreRig) -> None:
        """As `count_ahead` counts them at once afterwards."""
        await rig.store.submit([new_job(f"old{n}", tenant="a") for n in range(20)])
        submitted = await rig.store.submit([new_job("b", tenant="b"), new_job("a", tenant="a"), new_job("first", rank=0),
                                            new_job("other", model="other")])
        for one in submitted:
            assert one.n_ahead in (None, await rig.store.count_ahead(one.job.id))

    @on_store
    async def test_events_are_read_after_a_number(self, rig: JobStoreRig) -> None:
        """In order, in pages, across claims; a repeated append changes nothing."""
        await rig.store.submit([new_job("j1", is_stream=True)])
        await claim_one(rig.store)
        assert await rig.store.append_events("j1", 1, events_from(0, 4, 1))
        assert await rig.store.append_events("j1", 1, events_from(2, 4, 1))
        await rig.store.release([Release("j1", 1, 0.0)])
        claimed = await claim_one(rig.store)
        assert not await rig.store.append_events("j1", 1, events_from(6, 1, 1))
        last = JobEvent(6, 2, b"data: [DONE]\n\n", is_last=True)
        assert await rig.store.append_events("j1", 2, [last])
        await rig.store.finish([result_of(claimed)])
        assert not await rig.store.append_events("j1", 2, events_from(7, 1, 2))
        page = await rig.store.read_events("j1", -1)
        assert list(page.events) == [*events_from(0, 6, 1), last]
        assert page.first_n == 0
        assert [event.n for event in (await rig.store.read_events("j1", 1, 2)).events] == [2, 3]
        assert (await rig.store.read_events("j1", 6)).events == ()

    @on_store
    async def test_notify_wakes_waiters_of_the_topic(self, rig: JobStoreRig) -> None:
        """All of them, long before their time; another topic's waiter stays."""
        async def wake() -> None:
            for _ in range(100):  # a notification may come before the waiter: waiters poll
                await asyncio.sleep(0.02)
                await rig.store.notify("job:1")

        async with asyncio.timeout(30.0):
            other = asyncio.create_task(rig.store.wait("job:2", 3600.0))
            waking = asyncio.create_task(wake())
            await asyncio.gather(rig.store.wait("job:1", 3600.0), rig.store.wait("job:1", 3600.0))
            waking.cancel()
            assert not other.done()
            other.cancel()
            await rig.store.wait("job:1", 0.01)


class JobStoreSuite(JobSuite, ClaimSuite, CancelSuite):
    """All tests of jobs."""
