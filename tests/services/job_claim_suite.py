"""Everything that `JobStore` states about claims, as tests that run on any store."""

import asyncio
from dataclasses import dataclass

import msgspec
import pytest

from stayfast.core.jobs import ClaimedJob, JobState, Release
from stayfast.stores.jobs.base import HeldJob
from tests.services.job_store_rig import (
    MODEL,
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
    async def test_job_that_runs_already_is_a_claim_of_its_worker(self, rig: JobStoreRig) -> None:
        """No other claims it; its worker stores events, extends and finishes with token 1; a repetition starts nothing."""
        new = new_job("live", worker="host:1:0", lease_s=30.0, is_stream=True)
        (submitted,) = await rig.store.submit([new])
        assert (submitted.job.state, submitted.job.token, submitted.job.worker) == (JobState.RUNNING, 1, "host:1:0")
        (again,) = await rig.store.submit([msgspec.structs.replace(new, worker="host:2:0")])
        assert (again.is_new, again.job.worker) == (False, "host:1:0")
        stored = await find_stored(rig.store, "live")
        assert (stored.state, stored.token, stored.worker) == (JobState.RUNNING, 1, "host:1:0")
        assert await rig.store.claim("host:1:1", {MODEL: 9}, 30.0) == []
        assert await rig.store.append_events("live", 1, events_from(0, 2, 1))
        assert (await rig.store.extend("host:1:0", [HeldJob("live", 1)], 30.0)).lost == ()
        assert [depth.n_running for depth in await rig.store.depths()] == [1]
        assert await rig.store.finish([result_of(ClaimedJob(stored, b""))]) == [True]
        assert await rig.store.count_unfinished(None) == 0

    @on_store
    async def test_job_that_runs_already_is_queued_when_its_worker_dies(self, rig: JobStoreRig) -> None:
        """The next claim has token 2."""
        await rig.store.submit([new_job("live", worker="host:1:0", lease_s=30.0)])
        assert await rig.store.recover("host:1:") == 1
        (claimed,) = await rig.store.claim("host:2:0", {MODEL: 9}, 30.0)
        assert (claimed.job.id, claimed.job.token) == ("live", 2)

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
    async def test_release_after_a_failure_lets_the_other_jobs_of_its_tenant_run_first(self, rig: JobStoreRig) -> None:
        """Jobs that fail at each attempt do not keep the others of their tenant, rank and route waiting."""
        await rig.store.submit([new_job("p1", tenant="a"), new_job("p2", tenant="a"), new_job("good", tenant="a")])
        probed = []
        for _ in range(4):
            claimed = await claim_one(rig.store)
            probed.append(claimed.job.id)
            await rig.store.release([Release(claimed.job.id, claimed.job.token, 0.0, "upstream_500")])
        assert probed == ["p1", "p2", "good", "p1"]

    @on_store
    async def test_release_after_a_failure_lets_another_tenant_run_first(self, rig: JobStoreRig) -> None:
        """Each attempt is charged to its tenant, so that the tenants have their turns, whatever fails."""
        await rig.store.submit([new_job("poison", tenant="a")])
        probed = []
        for n in range(4):
            claimed = await claim_one(rig.store)
            probed.append(claimed.job.id)
            await rig.store.release([Release(claimed.job.id, claimed.job.token, 0.0, "upstream_500")])
            if n == 0:
                await rig.store.submit([new_job("good", tenant="b")])
        assert probed[0] == "poison"
        assert "good" in probed[1:3]

    @on_store
    async def test_release_without_a_failure_leaves_the_place(self, rig: JobStoreRig) -> None:
        """A worker that stops does not cost its jobs their turn."""
        await rig.store.submit([new_job(f"a{n}", tenant="a") for n in range(3)])
        claimed = await claim_one(rig.store)
        await rig.store.release([Release("a0", claimed.job.token, 0.0, "drained", is_failure=False)])
        assert await claim_ids(rig.store) == ["a0", "a1", "a2"]

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

    @on_store
    async def test_retry_of_a_stream_reopens_it(self, rig: JobStoreRig) -> None:
        """Its end is not the end of the next attempt; the numbers stay, so that a client goes on where it was."""
        await rig.store.submit([new_job("j1")])
        claimed = await claim_one(rig.store)
        first, last = events_from(0, 2, claimed.job.token)
        await rig.store.append_events("j1", claimed.job.token, [first, msgspec.structs.replace(last, is_last=True)])
        await rig.store.finish([result_of(claimed, state=JobState.FAILED)])
        await rig.store.retry_dead("j1")
        stored = (await rig.store.read_events("j1", -1)).events
        assert stored == (first, msgspec.structs.replace(last, data=b""))
