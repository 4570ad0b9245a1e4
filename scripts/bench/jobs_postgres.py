"""The store of jobs in PostgreSQL: accepted and finished jobs a second, and the CPU of this process.

    python scripts/bench/jobs_postgres.py postgres://... [--jobs 20000] [--queued 0] [--submitters 64] [--workers 4]

Each submitter submits one job of 2 kB, waits until it is durable, and submits the next. Then each worker claims 16, and
finishes them with results of 2 kB, until none is left. `--queued` jobs are in the queue beforehand, behind the others. Uses
the schema stayfast_bench, and drops it.
"""

import argparse
import asyncio
import time
from statistics import quantiles

import asyncpg

from stayfast.core.clock import SystemClock
from stayfast.core.jobs import Door, JobResult, JobState, NewJob
from stayfast.core.types import Api
from stayfast.stores.jobs.postgres.store import PostgresJobStore, open_postgres_store

BODY = b"x" * 2048


def make_job(number: int, rank: int, n_tenants: int = 10) -> NewJob:
    """One job of one of the tenants."""
    return NewJob(f"job_{rank}_{number:09d}", Door.JOBS, Api.CHAT, "chat", BODY, tenant=f"t{number % n_tenants}", rank=rank,
                  n_tokens=1000)


async def fill(store: PostgresJobStore, n: int) -> None:
    """Jobs of a later rank."""
    for first in range(0, n, 500):
        await store.submit([make_job(number, 5) for number in range(first, min(n, first + 500))])


async def submit(store: PostgresJobStore, n: int, n_submitters: int) -> list[float]:
    """The times of the calls."""
    numbers, times = iter(range(n)), list[float]()

    async def run() -> None:
        for number in numbers:
            began_at = time.perf_counter()
            await store.submit([make_job(number, 1)])
            times.append(time.perf_counter() - began_at)

    await asyncio.gather(*(run() for _ in range(n_submitters)))
    return times


async def work(store: PostgresJobStore, n: int, n_workers: int) -> list[float]:
    """The times of the claims."""
    times = list[float]()
    left = n

    async def run(name: str) -> None:
        nonlocal left
        while left > 0:
            began_at = time.perf_counter()
            claims = await store.claim(name, {"chat": 16}, 30.0)
            times.append(time.perf_counter() - began_at)
            left -= len(claims)
            results = [JobResult(one.job.id, one.job.token, JobState.COMPLETED, body=BODY) for one in claims]
            assert all(await store.finish(results))

    await asyncio.gather(*(run(f"bench:1:{n}") for n in range(n_workers)))
    return times


def report(what: str, n: int, took_s: float, cpu_s: float, times: list[float]) -> None:
    """One line."""
    cuts = quantiles(times, n=100)
    print(f"{what}: {n / took_s:,.0f} a second, {cpu_s / n * 1e6:.0f} us CPU of this process each, call p50 "
          f"{cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f} ms")


async def measure(options: argparse.Namespace) -> None:
    """Fill, submit, work."""
    connection = await asyncpg.connect(options.url)
    await connection.execute("DROP SCHEMA IF EXISTS stayfast_bench CASCADE")
    store, _ = await open_postgres_store(f"{options.url}?search_path=stayfast_bench&connections=16", SystemClock())
    try:
        await fill(store, options.queued)
        for what, run in (("accepted", submit(store, options.jobs, options.submitters)),
                          ("claimed and finished", work(store, options.jobs, options.workers))):
            began_at, cpu_s = time.perf_counter(), time.process_time()
            times = await run
            report(f"{what} with {options.queued:,} others queued", options.jobs, time.perf_counter() - began_at,
                   time.process_time() - cpu_s, times)
    finally:
        await store.close()
        await connection.execute("DROP SCHEMA stayfast_bench CASCADE")
        await connection.close()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    for name, default in (("jobs", 20_000), ("queued", 0), ("submitters", 64), ("workers", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
