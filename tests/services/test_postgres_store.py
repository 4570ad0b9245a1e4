"""The store of durable work in a real PostgreSQL."""

import asyncio
import tracemalloc
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from typing import cast

import pytest
from msgspec.structs import replace

from stayfast.core.jobs import BatchState
from stayfast.stores.jobs.base import FileBodies
from stayfast.stores.jobs.postgres.files import PART_BYTES
from stayfast.stores.jobs.reports import ReportStore
from tests.services.batch_store_suite import BatchStoreSuite
from tests.services.job_store_machine import check_store
from tests.services.job_store_rig import MODEL, JobStoreRig, new_batch, new_job, result_of
from tests.services.job_store_suite import JobStoreSuite
from tests.services.key_store_suite import KeySuite
from tests.services.postgres_rig import postgres_rig
from tests.services.postgres_server import PostgresServer, postgres_server

pytestmark = pytest.mark.sockets


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One for all tests of this file."""
    with postgres_server() as running:
        yield running


class TestPostgresStore(JobStoreSuite, BatchStoreSuite, KeySuite):
    """The suite of all stores."""

    @pytest.fixture(autouse=True)
    def use_server(self, server: PostgresServer) -> None:
        self.server = server

    def open(self) -> AbstractAsyncContextManager[JobStoreRig]:
        return postgres_rig(self.server.url)


def test_postgres_random_calls_behave_as_the_model(server: PostgresServer) -> None:
    """Against a model of the store."""
    check_store(lambda: postgres_rig(server.url), n_examples=8)


def test_postgres_behind_a_pooler_needs_no_session(server: PostgresServer) -> None:
    """No prepared statements, no settings, no LISTEN: as PgBouncer in its transaction mode allows."""
    async def main() -> None:
        async with postgres_rig(server.url, "&pooler=transaction&connections=2") as rig:
            await rig.store.submit([new_job(f"j{n}") for n in range(20)])
            claims = await rig.store.claim("w", {MODEL: 20}, 30.0)
            await rig.store.notify("work")
            await rig.store.wait("work", 0.01)
            assert all(await rig.store.finish([result_of(one) for one in claims]))
            prepared = server.execute("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
            assert prepared == "0"

    asyncio.run(main())


def test_postgres_reports_are_claimed_until_all_have_confirmed(server: PostgresServer) -> None:
    """One for each end with `is_reported`, made with the end; a failed one is listed and can be sent again."""
    async def main() -> None:
        async with postgres_rig(server.url) as rig:
            reports = cast("ReportStore", rig.store)
            await rig.store.submit([new_job("j1", is_reported=True), new_job("j2"), new_job("j3", is_reported=True)])
            assert await reports.claim_reports("w", 9, 30.0) == []
            await rig.store.finish([result_of(one) for one in await rig.store.claim("w", {MODEL: 2}, 30.0)])
            await rig.store.cancel("j3")
            one, other = await reports.claim_reports("w", 9, 30.0)
            assert [(report.id, report.subject_id, report.is_batch) for report in (one, other)] == [
                ("evt_j1", "j1", False), ("evt_j3", "j3", False)]
            assert await reports.claim_reports("w", 9, 30.0) == []
            assert await reports.settle_report(one, is_done=True)
            failed = replace(other, n_attempts=3, delivered=("d",), is_failed=True, why="500")
            assert await reports.settle_report(failed, is_done=False)
            assert not await reports.settle_report(replace(failed, token=7), is_done=False)
            assert await reports.list_reports(is_failed=False, limit=9) == []
            assert await reports.list_reports(is_failed=True, limit=9) == [failed]
            again = await reports.retry_report("evt_j3")
            assert again is not None
            assert (again.n_attempts, again.is_failed) == (0, False)
            assert await reports.retry_report("evt_j3") is None
            await rig.advance(31.0)
            (claimed,) = await reports.claim_reports("w", 9, 30.0)
            assert claimed.token == 2
            await rig.store.delete("j3")
            assert await reports.list_reports(is_failed=False, limit=9) == []

    asyncio.run(main())


def test_postgres_batch_end_is_reported_once(server: PostgresServer) -> None:
    """When its coordinator ends it."""
    async def main() -> None:
        async with postgres_rig(server.url) as rig:
            reports = cast("ReportStore", rig.store)
            await rig.store.create_batch(new_batch("b1", rig.now(), is_reported=True))
            batch = await rig.store.claim_batch("w", 30.0)
            assert batch is not None
            failed = replace(batch, state=BatchState.FAILED, failed_at=rig.now())
            assert await rig.store.update_batch(failed, lease_s=None)
            assert await rig.store.update_batch(failed, lease_s=None)
            (report,) = await reports.claim_reports("w", 9, 30.0)
            assert (report.id, report.subject_id, report.is_batch) == ("evt_b1", "b1", True)

    asyncio.run(main())


async def write_file(files: FileBodies, file_id: str, data: bytes, part_bytes: int = 100_000) -> tuple[int, str]:
    """In parts."""
    writer = await files.create(file_id)
    for at in range(0, len(data), part_bytes):
        await writer.write(data[at:at + part_bytes])
    return await writer.commit()


async def read_file(files: FileBodies, file_id: str, at: int = 0) -> bytes:
    """All of it."""
    parts = [part async for part in files.read(file_id, at)]
    assert all(0 < len(part) <= PART_BYTES for part in parts)
    return b"".join(parts)


def test_postgres_files_are_whole_or_missing(server: PostgresServer) -> None:
    """Invisible before `commit`; read from any offset by another gateway; replaced and deleted as a whole."""
    async def main() -> None:
        async with postgres_rig(server.url) as rig:
            files, data = rig.files, bytes(range(256)) * 4000
            writer = await files.create("f1")
            await writer.write(data)
            with pytest.raises(KeyError):
                await read_file(files, "f1")
            assert await writer.commit() == (len(data), sha256(data).hexdigest())
            await rig.restart()
            files = rig.files
            assert await read_file(files, "f1") == data
            for at in (1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, len(data) - 1, len(data), len(data) + PART_BYTES):
                assert await read_file(files, "f1", at) == data[at:]
            assert await write_file(files, "f1", b"new") == (3, sha256(b"new").hexdigest())
            assert await read_file(files, "f1") == b"new"
            aborted = await files.create("f2")
            await aborted.write(data)
            await aborted.abort()
            assert await write_file(files, "f3", b"") == (0, sha256(b"").hexdigest())
            assert await read_file(files, "f3") == b""
            await files.delete("f1")
            await files.delete("f1")
            await files.create("f4")  # and its process dies
            await rig.advance(90_000.0)
            await rig.store.sweep(max_claims=3)
            left = server.execute(f"SELECT count(*) FROM {rig.schema}.stayfast_parts")
            bodies = server.execute(f"SELECT string_agg(file_id, ' ') FROM {rig.schema}.stayfast_bodies")
            assert (left, bodies) == ("0", "f3")

    asyncio.run(main())


def test_postgres_files_without_a_record_are_removed(server: PostgresServer) -> None:
    """If they are old: a young one may be about to get its record."""
    async def is_known(file_id: str) -> bool:
        return file_id == "known"

    async def main() -> None:
        async with postgres_rig(server.url) as rig:
            for name in ("known", "orphan"):
                await write_file(rig.files, name, b"x")
            await rig.advance(4000.0)
            await write_file(rig.files, "young", b"x")
            assert await rig.files.remove_orphans(is_known) == 1
            assert [await read_file(rig.files, name) for name in ("known", "young")] == [b"x", b"x"]
            with pytest.raises(KeyError):
                await read_file(rig.files, "orphan")

    asyncio.run(main())


def test_postgres_large_file_needs_little_memory(server: PostgresServer) -> None:
    """Written and read in parts."""
    n_bytes = 24 << 20

    async def main() -> None:
        async with postgres_rig(server.url) as rig:
            part = bytes(1 << 20)
            tracemalloc.start()
            writer = await rig.files.create("f1")
            for _ in range(n_bytes // len(part)):
                await writer.write(part)
            assert (await writer.commit())[0] == n_bytes
            n_read = 0
            async for read in rig.files.read("f1"):
                n_read += len(read)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert n_read == n_bytes
            assert peak < n_bytes // 3

    asyncio.run(main())
