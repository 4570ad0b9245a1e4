"""Batches from the file to the files of results, on a real store."""

import asyncio
import os
from itertools import count
from pathlib import Path

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.jobs import Batch, BatchState, Door, JobFilter, JobState
from stayfast.jobs.coordinator import BatchCoordinator
from stayfast.jobs.presence import WorkerPresence
from stayfast.jobs.sweeper import JobSweeper
from stayfast.testing import RecordingSink
from stayfast.wire.jobs.lines import MESSAGES_ENDPOINT
from tests.unit.jobs.batch_rig import (
    CHAT,
    LINES,
    Life,
    answer,
    batch_rig,
    check_every_death,
    fails_odd,
    good_line,
    parse_lines,
    raise_error,
    results_of,
)


def test_run_batch_delivers_lines_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with batch_rig(tmp_path) as rig:
            done = await rig.run(await rig.create(*LINES), state_of=fails_odd)
            output, errors = (parse_lines(data) for data in await results_of(rig, done))
            assert (done.state, done.n_total, done.n_completed, done.n_failed) == (BatchState.COMPLETED, 7, 4, 3)
            assert [line["custom_id"] for line in output] == ["c0", "c2", "c4", "c6"]
            assert [line["response"]["body"]["id"] for line in output] == [f"chatcmpl-c{n}" for n in (0, 2, 4, 6)]
            assert [(line["custom_id"], line["response"]["status_code"]) for line in errors] == [
                (f"c{n}", 400) for n in (1, 3, 5)]
            assert (done.usage.input_total, done.model) == (70, "m")
            instants = (done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at)
            assert [at for at in instants if at is not None] == sorted(at for at in instants if at is not None)
            assert None not in instants
            info = await rig.store.find_file(done.output_file_id or "")
            assert info is not None
            assert (info.purpose, info.tenant, info.n_bytes) == ("batch_output", "t", len((await results_of(rig, done))[0]))

    asyncio.run(main())


def test_run_without_failures_has_no_error_file(tmp_path: Path) -> None:
    async def main() -> None:
        async with batch_rig(tmp_path) as rig:
            done = await rig.run(await rig.create(*LINES))
            assert done.output_file_id is not None
            assert done.error_file_id is None
            assert done.completed_at is not None
            assert rig.completed == [(done, done.completed_at - done.created_at)]

    asyncio.run(main())


def test_bad_file_fails_and_nothing_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with batch_rig(tmp_path) as rig:
            batch = await rig.create(LINES[0], b"{\n", b"\n", good_line("c0"), good_line("x", url="/v1/embeddings"))
            done = await rig.run(batch)
            assert (done.state, done.n_total) == (BatchState.FAILED, 0)
            assert [(problem.line, problem.code) for problem in done.problems] == [
                (2, "invalid_json_line"), (4, "duplicate_custom_id"), (5, "url_mismatch")]
            assert (done.failed_at, done.output_file_id) != (None, None)
            assert rig.completed == []
            assert await rig.store.list_jobs(JobFilter(is_for_tenant=False)) == []

    asyncio.run(main())


@pytest.mark.parametrize(("lines", "config", "code"), [
    ([], {}, "empty_file"), (LINES, {"max_batch_lines": 6}, "too_many_tasks"),
    (LINES, {"max_queued": 6}, "batch_too_large")])
def test_file_that_is_refused_as_a_whole_fails(tmp_path: Path, lines: list[bytes], config: dict[str, int],
                                               code: str) -> None:
    async def main() -> None:
        async with batch_rig(tmp_path, **config) as rig:
            done = await rig.run(await rig.create(*lines))
            assert done.state is BatchState.FAILED
            assert [(problem.line, problem.code) for problem in done.problems] == [(None, code)]

    asyncio.run(main())


def test_file_beyond_the_room_of_its_key_fails(tmp_path: Path) -> None:
    async def main() -> None:
        async with batch_rig(tmp_path, max_queued=len(LINES) + 1) as rig:
            await rig.create(*LINES)
            assert await rig.coordinator().step()
            done = await rig.run(await rig.create(good_line("x"), good_line("y")))
            assert [(problem.line, problem.code) for problem in done.problems] == [(None, "too_many_jobs")]

    asyncio.run(main())


def test_input_file_that_is_gone_fails(tmp_path: Path) -> None:
    async def main() -> None:
        async with batch_rig(tmp_path) as rig:
            batch = await rig.create(*LINES)
            await rig.files.delete(batch.input_file_id)
            done = await rig.run(batch)
            assert (done.state, [problem.code for problem in done.problems]) == (BatchState.FAILED, ["file_not_found"])

    asyncio.run(main())


def test_cancelled_batch_delivers_what_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with batch_rig(tmp_path) as rig:
            batch = await rig.create(*LINES)
            await rig.coordinator().step()
            await rig.run_jobs(3)
            (running,) = await rig.store.claim("host:1:0", {"m": 1}, 30.0)
            cancelling = await rig.batches().cancel(batch.id, "t")
            assert cancelling.state is BatchState.CANCELLING
            assert not await rig.coordinator().step()  # a line is still running
            await rig.store.finish([answer(running.job.id, running.job.token, "c3", JobState.CANCELLED)])
            done = await rig.run(batch)
            output, errors = (parse_lines(data) for data in await results_of(rig, done))
            assert (done.state, done.n_completed, done.n_cancelled) == (BatchState.CANCELLED, 3, 4)
            assert None not in (done.cancelling_at, done.cancelled_at)
            assert [line["custom_id"] for line in output] == ["c0", "c1", "c2"]
            assert [(line["custom_id"], line["error"]["code"]) for line in errors] == [
                (f"c{n}", "batch_cancelled") for n in (3, 4, 5, 6)]
            assert (await rig.batches().cancel(batch.id, "t")) == done  # again: nothing changes

    asyncio.run(main())


def test_batch_that_is_cancelled_before_validation_ends_empty(tmp_path: Path) -> None:
    async def main() -> None:
        async with batch_rig(tmp_path) as rig:
            batch = await rig.create(*LINES)
            await rig.batches().cancel(batch.id, "t")
            done = await rig.run(batch)
            assert (done.state, done.n_total, done.output_file_id) == (BatchState.CANCELLED, 0, None)

    asyncio.run(main())


@pytest.mark.parametrize("dies_at", range(3, 14))
def test_batch_that_is_cancelled_while_its_lines_are_stored_ends(tmp_path: Path, dies_at: int) -> None:
    """The coordinator dies, the batch is cancelled, another coordinator ends it: each line is in a file, once."""
    async def main() -> None:
        async with batch_rig(tmp_path) as rig:
            batch = await rig.create(*LINES)
            try:
                await rig.coordinator(Life(dies_at)).step()
            except Exception:  # noqa: BLE001
                await rig.store.recover("host:")
            await rig.run_jobs(1)
            await rig.batches().cancel(batch.id, "t")
            done = await rig.run(batch)
            files = await results_of(rig, done)
            ids = [line["custom_id"] for data in files for line in parse_lines(data)]
            assert done.state is BatchState.CANCELLED
            assert sorted(ids) == ([] if not done.n_total else [f"c{n}" for n in range(7)])
            assert done.n_completed + done.n_cancelled == done.n_total

    asyncio.run(main())


def test_expired_batch_delivers_what_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with batch_rig(tmp_path) as rig:
            file = await rig.add_file(*LINES)
            now = rig.service().clock.wall()
            batch = Batch("batch_1", Door.BATCH, "t", CHAT, file.id, BatchState.VALIDATING, now, now + 0.05)
            await rig.store.create_batch(batch)
            await rig.coordinator().step()
            n_ran = await rig.run_jobs(2)
            while not (await rig.find(batch)).n_expired:
                await asyncio.sleep(0.01)
                await rig.store.sweep(max_claims=3)
            done = await rig.run(batch)
            output, errors = (parse_lines(data) for data in await results_of(rig, done))
            assert (done.state, done.n_completed, done.n_expired) == (BatchState.EXPIRED, n_ran, 7 - n_ran)
            assert done.expired_at is not None
            assert len(list(output)) == n_ran
            assert {line["error"]["code"] for line in errors} == {"batch_expired"}

    asyncio.run(main())


def test_two_coordinators_claim_a_batch_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with batch_rig(tmp_path) as rig:
            batch = await rig.create(*LINES)
            assert await rig.store.claim_batch("other:1:0", 30.0) is not None
            assert not await rig.coordinator().step()
            await rig.store.recover("other:")
            assert (await rig.run(batch)).n_completed == 7

    asyncio.run(main())


def test_coordinator_killed_at_every_call_delivers_the_same_bytes(tmp_path: Path) -> None:
    """A process that dies before any call to the store or the files, that call and all later ones included, has a successor
    with the same files as without a death: no line lost, none twice.
    """
    names = count()
    asyncio.run(check_every_death(lambda: batch_rig(tmp_path / str(next(names)))))


def test_message_batch_has_one_file_of_results(tmp_path: Path) -> None:
    async def main() -> None:
        async with batch_rig(tmp_path) as rig:
            lines = [line.replace(b"/v1/chat/completions", MESSAGES_ENDPOINT.encode()) for line in LINES]
            file = await rig.add_file(*lines, purpose="message_batch")
            batches = rig.batches(Door.MESSAGE_BATCH)
            batch, _ = await batches.create(MESSAGES_ENDPOINT, file, tenant="t", digest=b"d", n_total=7, keep_s=1000.0)
            done = await rig.run(batch, state_of=fails_odd)
            results = parse_lines(await rig.read(done.output_file_id))
            assert done.error_file_id is None
            assert [(line["custom_id"], line["result"]["type"]) for line in results] == [
                (f"c{n}", "errored" if n % 2 else "succeeded") for n in range(7)]
            info = await rig.store.find_file(done.output_file_id or "")
            assert info is not None
            assert info.purpose == "message_batch"

    asyncio.run(main())


def test_sweeper_deletes_the_contents_of_expired_files(tmp_path: Path) -> None:
    """The contents first, then the record; and contents that have none."""
    async def main() -> None:
        async with batch_rig(tmp_path) as rig:
            expired = await rig.add_file(b"x", expires_s=-1.0)
            stays = await rig.add_file(b"x")
            for path in (tmp_path / "files" / "orphan", tmp_path / "files" / stays.id):
                path.touch()
                os.utime(path, (1.0, 1.0))
            sweeper = JobSweeper(rig.store, rig.files, WorkerPresence(tmp_path / "workers"), lambda: rig.config,
                                 clock=SystemClock(), sink=RecordingSink(), on_depths=lambda _: None, report=raise_error)
            sweeping = asyncio.create_task(sweeper.run(sweeps=True))
            while (await rig.store.sweep(max_claims=3)).expired_files:
                await asyncio.sleep(0.01)
            while (tmp_path / "files" / "orphan").exists():
                await asyncio.sleep(0.01)
            sweeping.cancel()
            assert await rig.store.find_file(expired.id) is None
            assert await rig.read(stays.id) == b"x"
            with pytest.raises(KeyError):
                await rig.read(expired.id)

    asyncio.run(main())


def test_unexpected_error_in_a_batch_is_reported_and_the_others_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with batch_rig(tmp_path) as rig:
            broken, good = await rig.create(*LINES), await rig.create(*LINES)
            reported: list[BaseException] = []
            is_reported = asyncio.Event()
            service = rig.service()

            def is_known_model(_: str) -> bool:
                if not reported:
                    raise ZeroDivisionError
                return True

            def report(error: BaseException) -> None:
                reported.append(error)
                is_reported.set()

            coordinator = BatchCoordinator(lambda: service, "host:2:0", is_known_model=is_known_model,
                                           report=report)
            running = asyncio.create_task(coordinator.run())
            await asyncio.wait_for(is_reported.wait(), 10.0)
            running.cancel()
            assert [type(error) for error in reported] == [ZeroDivisionError]
            assert await coordinator.step()
            assert [(await rig.find(batch)).n_total for batch in (broken, good)] == [0, 7]

    asyncio.run(main())
