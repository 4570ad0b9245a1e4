"""All parts as one store."""

from random import Random

from stayfast.core.clock import Clock
from stayfast.core.jobs import Job, JobState
from stayfast.core.keys import KeysPage
from stayfast.stores.jobs.base import EventsPage, SweepReport
from stayfast.stores.jobs.keys import KEYS
from stayfast.stores.jobs.postgres.address import parse_postgres_url
from stayfast.stores.jobs.postgres.batches import PostgresBatches
from stayfast.stores.jobs.postgres.connections import PostgresPool
from stayfast.stores.jobs.postgres.files import PostgresFileBodies, PostgresFileRecords, delete_abandoned
from stayfast.stores.jobs.postgres.keys import PostgresKeys
from stayfast.stores.jobs.postgres.queue import PostgresQueue
from stayfast.stores.jobs.postgres.records import PostgresRecords
from stayfast.stores.jobs.postgres.schema import migrate
from stayfast.stores.jobs.postgres.streams import PostgresStreams
from stayfast.stores.jobs.postgres.wakeups import PostgresWakeups
from stayfast.stores.jobs.postgres.webhooks import PostgresReports


class PostgresJobStore(PostgresQueue, PostgresRecords, PostgresStreams, PostgresBatches, PostgresFileRecords,
                       PostgresReports, PostgresKeys, PostgresWakeups):
    """A `JobStore` and `ReportStore` that several machines share. One event loop's."""

    def __init__(self, pool: PostgresPool, clock: Clock) -> None:
        PostgresQueue.__init__(self, pool)
        PostgresRecords.__init__(self, pool, clock)
        PostgresStreams.__init__(self, pool)
        PostgresWakeups.__init__(self, pool, clock)

    async def find(self, job_id: str) -> Job | None:
        self._topics.mark(f"job:{job_id}")
        return await super().find(job_id)

    async def read_events(self, job_id: str, after_n: int, limit: int = 500) -> EventsPage:
        self._topics.mark(f"job:{job_id}")
        return await super().read_events(job_id, after_n, limit)

    async def read_keys(self, after_version: int, limit: int) -> KeysPage:
        self._topics.mark(KEYS)
        return await super().read_keys(after_version, limit)

    async def sweep(self, *, max_claims: int) -> SweepReport:
        expired = await self.sweep_expired()
        n_recovered, ended = await self.sweep_lapsed(max_claims)
        await self.cancel_interrupted()
        n_purged = await self.purge()
        await delete_abandoned(self._pool)
        return SweepReport(n_recovered, sum(state is JobState.DEAD for state in ended.values()), len(expired), n_purged,
                           (*ended, *sorted(expired)), await self.expired_files())

    async def close(self) -> None:
        self.close_groups()
        self.close_appends()
        await self.stop_wakeups()
        await self._pool.close()

    def __repr__(self) -> str:
        return "<PostgresJobStore>"


async def open_postgres_store(url: str, clock: Clock,
                              rng: Random | None = None) -> tuple[PostgresJobStore, PostgresFileBodies]:
    """Open the store and the contents of files in one database, and bring its tables up to date. The two share connections:
    closing the store closes both. Raises StoreUnavailable, and ValueError for a URL that is wrong; neither text contains it.
    """
    pool = PostgresPool(parse_postgres_url(url), clock, rng)
    await migrate(pool)
    return PostgresJobStore(pool, clock), PostgresFileBodies(pool)
