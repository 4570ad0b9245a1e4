"""Submission of jobs.

Fairness between tenants is start-time fair queueing (Goyal, Vin, Cheng 1996) for each route and rank:

    start  = max(V, finish of the tenant's previous job)
    finish = start + n_tokens / weight           the order of claims
    V      = the greatest start of a claimed job

The finish of a tenant's latest job is a row that its submissions update; V is written by claims and only read here.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Any, Final

from msgspec.structs import replace

from stayfast.core.jobs import BatchState, JobState, NewJob, Submitted
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.postgres.connections import columns, to_text
from stayfast.stores.jobs.postgres.ends import ENDED_BATCHES, JobEnd, end_jobs
from stayfast.stores.jobs.postgres.records import FIND_ALL, build_job, encode, from_new_job
from stayfast.stores.jobs.postgres.schema import DEFERRED, READY, RUNNING

# FOR SHARE: a cancellation of the batch waits until the new lines are visible to it, or is seen here.
_BATCH_STATES: Final = "SELECT id, state FROM stayfast_batches WHERE id = ANY($1::text[]) ORDER BY id FOR SHARE"
_INSERT_JOBS: Final = """
INSERT INTO stayfast_jobs (id, door, tenant, model, batch_id, line, idempotency_key, digest, record, body, created_at)
SELECT id, door, tenant, model, batch_id, line, idempotency_key, digest, record, body, (SELECT stayfast_now())
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::bytea[], $8::bytea[], $9::bytea[],
            $10::bytea[]) WITH ORDINALITY
     AS g(id, door, tenant, model, batch_id, line, idempotency_key, digest, record, body, n)
ORDER BY n
ON CONFLICT DO NOTHING RETURNING id, seq, created_at"""
_ADVANCE_TENANTS: Final = """
INSERT INTO stayfast_tenants AS own (model, rank, tenant, since, vft)
SELECT model, rank, tenant, v, v + total FROM (
  SELECT *, coalesce((SELECT t.v FROM stayfast_virtual_times t WHERE t.model = g.model AND t.rank = g.rank), 0) AS v
  FROM unnest($1::text[], $2::smallint[], $3::text[], $4::float8[]) AS g(model, rank, tenant, total)) AS advanced
ORDER BY 1, 2, 3
ON CONFLICT (model, rank, tenant) DO UPDATE
  SET since = EXCLUDED.since, vft = EXCLUDED.vft + greatest(own.vft - EXCLUDED.since, 0)
RETURNING model, rank, tenant, vft"""
_INSERT_QUEUE: Final = """
INSERT INTO stayfast_queue (job_id, seq, state, model, tenant, batch_id, rank, vft, cost, n_tokens, created_at, run_at,
                            deadline_at, aged_at, keep_s, is_reported, token, worker, started_at, lease_until)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::smallint[],
                     $8::float8[], $9::float8[], $10::bigint[], $11::float8[], $12::float8[], $13::float8[], $14::float8[],
                     $15::float8[], $16::boolean[], $17::integer[], $18::text[], $19::float8[], $20::float8[])"""
_FIND_EARLIER: Final = """
SELECT g.n, (SELECT id FROM (
         SELECT id FROM stayfast_jobs j WHERE j.id = g.id
         UNION ALL SELECT id FROM stayfast_jobs j WHERE j.batch_id = g.batch_id AND j.line = g.line
         UNION ALL SELECT id FROM stayfast_jobs j
           WHERE j.tenant = g.tenant AND j.door = g.door AND j.idempotency_key = g.idempotency_key) AS equal LIMIT 1) AS id
FROM unnest($1::integer[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::bytea[])
     AS g(n, id, batch_id, line, tenant, door, idempotency_key)"""


async def submit_jobs(connection: Any, jobs: Sequence[NewJob]) -> list[Submitted]:
    """Store jobs, and find the earlier ones of those that are stored already. Runs in a transaction."""
    batches = sorted({to_text(job.batch_id) for job in jobs if job.batch_id is not None})
    states = {row["id"]: row["state"] for row in await connection.fetch(_BATCH_STATES, batches)} if batches else {}
    stored = {row["id"]: row for row in await connection.fetch(_INSERT_JOBS, *columns([_job_row(job) for job in jobs], 10))}
    submitted: dict[int, Submitted] = {}
    new: list[tuple[NewJob, Any]] = []
    for n, job in enumerate(jobs):
        row = stored.pop(to_text(job.id), None)  # the first of several with one id
        if row is not None:
            new.append((job, row))
            submitted[n] = Submitted(from_new_job(job, row["created_at"], **_claim_fields(job, row["created_at"])))
    await _enqueue(connection, new)
    stopped = await _end_stopped(connection, [job for job, _ in new], states)
    earlier = {n: job for n, job in enumerate(jobs) if n not in submitted}
    if earlier:
        submitted |= await _find_earlier(connection, earlier)
    return [_mark_stopped(submitted[n], stopped) for n in range(len(jobs))]


async def advance_tenant(connection: Any, flow: tuple[str, int, str], cost: float) -> float:
    """The virtual finish time of one more job of a route, rank and tenant."""
    row = await connection.fetchrow(_ADVANCE_TENANTS, *columns([(*flow, cost)], 4))
    return float(row["vft"])


def _job_row(job: NewJob) -> tuple[object, ...]:
    return (to_text(job.id), str(job.door), job.tenant or "", to_text(job.model),
            None if job.batch_id is None else to_text(job.batch_id), job.line, _key_bytes(job), job.digest,
            encode(replace(job, body=b"")), job.body)


def _key_bytes(job: NewJob) -> bytes | None:
    return None if job.idempotency_key is None else job.idempotency_key.encode("utf-8", "surrogatepass")


async def _enqueue(connection: Any, new: Sequence[tuple[NewJob, Any]]) -> None:
    if not new:
        return
    totals: defaultdict[tuple[str, int, str], float] = defaultdict(float)
    for job, _ in new:
        totals[_flow_of(job)] += _cost_of(job)
    rows = await connection.fetch(_ADVANCE_TENANTS, *columns([(*flow, cost) for flow, cost in sorted(totals.items())], 4))
    finish = {(row["model"], row["rank"], row["tenant"]): row["vft"] for row in rows}
    finish = {flow: finish[flow] - total for flow, total in totals.items()}  # of the tenants' previous jobs
    queued = []
    for job, row in new:
        flow, cost = _flow_of(job), _cost_of(job)
        finish[flow] += cost
        model, rank, tenant = flow
        queued.append((
            row["id"], row["seq"], _state_of(job, row["created_at"]), model, tenant,
            None if job.batch_id is None else to_text(job.batch_id), rank, finish[flow], cost, job.n_tokens,
            row["created_at"], job.run_at, inf if job.deadline_at is None else job.deadline_at,
            inf if job.aged_at is None else job.aged_at, job.keep_s, job.is_reported,
            *((0, None, None, None) if job.worker is None else
              (1, to_text(job.worker), row["created_at"], row["created_at"] + job.lease_s))))
    await connection.execute(_INSERT_QUEUE, *columns(queued, 20))


def _state_of(job: NewJob, now: float) -> int:
    if job.worker is not None:
        return RUNNING
    return DEFERRED if job.run_at > now else READY


def _claim_fields(job: NewJob, now: float) -> dict[str, Any]:
    """Of a job that runs already: its submission is its first claim."""
    if job.worker is None:
        return {}
    return {"state": JobState.RUNNING, "token": 1, "worker": job.worker, "started_at": now}


def _flow_of(job: NewJob) -> tuple[str, int, str]:
    return to_text(job.model), job.rank, job.tenant or ""


def _cost_of(job: NewJob) -> float:
    return job.n_tokens / job.weight


async def _end_stopped(connection: Any, new: Sequence[NewJob], states: Mapping[str, str]) -> set[str]:
    """End the new lines of batches that are being cancelled or have ended; returns their ids."""
    stopped = {batch_id for batch_id, state in states.items() if state == BatchState.CANCELLING or state in ENDED_BATCHES}
    ends = [JobEnd(to_text(job.id), 0, JobState.CANCELLED, "batch_cancelled") for job in new
            if job.batch_id is not None and to_text(job.batch_id) in stopped]
    return await end_jobs(connection, ends, is_running=False) if ends else set()


def _mark_stopped(submitted: Submitted, stopped: Collection[str]) -> Submitted:
    if submitted.job.id not in stopped:
        return submitted
    return replace(submitted, job=replace(submitted.job, state=JobState.CANCELLED))


async def _find_earlier(connection: Any, jobs: Mapping[int, NewJob]) -> dict[int, Submitted]:
    places = await connection.fetch(_FIND_EARLIER, *columns([
        (n, to_text(job.id), None if job.batch_id is None else to_text(job.batch_id), job.line, job.tenant or "",
         str(job.door), _key_bytes(job)) for n, job in jobs.items()], 7))
    ids = {row["n"]: row["id"] for row in places}
    stored = {row["id"]: row for row in await connection.fetch(FIND_ALL, sorted(set(filter(None, ids.values()))))}
    found = {}
    for n, job in jobs.items():
        row = stored.get(ids[n])
        if row is None:  # deleted between the two statements
            raise StoreUnavailable("an earlier job with the same key has just been deleted")
        is_conflict = job.idempotency_key is not None and row["digest"] != job.digest
        found[n] = Submitted(build_job(row), is_new=False, is_conflict=is_conflict)
    return found
