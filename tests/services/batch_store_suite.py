"""Everything that `JobStore` states about batches and files, as tests that run on any store."""

import asyncio

from msgspec.structs import replace

from stayfast.core.jobs import BatchProblem, BatchState, Door, JobFilter, JobState
from stayfast.core.types import Usage
from tests.services.job_store_rig import (
    MODEL,
    USAGE,
    JobStoreRig,
    RiggedSuite,
    claim_ids,
    new_batch,
    new_file,
    new_line,
    on_store,
    result_of,
    state_of,
)


async def start_batch(rig: JobStoreRig, n_lines: int, batch_id: str = "b1") -> None:
    """A batch in progress with its lines."""
    await rig.store.create_batch(new_batch(batch_id, rig.now()))
    batch = await rig.store.claim_batch("host:1:0", 30.0)
    assert batch is not None
    await rig.store.submit([new_line(batch_id, line) for line in range(1, n_lines + 1)])
    running = replace(batch, state=BatchState.IN_PROGRESS, n_total=n_lines, n_inserted=n_lines, model=MODEL,
                              in_progress_at=rig.now())
    assert await rig.store.update_batch(running, lease_s=None)


class BatchSuite(RiggedSuite):
    """Batches and their lines."""

    @on_store
    async def test_create_batch_stores_all_fields(self, rig: JobStoreRig) -> None:
        """Also after a restart; the same idempotency key of the same tenant is the earlier batch."""
        batch = new_batch("b1", rig.now(), metadata={"a": "b"}, output_keep_s=3600.0, idempotency_key="k", digest=b"d",
                          problems=(BatchProblem("c", "m", 3, "p"),))
        assert await rig.store.create_batch(batch) == (batch, True)
        await rig.restart()
        assert await rig.store.find_batch("b1") == batch
        assert await rig.store.create_batch(new_batch("b2", rig.now(), idempotency_key="k")) == (batch, False)
        assert (await rig.store.create_batch(new_batch("b1", rig.now())))[1] is False
        assert (await rig.store.create_batch(new_batch("b3", rig.now(), idempotency_key="k", tenant="b")))[1]
        assert (await rig.store.create_batch(new_batch("b4", rig.now(), idempotency_key="k", tenant=None)))[1]
        assert await rig.store.find_batch("b2") is None

    @on_store
    async def test_list_batches_pages_both_ways(self, rig: JobStoreRig) -> None:
        """Newest first, by tenant and door."""
        for n in range(6):
            await rig.store.create_batch(new_batch(f"b{n}", rig.now() + n, tenant=None if n == 3 else "a",
                                                   door=Door.MESSAGE_BATCH if n == 4 else Door.BATCH))

        async def ids(after_id: str | None, limit: int, *, is_forward: bool = True) -> list[str]:
            return [batch.id for batch in await rig.store.list_batches("a", [Door.BATCH], after_id, limit,
                                                                       is_forward=is_forward)]

        assert await ids(None, 10) == ["b5", "b2", "b1", "b0"]
        assert await ids("b5", 2) == ["b2", "b1"]
        assert await ids("b0", 2, is_forward=False) == ["b2", "b1"]
        assert await ids("b2", 5, is_forward=False) == ["b5"]
        assert [one.id for one in await rig.store.list_batches(None, [Door.BATCH], None, 9)] == ["b3"]
        assert [one.id for one in await rig.store.list_batches("a", [Door.MESSAGE_BATCH], None, 9)] == ["b4"]

    @on_store
    async def test_batch_runs_from_validation_to_completion(self, rig: JobStoreRig) -> None:
        """Counts and usage advance with the lines; the last line makes it FINALIZING; a coordinator ends it."""
        await start_batch(rig, 4)
        assert await rig.store.claim_batch("host:1:0", 30.0) is None
        claims = {one.job.line: one for one in await rig.store.claim("host:1:0", {MODEL: 9}, 30.0)}
        await rig.store.finish([result_of(claims[2], usage=USAGE),
                                result_of(claims[1], state=JobState.FAILED, usage=USAGE, status_code=500)])
        batch = await rig.store.find_batch("b1")
        assert batch is not None
        assert (batch.state, batch.n_total, batch.n_completed, batch.n_failed) == (BatchState.IN_PROGRESS, 4, 1, 1)
        assert batch.usage == Usage(input_total=20, output=10, cached_read=4, reasoning=2)
        await rig.store.finish([result_of(claims[2], usage=USAGE)])
        await rig.store.bury(claims[3].job.id, 1, "poison")
        await rig.store.finish([result_of(claims[4])])
        done = await rig.store.claim_batch("host:1:0", 30.0)
        assert done is not None
        assert (done.state, done.n_completed, done.n_failed, done.n_ended) == (BatchState.FINALIZING, 2, 2, 4)
        assert done.finalizing_at is not None
        lines = [(job.line, job.state, None if result is None else result.job_id)
                 async for job, result in rig.store.batch_results("b1")]
        assert lines == [(1, JobState.FAILED, "b1-1"), (2, JobState.COMPLETED, "b1-2"), (3, JobState.DEAD, None),
                         (4, JobState.COMPLETED, "b1-4")]
        ended = replace(done, state=BatchState.COMPLETED, completed_at=rig.now(), output_file_id="file-2",
                                n_completed=99, drop_at=rig.now() + 1000.0)
        assert await rig.store.update_batch(ended, lease_s=None)
        stored = await rig.store.find_batch("b1")
        assert stored == replace(ended, n_completed=2)
        assert await rig.store.claim_batch("host:1:0", 30.0) is None
        assert not await rig.store.delete_batch("unknown")
        assert await rig.store.delete_batch("b1")
        assert (await rig.store.find_batch("b1"), await rig.store.find("b1-1")) == (None, None)
        assert await rig.store.count_unfinished("a") == 0

    @on_store
    async def test_claim_batch_is_exclusive_until_its_lease_ends(self, rig: JobStoreRig) -> None:
        """A coordinator that lost its lease cannot write; a given-up claim is free at once."""
        await rig.store.create_batch(new_batch("b1", rig.now()))
        first = await rig.store.claim_batch("host:1:0", 30.0)
        assert first is not None
        assert first.token == 1
        assert await rig.store.claim_batch("host:2:0", 30.0) is None
        await rig.advance(20.0)
        assert await rig.store.update_batch(replace(first, n_inserted=1), lease_s=30.0)
        await rig.advance(20.0)
        assert await rig.store.claim_batch("host:2:0", 30.0) is None
        await rig.advance(20.0)
        second = await rig.store.claim_batch("host:2:0", 30.0)
        assert second is not None
        assert (second.token, second.n_inserted) == (2, 1)
        assert not await rig.store.update_batch(replace(first, n_inserted=7), lease_s=30.0)
        assert await rig.store.update_batch(second, lease_s=None)
        third = await rig.store.claim_batch("host:3:0", 30.0)
        assert third is not None
        await rig.store.recover("host:3:")
        assert await rig.store.claim_batch("host:4:0", 30.0) is not None

    @on_store
    async def test_batch_line_is_stored_once(self, rig: JobStoreRig) -> None:
        """A coordinator repeats what a crash interrupted."""
        await rig.store.create_batch(new_batch("b1", rig.now()))
        await rig.store.submit([new_line("b1", line) for line in (1, 2)])
        again = await rig.store.submit([new_line("b1", 2, id="other"), new_line("b1", 3)])
        assert [(one.job.id, one.is_new) for one in again] == [("b1-2", False), ("b1-3", True)]
        assert len(await rig.store.list_jobs(JobFilter(is_for_tenant=False, batch_id="b1"))) == 3

    @on_store
    async def test_batch_with_early_ends_is_finalized(self, rig: JobStoreRig) -> None:
        """Lines may end while the batch is still VALIDATING."""
        await rig.store.create_batch(new_batch("b1", rig.now()))
        batch = await rig.store.claim_batch("host:1:0", 30.0)
        assert batch is not None
        await rig.store.submit([new_line("b1", 1)])
        await rig.store.finish([result_of(one) for one in await rig.store.claim("host:1:0", {MODEL: 9}, 30.0)])
        found = await rig.store.find_batch("b1")
        assert found is not None
        assert found.state is BatchState.VALIDATING
        assert await rig.store.update_batch(replace(batch, state=BatchState.IN_PROGRESS, n_total=1, n_inserted=1),
                                            lease_s=None)
        done = await rig.store.claim_batch("host:1:0", 30.0)
        assert done is not None
        assert (done.state, done.n_completed) == (BatchState.FINALIZING, 1)

    @on_store
    async def test_cancel_batch_ends_queued_lines_and_marks_running_ones(self, rig: JobStoreRig) -> None:
        """It stays CANCELLING until a coordinator ends it, which can claim it when all lines have ended."""
        await start_batch(rig, 2500)
        claims = await rig.store.claim("host:1:0", {MODEL: 2}, 30.0)
        batch = await rig.store.cancel_batch("b1")
        assert batch is not None
        assert (batch.state, batch.n_cancelled) == (BatchState.CANCELLING, 2498)
        assert batch.cancelling_at is not None
        assert await claim_ids(rig.store) == []
        assert await rig.store.claim_batch("host:1:0", 30.0) is None
        running = await rig.store.find(claims[0].job.id)
        assert running is not None
        assert running.is_cancelling
        await rig.store.finish([result_of(claims[0]), result_of(claims[1], state=JobState.CANCELLED)])
        done = await rig.store.claim_batch("host:1:0", 30.0)
        assert done is not None
        assert (done.state, done.n_cancelled, done.n_completed) == (BatchState.CANCELLING, 2499, 1)
        again = await rig.store.cancel_batch("b1")
        assert again is not None
        assert again.state is BatchState.CANCELLING
        assert await rig.store.cancel_batch("unknown") is None

    @on_store
    async def test_cancel_batch_during_validation_stops_it(self, rig: JobStoreRig) -> None:
        """Its coordinator neither overwrites the state nor adds lines that run."""
        await rig.store.create_batch(new_batch("b1", rig.now()))
        batch = await rig.store.claim_batch("host:1:0", 30.0)
        assert batch is not None
        await rig.store.submit([new_line("b1", 1)])
        await rig.store.cancel_batch("b1")
        await rig.store.submit([new_line("b1", 2)])
        assert await rig.store.update_batch(replace(batch, state=BatchState.IN_PROGRESS, n_total=2, n_inserted=2),
                                            lease_s=None)
        assert [await state_of(rig.store, f"b1-{line}") for line in (1, 2)] == [JobState.CANCELLED] * 2
        done = await rig.store.claim_batch("host:1:0", 30.0)
        assert done is not None
        assert (done.state, done.n_cancelled, done.n_total) == (BatchState.CANCELLING, 2, 2)

    @on_store
    async def test_expired_lines_end_a_batch(self, rig: JobStoreRig) -> None:
        """All that has not run by then is expired, and the batch is FINALIZING."""
        await rig.store.create_batch(new_batch("b1", rig.now()))
        batch = await rig.store.claim_batch("host:1:0", 30.0)
        assert batch is not None
        await rig.store.submit([new_line("b1", line, deadline_at=rig.now() + 100.0) for line in (1, 2)])
        await rig.store.update_batch(replace(batch, state=BatchState.IN_PROGRESS, n_total=2, n_inserted=2), lease_s=None)
        await rig.advance(101.0)
        assert (await rig.store.sweep(max_claims=3)).n_expired == 2
        done = await rig.store.claim_batch("host:1:0", 30.0)
        assert done is not None
        assert (done.state, done.n_expired) == (BatchState.FINALIZING, 2)

    @on_store
    async def test_retry_of_a_line_takes_it_off_the_counts(self, rig: JobStoreRig) -> None:
        """While its batch is in progress; never after its files are being written."""
        await start_batch(rig, 2)
        claims = await rig.store.claim("host:1:0", {MODEL: 2}, 30.0)
        await rig.store.finish([result_of(claims[0], state=JobState.FAILED)])
        assert await rig.store.retry_dead(claims[0].job.id) is not None
        batch = await rig.store.find_batch("b1")
        assert batch is not None
        assert (batch.n_failed, batch.n_ended) == (0, 0)
        (again,) = await rig.store.claim("host:1:0", {MODEL: 2}, 30.0)
        await rig.store.finish([result_of(claims[1]), result_of(again, state=JobState.FAILED)])
        assert await rig.store.retry_dead(again.job.id) is None

    @on_store
    async def test_sweep_purges_a_batch_with_its_lines(self, rig: JobStoreRig) -> None:
        """At `drop_at`. A line's own time does not end before the batch has its files."""
        await start_batch(rig, 1)
        await rig.store.finish([result_of(one) for one in await rig.store.claim("host:1:0", {MODEL: 1}, 30.0)])
        await rig.advance(86_401.0)
        await rig.store.sweep(max_claims=3)
        assert [job.line async for job, _ in rig.store.batch_results("b1")] == [1]
        batch = await rig.store.claim_batch("host:1:0", 30.0)
        assert batch is not None
        await rig.store.update_batch(replace(batch, state=BatchState.COMPLETED, drop_at=rig.now() + 10.0), lease_s=None)
        await rig.advance(11.0)
        while (await rig.store.sweep(max_claims=3)).n_purged:
            pass
        assert (await rig.store.find_batch("b1"), await rig.store.find("b1-1")) == (None, None)

    @on_store
    async def test_batch_results_reads_all_pages(self, rig: JobStoreRig) -> None:
        """In the order of the lines, whatever the order of their ends."""
        await start_batch(rig, 1500)
        while claims := await rig.store.claim("host:1:0", {MODEL: 400}, 30.0):
            await rig.store.finish([result_of(one) for one in reversed(claims)])
        lines = [(job.line, None if result is None else result.body) async for job, result in rig.store.batch_results("b1")]
        assert lines == [(line, f"result of b1-{line}".encode()) for line in range(1, 1501)]


class FileRecordSuite(RiggedSuite):
    """Records of files."""

    @on_store
    async def test_files_are_listed_found_deleted(self, rig: JobStoreRig) -> None:
        """By tenant and purpose, in either order, in pages."""
        store = rig.store
        for n in range(5):
            await store.add_file(new_file(f"f{n}", rig.now() + n, purpose="vision" if n == 2 else "batch", sha256="ab",
                                          tenant=None if n == 4 else "a", filename="ü\n.jsonl"))
        await store.add_file(new_file("f0", rig.now()))  # a repetition
        await rig.restart()
        store = rig.store

        async def ids(purpose: str | None, after_id: str | None = None, *, newest_first: bool = True) -> list[str]:
            return [info.id for info in await store.list_files("a", purpose, after_id, 2, newest_first=newest_first)]

        assert await ids(None) == ["f3", "f2"]
        assert await ids(None, "f2") == ["f1", "f0"]
        assert await ids("batch", newest_first=False) == ["f0", "f1"]
        assert await ids("batch", "f1", newest_first=False) == ["f3"]
        assert [info.id for info in await store.list_files(None, None, None, 9)] == ["f4"]
        found = await store.find_file("f3")
        assert found is not None
        assert (found.filename, found.sha256, found.n_bytes, found.expires_at) == ("ü\n.jsonl", "ab", 3, None)
        assert await store.delete_file("f3")
        assert not await store.delete_file("f3")
        assert await store.find_file("f3") is None

    @on_store
    async def test_expired_file_is_reported_until_it_is_deleted(self, rig: JobStoreRig) -> None:
        """Its contents are deleted before its record."""
        await rig.store.add_file(new_file("f1", rig.now(), expires_at=rig.now() + 10.0))
        assert (await rig.store.sweep(max_claims=3)).expired_files == ()
        await rig.advance(11.0)
        assert await rig.store.find_file("f1") is None
        assert await rig.store.list_files("a", None, None, 9) == []
        for _ in range(2):
            assert (await rig.store.sweep(max_claims=3)).expired_files == ("f1",)
        assert await rig.store.delete_file("f1")
        assert (await rig.store.sweep(max_claims=3)).expired_files == ()

    @on_store
    async def test_files_concurrently_added_are_all_stored(self, rig: JobStoreRig) -> None:
        """Many callers at once."""
        await asyncio.gather(*(rig.store.add_file(new_file(f"f{n}", rig.now())) for n in range(20)))
        assert len(await rig.store.list_files("a", None, None, 100)) == 20


class BatchStoreSuite(BatchSuite, FileRecordSuite):
    """All tests of batches and files."""


