"""Everything that `ReportStore` states, as tests that run on any store of jobs."""

from typing import cast

from msgspec.structs import replace

from stayfast.core.jobs import BatchState, JobState
from stayfast.stores.jobs.reports import ReportStore
from tests.services.job_store_rig import MODEL, JobStoreRig, RiggedSuite, new_batch, new_job, on_store, result_of


def reports_of(rig: JobStoreRig) -> ReportStore:
    """A store of jobs stores reports too."""
    return cast("ReportStore", rig.store)


class ReportSuite(RiggedSuite):
    """Reports of ends."""

    @on_store
    async def test_ends_of_reported_jobs_are_claimed(self, rig: JobStoreRig) -> None:
        """Finished, cancelled and expired ones; others have no report."""
        await rig.store.submit([new_job("j0", is_reported=True), new_job("j1", is_reported=True),
                                new_job("j2", is_reported=True, deadline_at=rig.now() + 5.0), new_job("j3"),
                                new_job("j4", is_reported=True)])
        await rig.store.cancel("j1")
        claims = {one.job.id: one for one in await rig.store.claim("w", {MODEL: 9}, 30.0)}
        await rig.store.finish([result_of(claims["j0"]), result_of(claims["j3"], state=JobState.FAILED)])
        await rig.restart()
        found = await reports_of(rig).claim_reports("w", 10, 30.0)
        assert sorted((one.id, one.subject_id, one.is_batch, one.token) for one in found) == [
            ("evt_j0", "j0", False, 1), ("evt_j1", "j1", False, 1)]
        assert await reports_of(rig).claim_reports("v", 10, 30.0) == []

    @on_store
    async def test_report_is_claimed_again_until_it_is_settled(self, rig: JobStoreRig) -> None:
        """After its lease, or at `next_at`; a superseded claim changes nothing; a failed one is only listed."""
        await rig.store.submit([new_job("j0", is_reported=True)])
        await rig.store.cancel("j0")
        (first,) = await reports_of(rig).claim_reports("w", 10, 30.0)
        await rig.advance(31.0)
        (second,) = await reports_of(rig).claim_reports("v", 10, 30.0)
        assert (second.token, second.created_at) == (2, first.created_at)
        assert not await reports_of(rig).settle_report(first, is_done=True)
        tried = replace(second, n_attempts=1, next_at=rig.now() + 10.0, delivered=("a", "b"), why="503")
        assert await reports_of(rig).settle_report(tried, is_done=False)
        assert await reports_of(rig).claim_reports("v", 10, 30.0) == []
        assert await reports_of(rig).list_reports(is_failed=False, limit=5) == [tried]
        await rig.advance(11.0)
        (third,) = await reports_of(rig).claim_reports("v", 10, 30.0)
        assert third == replace(tried, token=3)
        failed = replace(third, is_failed=True)
        assert await reports_of(rig).settle_report(failed, is_done=False)
        await rig.advance(1000.0)
        assert await reports_of(rig).claim_reports("v", 10, 30.0) == []
        assert await reports_of(rig).list_reports(is_failed=True, limit=5) == [failed]

    @on_store
    async def test_settled_report_is_gone(self, rig: JobStoreRig) -> None:
        """It was confirmed."""
        await rig.store.submit([new_job(f"j{n}", is_reported=True) for n in range(3)])
        for n in range(3):
            await rig.store.cancel(f"j{n}")
        found = await reports_of(rig).claim_reports("w", 2, 30.0)
        assert [await reports_of(rig).settle_report(one, is_done=True) for one in found] == [True, True]
        assert len(await reports_of(rig).list_reports(is_failed=False, limit=5)) == 1

    @on_store
    async def test_end_of_a_reported_batch_is_claimed(self, rig: JobStoreRig) -> None:
        """When its coordinator ends it, once."""
        await rig.store.create_batch(new_batch("b0", rig.now(), is_reported=True))
        await rig.store.create_batch(new_batch("b1", rig.now()))
        for _ in range(2):
            batch = await rig.store.claim_batch("w", 30.0)
            assert batch is not None
            assert await reports_of(rig).claim_reports("w", 10, 30.0) == []
            ended = replace(batch, state=BatchState.FAILED, failed_at=rig.now())
            await rig.store.update_batch(ended, lease_s=30.0)
            await rig.store.update_batch(ended, lease_s=None)
            if batch.id == "b0":
                (report,) = await reports_of(rig).claim_reports("w", 10, 30.0)
                assert (report.id, report.subject_id, report.is_batch) == ("evt_b0", "b0", True)
                await reports_of(rig).settle_report(report, is_done=True)
        assert await reports_of(rig).list_reports(is_failed=False, limit=5) == []
