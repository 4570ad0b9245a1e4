"""What only the embedded store of jobs has: a full disk, a foreign file, versions, the size of its file, group commit."""

import asyncio
import os
import resource
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.jobs import JobState
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import StoreFull
from stayfast.stores.jobs.embedded import schema
from stayfast.stores.jobs.embedded.group_commit import Headroom
from stayfast.stores.jobs.embedded.schema import describe_problem
from stayfast.stores.jobs.sqlite import SqliteJobStore
from tests.services.job_store_rig import MODEL, claim_one, find_stored, new_job, result_of, state_of

MIB = 1024 * 1024


def opened(folder: Path, **options: Any) -> SqliteJobStore:
    """A store without space set aside."""
    return SqliteJobStore(folder, SystemClock(), **{"reserve_bytes": 0, "window_s": 0.0005, **options})


@contextmanager
def small_files(n_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond this size: the disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def modes_in(folder: Path) -> set[int]:
    """The permissions of all files."""
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def fill(store: SqliteJobStore) -> int:
    """Submit until the store is full; returns how many jobs were accepted."""
    with pytest.raises(StoreFull):  # noqa: PT012
        for n in range(100_000):
            await store.submit([new_job(f"j{n}", body=os.urandom(20_000))])
    return n


def test_embedded_jobs_full_disk_refuses_submissions_and_loses_none(tmp_path: Path) -> None:
    """What was accepted is stored; when there is space again, submissions are accepted."""
    async def main() -> None:
        store = opened(tmp_path)
        with small_files(3 * MIB):
            n_jobs = await fill(store)
            assert n_jobs > 20
            assert await state_of(store, f"j{n_jobs - 1}") is JobState.QUEUED
            assert await store.find(f"j{n_jobs}") is None
            with pytest.raises(StoreFull):
                await store.submit([new_job("more", body=os.urandom(500_000))])
        await store.submit([new_job("more", body=os.urandom(500_000))])
        assert await store.count_unfinished(None) == n_jobs + 1
        await store.close()

    asyncio.run(main())


def is_superuser() -> bool:
    """Whether this process may mount a file system."""
    return os.geteuid() == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB, or, where it cannot be mounted, a folder whose size nothing limits."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = is_superuser() and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder],
                                                check=False, capture_output=True).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", "-l", folder], check=True)


def test_embedded_jobs_full_disk_lets_accepted_work_end(small_disk: Path) -> None:
    """The headroom is released: workers claim, append and finish."""
    check_accepted_work_ends(small_disk)


def check_accepted_work_ends(small_disk: Path) -> None:
    """Workers claim, append and finish, while submissions are refused. Where no small disk can be
    mounted, a limit on the size of files takes its place: the headroom cannot be set aside.
    """
    is_mount = small_disk.is_mount()
    reserve_bytes = (6 if is_mount else 64) * MIB

    async def main() -> None:
        if is_mount:
            store = opened(small_disk, reserve_bytes=reserve_bytes)
            n_jobs = await fill(store)
        else:
            before, n_jobs = opened(small_disk), 110
            await before.submit([new_job(f"j{n}") for n in range(n_jobs)])
            await before.close()
            store = opened(small_disk, reserve_bytes=reserve_bytes)
        assert n_jobs > 100
        n_done = 0
        for _ in range(100):
            claimed = await claim_one(store)
            assert await store.append_events(claimed.job.id, claimed.job.token, [])
            assert await store.finish([result_of(claimed, body=os.urandom(2000))]) == [True]
            n_done += 1
            with pytest.raises(StoreFull):
                await store.submit([new_job(f"more{n_done}")])
        await store.close()
        again = opened(small_disk, reserve_bytes=reserve_bytes)
        assert await again.count_unfinished(None) == n_jobs - n_done
        await again.close()

    with nullcontext() if is_mount else small_files(32 * MIB):
        asyncio.run(main())


def test_embedded_jobs_without_headroom_let_accepted_work_end(tmp_path: Path) -> None:
    """The same in a folder that is no small disk."""
    check_accepted_work_ends(tmp_path)


def test_embedded_jobs_reserve_is_restored_with_space(tmp_path: Path) -> None:
    """It is a file of that size, set aside again only if there is room for it twice."""
    headroom = Headroom(tmp_path / "reserve", MIB)
    assert headroom.restore()
    assert (tmp_path / "reserve").stat().st_size == MIB
    headroom.release()
    assert headroom.is_released
    assert not (tmp_path / "reserve").exists()
    assert headroom.restore()
    assert not Headroom(tmp_path / "none", 1 << 60).restore()


@pytest.mark.parametrize("content", [b"", b"not a database, but long enough to be one" * 20])
def test_embedded_jobs_foreign_file_is_refused_and_not_changed(tmp_path: Path, content: bytes) -> None:
    """Neither bytes that are no database, nor the database of another application."""
    path = tmp_path / "jobs.db"
    if content:
        path.write_bytes(content)
    else:
        with sqlite3.connect(path) as file:
            file.execute("CREATE TABLE notes (text)")
        file.close()
    before = path.read_bytes()

    async def main() -> None:
        store = opened(tmp_path)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"not a database|not a store of jobs"):
                await store.submit([new_job("j1")])
            with pytest.raises(StoreUnavailable):
                await store.find("j1")
        await store.close()

    assert describe_problem(path)
    asyncio.run(main())
    assert path.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["jobs.db"]


def test_embedded_jobs_damaged_file_is_reported(tmp_path: Path) -> None:
    """A page that was overwritten is an error of the store, not a wrong answer."""
    async def main() -> None:
        store = opened(tmp_path)
        await store.submit([new_job(f"j{n}", body=os.urandom(3000)) for n in range(300)])
        await store.close()
        path = tmp_path / "jobs.db"
        data = bytearray(path.read_bytes())
        data[4096:40 * 4096] = os.urandom(39 * 4096)
        path.write_bytes(data)
        store = opened(tmp_path)
        with pytest.raises(StoreUnavailable, match=r"jobs\.db"):
            await store.claim("w", {MODEL: 300}, 30.0)
        await store.close()

    asyncio.run(main())


def test_embedded_jobs_newer_version_is_refused(tmp_path: Path) -> None:
    """An older program does not change the file of a newer one."""
    async def main(*, is_fine: bool) -> None:
        store = opened(tmp_path)
        if is_fine:
            await store.submit([new_job("j1")])
        else:
            with pytest.raises(StoreUnavailable, match="newer"):
                await store.find("j1")
        await store.close()

    asyncio.run(main(is_fine=True))
    with sqlite3.connect(tmp_path / "jobs.db") as file:
        file.execute("PRAGMA user_version = 99")
    file.close()
    assert "newer" in describe_problem(tmp_path / "jobs.db")
    asyncio.run(main(is_fine=False))


def test_embedded_jobs_migrations_run_in_one_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that fails leaves the file as it was; the next attempt has all of it."""
    async def count() -> int:
        store = opened(tmp_path)
        try:
            return await store.count_unfinished(None)
        finally:
            await store.close()

    async def submit() -> None:
        store = opened(tmp_path)
        await store.submit([new_job("j1")])
        await store.close()

    asyncio.run(submit())
    first = schema.MIGRATIONS
    monkeypatch.setattr(schema, "MIGRATIONS", (*first, "ALTER TABLE jobs ADD COLUMN one; SELECT missing();"))
    with pytest.raises(StoreUnavailable, match="missing"):
        asyncio.run(count())
    monkeypatch.setattr(schema, "MIGRATIONS", (*first, "ALTER TABLE jobs ADD COLUMN one; ALTER TABLE jobs ADD COLUMN two;"))
    assert asyncio.run(count()) == 1
    with sqlite3.connect(tmp_path / "jobs.db") as file:
        assert file.execute("SELECT one, two FROM jobs").fetchall() == [(None, None)]
        assert file.execute("PRAGMA user_version").fetchone() == (len(first) + 1,)
    file.close()


def test_embedded_jobs_bad_job_fails_alone(tmp_path: Path) -> None:
    """A lone surrogate cannot be stored; jobs of other callers in the same transaction are."""
    async def main() -> None:
        store = opened(tmp_path, window_s=0.05)
        good = [store.submit([new_job(f"j{n}")]) for n in range(20)]
        bad = store.submit([new_job("good"), new_job("bad", tenant="\ud800")])
        replies = await asyncio.gather(*good, bad, return_exceptions=True)
        assert isinstance(replies[-1], ValueError)
        assert all(isinstance(reply, list) for reply in replies[:-1])
        assert await store.count_unfinished(None) == 20
        assert await store.find("good") is None
        await store.close()

    asyncio.run(main())


def test_embedded_jobs_concurrent_calls_share_a_commit(tmp_path: Path) -> None:
    """A hundred submissions at once need few commits, which the log shows: each commit writes the changed pages again."""
    async def log_bytes(folder: Path, *, is_at_once: bool) -> int:
        store = opened(folder, window_s=0.05 if is_at_once else 0.0)
        await store.depths()
        if is_at_once:
            await asyncio.gather(*(store.submit([new_job(f"j{n}")]) for n in range(100)))
        else:
            for n in range(100):
                await store.submit([new_job(f"j{n}")])
        n_bytes = (folder / "jobs.db-wal").stat().st_size
        await store.close()
        return n_bytes

    together = asyncio.run(log_bytes(tmp_path / "a", is_at_once=True))
    apart = asyncio.run(log_bytes(tmp_path / "b", is_at_once=False))
    assert apart > 5 * together


def test_embedded_jobs_file_shrinks_after_a_purge(tmp_path: Path) -> None:
    """Free pages are returned to the disk; the files belong to their owner alone."""
    async def main() -> None:
        store = opened(tmp_path)
        for first in range(0, 400, 50):
            await store.submit([new_job(f"j{n}", body=os.urandom(100_000), keep_s=0.0) for n in range(first, first + 50)])
        for n in range(400):
            await store.cancel(f"j{n}")
        for _ in range(60):
            await store.sweep(max_claims=3)
        await store.submit([new_job("last")])
        assert (await find_stored(store, "last")).state is JobState.QUEUED
        assert modes_in(tmp_path) == {0o600}
        await store.close()

    asyncio.run(main())
    assert (tmp_path / "jobs.db").stat().st_size < 20 * MIB


def test_embedded_jobs_unusable_folder_is_reported(tmp_path: Path) -> None:
    """With its path."""
    (tmp_path / "file").write_text("")

    async def main() -> None:
        store = opened(tmp_path / "file" / "jobs")
        with pytest.raises(StoreUnavailable, match=r"file/jobs"):
            await store.submit([new_job("j1")])
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.find("j1")

    asyncio.run(main())


def test_embedded_jobs_import_needs_no_other_package() -> None:
    """The embedded store is part of the core."""
    code = "import sys, stayfast.stores.jobs.handover; sys.exit('asyncpg' in sys.modules or 'redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_embedded_jobs_submission_counts_the_jobs_before_it(tmp_path: Path) -> None:
    """Of a new job that is due; left open for a line of a batch, for one that runs already, and with many jobs behind it."""
    async def main() -> None:
        store = opened(tmp_path)
        await store.submit([new_job(f"old{n}", tenant="a") for n in range(300)])
        submitted = await store.submit([
            new_job("a", tenant="a"), new_job("b", tenant="b", n_tokens=295), new_job("c", tenant="c"),
            new_job("later", run_at=1e11), new_job("line", batch_id="batch", line=1),
            new_job("runs", worker="w", lease_s=60.0), new_job("a", tenant="a")])
        assert [one.n_ahead for one in submitted] == [303, 297, None, None, None, None, None]
        assert [await store.count_ahead(job_id) for job_id in ("a", "b")] == [303, 297]
        await store.close()

    asyncio.run(main())
