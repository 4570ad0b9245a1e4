"""Submissions. Fairness between tenants is self-clocked fair queueing.

Problem: one tenant's backlog must not delay the others. Rule: each job gets a virtual finish time when it is stored, and the
smallest one of a route and rank runs first: `start = max(V, finish of the tenant's last queued job)`, `finish = start +
n_tokens / weight`; V is the finish time of the latest claimed job. Source: Golestani, "A self-clocked fair queueing scheme
for broadband applications", INFOCOM 1994. A tenant without queued jobs has no finish time of its own: neither an idle time
nor a cancelled backlog counts for it or against it. Wrong when the estimates of tokens are: tenants then share by estimates.
"""

import sqlite3
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from stayfast.core.jobs import BatchState, JobState, NewJob, Submitted
from stayfast.stores.jobs.embedded import reports
from stayfast.stores.jobs.embedded.reading import MAX_AHEAD, MAX_BEHIND
from stayfast.stores.jobs.embedded.rows import (
    Row,
    decode_job,
    encode_headers,
    encode_job,
    encode_values,
    sql,
    tenant_key,
)

MIN_WEIGHT = 1e-6
_N_COLUMNS = 30
_CHUNK = 32  # rows of one INSERT: the thread releases the interpreter's lock once for all of them
_INSERT = sql("INSERT INTO jobs ($job, vft, aged_at, is_deferred, idempotency_key, digest, n) VALUES ")
_VALUES = f"({', '.join('?' * (_N_COLUMNS + 1))})"
_INSERT_BODIES = "INSERT INTO bodies (n, headers, body) VALUES "
_BY_ID = sql("SELECT $job, digest FROM jobs WHERE id IN (SELECT value FROM json_each(?))")
_BY_KEY = sql("SELECT $job, digest FROM jobs WHERE tenant = ? AND door = ? AND idempotency_key = ?")
_BY_LINE = sql("SELECT $job, digest FROM jobs WHERE batch_id = ? AND line = ?")
# A new job has few jobs behind it. With + the index serves the whole comparison, without it only `rank`.
_PLACES = """SELECT new.id, routes.n_queued, (
        SELECT count(*) FROM (SELECT 1 FROM jobs AS old INDEXED BY jobs_ready WHERE old.model = new.model
        AND old.state = 'queued' AND old.is_deferred = 0
        AND (old.rank, old.vft, old.deadline_at, old.n) > (+new.rank, +new.vft, +new.deadline_at, +new.n) LIMIT ?2))
    FROM jobs AS new JOIN routes ON routes.model = new.model
    WHERE new.n > ?1 AND new.state = 'queued' AND new.is_deferred = 0 AND new.batch_id IS NULL"""
_START = """UPDATE jobs SET state = 'running', is_deferred = 0, token = 1, worker = ?, started_at = ?, lease_until = ?
    WHERE id = ?"""

_Key = tuple[str | bytes, str, str]
_Line = tuple[str, int | None]
_Flow = tuple[str, int, str | bytes]


class _Stored:
    """The jobs that are stored already, by id, idempotency key and line, of those that are submitted."""

    def __init__(self, db: sqlite3.Connection, jobs: Sequence[NewJob]) -> None:
        self.by_id: dict[str, tuple[Submitted, bytes]] = {}
        self.by_key: dict[_Key, tuple[Submitted, bytes]] = {}
        self.by_line: dict[_Line, tuple[Submitted, bytes]] = {}
        for row in db.execute(_BY_ID, (encode_values(job.id for job in jobs),)):
            self.by_id[row[0]] = _decode(row)
        for job in jobs:
            if job.idempotency_key is not None:
                key = (tenant_key(job.tenant), job.door.value, job.idempotency_key)
                for row in db.execute(_BY_KEY, key):
                    self.by_key[key] = _decode(row)
            if job.batch_id is not None:
                for row in db.execute(_BY_LINE, (job.batch_id, job.line)):
                    self.by_line[job.batch_id, job.line] = _decode(row)

    def find(self, job: NewJob) -> Submitted | None:
        """The reply to a submission whose job is stored."""
        found = self.by_id.get(job.id)
        if found is None and job.batch_id is not None:
            found = self.by_line.get((job.batch_id, job.line))
        if found is not None:
            return found[0]
        if job.idempotency_key is None:
            return None
        found = self.by_key.get((tenant_key(job.tenant), job.door.value, job.idempotency_key))
        if found is None:
            return None
        submitted, digest = found
        return submitted if digest == job.digest else Submitted(submitted.job, is_new=False, is_conflict=True)

    def add(self, job: NewJob, submitted: Submitted) -> None:
        """A job that is now stored."""
        found = Submitted(submitted.job, is_new=False), job.digest
        self.by_id[job.id] = found
        if job.idempotency_key is not None:
            self.by_key[tenant_key(job.tenant), job.door.value, job.idempotency_key] = found
        if job.batch_id is not None:
            self.by_line[job.batch_id, job.line] = found


def _decode(row: Row) -> tuple[Submitted, bytes]:
    return Submitted(decode_job(row), is_new=False), row[25] or b""


class _FairTags:
    """The virtual finish times of new jobs."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._v: dict[tuple[str, int], float] = {}
        self._finish: dict[_Flow, float] = {}

    def add(self, job: NewJob) -> float:
        """The tag of a job, which is then its tenant's last one."""
        flow = (job.model, job.rank, tenant_key(job.tenant))
        last = self._finish.get(flow)
        if last is None:
            found = self._db.execute("SELECT finish FROM flows WHERE model = ? AND rank = ? AND tenant = ?", flow).fetchone()
            last = found[0] if found is not None else 0.0
        finish = max(self._clock(job.model, job.rank), last) + max(job.n_tokens, 1) / max(job.weight, MIN_WEIGHT)
        self._finish[flow] = finish
        return finish

    def _clock(self, model: str, rank: int) -> float:
        v = self._v.get((model, rank))
        if v is None:
            found = self._db.execute("SELECT v FROM clocks WHERE model = ? AND rank = ?", (model, rank)).fetchone()
            v = self._v[model, rank] = found[0] if found is not None else 0.0
        return v


def submit(db: sqlite3.Connection, now: float, jobs: Sequence[NewJob]) -> list[Submitted]:
    """Store jobs of any number of callers."""
    if not jobs:
        return []
    stored, tags, ended = _Stored(db, jobs), _FairTags(db), _ended_batches(db, jobs)
    (last_n,) = db.execute("SELECT coalesce(max(n), 0) FROM jobs").fetchone()
    replies, rows, bodies = [], list[Row](), []
    for job in jobs:
        reply = stored.find(job)
        if reply is None:
            n = last_n + len(rows) + 1
            state = JobState.CANCELLED if job.batch_id in ended else JobState.QUEUED
            row = encode_job(job, now, tags.add(job) if state is JobState.QUEUED else 0.0, state)
            rows.append((*row, n))
            bodies.append((n, encode_headers(job.headers), job.body))
            reply = Submitted(decode_job(row))
            stored.add(job, reply)
            if job.is_reported:
                reports.add_subject(db, job.id, is_batch=False)
        replies.append(reply)
    _insert(db, _INSERT, _VALUES, rows)
    _insert(db, _INSERT_BODIES, "(?, ?, ?)", bodies)
    _start(db, now, [job for job, reply in zip(jobs, replies, strict=True) if reply.is_new and job.worker is not None])
    places = _count_ahead(db, last_n)
    return [_complete(job, reply, now, places) for job, reply in zip(jobs, replies, strict=True)]


def _start(db: sqlite3.Connection, now: float, jobs: Sequence[NewJob]) -> None:
    """Claim jobs that run already."""
    db.executemany(_START, [(job.worker, now, now + job.lease_s, job.id) for job in jobs])


def _count_ahead(db: sqlite3.Connection, after_n: int) -> dict[str, int]:
    """How many jobs run before those that were stored after number `after_n`, by id. Left out: lines of batches, jobs that
    are not queued or not due, and those with many jobs behind them.
    """
    return {job_id: min(n_queued - 1 - n_behind, MAX_AHEAD)
            for job_id, n_queued, n_behind in db.execute(_PLACES, (after_n, MAX_BEHIND)) if n_behind < MAX_BEHIND}


def _complete(job: NewJob, reply: Submitted, now: float, places: Mapping[str, int]) -> Submitted:
    if not reply.is_new:
        return reply
    if job.worker is None:
        return Submitted(reply.job, n_ahead=places.get(job.id))
    return Submitted(replace(reply.job, state=JobState.RUNNING, token=1, worker=job.worker, started_at=now))


def _ended_batches(db: sqlite3.Connection, jobs: Sequence[NewJob]) -> set[str]:
    """The batches of these jobs that take no more lines that run."""
    ids = {job.batch_id for job in jobs if job.batch_id is not None}
    if not ids:
        return set()
    found = db.execute("SELECT id, state FROM batches WHERE id IN (SELECT value FROM json_each(?))", (encode_values(ids),))
    return {batch_id for batch_id, state in found if state not in (BatchState.VALIDATING, BatchState.IN_PROGRESS)}


def _insert(db: sqlite3.Connection, insert: str, values: str, rows: Sequence[Row]) -> None:
    """Insert many rows with few statements."""
    for at in range(0, len(rows), _CHUNK):
        part = rows[at:at + _CHUNK]
        db.execute(insert + ", ".join([values] * len(part)), [value for row in part for value in row])
