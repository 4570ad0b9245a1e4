"""A store of durable work in a real PostgreSQL: each in a schema of its own, with a clock that a test moves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import asyncpg

from stayfast.core.clock import SystemClock
from stayfast.stores.jobs.base import FileBodies, JobStore
from stayfast.stores.jobs.postgres.store import open_postgres_store
from stayfast.stores.jobs.wakeups_redis import wake_by_redis

_numbers = count()
START = 1_800_000_000.0


class PostgresRig:
    """A `JobStoreRig`. The store's clock is a function in its schema, which the rig replaces."""

    store: JobStore
    files: FileBodies

    def __init__(self, server_url: str, suffix: str = "", redis_url: str | None = None) -> None:
        self._server_url = server_url
        self._redis_url = redis_url
        self.schema = f"rig{next(_numbers)}"
        self.url = f"{server_url}?search_path={self.schema}{suffix}"
        self._now = START

    async def open(self) -> None:
        """Open the store on an empty schema."""
        await self._open()
        await self.advance(0.0)

    async def _open(self) -> None:
        store, self.files = await open_postgres_store(self.url, SystemClock())
        self.store = store if self._redis_url is None else wake_by_redis(store, self._redis_url, SystemClock(), self.schema)

    def now(self) -> float:
        """The store's clock, in Unix seconds."""
        return self._now

    async def advance(self, s: float) -> None:
        """Move the store's clock."""
        self._now += s
        connection = await asyncpg.connect(self._server_url)
        try:
            await connection.execute(f"CREATE OR REPLACE FUNCTION {self.schema}.stayfast_now() RETURNS double precision "
                                     f"LANGUAGE sql VOLATILE AS 'SELECT {self._now!r}::double precision'")
        finally:
            await connection.close()

    async def restart(self) -> None:
        """Close the store and open it again."""
        await self.store.close()
        await self._open()


@asynccontextmanager
async def postgres_rig(server_url: str, suffix: str = "", redis_url: str | None = None) -> AsyncIterator[PostgresRig]:
    """An empty store. suffix: more parameters of its URL."""
    rig = PostgresRig(server_url, suffix, redis_url)
    await rig.open()
    try:
        yield rig
    finally:
        await rig.store.close()
