"""Look-ups, lists and counts of jobs."""

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any, Final

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.jobs import Job, JobFilter, JobResult, JobState, NewJob, QueueDepth
from stayfast.core.types import Usage
from stayfast.stores.jobs.postgres.aged_values import AgedValue
from stayfast.stores.jobs.postgres.connections import PostgresPool, make_sql, to_text
from stayfast.stores.jobs.postgres.schema import DEFERRED, READY, RUNNING

encode: Final = msgspec.msgpack.Encoder().encode
decode_new_job: Final = msgspec.msgpack.Decoder(NewJob).decode
decode_usage: Final = msgspec.msgpack.Decoder(Usage).decode

MAX_AHEAD: Final = 10_000
MAX_EXACT: Final = 500  # jobs; more are counted at intervals
MAX_TENANTS: Final = 10_000  # whose counts are stored
DEPTHS_LIMIT_S: Final = 10.0  # for a million jobs; no client waits for it
STATES: Final = {DEFERRED: JobState.QUEUED, READY: JobState.QUEUED, RUNNING: JobState.RUNNING}

# A job with its row of the queue, or of the ends.
JOB_COLUMNS: Final = """j.id, j.seq, j.record, j.created_at, q.state, q.token, q.n_failures, q.worker, q.started_at,
    q.run_at, q.deadline_at, q.is_cancelling, q.why, e.state AS end_state, e.token AS end_token,
    e.n_failures AS end_n_failures, e.worker AS end_worker, e.started_at AS end_started_at, e.finished_at, e.expires_at,
    e.why AS end_why"""
JOB_TABLES: Final = """stayfast_jobs j LEFT JOIN stayfast_queue q ON q.job_id = j.id
    LEFT JOIN stayfast_ends e ON e.job_id = j.id"""
FIND_JOB: Final = make_sql("SELECT {columns} FROM {tables} WHERE j.id = $1", columns=JOB_COLUMNS, tables=JOB_TABLES)
FIND_ALL: Final = make_sql("SELECT {columns}, j.digest FROM {tables} WHERE j.id = ANY($1::text[])", columns=JOB_COLUMNS,
                           tables=JOB_TABLES)
_LIST: Final = "SELECT {columns} FROM {tables} WHERE {conditions} ORDER BY {order} DESC LIMIT $1"
_RESULT: Final = "SELECT * FROM stayfast_ends WHERE job_id = $1 AND status_code IS NOT NULL"
# A running job is ahead of nothing. The comparison of rows is a range of the index of claims.
_COUNT_AHEAD: Final = """
WITH own AS MATERIALIZED (SELECT * FROM stayfast_queue WHERE job_id = $1 AND state <> 2)
SELECT (SELECT count(*) FROM (
          SELECT 1 FROM stayfast_queue q WHERE q.model = own.model AND q.state = 1
            AND (q.rank, q.vft, q.deadline_at, q.seq) < (own.rank, own.vft, own.deadline_at, own.seq)
            LIMIT 10000) AS earlier) AS n_earlier,
       (SELECT count(*) FROM (
          SELECT 1 FROM stayfast_queue q WHERE q.model = own.model AND q.state = 1 AND q.aged_at < 'Infinity'
            AND q.aged_at <= (SELECT stayfast_now()) AND q.job_id <> own.job_id
            AND (q.rank, q.vft, q.deadline_at, q.seq) >= (own.rank, own.vft, own.deadline_at, own.seq)
            LIMIT 10000) AS aged) AS n_aged,
       CASE WHEN own.aged_at <= (SELECT stayfast_now()) THEN (SELECT count(*) FROM (
          SELECT 1 FROM stayfast_queue q WHERE q.model = own.model AND q.state = 1 AND q.aged_at < 'Infinity'
            AND (q.aged_at, q.seq) < (own.aged_at, own.seq) LIMIT 10000) AS older) END AS n_older
FROM own"""
_DEPTHS: Final = """
SELECT model, count(*) FILTER (WHERE state = 1) AS n_queued, count(*) FILTER (WHERE state = 2) AS n_running,
       count(*) FILTER (WHERE state = 0) AS n_deferred,
       min(created_at) FILTER (WHERE state = 1) AS oldest_at,
       min(deadline_at) FILTER (WHERE state = 1) AS earliest_deadline_at,
       coalesce(sum(n_tokens) FILTER (WHERE state = 1), 0)::bigint AS n_queued_tokens
FROM stayfast_queue GROUP BY model"""
# One pass over the table, which has nothing but jobs that have not ended.
_DEPTHS_PLAN: Final = "SET LOCAL enable_seqscan = on; SET LOCAL enable_sort = off; SET LOCAL statement_timeout = '10s'"


class PostgresRecords:
    """The part of the store that reads jobs."""

    def __init__(self, pool: PostgresPool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._counts: dict[str, AgedValue[int]] = {}  # by tenant
        self._depths = AgedValue(self._query_depths, _are_many, clock)

    async def find(self, job_id: str) -> Job | None:
        row = await self._pool.fetch_row(FIND_JOB, to_text(job_id))
        return None if row is None else build_job(row)

    async def find_body(self, job_id: str) -> bytes | None:
        row = await self._pool.fetch_row("SELECT body FROM stayfast_jobs WHERE id = $1", to_text(job_id))
        return None if row is None else row["body"]

    async def find_result(self, job_id: str) -> JobResult | None:
        row = await self._pool.fetch_row(_RESULT, to_text(job_id))
        return None if row is None else build_result(row)

    async def list_jobs(self, what: JobFilter) -> list[Job]:
        values: list[object] = [what.limit]

        def place(value: object) -> str:
            values.append(value)
            return f"${len(values)}"

        order = "j.line" if what.batch_id is not None else "j.seq"
        conditions = _state_conditions(what.states, place)
        if what.is_for_tenant:
            conditions.append(f"j.tenant = {place(what.tenant or '')}")
        if what.doors:
            conditions.append(f"j.door = ANY({place(list(what.doors))}::text[])")
        if what.batch_id is not None:
            conditions.append(f"j.batch_id = {place(to_text(what.batch_id))}")
        if what.after_id is not None:
            conditions.append(make_sql("{order} < (SELECT {order} FROM stayfast_jobs j WHERE j.id = {id})", order=order,
                                       id=place(to_text(what.after_id))))
        rows = await self._pool.fetch(make_sql(_LIST, columns=JOB_COLUMNS, tables=JOB_TABLES, order=order,
                                               conditions=" AND ".join(conditions) or "true"), *values)
        return [build_job(row) for row in rows]

    async def depths(self) -> list[QueueDepth]:
        """Beyond MAX_EXACT jobs they are up to `aged_values.MAX_AGE_S` old."""
        return list(await self._depths.get())

    async def _query_depths(self) -> list[QueueDepth]:
        async def query(connection: Any) -> list[Any]:
            await connection.execute("BEGIN")
            await connection.execute(_DEPTHS_PLAN)
            rows: list[Any] = await connection.fetch(_DEPTHS)
            await connection.execute("COMMIT")
            return rows

        return [_build_depth(row) for row in await self._pool.run(query, DEPTHS_LIMIT_S)]

    async def count_ahead(self, job_id: str) -> int:
        row = await self._pool.fetch_row(_COUNT_AHEAD, to_text(job_id))
        if row is None:
            return 0
        n_older: int | None = row["n_older"]
        return min(MAX_AHEAD, row["n_earlier"] + row["n_aged"] if n_older is None else n_older)

    async def count_unfinished(self, tenant: str | None) -> int:
        """Beyond MAX_EXACT it is up to `aged_values.MAX_AGE_S` old."""
        name = tenant or ""
        counts = self._counts.get(name)
        if counts is None:
            if len(self._counts) >= MAX_TENANTS:
                self._counts.clear()
            counts = self._counts[name] = AgedValue(partial(self._query_count, name), lambda n: n > MAX_EXACT, self._clock)
        return await counts.get()

    async def _query_count(self, tenant: str) -> int:
        row = await self._pool.fetch_row("SELECT count(*) AS n FROM stayfast_queue WHERE tenant = $1", tenant)
        n: int = row["n"]
        return n


def _are_many(depths: Sequence[QueueDepth]) -> bool:
    return sum(depth.n_queued + depth.n_running + depth.n_deferred for depth in depths) > MAX_EXACT


def _state_conditions(states: Sequence[JobState], place: Any) -> list[str]:
    if not states:
        return []
    parts = []
    if JobState.QUEUED in states:
        parts.append("q.state IN (0, 1)")
    if JobState.RUNNING in states:
        parts.append("q.state = 2")
    if ended := [str(state) for state in states if state.is_final]:
        parts.append(f"e.state = ANY({place(ended)}::text[])")
    return [f"({' OR '.join(parts)})"]


def build_job(row: Any) -> Job:
    """A job from JOB_COLUMNS."""
    new = decode_new_job(row["record"])
    if row["end_state"] is not None:
        expires_at = row["expires_at"]
        return from_new_job(new, row["created_at"], state=JobState(row["end_state"]), token=row["end_token"],
                            n_failures=row["end_n_failures"], worker=row["end_worker"], started_at=row["end_started_at"],
                            finished_at=row["finished_at"], expires_at=None if expires_at == inf else expires_at,
                            why=row["end_why"], run_at=new.run_at, deadline_at=new.deadline_at)
    deadline_at = row["deadline_at"]
    return from_new_job(new, row["created_at"], state=STATES[row["state"]], token=row["token"],
                        n_failures=row["n_failures"], worker=row["worker"], started_at=row["started_at"],
                        is_cancelling=row["is_cancelling"], why=row["why"], run_at=row["run_at"],
                        deadline_at=None if deadline_at == inf else deadline_at)


def from_new_job(new: NewJob, created_at: float, **fields: Any) -> Job:
    """A job with the fields of its submission, and others."""
    return Job(**{"id": new.id, "door": new.door, "api": new.api, "model": new.model, "tenant": new.tenant,
                  "created_at": created_at, "is_stream": new.is_stream, "rank": new.rank, "n_tokens": new.n_tokens,
                  "run_at": new.run_at, "deadline_at": new.deadline_at, "keep_s": new.keep_s, "batch_id": new.batch_id,
                  "line": new.line, "custom_id": new.custom_id, "metadata": new.metadata, "state": JobState.QUEUED,
                  **fields})


def build_result(row: Any) -> JobResult:
    """A result from its row of the ends."""
    return JobResult(row["job_id"], row["token"], JobState(row["state"]), row["status_code"], row["body"], row["request_id"],
                     row["upstream"], None if row["usage"] is None else decode_usage(row["usage"]), row["cost_usd"],
                     row["why"])


def _build_depth(row: Any) -> QueueDepth:
    deadline_at = row["earliest_deadline_at"]
    return QueueDepth(row["model"], row["n_queued"], row["n_running"], row["n_deferred"], row["oldest_at"],
                      None if deadline_at == inf else deadline_at, row["n_queued_tokens"])
