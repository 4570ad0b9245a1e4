"""Several real processes on one folder; the one that commits is killed under load."""

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.jobs import JobState
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.handover import SharedJobStore, open_job_store
from tests.services.job_store_rig import find_stored, new_job

ROOT = Path(__file__).parents[2]
N_PROCESSES, N_KILLS = 3, 5


class JobProcess:
    """A process of `job_process`, and the lines that it wrote."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder.parent / f"{name}.log"
        with self._path.open("wb") as output:
            self.process = subprocess.Popen([sys.executable, "-m", "tests.services.job_process", str(folder), name],
                                            stdout=output, cwd=ROOT, env={**os.environ, "PYTHONPATH": "src:."})

    def lines(self) -> list[list[str]]:
        """Whole lines."""
        return [line.split() for line in self._path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def is_committer(self) -> bool:
        """Whether it has become the committer."""
        return ["C"] in self.lines()

    def kill(self) -> None:
        """As `kill -9`."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Poll for what other processes do."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def n_acknowledged(processes: list[JobProcess]) -> int:
    """Lines so far."""
    return sum(len(process.lines()) for process in processes)


def wait_for_work(processes: list[JobProcess]) -> None:
    """Until they have acknowledged some more calls."""
    enough = n_acknowledged(processes) + 200
    wait_until(lambda: n_acknowledged(processes) > enough, "work goes on")


@pytest.mark.sockets
def test_handover_killed_committer_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Everything acknowledged is stored, every job is finished by one worker; the others go on."""
    folder = tmp_path / "jobs"
    every = [JobProcess(folder, f"p{n}") for n in range(N_PROCESSES)]
    running = list(every)
    try:
        for n in range(N_KILLS):
            wait_until(lambda: sum(process.is_committer() for process in running) == 1, "one process commits")
            wait_for_work(running)
            (committer,) = [process for process in running if process.is_committer()]
            committer.kill()
            running.remove(committer)
            running.append(JobProcess(folder, f"q{n}"))
            every.append(running[-1])
        wait_until(lambda: sum(process.is_committer() for process in running) == 1, "one process commits")
    finally:
        for process in every:
            process.kill()
    lines = [line for process in every for line in process.lines()]
    submitted = Counter(line[1] for line in lines if line[0] == "S")
    finished = Counter(line[1] for line in lines if line[0] == "F")
    assert max(submitted.values()) == max(finished.values()) == 1
    with sqlite3.connect(folder / "jobs.db") as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        states = dict(file.execute("SELECT id, state FROM jobs").fetchall())
        with_result = {job_id for job_id, in file.execute("SELECT id FROM jobs JOIN results USING (n)")}
    file.close()
    assert set(submitted) <= set(states)
    assert set(finished) <= with_result
    assert all((states[job_id] == JobState.COMPLETED) is (job_id in with_result) for job_id in states)
    survivors = [process.lines() for process in running]
    for process_lines in survivors:
        times = [float(line[2]) for line in process_lines if line[0] == "S"]
        assert max((later - earlier for earlier, later in pairwise(times)), default=0.0) < 8.0


@pytest.mark.sockets
def test_handover_stopped_committer_fails_calls_soon_and_goes_on_later(tmp_path: Path) -> None:
    """Long before the longest call; then at once, until it replies again."""
    folder = tmp_path / "jobs"
    committer = JobProcess(folder, "p")
    try:
        wait_until(committer.is_committer, "it commits")
        wait_for_work([committer])

        async def main() -> None:
            store = SharedJobStore(folder, SystemClock(), reserve_bytes=0)
            await store.depths()
            committer.process.send_signal(signal.SIGSTOP)
            began_at = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await store.submit([new_job("a")])
            assert time.monotonic() - began_at < 12.0
            began_at = time.monotonic()
            for _ in range(20):
                with pytest.raises(StoreUnavailable):
                    await store.depths()
            assert time.monotonic() - began_at < 5.0
            committer.process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(20.0):
                while True:
                    with suppress(StoreUnavailable):
                        await store.submit([new_job("b")])
                        break
                    await asyncio.sleep(0.1)
            assert (await find_stored(store, "b")).id == "b"
            await store.close()

        asyncio.run(main())
    finally:
        committer.kill()


def test_handover_closed_committer_gives_over_at_once(tmp_path: Path) -> None:
    """Calls that arrive meanwhile are answered by the next one."""
    async def main() -> None:
        stores = [SharedJobStore(tmp_path, SystemClock(), reserve_bytes=0) for _ in range(3)]
        for n, store in enumerate(stores):
            await store.submit([new_job(f"a{n}")])
        assert [store.is_committer for store in stores] == [True, False, False]
        calls = [asyncio.create_task(store.submit([new_job(f"b{k}.{n}")])) for k in range(50)
                 for n, store in enumerate(stores[1:])]
        await asyncio.sleep(0)
        await stores[0].close()
        await asyncio.gather(*calls)
        assert sorted(store.is_committer for store in stores[1:]) == [False, True]
        assert await stores[1].count_unfinished(None) == await stores[2].count_unfinished(None) == 103
        for store in stores[1:]:
            await store.close()
        with pytest.raises(StoreUnavailable):
            await stores[1].find("a0")

    asyncio.run(main())


def test_handover_notifications_reach_all_processes(tmp_path: Path) -> None:
    """From the committer to the others, from them to it, and among them, within a moment."""
    async def main() -> None:
        stores = [SharedJobStore(tmp_path, SystemClock(), reserve_bytes=0) for _ in range(3)]
        for store in stores:
            await store.depths()
        async with asyncio.timeout(20.0):
            for sender in stores:
                waiters = [asyncio.create_task(store.wait("job:1", 60.0)) for store in stores]
                await asyncio.gather(*(store.depths() for store in stores))  # the topics are known to the committer
                await sender.notify("job:1")
                await asyncio.gather(*waiters)
                await asyncio.sleep(0.05)  # a notification counts for a moment
        for store in stores[::-1]:
            await store.close()

    asyncio.run(main())


def test_handover_large_bodies_and_many_calls_pass(tmp_path: Path) -> None:
    """20 MB in one call, hundreds in flight, in a folder with a long path; only its owner has access."""
    folder = tmp_path / ("long" * 30)

    async def main() -> None:
        committer, other = (open_job_store(folder, SystemClock(), reserve_bytes=0) for _ in range(2))
        await committer.depths()
        body = os.urandom(20_000_000)
        await other.submit([new_job("big", body=body)])
        assert await other.find_body("big") == body
        await asyncio.gather(*(other.submit([new_job(f"j{n}")]) for n in range(500)))
        assert (await find_stored(other, "j499")).state is JobState.QUEUED
        assert not other.is_committer
        await other.close()
        await committer.close()

    asyncio.run(main())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.name != "jobs.sock"}
    assert set(modes.values()) == {0o600}, modes
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_handover_errors_of_the_committer_reach_the_caller(tmp_path: Path) -> None:
    """A foreign file is not changed, and the error names it; a bad argument fails alone."""
    (tmp_path / "jobs.db").write_bytes(b"not a database" * 100)

    async def main() -> None:
        committer, other = (SharedJobStore(tmp_path, SystemClock(), reserve_bytes=0) for _ in range(2))
        for store in (committer, other):
            with pytest.raises(StoreUnavailable, match=r"jobs\.db: file is not a database"):
                await store.find("x")
        for store in (other, committer):
            await store.close()

    asyncio.run(main())
    assert (tmp_path / "jobs.db").read_bytes() == b"not a database" * 100
