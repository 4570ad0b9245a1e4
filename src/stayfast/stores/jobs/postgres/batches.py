"""Batches, and the deletion of jobs, alone or with their batch."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from stayfast.core.jobs import Batch, BatchState, Job, JobResult, JobState
from stayfast.core.types import Usage
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.postgres.connections import PostgresPool, make_sql, to_text
from stayfast.stores.jobs.postgres.ends import ENDED_BATCHES, JobEnd, end_queued
from stayfast.stores.jobs.postgres.records import JOB_COLUMNS, JOB_TABLES, build_job, build_result, encode
from stayfast.stores.jobs.postgres.webhooks import DELETE_REPORTS, INSERT_BATCH_REPORT

_decode: Final = msgspec.msgpack.Decoder(Batch).decode
_COLUMNS: Final = """record, state, n_total, n_completed, n_failed, n_cancelled, n_expired, usage, finalizing_at,
    cancelling_at, token"""
_FIND: Final = make_sql("SELECT {columns} FROM stayfast_batches WHERE id = $1", columns=_COLUMNS)
_FIND_BY_KEY: Final = make_sql("SELECT {columns} FROM stayfast_batches WHERE tenant = $1 AND idempotency_key = $2",
                               columns=_COLUMNS)
_LIST: Final = """
SELECT {columns} FROM stayfast_batches WHERE tenant = $1 AND door = ANY($2::text[]) {after} ORDER BY seq {order} LIMIT $3"""
_CREATE: Final = make_sql("""
INSERT INTO stayfast_batches (id, door, tenant, idempotency_key, state, record, n_total, finalizing_at, cancelling_at,
                              drop_at, is_reported)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING RETURNING {columns}""", columns=_COLUMNS)
_CLAIM: Final = make_sql("""
UPDATE stayfast_batches SET token = token + 1, worker = $1, lease_until = (SELECT stayfast_now()) + $2 WHERE id = (
  SELECT id FROM stayfast_batches b WHERE state IN ('validating', 'finalizing', 'cancelling')
    AND (lease_until IS NULL OR lease_until <= (SELECT stayfast_now()))
    AND (state <> 'cancelling' OR NOT EXISTS (SELECT 1 FROM stayfast_queue q WHERE q.batch_id = b.id))
  ORDER BY seq LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
RETURNING {columns}""", columns=_COLUMNS)
_LOCK: Final = "SELECT state, is_reported FROM stayfast_batches WHERE id = $1 FOR NO KEY UPDATE"
_UPDATE: Final = """
UPDATE stayfast_batches SET record = $3, n_total = $4, drop_at = $5,
  state = CASE WHEN $6 IN ('validating', 'in_progress') AND state = 'cancelling' THEN state
               WHEN $6 = 'in_progress' AND n_completed + n_failed + n_cancelled + n_expired >= $4 THEN 'finalizing'
               ELSE $6 END,
  finalizing_at = coalesce($7, finalizing_at, CASE WHEN $6 = 'in_progress' AND state <> 'cancelling'
    AND n_completed + n_failed + n_cancelled + n_expired >= $4 THEN (SELECT stayfast_now()) END),
  cancelling_at = coalesce($8, cancelling_at),
  worker = CASE WHEN $9::float8 IS NULL THEN NULL ELSE worker END, lease_until = (SELECT stayfast_now()) + $9
WHERE id = $1 AND token = $2 RETURNING id"""
_CANCEL: Final = """
UPDATE stayfast_batches SET state = 'cancelling', cancelling_at = (SELECT stayfast_now())
WHERE id = $1 AND state IN ('validating', 'in_progress') RETURNING id"""
_QUEUED_LINES: Final = """
SELECT job_id, token FROM stayfast_queue WHERE batch_id = $1 AND state <> 2 LIMIT 500"""
_MARK_LINES: Final = """
UPDATE stayfast_queue SET is_cancelling = true WHERE batch_id = $1 AND state = 2 AND NOT is_cancelling"""
_RESULTS: Final = make_sql("""
SELECT {columns}, e.status_code, e.body, e.request_id, e.upstream, e.usage, e.cost_usd, e.job_id FROM {tables}
WHERE j.batch_id = $1 AND j.line > $2 ORDER BY j.line LIMIT 200""", columns=JOB_COLUMNS, tables=JOB_TABLES)
_INTERRUPTED: Final = """
SELECT id FROM stayfast_batches b WHERE state = 'cancelling'
  AND EXISTS (SELECT 1 FROM stayfast_queue q WHERE q.batch_id = b.id AND q.state <> 2) LIMIT 5"""
_DELETE: Final = "DELETE FROM stayfast_ends WHERE job_id = ANY($1::text[]) RETURNING job_id"
_DELETE_EVENTS: Final = "DELETE FROM stayfast_events WHERE job_id = ANY($1::text[])"
_DELETE_JOBS: Final = "DELETE FROM stayfast_jobs WHERE id = ANY($1::text[])"
_OVER: Final = """
SELECT job_id FROM stayfast_ends WHERE expires_at <= (SELECT stayfast_now()) ORDER BY expires_at LIMIT 500"""
_OVER_BATCHES: Final = "SELECT id FROM stayfast_batches WHERE drop_at <= (SELECT stayfast_now()) LIMIT 5"


class PostgresBatches:
    """The part of the store that has batches."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    async def create_batch(self, batch: Batch) -> tuple[Batch, bool]:
        key = None if batch.idempotency_key is None else batch.idempotency_key.encode("utf-8", "surrogatepass")
        row = await self._pool.fetch_row(
            _CREATE, to_text(batch.id), str(batch.door), batch.tenant or "", key, str(batch.state), encode(batch),
            batch.n_total, batch.finalizing_at, batch.cancelling_at, batch.drop_at, batch.is_reported)
        if row is not None:
            return _build_batch(row), True
        earlier = await self._pool.fetch_row(_FIND, to_text(batch.id))
        if earlier is None and key is not None:
            earlier = await self._pool.fetch_row(_FIND_BY_KEY, batch.tenant or "", key)
        if earlier is None:
            raise StoreUnavailable("an earlier batch with the same key has just been deleted")
        return _build_batch(earlier), False

    async def find_batch(self, batch_id: str) -> Batch | None:
        row = await self._pool.fetch_row(_FIND, to_text(batch_id))
        return None if row is None else _build_batch(row)

    async def list_batches(self, tenant: str | None, doors: Sequence[str], after_id: str | None, limit: int, *,
                           is_forward: bool = True) -> list[Batch]:
        sign, order = ("<", "DESC") if is_forward else (">", "ASC")
        values: list[object] = [tenant or "", [str(door) for door in doors], limit]
        after = ""
        if after_id is not None:
            values.append(to_text(after_id))
            after = make_sql("AND seq {sign} (SELECT seq FROM stayfast_batches WHERE id = $4)", sign=sign)
        rows = await self._pool.fetch(make_sql(_LIST, columns=_COLUMNS, after=after, order=order), *values)
        batches = [_build_batch(row) for row in rows]
        return batches if is_forward else batches[::-1]

    async def claim_batch(self, worker: str, lease_s: float) -> Batch | None:
        row = await self._pool.fetch_row(_CLAIM, to_text(worker), lease_s)
        return None if row is None else _build_batch(row)

    async def update_batch(self, batch: Batch, *, lease_s: float | None) -> bool:
        async def update(connection: Any) -> bool:
            before = await connection.fetchrow(_LOCK, to_text(batch.id))
            rows = await connection.fetch(
                _UPDATE, to_text(batch.id), batch.token, encode(batch), batch.n_total, batch.drop_at, str(batch.state),
                batch.finalizing_at, batch.cancelling_at, lease_s)
            if rows and before["is_reported"] and batch.state.is_final and before["state"] not in ENDED_BATCHES:
                await connection.execute(INSERT_BATCH_REPORT, to_text(batch.id))
            return bool(rows)

        return await self._pool.run_transaction(update)

    async def cancel_batch(self, batch_id: str) -> Batch | None:
        if await self._pool.fetch(_CANCEL, to_text(batch_id)):
            await self._cancel_lines(to_text(batch_id))
        return await self.find_batch(batch_id)

    async def _cancel_lines(self, batch_id: str) -> None:
        """Repeated until no line is queued: one may be claimed, or released, in the meantime."""
        rows = await self._pool.fetch(_QUEUED_LINES, batch_id)
        while True:
            ends = [JobEnd(row["job_id"], row["token"], JobState.CANCELLED, "batch_cancelled") for row in rows]
            if ends:
                await end_queued(self._pool, ends)
            else:
                await self._pool.fetch(_MARK_LINES, batch_id)
            was_empty = not rows
            rows = await self._pool.fetch(_QUEUED_LINES, batch_id)
            if was_empty and not rows:
                return

    async def cancel_interrupted(self) -> None:
        """Go on with cancellations whose process died."""
        for row in await self._pool.fetch(_INTERRUPTED):
            await self._cancel_lines(row["id"])

    async def delete_batch(self, batch_id: str) -> bool:
        row = await self._pool.fetch_row("SELECT state FROM stayfast_batches WHERE id = $1", to_text(batch_id))
        if row is None or row["state"] not in ENDED_BATCHES:
            return False
        await self._drop_batch(to_text(batch_id))
        return True

    async def _drop_batch(self, batch_id: str) -> int:
        """The lines first: a batch that is found has all of its deletion still to come. Returns how many records."""
        n_lines = 0
        while rows := await self._pool.fetch("SELECT id FROM stayfast_jobs WHERE batch_id = $1 LIMIT 500", batch_id):
            await self._delete_jobs([row["id"] for row in rows])
            n_lines += len(rows)
        await self._pool.fetch("DELETE FROM stayfast_batches WHERE id = $1", batch_id)
        await self._pool.fetch(DELETE_REPORTS, [batch_id])
        return n_lines + 1

    async def _delete_jobs(self, ids: Sequence[str]) -> int:
        async def delete(connection: Any) -> int:
            ended = [row["job_id"] for row in await connection.fetch(_DELETE, ids)]
            await connection.execute("DELETE FROM stayfast_queue WHERE job_id = ANY($1::text[])", ids)
            await connection.execute(_DELETE_EVENTS, ids)
            await connection.execute(_DELETE_JOBS, ids)
            await connection.execute(DELETE_REPORTS, ids)
            return len(ended)

        return await self._pool.run_transaction(delete)

    async def delete(self, job_id: str) -> bool:
        row = await self._pool.fetch_row("SELECT 1 FROM stayfast_ends WHERE job_id = $1", to_text(job_id))
        return row is not None and bool(await self._delete_jobs([to_text(job_id)]))

    async def purge(self) -> int:
        """Delete jobs and batches whose time is over; returns how many."""
        rows = await self._pool.fetch(_OVER)
        n_purged = await self._delete_jobs([row["job_id"] for row in rows]) if rows else 0
        for row in await self._pool.fetch(_OVER_BATCHES):
            n_purged += await self._drop_batch(row["id"])
        return n_purged

    async def batch_results(self, batch_id: str) -> AsyncIterator[tuple[Job, JobResult | None]]:
        line = 0
        while rows := await self._pool.fetch(_RESULTS, to_text(batch_id), line):
            for row in rows:
                job = build_job(row)
                yield job, None if row["status_code"] is None else _build_line_result(job, row)
            line = job.line or 0


def _build_line_result(job: Job, row: Any) -> JobResult:
    return build_result({**row, "token": job.token, "state": job.state, "why": job.why})


def _build_batch(row: Any) -> Batch:
    batch = _decode(row["record"])
    return replace(batch, state=BatchState(row["state"]), n_total=row["n_total"], n_completed=row["n_completed"],
                   n_failed=row["n_failed"], n_cancelled=row["n_cancelled"], n_expired=row["n_expired"],
                   usage=Usage(*row["usage"]), finalizing_at=row["finalizing_at"], cancelling_at=row["cancelling_at"],
                   token=row["token"])
