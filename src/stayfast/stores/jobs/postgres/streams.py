"""The events of jobs."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from stayfast.core.jobs import JobEvent
from stayfast.stores.jobs.base import EventsPage
from stayfast.stores.jobs.postgres.connections import PostgresPool, columns, to_text
from stayfast.stores.jobs.postgres.groups import CallGroups
from stayfast.stores.jobs.postgres.queue import tokens_by_job

# The lock makes a claim by another worker wait, so that no event of this one appears after it.
_APPEND: Final = """
WITH held AS MATERIALIZED (
  SELECT job_id FROM stayfast_queue WHERE job_id = ANY($1::text[]) AND state = 2
    AND token = ($2::jsonb ->> job_id)::integer ORDER BY job_id FOR NO KEY UPDATE),
stored AS (
  INSERT INTO stayfast_events (job_id, n, epoch, is_last, data)
  SELECT g.* FROM unnest($3::text[], $4::integer[], $5::integer[], $6::boolean[], $7::bytea[]) AS g(job_id, n, e, l, d)
  WHERE g.job_id = ANY(ARRAY(SELECT job_id FROM held))
  ON CONFLICT (job_id, n) DO NOTHING)
SELECT job_id FROM held"""
_READ: Final = """
SELECT n, epoch, is_last, data, (SELECT n FROM stayfast_events WHERE job_id = $1 ORDER BY n LIMIT 1) AS first_n
FROM stayfast_events WHERE job_id = $1 AND n > $2 ORDER BY n LIMIT $3"""


class _Append(NamedTuple):
    job_id: str
    token: int
    events: Sequence[JobEvent]


class PostgresStreams:
    """The part of the store that has the events of jobs."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._appends = CallGroups[_Append, bool](self._append, lambda one: one.job_id,
                                                  lambda one: sum(len(event.data) for event in one.events))

    async def append_events(self, job_id: str, token: int, events: Sequence[JobEvent]) -> bool:
        (is_held,) = await self._appends.call([_Append(to_text(job_id), token, events)])
        return is_held

    async def _append(self, appends: Sequence[_Append]) -> list[bool]:
        rows: list[tuple[Any, ...]] = [(one.job_id, event.n, event.epoch, event.is_last, event.data)
                                       for one in appends for event in one.events]
        tokens = [(one.job_id, one.token) for one in appends]
        held = {row["job_id"] for row in await self._pool.fetch(
            _APPEND, [job_id for job_id, _ in tokens], tokens_by_job(tokens), *columns(rows, 5))}
        return [one.job_id in held for one in appends]

    async def read_events(self, job_id: str, after_n: int, limit: int = 500) -> EventsPage:
        rows = await self._pool.fetch(_READ, to_text(job_id), after_n, limit)
        events = tuple(JobEvent(row["n"], row["epoch"], row["data"], row["is_last"]) for row in rows)
        return EventsPage(events, rows[0]["first_n"] if rows else 0)

    def close_appends(self) -> None:
        """Calls that are waiting fail."""
        self._appends.close()
