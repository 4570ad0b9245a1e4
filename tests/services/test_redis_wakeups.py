"""Two gateways that share jobs in PostgreSQL: how soon one sees what the other did, with Redis, without it, and through its
loss.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import cast

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.jobs import JobEvent
from stayfast.stores.jobs.base import JobStore
from stayfast.stores.jobs.postgres.store import open_postgres_store
from stayfast.stores.jobs.wakeups_redis import wake_by_redis
from tests.services.job_store_rig import JobStoreRig, claim_one, new_job, result_of
from tests.services.job_store_suite import CancelSuite
from tests.services.postgres_rig import postgres_rig
from tests.services.postgres_server import PostgresServer, postgres_server
from tests.services.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.sockets
POLL_S = 1.0  # of readers that are not woken
SOON_S = 0.5  # on a busy machine; much less than a poll


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One for all tests of this file."""
    with postgres_server() as running:
        yield running


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all tests of this file, each of which leaves it running."""
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


class TestRedisWakeups(CancelSuite):
    """What the suite of all stores states of cancellations, events and notifications, with Redis before the store."""

    @pytest.fixture(autouse=True)
    def use_servers(self, server: PostgresServer, redis: RedisServer) -> None:
        self.server, self.redis = server, redis

    def open(self) -> AbstractAsyncContextManager[JobStoreRig]:
        return postgres_rig(self.server.url, redis_url=self.redis.url)


@asynccontextmanager
async def two_gateways(url: str, redis_url: str | None) -> AsyncIterator[tuple[JobStore, JobStore]]:
    """The stores of two processes."""
    stores: list[JobStore] = []
    for _ in range(2):
        store, _ = await open_postgres_store(url, SystemClock())
        stores.append(store if redis_url is None else wake_by_redis(store, redis_url, SystemClock()))
    try:
        yield stores[0], stores[1]
    finally:
        for one in stores:
            await one.close()


async def read_stream(store: JobStore, job_id: str, on_event: Callable[[JobEvent], None]) -> None:
    """As the endpoint of a stream does."""
    after_n = -1
    while True:
        page = await store.read_events(job_id, after_n)
        for event in page.events:
            assert event.n == after_n + 1
            after_n = event.n
            on_event(event)
            if event.is_last:
                return
        if not page.events:
            await store.wait(f"job:{job_id}", POLL_S)


async def stream_delays(writer: JobStore, reader: JobStore, job_id: str, n: int,
                        between: Callable[[int], Awaitable[None]] | None = None) -> list[float]:
    """The seconds from the append of each event in one gateway to its arrival in the other."""
    await writer.submit([new_job(job_id, is_stream=True)])
    claimed = await claim_one(writer)
    sent: dict[int, float] = {}
    delays: list[float] = []
    async with asyncio.timeout(60.0), asyncio.TaskGroup() as group:
        group.create_task(read_stream(reader, job_id, lambda event: delays.append(time.monotonic() - sent[event.n])))
        await asyncio.sleep(0.1)
        for k in range(n):
            if between is not None:
                await between(k)
            sent[k] = time.monotonic()
            assert await writer.append_events(job_id, claimed.job.token, [JobEvent(
                k, claimed.job.token, f"data: {k}\n\n".encode(), is_last=k == n - 1)])
            await writer.notify(f"job:{job_id}")
            await asyncio.sleep(0.02)
    assert await writer.finish([result_of(claimed)]) == [True]
    return delays


def median(values: list[float]) -> float:
    """The middle one."""
    return sorted(values)[len(values) // 2]


@pytest.mark.parametrize("is_with_redis", [True, False])
def test_wakeups_pass_tokens_on_long_before_the_next_poll(server: PostgresServer, redis: RedisServer, *,
                                                          is_with_redis: bool) -> None:
    """By Redis, or by NOTIFY without it."""
    async def main() -> None:
        url = f"{server.url}?search_path=tokens{int(is_with_redis)}"
        async with two_gateways(url, redis.url if is_with_redis else None) as (writer, reader):
            delays = await stream_delays(writer, reader, "j1", 40)
            assert len(delays) == 40
            assert median(delays) < SOON_S

    asyncio.run(main())


def test_redis_passes_events_on_without_the_database(server: PostgresServer, redis: RedisServer) -> None:
    """A reader that is woken by Redis reads the published events: its gateway's look-ups do not grow with the stream."""
    async def main() -> None:
        url = f"{server.url}?search_path=quiet"
        async with two_gateways(url, redis.url) as (writer, _):
            n_reads = 0
            stored, _ = await open_postgres_store(url, SystemClock())

            class CountedStore:
                def __getattr__(self, name: str) -> object:
                    nonlocal n_reads
                    n_reads += name == "read_events"
                    return getattr(stored, name)

            counted = wake_by_redis(cast("JobStore", CountedStore()), redis.url, SystemClock())
            assert len(await stream_delays(writer, counted, "j1", 50)) == 50
            assert n_reads < 15
            await counted.close()

    asyncio.run(main())


def test_redis_lost_and_back_costs_latency_only(server: PostgresServer, redis: RedisServer) -> None:
    """Killed in the middle of a stream, back at two thirds of it: all events arrive once and in order."""
    async def main() -> None:
        async with two_gateways(f"{server.url}?search_path=lost", redis.url) as (writer, reader):
            async def break_redis(k: int) -> None:
                if k == 10:
                    redis.kill()
                if k == 30:
                    await asyncio.to_thread(redis.start)

            delays = await stream_delays(writer, reader, "j1", 60, break_redis)
            assert len(delays) == 60
            assert max(delays) < 2 * POLL_S + SOON_S

    asyncio.run(main())


def test_redis_frozen_delays_no_worker(server: PostgresServer, redis: RedisServer) -> None:
    """It accepts connections, and answers nothing: appends do not wait for it."""
    async def main() -> None:
        async with two_gateways(f"{server.url}?search_path=still", redis.url) as (writer, reader):
            await stream_delays(writer, reader, "j1", 3)
            redis.freeze()
            try:
                began_at = time.monotonic()
                delays = await stream_delays(writer, reader, "j2", 30)
                assert time.monotonic() - began_at < 30 * 0.02 + 5.0
                assert len(delays) == 30
            finally:
                redis.thaw()

    asyncio.run(main())
