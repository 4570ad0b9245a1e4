"""A store of durable work in a real PostgreSQL: each in a schema of its own, with a clock that a test moves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import asyncpg

from stayfast.core.clock import SystemClock
from stayfast.stores.jobs.base import FileBodies, JobStore
from stayfast.stores.jobs.postgres.store import open_postgres_store
from tests.services.job_store_rig import JobStoreRig

_numbers = count()
START = 1_800_000_000.0


class PostgresRig:
    """A `JobStoreRig`. The store's clock is a function in its schema, which the rig replaces."""

    store: JobStore
    files: FileBodies

    def __init__(self, server_url: str, suffix: str = "") -> None:
        self._server_url = server_url
        self.schema = f"rig{next(_numbers)}"
        self.url = f"{server_url}?search_path={self.schema}{suffix}"
        self._now = START

    async def open(self) -> None:
        """Open the store on an empty schema."""
        self.store, self.files = await open_postgres_store(self.url, SystemClock())
        await self.advance(0.0)

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
        self.store, self.files = await open_postgres_store(self.url, SystemClock())


@asynccontextmanager
async def postgres_rig(server_url: str, suffix: str = "") -> AsyncIterator[JobStoreRig]:
    """An empty store."""
    rig = PostgresRig(server_url, suffix)
    await rig.open()
    try:
        yield rig
    finally:
        await rig.store.close()
