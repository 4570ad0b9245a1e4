"""Everything that `ReportStore` states, as tests that run on any store of jobs."""

from typing import cast

from msgspec.structs import replace

from stayfast.core.jobs import BatchState, JobState, Report
from stayfast.stores.jobs.reports import ReportStore
from tests.services.job_store_rig import JobStoreRig, RiggedSuite, claim_one, new_batch, new_job, on_store, result_of

SENDER = "host:1:0"


def reports_of(rig: JobStoreRig) -> ReportStore:
    """The store under test."""
    return cast("ReportStore", rig.store)


async def claim_due(rig: JobStoreRig, n: int = 10, lease_s: float = 30.0) -> list[Report]:
    """The reports that are due now."""
    return await reports_of(rig).claim_reports(SENDER, n, lease_s)


async def end_job(rig: JobStoreRig, job_id: str, **fields: object) -> None:
    """Run a job to its end."""
    await rig.store.submit([new_job(job_id, is_reported=True, **fields)])
    await rig.store.finish([result_of(await claim_one(rig.store))])


class ReportSuite(RiggedSuite):
    """Reports of jobs and batches."""

    @on_store
    async def test_report_of_a_job_is_due_once_it_has_ended(self, rig: JobStoreRig) -> None:
        """Not before, and not for jobs that are not reported; also after a restart."""
        await rig.store.submit([new_job("a", is_reported=True), new_job("b")])
        assert await claim_due(rig) == []
        await rig.store.finish([result_of(await claim_one(rig.store)) for _ in range(2)])
        await rig.restart()
        (report,) = await claim_due(rig)
        assert (report.subject_id, report.is_batch, report.n_attempts, report.is_failed) == ("a", False, 0, False)
        assert report.id.startswith("evt_a")
        assert abs(report.created_at - rig.now()) < 30.0

    @on_store
    async def test_report_of_a_cancelled_or_expired_job_is_due(self, rig: JobStoreRig) -> None:
        await rig.store.submit([new_job("a", is_reported=True),
                                new_job("b", is_reported=True, deadline_at=rig.now() + 5.0)])
        await rig.store.cancel("a")
        await rig.advance(10.0)
        await rig.store.sweep(max_claims=3)
        assert sorted(report.subject_id for report in await claim_due(rig)) == ["a", "b"]

    @on_store
    async def test_report_of_a_batch_is_due_at_its_final_state(self, rig: JobStoreRig) -> None:
        await rig.store.create_batch(new_batch("b1", rig.now(), is_reported=True))
        batch = await rig.store.claim_batch("host:1:0", 30.0)
        assert batch is not None
        assert await rig.store.update_batch(replace(batch, state=BatchState.IN_PROGRESS), lease_s=30.0)
        assert await claim_due(rig) == []
        assert await rig.store.update_batch(replace(batch, state=BatchState.FAILED), lease_s=None)
        (report,) = await claim_due(rig)
        assert (report.subject_id, report.is_batch) == ("b1", True)

    @on_store
    async def test_claimed_report_is_held_until_its_lease_ends(self, rig: JobStoreRig) -> None:
        await end_job(rig, "a")
        (report,) = await claim_due(rig)
        assert await claim_due(rig) == []
        await rig.advance(31.0)
        (again,) = await claim_due(rig)
        assert (again.id, again.token > report.token) == (report.id, True)
        assert not await reports_of(rig).settle_report(report, is_done=True)
        assert await reports_of(rig).settle_report(again, is_done=True)
        await rig.advance(60.0)
        assert await claim_due(rig) == []

    @on_store
    async def test_failed_attempt_is_due_again_at_its_time(self, rig: JobStoreRig) -> None:
        """With what was delivered, and why it failed."""
        await end_job(rig, "a")
        (report,) = await claim_due(rig)
        later = replace(report, n_attempts=1, next_at=rig.now() + 60.0, delivered=("x",), why="status 500")
        assert await reports_of(rig).settle_report(later, is_done=False)
        assert await claim_due(rig) == []
        await rig.advance(61.0)
        (report,) = await claim_due(rig)
        assert (report.n_attempts, report.delivered, report.why) == (1, ("x",), "status 500")

    @on_store
    async def test_failed_report_is_listed_and_can_be_retried(self, rig: JobStoreRig) -> None:
        store = reports_of(rig)
        await end_job(rig, "a")
        (report,) = await claim_due(rig)
        await store.settle_report(replace(report, n_attempts=88, is_failed=True, why="timeout"), is_done=False)
        assert await claim_due(rig) == []
        (failed,) = await store.list_reports(is_failed=True, limit=5)
        assert (failed.id, failed.is_failed, failed.why) == (report.id, True, "timeout")
        assert await store.retry_report("evt_none") is None
        assert await store.retry_report(report.id) is not None
        (again,) = await claim_due(rig)
        assert (again.id, again.n_attempts) == (report.id, 0)
        assert await store.list_reports(is_failed=True, limit=5) == []

    @on_store
    async def test_retried_job_is_reported_again_as_another_event(self, rig: JobStoreRig) -> None:
        await rig.store.submit([new_job("a", is_reported=True)])
        await rig.store.finish([result_of(await claim_one(rig.store), state=JobState.FAILED, status_code=500)])
        (first,) = await claim_due(rig)
        await reports_of(rig).settle_report(first, is_done=True)
        await rig.store.retry_dead("a")
        assert await claim_due(rig) == []
        await rig.store.finish([result_of(await claim_one(rig.store))])
        (second,) = await claim_due(rig)
        assert second.id != first.id
        assert second.subject_id == "a"
