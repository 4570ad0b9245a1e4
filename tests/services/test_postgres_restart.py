"""A PostgreSQL that is killed under load, frozen, read-only, or migrated by several gateways at once."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import asyncpg
import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.jobs import JobState
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import JobStore, StoreFull
from stayfast.stores.jobs.postgres.address import parse_postgres_url
from stayfast.stores.jobs.postgres.schema import STEPS
from stayfast.stores.jobs.postgres.store import PostgresJobStore, open_postgres_store
from tests.services.job_store_rig import MODEL, new_job, result_of
from tests.services.postgres_server import PostgresServer, postgres_server

pytestmark = pytest.mark.sockets
SLOW_S = 2.5  # longest call of a store that is unavailable, on a busy machine
N_JOBS = 300


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One for all tests of this file, each of which leaves it running."""
    with postgres_server() as running:
        yield running


async def open_store(server: PostgresServer, schema: str) -> PostgresJobStore:
    """A store in a schema of this test."""
    return (await open_postgres_store(f"{server.url}?search_path={schema}", SystemClock()))[0]


async def submit_until_accepted(store: JobStore, number: int, accepted: set[str]) -> None:
    """As a client that repeats what failed."""
    job_id = f"j{number}"
    while job_id not in accepted:
        with suppress(StoreUnavailable):
            await store.submit([new_job(job_id, tenant=f"t{number % 3}")])
            accepted.add(job_id)
            return
        await asyncio.sleep(0.05)


async def work_until(store: JobStore, worker: str, finished: list[str], over: asyncio.Event) -> None:
    """A worker: claims, and repeats a `finish` that failed."""
    while not over.is_set():
        claims = []
        with suppress(StoreUnavailable):
            claims = await store.claim(worker, {MODEL: 8}, 2.0)
            await store.sweep(max_claims=100)
        for claimed in claims:
            while True:
                with suppress(StoreUnavailable):
                    if (await store.finish([result_of(claimed)]))[0]:
                        finished.append(claimed.job.id)
                    break
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.01)


def test_postgres_killed_under_load_loses_and_doubles_nothing(server: PostgresServer) -> None:
    """`kill -9` of all its processes, twice, while clients submit and workers finish."""
    async def main() -> None:
        stores = [await open_store(server, "killed") for _ in range(2)]
        accepted, finished, over = set[str](), list[str](), asyncio.Event()
        async with asyncio.timeout(60.0), asyncio.TaskGroup() as group:
            for n in range(4):
                group.create_task(work_until(stores[n % 2], f"host{n}:1:0", finished, over))
            for restart in range(3):
                first = restart * N_JOBS // 3
                clients = [asyncio.create_task(submit_until_accepted(stores[n % 2], n, accepted))
                           for n in range(first, first + N_JOBS // 3)]
                if restart < 2:
                    while len(accepted) < first + 10:
                        await asyncio.sleep(0.005)
                    await asyncio.to_thread(server.kill)
                    await asyncio.sleep(0.3)
                    await asyncio.to_thread(server.start)
                await asyncio.gather(*clients)
            while len(set(finished)) < N_JOBS:
                await asyncio.sleep(0.05)
            over.set()
        assert len(accepted) == N_JOBS
        assert sorted(finished) == sorted(accepted)
        for job_id in accepted:
            result = await stores[0].find_result(job_id)
            assert result is not None
            assert result.body == b"result of " + job_id.encode()
        assert await stores[1].depths() == []
        for store in stores:
            await store.close()

    asyncio.run(main())


def test_postgres_frozen_fails_calls_in_time(server: PostgresServer) -> None:
    """A server that accepts connections and answers nothing; then it goes on, and so does the store."""
    async def main() -> None:
        store = await open_store(server, "frozen")
        await store.submit([new_job("j1")])
        server.freeze()
        try:
            for call in (store.find("j1"), store.submit([new_job("j2")]), store.claim("w", {MODEL: 1}, 30.0),
                         store.count_unfinished(None)):
                began_at = time.monotonic()
                with pytest.raises(StoreUnavailable):
                    await call
                assert time.monotonic() - began_at < SLOW_S
        finally:
            server.thaw()
        async with asyncio.timeout(20.0):
            while True:
                with suppress(StoreUnavailable):
                    assert (await store.submit([new_job("j3")]))[0].is_new
                    break
                await asyncio.sleep(0.05)
        await store.close()

    asyncio.run(main())


def test_postgres_read_only_is_full(server: PostgresServer) -> None:
    """As after a disk that is full, for submitters; what is stored can be read."""
    async def main() -> None:
        store = await open_store(server, "readonly")
        await store.submit([new_job("j1")])
        other, _ = await open_postgres_store(f"{server.url}?search_path=readonly", SystemClock())
        server.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        server.execute("SELECT pg_reload_conf()")
        try:
            async with asyncio.timeout(10.0):
                while True:  # until the server's processes have read the setting
                    try:
                        await other.submit([new_job("j2")])
                    except StoreFull:
                        break
                    await asyncio.sleep(0.05)
            assert await other.find("j1") is not None
        finally:
            server.execute("ALTER SYSTEM RESET default_transaction_read_only")
            server.execute("SELECT pg_reload_conf()")
        async with asyncio.timeout(10.0):
            while True:
                with suppress(StoreFull):
                    await other.submit([new_job("j3")])
                    break
                await asyncio.sleep(0.05)
        await store.close()
        await other.close()

    asyncio.run(main())


OPEN = """
import asyncio, sys
from stayfast.core.clock import SystemClock
from stayfast.stores.jobs.postgres.store import open_postgres_store
async def main():
    store, _ = await open_postgres_store(sys.argv[1], SystemClock())
    ids = []
    while len(ids) < int(sys.argv[3]):
        claims = await store.claim(sys.argv[2], {"fast": 5}, 60.0)
        if not claims:
            break
        ids += [one.job.id for one in claims]
    print(*ids)
    await store.close()
asyncio.run(main())
"""


def start_process(url: str, worker: str, n: int) -> subprocess.Popen[str]:
    """A gateway's store in a process of its own, which claims up to `n` jobs."""
    return subprocess.Popen([sys.executable, "-c", OPEN, url, worker, str(n)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def ids_from(process: subprocess.Popen[str]) -> list[str]:
    """What it claimed."""
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return output.split()


def test_postgres_four_gateways_migrate_at_once_and_claim_each_job_once(server: PostgresServer) -> None:
    """From empty; then two of them share a queue."""
    url = f"{server.url}?search_path=together"
    for process in [start_process(url, f"h{n}:1:0", 0) for n in range(4)]:
        ids_from(process)
    assert server.execute("SELECT count(*), max(version) FROM together.stayfast_schema") == f"{len(STEPS)}|{len(STEPS)}"

    async def fill() -> None:
        store, _ = await open_postgres_store(url, SystemClock())
        await store.submit([new_job(f"j{n}") for n in range(200)])
        await store.close()

    asyncio.run(fill())
    one, other = [ids_from(process) for process in [start_process(url, f"h{n}:1:0", 200) for n in range(2)]]
    assert len(one) + len(other) == len({*one, *other}) == 200
    assert server.execute("SELECT count(*) FROM together.stayfast_queue WHERE state = 2") == "200"


def test_postgres_newer_schema_is_used_as_it_is(server: PostgresServer) -> None:
    """By a gateway of an older version, which runs while the others are replaced."""
    async def main() -> None:
        await (await open_store(server, "newer")).close()
        connection = await asyncpg.connect(server.url)
        await connection.execute("INSERT INTO newer.stayfast_schema VALUES (99)")
        await connection.execute("ALTER TABLE newer.stayfast_queue ADD COLUMN colour text NOT NULL DEFAULT 'red'")
        await connection.close()
        store = await open_store(server, "newer")
        await store.submit([new_job("j1")])
        (claimed,) = await store.claim("w", {MODEL: 1}, 30.0)
        assert await store.finish([result_of(claimed, state=JobState.FAILED)]) == [True]
        await store.close()

    asyncio.run(main())


def test_postgres_errors_contain_no_password(server: PostgresServer) -> None:
    """Wrong password, wrong address, wrong URL, in text and in causes."""
    secret = "hunter2hunter2"

    async def main() -> None:
        for url in (f"postgres://nobody:{secret}@127.0.0.1:{server.port}/missing", f"postgres://u:{secret}@127.0.0.1:1/x",
                    f"postgres://u:{secret}@127.0.0.1:{server.port}/postgres?sslmode=require"):
            with pytest.raises(StoreUnavailable) as caught:
                await open_postgres_store(url, SystemClock())
            assert secret not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"
        for url in (f"mysql://u:{secret}@h/x", f"postgres://u:{secret}@h/x?connections=many", f"postgres://u:{secret}@[h/x",
                    f"postgres://u:{secret}@h/x?pooler=session"):
            with pytest.raises(ValueError, match=r"must be|not a URL") as wrong:
                await open_postgres_store(url, SystemClock())
            assert secret not in f"{wrong.value!r} {wrong.value.__cause__!r}"
        assert secret not in repr(parse_postgres_url(f"postgres://u:{secret}@h/x"))

    asyncio.run(main())
