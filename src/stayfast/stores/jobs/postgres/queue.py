"""Claims and what a worker does with them: extend, release, finish; cancellation, retry, recovery, expiry and purge.

A claim is one statement that locks rows with SKIP LOCKED, so workers do not wait for each other. Jobs that are due later
have a state of their own outside the index of claims; claims move them into it when they are due.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

import msgspec

from stayfast.core.jobs import ClaimedJob, Job, JobResult, JobState, NewJob, Release, Submitted
from stayfast.stores.jobs.base import Heartbeat, HeldJob
from stayfast.stores.jobs.postgres.connections import PostgresPool, columns, make_sql, to_text
from stayfast.stores.jobs.postgres.ends import COUNT_COLUMNS, JobEnd, count_index, end_jobs, finish_jobs
from stayfast.stores.jobs.postgres.groups import CallGroups
from stayfast.stores.jobs.postgres.records import FIND_JOB, build_job, decode_new_job, from_new_job
from stayfast.stores.jobs.postgres.submissions import advance_tenant, submit_jobs

STEP: Final = 500  # rows of one transaction of maintenance
_CANCELLED: Final = "cancelled"
# Two ranges of two indexes: aged jobs, then the others in their order. The inner limits make each a short index scan.
# Nothing is claimed if jobs have become due, unless $5: they may run before others.
_CLAIM: Final = """
WITH t AS MATERIALIZED (SELECT stayfast_now() AS now),
due AS MATERIALIZED (SELECT NOT $5 AND EXISTS (
  SELECT 1 FROM stayfast_queue WHERE state = 0 AND run_at <= (SELECT now FROM t)) AS is_due),
room AS MATERIALIZED (
  SELECT r.* FROM unnest($1::text[], $2::integer[]) AS r(model, n) WHERE NOT (SELECT is_due FROM due)),
aged AS MATERIALIZED (
  SELECT r.model, s.job_id FROM room r CROSS JOIN LATERAL (
    SELECT q.job_id FROM stayfast_queue q WHERE q.model = r.model AND q.state = 1 AND q.aged_at < 'Infinity'
      AND q.aged_at <= (SELECT now FROM t) AND q.deadline_at > (SELECT now FROM t)
    ORDER BY q.aged_at, q.seq LIMIT r.n FOR UPDATE SKIP LOCKED) s),
others AS MATERIALIZED (
  SELECT s.job_id FROM room r CROSS JOIN LATERAL (
    SELECT q.job_id FROM stayfast_queue q WHERE q.model = r.model AND q.state = 1
      AND q.aged_at > (SELECT now FROM t) AND q.deadline_at > (SELECT now FROM t)
    ORDER BY q.rank, q.vft, q.deadline_at, q.seq LIMIT r.n - (SELECT count(*) FROM aged a WHERE a.model = r.model)
    FOR UPDATE SKIP LOCKED) s),
claimed AS (
  UPDATE stayfast_queue q SET state = 2, token = q.token + 1, worker = $3, lease_until = (SELECT now FROM t) + $4,
    started_at = (SELECT now FROM t)
  WHERE q.job_id = ANY(ARRAY(SELECT job_id FROM aged UNION ALL SELECT job_id FROM others)) AND q.state = 1
  RETURNING q.*)
SELECT d.is_due, c.*, j.record, j.body, c.aged_at <= (SELECT now FROM t) AS is_aged
FROM due d LEFT JOIN claimed c ON true
  LEFT JOIN LATERAL (SELECT record, body FROM stayfast_jobs WHERE id = c.job_id LIMIT 1) j ON true"""
# Not durable, and therefore quick: if it is lost, one claim later it is right again.
_ADVANCE: Final = """
WITH o AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
INSERT INTO stayfast_virtual_times AS own (model, rank, v)
SELECT g.* FROM unnest($1::text[], $2::smallint[], $3::float8[]) AS g(model, rank, v), o ORDER BY 1, 2
ON CONFLICT (model, rank) DO UPDATE SET v = EXCLUDED.v WHERE own.v < EXCLUDED.v"""
_PROMOTE: Final = """
UPDATE stayfast_queue SET state = 1 WHERE state = 0 AND job_id = ANY(ARRAY(
  SELECT job_id FROM stayfast_queue WHERE state = 0 AND run_at <= (SELECT stayfast_now())
  ORDER BY run_at LIMIT 500 FOR UPDATE SKIP LOCKED)) RETURNING job_id"""
_EXTEND: Final = """
UPDATE stayfast_queue SET lease_until = (SELECT stayfast_now()) + $3
WHERE job_id = ANY($1::text[]) AND state = 2 AND token = ($2::jsonb ->> job_id)::integer
RETURNING job_id, is_cancelling"""
_RELEASE: Final = """
UPDATE stayfast_queue SET state = CASE WHEN $3::float8 > (SELECT stayfast_now()) THEN 0 ELSE 1 END,
  run_at = $3, worker = NULL, lease_until = NULL, n_failures = n_failures + $4, why = $5
WHERE job_id = $1 AND token = $2 AND state = 2 AND NOT is_cancelling
RETURNING model, rank, tenant, CASE WHEN cost > 0 THEN cost ELSE greatest(n_tokens, 1) END AS cost"""
_TAG_RETRY: Final = "UPDATE stayfast_queue SET vft = $2, cost = $3 WHERE job_id = $1"
_IS_CANCELLING: Final = """
SELECT token FROM stayfast_queue WHERE job_id = $1 AND token = $2 AND state = 2 AND is_cancelling"""
_MARK: Final = "UPDATE stayfast_queue SET is_cancelling = true WHERE job_id = $1 AND state = 2 RETURNING job_id"
_LAPSED: Final = """
SELECT job_id, token, is_cancelling, n_lost FROM stayfast_queue
WHERE state = 2 AND lease_until <= (SELECT stayfast_now()) LIMIT 500"""
_OF_WORKER: Final = """
SELECT job_id, token, is_cancelling, n_lost FROM stayfast_queue WHERE state = 2 AND starts_with(worker, $1) LIMIT 500"""
_REQUEUE: Final = """
UPDATE stayfast_queue SET state = 1, run_at = 0, worker = NULL, lease_until = NULL, n_lost = n_lost + 1
WHERE job_id = ANY($1::text[]) AND state = 2 AND token = ($2::jsonb ->> job_id)::integer
  AND (NOT $3 OR lease_until <= (SELECT stayfast_now())) RETURNING job_id"""
_EXPIRED: Final = """
SELECT job_id, token FROM stayfast_queue WHERE deadline_at < 'Infinity' AND deadline_at <= (SELECT stayfast_now())
  AND state <> 2 ORDER BY deadline_at LIMIT 500"""
_RETRIED: Final = """
DELETE FROM stayfast_ends WHERE job_id = $1 AND state IN ('failed', 'dead', 'expired', 'cancelled')
RETURNING state, token, seq, (SELECT stayfast_now()) AS now"""
_PUT_BACK: Final = """
INSERT INTO stayfast_queue (job_id, seq, state, model, tenant, batch_id, rank, vft, cost, n_tokens, created_at, run_at,
                            deadline_at, aged_at, keep_s, token, is_reported)
VALUES ($1, $2, 1, $3, $4, $5, $6, coalesce((SELECT v FROM stayfast_virtual_times WHERE model = $3 AND rank = $6), 0),
        0, $7, $8, 0, 'Infinity', $9, $10, $11, $12)"""


def tokens_by_job(held: Sequence[tuple[str, int]]) -> str:
    """Claims as a parameter of statements."""
    return msgspec.json.encode(dict(held)).decode()


class PostgresQueue:
    """The part of the store that changes jobs."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._submissions = CallGroups[NewJob, Submitted](
            lambda jobs: pool.run_transaction(lambda connection: submit_jobs(connection, jobs)),
            lambda job: job.id, lambda job: len(job.body))
        self._finishes = CallGroups[JobResult, bool](
            lambda results: pool.run_transaction(lambda connection: finish_jobs(connection, results)),
            lambda result: result.job_id, lambda result: len(result.body))

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return await self._submissions.call(jobs)

    async def finish(self, results: Sequence[JobResult]) -> list[bool]:
        return await self._finishes.call(results)

    async def claim(self, worker: str, room: Mapping[str, int], lease_s: float) -> list[ClaimedJob]:
        free = {to_text(model): n for model, n in room.items() if n > 0}
        if not free:
            return []
        rows = await self._pool.fetch(_CLAIM, list(free), list(free.values()), to_text(worker), lease_s, False)
        if rows[0]["is_due"]:
            await self._pool.fetch(_PROMOTE)
            rows = await self._pool.fetch(_CLAIM, list(free), list(free.values()), to_text(worker), lease_s, True)
        rows = [row for row in rows if row["job_id"] is not None]
        await self._advance(rows)
        return [_build_claim(row) for row in sorted(rows, key=_order_of)]

    async def _advance(self, rows: Sequence[Any]) -> None:
        """Advance the virtual time of the routes to the jobs that were claimed."""
        starts: dict[tuple[str, int], float] = {}
        for row in rows:
            if not row["is_aged"]:
                flow = (row["model"], row["rank"])
                starts[flow] = max(starts.get(flow, 0.0), row["vft"] - row["cost"])
        if starts:
            await self._pool.fetch(_ADVANCE, *columns([(*flow, v) for flow, v in sorted(starts.items())], 3))

    async def extend(self, worker: str, held: Sequence[HeldJob], lease_s: float) -> Heartbeat:
        """worker: not needed, the tokens are unique."""
        if not held:
            return Heartbeat()
        tokens = [(to_text(one.job_id), one.token) for one in held]
        rows = await self._pool.fetch(_EXTEND, [job_id for job_id, _ in tokens], tokens_by_job(tokens), lease_s)
        extended = {row["job_id"]: row["is_cancelling"] for row in rows}
        return Heartbeat(tuple(one.job_id for one in held if to_text(one.job_id) not in extended),
                         tuple(job_id for job_id, is_cancelling in extended.items() if is_cancelling))

    async def release(self, released: Sequence[Release]) -> list[bool]:
        async def release_all(connection: Any) -> list[bool]:
            return [await _release(connection, one) for one in sorted(released, key=lambda one: one.job_id)]

        replies = await self._pool.run_transaction(release_all)
        order = sorted(range(len(released)), key=lambda n: released[n].job_id)
        by_place = dict(zip(order, replies, strict=True))
        return [by_place[n] for n in range(len(released))]

    async def bury(self, job_id: str, token: int, why: str) -> bool:
        return bool(await self._end([JobEnd(to_text(job_id), token, JobState.DEAD, why)]))

    async def cancel(self, job_id: str) -> Job | None:
        text = to_text(job_id)
        while (job := await self._find(text)) is not None and not job.state.is_final:
            if job.state is JobState.RUNNING:
                if job.is_cancelling:
                    return job
                await self._pool.fetch(_MARK, text)
            else:
                await self._end([JobEnd(text, job.token, JobState.CANCELLED, _CANCELLED)], is_running=False)
        return job

    async def retry_dead(self, job_id: str) -> Job | None:
        is_back = await self._pool.run_transaction(lambda connection: _retry(connection, to_text(job_id)))
        return await self._find(to_text(job_id)) if is_back else None

    async def recover(self, worker: str, *, max_claims: int = 3) -> int:
        n_recovered = 0
        is_more = True
        while is_more:
            rows = await self._pool.fetch(_OF_WORKER, to_text(worker))
            n_back, ended = await self._recover(rows, max_claims, is_lapsed=False)
            n_recovered += n_back + len(ended)
            is_more = len(rows) == STEP
        await self._pool.fetch("UPDATE stayfast_batches SET worker = NULL, lease_until = NULL WHERE starts_with(worker, $1) "
                               "AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling')", to_text(worker))
        return n_recovered

    async def sweep_lapsed(self, max_claims: int) -> tuple[int, dict[str, JobState]]:
        """Jobs whose lease has ended: how many are in the queue again, and the others by state."""
        return await self._recover(await self._pool.fetch(_LAPSED), max_claims, is_lapsed=True)

    async def sweep_expired(self) -> set[str]:
        """Queued jobs whose deadline has passed."""
        rows = await self._pool.fetch(_EXPIRED)
        return await self._end([JobEnd(row["job_id"], row["token"], JobState.EXPIRED, "expired") for row in rows],
                               is_running=False)

    async def _recover(self, rows: Sequence[Any], max_claims: int, *, is_lapsed: bool) -> tuple[int, dict[str, JobState]]:
        ends, back = [], []
        for row in rows:
            if row["is_cancelling"]:
                ends.append(JobEnd(row["job_id"], row["token"], JobState.CANCELLED, _CANCELLED))
            elif row["n_lost"] + 1 >= max_claims:
                ends.append(JobEnd(row["job_id"], row["token"], JobState.DEAD, "workers_died"))
            else:
                back.append((row["job_id"], row["token"]))
        ended = await self._end(ends, is_lapsed=is_lapsed)
        n_back = 0
        if back:
            n_back = len(await self._pool.fetch(_REQUEUE, [job_id for job_id, _ in back], tokens_by_job(back), is_lapsed))
        return n_back, {end.job_id: end.state for end in ends if end.job_id in ended}

    async def _end(self, ends: Sequence[JobEnd], *, is_running: bool = True, is_lapsed: bool = False) -> set[str]:
        if not ends:
            return set()
        return await self._pool.run_transaction(
            lambda connection: end_jobs(connection, ends, is_running=is_running, is_lapsed=is_lapsed))

    async def _find(self, job_id: str) -> Job | None:
        row = await self._pool.fetch_row(FIND_JOB, job_id)
        return None if row is None else build_job(row)

    def close_groups(self) -> None:
        """Calls that are waiting fail."""
        self._submissions.close()
        self._finishes.close()


def _order_of(row: Any) -> tuple[object, ...]:
    if row["is_aged"]:
        return 0, row["aged_at"], row["seq"]
    return 1, row["rank"], row["vft"], row["deadline_at"], row["seq"]


def _build_claim(row: Any) -> ClaimedJob:
    new = decode_new_job(row["record"])
    deadline_at = row["deadline_at"]
    job = from_new_job(new, row["created_at"], state=JobState.RUNNING, token=row["token"], n_failures=row["n_failures"],
                       worker=row["worker"], started_at=row["started_at"], is_cancelling=row["is_cancelling"],
                       why=row["why"], run_at=row["run_at"], deadline_at=None if deadline_at == inf else deadline_at)
    return ClaimedJob(job, row["body"], new.headers)


async def _release(connection: Any, release: Release) -> bool:
    job_id = to_text(release.job_id)
    row = await connection.fetchrow(_RELEASE, job_id, release.token, release.run_at, int(release.is_failure),
                                    to_text(release.why))
    if row is not None:
        if release.is_failure:
            vft = await advance_tenant(connection, (row["model"], row["rank"], row["tenant"]), row["cost"])
            await connection.execute(_TAG_RETRY, job_id, vft, row["cost"])
        return True
    row = await connection.fetchrow(_IS_CANCELLING, job_id, release.token)
    return row is not None and bool(await end_jobs(connection, [
        JobEnd(job_id, release.token, JobState.CANCELLED, _CANCELLED)]))


async def _retry(connection: Any, job_id: str) -> bool:
    job = await connection.fetchrow("SELECT record, tenant, model, batch_id, created_at FROM stayfast_jobs WHERE id = $1",
                                    job_id)
    if job is None:
        return False
    if job["batch_id"] is not None:
        batch = await connection.fetchrow("SELECT state FROM stayfast_batches WHERE id = $1 FOR NO KEY UPDATE",
                                          job["batch_id"])
        if batch is not None and batch["state"] not in ("validating", "in_progress"):
            return False
    row = await connection.fetchrow(_RETRIED, job_id)
    if row is None:
        return False
    if job["batch_id"] is not None:
        column = COUNT_COLUMNS[count_index(JobState(row["state"]))]
        await connection.execute(make_sql("UPDATE stayfast_batches SET {count} = {count} - 1 WHERE id = $1", count=column),
                                 job["batch_id"])
    await connection.execute("UPDATE stayfast_events SET is_last = false, data = '' WHERE job_id = $1 AND is_last", job_id)
    new = decode_new_job(job["record"])
    await connection.execute(_PUT_BACK, job_id, row["seq"], job["model"], job["tenant"], job["batch_id"], new.rank,
                             new.n_tokens, job["created_at"], inf if new.aged_at is None else new.aged_at,
                             new.keep_s, row["token"], new.is_reported)
    return True
