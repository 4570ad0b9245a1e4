"""Reads, and the events of streams."""

import sqlite3
from collections.abc import Sequence
from math import inf
from typing import Any

from stayfast.core.jobs import Job, JobEvent, JobFilter, JobResult, JobState, QueueDepth
from stayfast.stores.jobs.base import EventsPage
from stayfast.stores.jobs.embedded.rows import (
    decode_job,
    decode_result,
    encode_values,
    sql,
    tenant_key,
)

MAX_AHEAD = 10_000
MAX_BEHIND = 256
_FIND = sql("SELECT $job FROM jobs WHERE id = ?")
_RESULT = sql("SELECT $result FROM results WHERE n = (SELECT n FROM jobs WHERE id = ?)")
_AHEAD = """SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_ready WHERE model = ?1 AND state = 'queued'
    AND is_deferred = 0 AND (rank, vft, deadline_at, n) < (?2, ?3, ?4, ?5) LIMIT ?6)"""
_BEHIND = """SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_ready WHERE model = ?1 AND state = 'queued'
    AND is_deferred = 0 AND (rank, vft, deadline_at, n) > (?2, ?3, ?4, ?5) LIMIT ?6)"""


def find(db: sqlite3.Connection, job_id: str) -> Job | None:
    """A job."""
    row = db.execute(_FIND, (job_id,)).fetchone()
    return None if row is None else decode_job(row)


def find_body(db: sqlite3.Connection, job_id: str) -> bytes | None:
    """Its request."""
    row = db.execute("SELECT body FROM bodies WHERE n = (SELECT n FROM jobs WHERE id = ?)", (job_id,)).fetchone()
    return None if row is None else bytes(row[0])


def find_result(db: sqlite3.Connection, job_id: str) -> JobResult | None:
    """Its result."""
    row = db.execute(_RESULT, (job_id,)).fetchone()
    return None if row is None else decode_result(job_id, row)


def list_jobs(db: sqlite3.Connection, what: JobFilter) -> list[Job]:
    """Jobs, newest first."""
    where, values = ["1"], list[Any]()
    for condition, value, is_set in (
            ("tenant = ?", tenant_key(what.tenant), what.is_for_tenant and what.batch_id is None),
            ("+tenant = ?", tenant_key(what.tenant), what.is_for_tenant and what.batch_id is not None),
            ("batch_id = ?", what.batch_id, what.batch_id is not None),
            ("+state IN (SELECT value FROM json_each(?))", encode_values(what.states), what.states),
            ("door IN (SELECT value FROM json_each(?))", encode_values(what.doors), what.doors),
            ("n < (SELECT n FROM jobs WHERE id = ?)", what.after_id, what.after_id is not None)):
        if is_set:
            where.append(condition)
            values.append(value)
    rows = db.execute(sql("SELECT $job FROM jobs WHERE $where ORDER BY n DESC LIMIT ?", where=" AND ".join(where)),
                      (*values, what.limit))
    return [decode_job(row) for row in rows]


def delete(db: sqlite3.Connection, job_id: str) -> bool:
    """Delete an ended job."""
    return db.execute("DELETE FROM jobs WHERE id = ? AND state NOT IN ('queued', 'running')", (job_id,)).rowcount > 0


def depths(db: sqlite3.Connection) -> list[QueueDepth]:
    """By route. The oldest job is the one that ages first: the same where all jobs of a route age alike."""
    found = []
    for model, n_queued, n_running, n_deferred, n_tokens in db.execute(
            "SELECT * FROM routes WHERE n_queued + n_running + n_deferred > 0").fetchall():
        oldest = db.execute("SELECT created_at FROM jobs INDEXED BY jobs_aged WHERE model = ? AND state = 'queued' "
                            "AND is_deferred = 0 ORDER BY aged_at, n LIMIT 1", (model,)).fetchone()
        (earliest,) = db.execute("SELECT min(deadline_at) FROM jobs INDEXED BY jobs_deadline WHERE model = ? "
                                 "AND state = 'queued'", (model,)).fetchone()
        found.append(QueueDepth(model, n_queued, n_running, n_deferred, None if oldest is None else oldest[0],
                                None if earliest == inf else earliest, n_tokens))
    return found


def count_ahead(db: sqlite3.Connection, job_id: str) -> int:
    """How many jobs of its route run before a queued job. A new job has few behind it: counting them costs less."""
    row = db.execute("SELECT model, rank, vft, deadline_at, n, is_deferred FROM jobs WHERE id = ? AND state = 'queued'",
                     (job_id,)).fetchone()
    if row is None:
        return 0
    *place, is_deferred = row
    if not is_deferred:
        (n_behind,) = db.execute(_BEHIND, (*place, MAX_BEHIND)).fetchone()
        if n_behind < MAX_BEHIND:
            (n_queued,) = db.execute("SELECT n_queued FROM routes WHERE model = ?", place[:1]).fetchone()
            return int(min(n_queued - 1 - n_behind, MAX_AHEAD))
    return int(db.execute(_AHEAD, (*place, MAX_AHEAD)).fetchone()[0])


def count_unfinished(db: sqlite3.Connection, tenant: str | None) -> int:
    """Jobs of a tenant that have not ended."""
    row = db.execute("SELECT n_unfinished FROM tenants WHERE tenant = ?", (tenant_key(tenant),)).fetchone()
    return 0 if row is None else int(row[0])


def append_events(db: sqlite3.Connection, job_id: str, token: int, events: Sequence[JobEvent]) -> bool:
    """Append to the stream of a claimed job."""
    row = db.execute("SELECT n FROM jobs WHERE id = ? AND token = ? AND state = ?",
                     (job_id, token, JobState.RUNNING.value)).fetchone()
    if row is None:
        return False
    db.executemany("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?)",
                   [(row[0], event.n, event.epoch, event.data, event.is_last) for event in events])
    return True


def read_events(db: sqlite3.Connection, job_id: str, after_n: int, limit: int) -> EventsPage:
    """The events after a number."""
    row = db.execute("SELECT n FROM jobs WHERE id = ?", (job_id,)).fetchone()
    if row is None:
        return EventsPage(())
    (first,) = db.execute("SELECT min(n) FROM events WHERE job_n = ?", row).fetchone()
    rows = db.execute("SELECT n, epoch, data, is_last FROM events WHERE job_n = ? AND n > ? ORDER BY n LIMIT ?",
                      (row[0], after_n, limit))
    return EventsPage(tuple(JobEvent(n, epoch, data, bool(is_last)) for n, epoch, data, is_last in rows), first or 0)
