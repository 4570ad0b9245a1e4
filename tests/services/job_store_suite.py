"""Everything that `JobStore` states about jobs and their events, as tests that run on any store."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from stayfast.core.jobs import Door, JobEvent, JobFilter, JobState, QueueDepth, Release
from stayfast.core.types import Api
from stayfast.stores.jobs.base import HeldJob
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


@dataclass(frozen=True)
class Flow:
    """A tenant's jobs in a test of fairness."""

    tenant: str
    n: int
    n_tokens: int = 100
    weight: float = 1.0


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


class ClaimSuite(RiggedSuite):
    """The order of claims, and leases."""

    @on_store
    async def test_claim_takes_at_most_the_room_of_each_route(self, rig: JobStoreRig) -> None:
        """Each route has its own room; no job is claimed twice."""
        await rig.store.submit([new_job(f"a{n}") for n in range(5)] + [new_job(f"b{n}", model="other") for n in range(5)])
        first = await rig.store.claim("host:1:0", {MODEL: 2, "other": 3, "none": 4}, 30.0)
        assert sorted(one.job.id[0] for one in first) == ["a", "a", "b", "b", "b"]
        second = await rig.store.claim("host:1:1", {MODEL: 9, "other": 9}, 30.0)
        assert len({one.job.id for one in [*first, *second]}) == 10

    @on_store
    async def test_claim_order_is_rank_then_fairness_then_deadline(self, rig: JobStoreRig) -> None:
        """A lower rank first; in a rank, tenants in turn; equal ones by deadline."""
        now = rig.now()
        await rig.store.submit([new_job(f"a{n}", tenant="a", n_tokens=100) for n in range(3)])
        await rig.store.submit([new_job(f"b{n}", tenant="b", n_tokens=150) for n in range(3)])
        await rig.store.submit([new_job("first", tenant="c", rank=0, n_tokens=10_000)])
        assert await claim_ids(rig.store, 7) == ["first", "a0", "b0", "a1", "a2", "b1", "b2"]
        await rig.store.submit([new_job("late", tenant="x", deadline_at=now + 900.0),
                                new_job("soon", tenant="y", deadline_at=now + 300.0), new_job("open", tenant="z")])
        assert await claim_ids(rig.store) == ["soon", "late", "open"]

    @pytest.mark.parametrize(("flows", "served"), [
        ((Flow("a", 40), Flow("b", 40)), {"a": 10, "b": 10}),
        ((Flow("a", 40), Flow("b", 40, weight=3.0)), {"a": 5, "b": 15}),
        ((Flow("a", 40, n_tokens=300), Flow("b", 40, n_tokens=100)), {"a": 5, "b": 15}),
        ((Flow("a", 40), Flow("b", 2)), {"a": 18, "b": 2}),
    ])
    def test_claim_shares_tokens_by_weight(self, flows: tuple[Flow, ...], served: dict[str, int]) -> None:
        """Tenants with a backlog get tokens in the ratio of their weights, however much each has queued."""
        async def main() -> None:
            async with self.open() as rig:
                for flow in flows:
                    await rig.store.submit([new_job(f"{flow.tenant}{n}", tenant=flow.tenant, n_tokens=flow.n_tokens,
                                                    weight=flow.weight) for n in range(flow.n)])
                ids = [job_id for _ in range(20) for job_id in await claim_ids(rig.store, 1)]
                for tenant, n in served.items():
                    assert abs(sum(job_id.startswith(tenant) for job_id in ids) - n) <= 1, ids

        asyncio.run(main())

    @on_store
    async def test_claim_newcomer_does_not_wait_for_a_backlog(self, rig: JobStoreRig) -> None:
        """Nor is a tenant favoured for the time in which it had no jobs; nor does a restart change the order."""
        await rig.store.submit([new_job(f"a{n:03}", tenant="a") for n in range(100)])
        await claim_ids(rig.store, 50)
        await rig.restart()
        await rig.store.submit([new_job(f"b{n:03}", tenant="b") for n in range(50)])
        ids = await claim_ids(rig.store, 20)
        assert 9 <= sum(job_id.startswith("b") for job_id in ids) <= 11, ids

    @on_store
    async def test_claim_cancelled_backlog_costs_its_tenant_nothing(self, rig: JobStoreRig) -> None:
        """A tenant that cancels all its queued jobs shares equally afterwards."""
        await rig.store.submit([new_job(f"a{n}", tenant="a", n_tokens=1000) for n in range(30)])
        for n in range(30):
            await rig.store.cancel(f"a{n}")
        await rig.store.submit([new_job(f"b{n}", tenant="b") for n in range(10)])
        await rig.store.submit([new_job(f"c{n}", tenant="a") for n in range(10)])
        ids = await claim_ids(rig.store, 10)
        assert 4 <= sum(job_id.startswith("c") for job_id in ids) <= 6, ids

    @on_store
    async def test_claim_aged_job_runs_before_all_ranks(self, rig: JobStoreRig) -> None:
        """So that nothing starves."""
        await rig.store.submit([new_job("old", rank=9, aged_at=rig.now() + 100.0), new_job("new", rank=0)])
        await rig.store.submit([new_job("next", rank=0)])
        assert await claim_ids(rig.store, 1) == ["new"]
        await rig.advance(101.0)
        assert await claim_ids(rig.store) == ["old", "next"]

    @on_store
    async def test_claim_deferred_job_waits_until_it_is_due(self, rig: JobStoreRig) -> None:
        """Not before `run_at`, also after a restart."""
        await rig.store.submit([new_job("later", run_at=rig.now() + 50.0), new_job("now")])
        assert await claim_ids(rig.store) == ["now"]
        await rig.restart()
        assert await claim_ids(rig.store) == []
        await rig.advance(51.0)
        assert await claim_ids(rig.store) == ["later"]

    @on_store
    async def test_claim_expired_job_is_not_claimed(self, rig: JobStoreRig) -> None:
        """A sweep ends it."""
        await rig.store.submit([new_job("j1", deadline_at=rig.now() + 10.0),
                                new_job("j2", deadline_at=rig.now() + 10.0, run_at=rig.now() + 90.0)])
        await rig.advance(11.0)
        assert await claim_ids(rig.store) == []
        report = await rig.store.sweep(max_claims=3)
        assert (report.n_expired, sorted(report.finished)) == (2, ["j1", "j2"])
        assert await state_of(rig.store, "j1") is JobState.EXPIRED
        assert await rig.store.find_result("j1") is None
        assert (await find_stored(rig.store, "j2")).finished_at is not None

    @on_store
    async def test_claim_concurrently_gives_each_job_once(self, rig: JobStoreRig) -> None:
        """Many workers at once."""
        await rig.store.submit([new_job(f"j{n}") for n in range(50)])
        claims = await asyncio.gather(*(claim_ids(rig.store, 7, worker=f"host:1:{n}") for n in range(10)))
        ids = [job_id for claim in claims for job_id in claim]
        assert len(ids) == len(set(ids)) == 50

    @on_store
    async def test_extend_reports_lost_and_cancelled(self, rig: JobStoreRig) -> None:
        """An extended lease lasts; a lost claim and a wanted cancellation are reported."""
        await rig.store.submit([new_job(f"j{n}") for n in range(3)])
        claims = {one.job.id: one for one in await rig.store.claim("host:1:0", {MODEL: 3}, 30.0)}
        held = [HeldJob(job_id, one.job.token) for job_id, one in claims.items()]
        await rig.advance(20.0)
        await rig.store.cancel("j1")
        await rig.store.finish([result_of(claims["j2"])])
        beat = await rig.store.extend("host:1:0", [*held, HeldJob("unknown", 1)], 30.0)
        assert (set(beat.lost), beat.cancelled) == ({"j2", "unknown"}, ("j1",))
        await rig.advance(20.0)
        assert (await rig.store.sweep(max_claims=3)).n_recovered == 0
        await rig.advance(20.0)
        assert (await rig.store.sweep(max_claims=3)).n_recovered == 1
        beat = await rig.store.extend("host:1:0", [HeldJob("j0", 1)], 30.0)
        assert beat.lost == ("j0",)

    @on_store
    async def test_sweep_recovers_ended_leases_then_buries(self, rig: JobStoreRig) -> None:
        """The next claim has a higher token; the result of the first worker is discarded; then the job is dead."""
        await rig.store.submit([new_job("j1")])
        first = await claim_one(rig.store)
        assert (await rig.store.sweep(max_claims=2)).n_recovered == 0
        await rig.advance(31.0)
        assert (await rig.store.sweep(max_claims=2)).n_recovered == 1
        second = await claim_one(rig.store, "host:2:0")
        assert second.job.token == 2
        assert await rig.store.finish([result_of(first)]) == [False]
        assert not await rig.store.append_events("j1", 1, events_from(0, 1, 1))
        await rig.advance(31.0)
        report = await rig.store.sweep(max_claims=2)
        assert (report.n_recovered, report.n_dead, report.finished) == (0, 1, ("j1",))
        job = await find_stored(rig.store, "j1")
        assert job.state is JobState.DEAD
        assert job.why
        assert await rig.store.finish([result_of(second)]) == [False]

    @on_store
    async def test_recover_puts_back_claims_of_a_prefix(self, rig: JobStoreRig) -> None:
        """Before their leases end; other workers' claims stay. The characters of a pattern stand for themselves."""
        await rig.store.submit([new_job(f"j{n}") for n in range(3)])
        (one,) = await rig.store.claim("ho_t%:1:0", {MODEL: 1}, 30.0)
        (two,) = await rig.store.claim("host2:1:0", {MODEL: 1}, 30.0)
        await rig.store.claim("HO_T%:1:0", {MODEL: 1}, 30.0)
        assert await rig.store.recover("ho_t%:") == 1
        assert await state_of(rig.store, one.job.id) is JobState.QUEUED
        assert await state_of(rig.store, two.job.id) is JobState.RUNNING
        assert await claim_ids(rig.store, 3, worker="host:3:0") == [one.job.id]

    @on_store
    async def test_release_puts_back_until_run_at(self, rig: JobStoreRig) -> None:
        """A failure is counted and has its reason; a release by a stale token changes nothing."""
        await rig.store.submit([new_job("j1")])
        claimed = await claim_one(rig.store)
        stale, good = (Release("j1", token, rig.now() + 5.0, "upstream_429") for token in (7, claimed.job.token))
        assert await rig.store.release([stale, good]) == [False, True]
        job = await find_stored(rig.store, "j1")
        assert (job.state, job.n_failures, job.why, job.worker) == (JobState.QUEUED, 1, "upstream_429", None)
        assert await claim_ids(rig.store) == []
        await rig.advance(6.0)
        again = await claim_one(rig.store)
        assert again.job.token == 2
        assert await rig.store.release([Release("j1", 2, 0.0, is_failure=False)]) == [True]
        assert (await find_stored(rig.store, "j1")).n_failures == 1
        assert await claim_ids(rig.store) == ["j1"]

    @on_store
    async def test_bury_ends_as_dead_and_retry_runs_again(self, rig: JobStoreRig) -> None:
        """A retried job has no result, no failures, and can finish."""
        await rig.store.submit([new_job("j1", deadline_at=rig.now() + 10.0)])
        claimed = await claim_one(rig.store)
        assert not await rig.store.bury("j1", 5, "poison")
        assert await rig.store.bury("j1", claimed.job.token, "poison")
        assert await state_of(rig.store, "j1") is JobState.DEAD
        await rig.advance(20.0)
        job = await rig.store.retry_dead("j1")
        assert job is not None
        assert (job.state, job.n_failures, job.finished_at, job.expires_at) == (JobState.QUEUED, 0, None, None)
        assert await rig.store.retry_dead("j1") is None
        again = await claim_one(rig.store)
        assert again.job.token == 2
        assert await rig.store.finish([result_of(again, state=JobState.FAILED, why="no")]) == [True]
        assert await rig.store.retry_dead("j1") is not None
        assert await rig.store.find_result("j1") is None
        last = await claim_one(rig.store)
        assert await rig.store.finish([result_of(last)]) == [True]
        assert await rig.store.retry_dead("j1") is None


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
