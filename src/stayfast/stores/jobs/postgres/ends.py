"""Everything that ends a job: its row leaves the queue, its result appears, its batch counts it, in one transaction.

Locks are taken in the order batches, queue, tenants, and in the order of ids within each, so that two transactions do not
wait for each other.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final

import msgspec

from stayfast.core.jobs import BatchState, JobResult, JobState
from stayfast.core.types import Usage
from stayfast.stores.jobs.postgres.connections import PostgresPool, columns, to_text
from stayfast.stores.jobs.postgres.records import encode
from stayfast.stores.jobs.postgres.webhooks import INSERT_REPORTS

CANCELLED, EXPIRED, DEAD, COMPLETED = JobState.CANCELLED, JobState.EXPIRED, JobState.DEAD, JobState.COMPLETED
_LOCK_BATCHES: Final = """
SELECT id, state FROM stayfast_batches WHERE id = ANY(ARRAY(
  SELECT batch_id FROM stayfast_queue WHERE job_id = ANY($1::text[]) AND batch_id IS NOT NULL)) ORDER BY id
FOR NO KEY UPDATE"""
# $2: the tokens by job, as JSON: a look-up in it takes no time that grows with the number of jobs.
_DELETE: Final = """
DELETE FROM stayfast_queue q WHERE q.job_id = ANY($1::text[]) AND q.token = ($2::jsonb ->> q.job_id)::integer
  AND (q.state = 2) = $3 AND (NOT $4 OR q.lease_until <= (SELECT stayfast_now()))
RETURNING q.job_id, q.seq, q.batch_id, q.n_failures, q.worker, q.started_at, q.keep_s, q.model, q.rank, q.tenant, q.cost,
  q.is_reported, (SELECT stayfast_now()) AS now"""
_INSERT: Final = """
INSERT INTO stayfast_ends (job_id, seq, token, state, status_code, body, request_id, upstream, usage, cost_usd, why,
                           n_failures, worker, started_at, finished_at, expires_at)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::integer[], $4::text[], $5::integer[], $6::bytea[], $7::text[],
                     $8::text[], $9::bytea[], $10::float8[], $11::text[], $12::integer[], $13::text[], $14::float8[],
                     $15::float8[], $16::float8[])
ON CONFLICT (job_id) DO NOTHING"""
N_END_COLUMNS: Final = 16
_COUNT: Final = """
UPDATE stayfast_batches SET n_completed = n_completed + $2, n_failed = n_failed + $3, n_cancelled = n_cancelled + $4,
  n_expired = n_expired + $5,
  usage = ARRAY(SELECT coalesce(a, 0) + coalesce(b, 0) FROM unnest(usage, $6::bigint[]) WITH ORDINALITY u(a, b, n)
                ORDER BY n)
WHERE id = $1"""
_COUNT_FINAL: Final = """
UPDATE stayfast_batches SET state = 'finalizing', finalizing_at = (SELECT stayfast_now())
WHERE id = ANY($1::text[]) AND state = 'in_progress' AND n_completed + n_failed + n_cancelled + n_expired >= n_total"""
_REFUND: Final = """
UPDATE stayfast_tenants t SET vft = t.vft - g.cost
FROM (SELECT * FROM unnest($1::text[], $2::smallint[], $3::text[], $4::float8[]) AS u(model, rank, tenant, cost)
      ORDER BY 1, 2, 3) g
WHERE t.model = g.model AND t.rank = g.rank AND t.tenant = g.tenant"""
_REPEATED: Final = """
SELECT job_id, token FROM stayfast_ends WHERE job_id = ANY($1::text[]) AND status_code IS NOT NULL"""


class JobEnd(msgspec.Struct, frozen=True):
    """The end of a job. result: None if no worker made one."""

    job_id: str
    token: int
    state: JobState
    why: str = ""
    result: JobResult | None = None


def from_result(result: JobResult) -> JobEnd:
    """The end of a job that has a result."""
    return JobEnd(result.job_id, result.token, result.state, result.why, result)


async def end_jobs(connection: Any, ends: Sequence[JobEnd], *, is_running: bool = True,
                   is_lapsed: bool = False) -> set[str]:
    """End jobs that are still in the queue with these tokens, each job once; returns their ids. Runs in a transaction.

    is_running: only those that run, else only those that do not. is_lapsed: only those whose lease has ended.
    """
    ids = [end.job_id for end in ends]
    if not ids:
        return set()
    batches = {row["id"]: row["state"] for row in await connection.fetch(_LOCK_BATCHES, ids)}
    tokens = msgspec.json.encode({end.job_id: end.token for end in ends}).decode()
    rows = await connection.fetch(_DELETE, ids, tokens, is_running, is_lapsed)
    by_id = {end.job_id: end for end in ends}
    if rows:
        await connection.execute(_INSERT, *columns([_end_row(row, by_id[row["job_id"]]) for row in rows], N_END_COLUMNS))
    if reported := [row["job_id"] for row in rows if row["is_reported"]]:
        await connection.execute(INSERT_REPORTS, reported)
    if not is_running:
        await _refund(connection, rows)
    if batches:
        await _count(connection, rows, by_id)
    return {row["job_id"] for row in rows}


async def end_queued(pool: PostgresPool, ends: Sequence[JobEnd]) -> set[str]:
    """End jobs that do not run, in a transaction of their own."""
    return await pool.run_transaction(lambda connection: end_jobs(connection, ends, is_running=False))


async def finish_jobs(connection: Any, results: Sequence[JobResult]) -> list[bool]:
    """End jobs with results: True for those that ended now, or earlier by the same claim."""
    replies: dict[int, bool] = {}
    left = list(enumerate(results))
    while left:  # a job that is there twice, with two tokens, has two turns
        turn: dict[str, tuple[int, JobResult]] = {}
        for n, result in left:
            turn.setdefault(to_text(result.job_id), (n, result))
        taken = {n for n, _ in turn.values()}
        left = [(n, result) for n, result in left if n not in taken]
        ended = await end_jobs(connection, [from_result(result) for _, result in turn.values()])
        others = [job_id for job_id in turn if job_id not in ended]
        earlier = {(row["job_id"], row["token"]) for row in await connection.fetch(_REPEATED, others)} if others else set()
        for job_id, (n, result) in turn.items():
            replies[n] = job_id in ended or (job_id, result.token) in earlier
    return [replies[n] for n in range(len(results))]


def _end_row(row: Any, end: JobEnd) -> tuple[object, ...]:
    result, now = end.result, row["now"]
    expires_at = inf if row["batch_id"] is not None else now + row["keep_s"]  # a line is deleted with its batch
    made: tuple[object, ...] = (None, b"", "", "", None, None) if result is None else (
        result.status_code, result.body, to_text(result.request_id), to_text(result.upstream),
        None if result.usage is None else encode(result.usage), result.cost_usd)
    return (row["job_id"], row["seq"], end.token, str(end.state), *made, to_text(end.why), row["n_failures"], row["worker"],
            row["started_at"], now, expires_at)


async def _refund(connection: Any, rows: Iterable[Any]) -> None:
    """A job that did not run costs its tenant nothing."""
    costs: defaultdict[tuple[str, int, str], float] = defaultdict(float)
    for row in rows:
        costs[row["model"], row["rank"], row["tenant"]] += row["cost"]
    if costs:
        await connection.execute(_REFUND, *columns([(*key, cost) for key, cost in sorted(costs.items())], 4))


async def _count(connection: Any, rows: Iterable[Any], ends: Mapping[str, JobEnd]) -> None:
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    usages: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(Usage().counts))
    for row in rows:
        batch_id = row["batch_id"]
        if batch_id is None:
            continue
        end = ends[row["job_id"]]
        counts[batch_id][count_index(end.state)] += 1
        if end.result is not None and end.result.usage is not None:
            used = end.result.usage.counts
            usages[batch_id] = [a + b for a, b in zip(usages[batch_id], used, strict=True)]
    for batch_id in sorted(counts):
        await connection.execute(_COUNT, batch_id, *counts[batch_id], usages[batch_id])
    if counts:
        await connection.execute(_COUNT_FINAL, list(counts))


def count_index(state: JobState) -> int:
    """Which count of a batch: completed, failed, cancelled, expired."""
    return {COMPLETED: 0, CANCELLED: 2, EXPIRED: 3}.get(state, 1)


COUNT_COLUMNS: Final = ("n_completed", "n_failed", "n_cancelled", "n_expired")
ENDED_BATCHES: Final = tuple(str(state) for state in BatchState if state.is_final)
