"""What time changes: ended leases, deadlines, jobs that become due, records whose time is over. All in bounded steps."""

import sqlite3
from collections.abc import Sequence

from stayfast.core.jobs import JobState
from stayfast.stores.jobs.base import SweepReport
from stayfast.stores.jobs.embedded.rows import encode_values

STEP = 1000  # most jobs that one sweep ends, and most that it deletes
HOLD_S = 3600.0  # lines of a batch that has not ended stay this much longer
VACUUM_PAGES = 500  # of one sweep
MIN_FREE_PAGES = 4000  # fewer are left for reuse

_PROMOTE = """UPDATE jobs SET is_deferred = 0 WHERE n IN (
    SELECT n FROM jobs INDEXED BY jobs_deferred WHERE state = 'queued' AND is_deferred = 1 AND run_at <= ? LIMIT ?)"""
_LOST = """SELECT n, id, is_cancelling, n_lost FROM jobs WHERE n IN (SELECT value FROM json_each(?))"""
_REQUEUE = """UPDATE jobs SET state = 'queued', worker = NULL, lease_until = NULL, claim_ref = NULL, n_lost = n_lost + 1,
    run_at = 0, is_deferred = 0 WHERE n IN (SELECT value FROM json_each(?))"""
_END_ALL = """UPDATE jobs SET state = ?1, finished_at = ?2, expires_at = ?2 + keep_s, is_cancelling = 0, lease_until = NULL,
    claim_ref = NULL, why = ?3 WHERE n IN (SELECT value FROM json_each(?4))"""
_EXPIRED = """SELECT n, id FROM jobs INDEXED BY jobs_deadline WHERE model = ? AND state = 'queued' AND deadline_at <= ?
    LIMIT ?"""
_HOLD = """UPDATE jobs SET expires_at = ?1 + ?2 WHERE n IN (SELECT value FROM json_each(?3)) AND batch_id IN (
    SELECT id FROM batches WHERE state NOT IN ('completed', 'failed', 'expired', 'cancelled'))"""


def promote_deferred(db: sqlite3.Connection, now: float, most: int = STEP) -> None:
    """Jobs that have become due enter the order of the claims."""
    db.execute(_PROMOTE, (now, most))


def end_lost_claims(db: sqlite3.Connection, now: float, ns: Sequence[int], max_claims: int) -> SweepReport:
    """Put running jobs whose workers have died back into the queue, or end them."""
    if not ns:
        return SweepReport()
    rows = db.execute(_LOST, (encode_values(ns),)).fetchall()
    cancelled = [row for row in rows if row[2]]
    dead = [row for row in rows if not row[2] and row[3] + 1 >= max_claims]
    ended = {row[0] for row in (*cancelled, *dead)}
    db.execute(_REQUEUE, (encode_values(row[0] for row in rows if row[0] not in ended),))
    end_all(db, now, [row[0] for row in cancelled], JobState.CANCELLED, "")
    end_all(db, now, [row[0] for row in dead], JobState.DEAD, "workers_died")
    return SweepReport(n_recovered=len(rows) - len(ended), n_dead=len(dead),
                       finished=tuple(row[1] for row in (*cancelled, *dead)))


def end_all(db: sqlite3.Connection, now: float, ns: Sequence[int], state: JobState, why: str) -> None:
    """End jobs without a result."""
    if ns:
        db.execute(_END_ALL, (state.value, now, why, encode_values(ns)))


def sweep(db: sqlite3.Connection, now: float, max_claims: int) -> SweepReport:
    """One step of everything that is due."""
    promote_deferred(db, now)
    lost = [n for n, in db.execute("SELECT n FROM jobs INDEXED BY jobs_leased WHERE state = 'running' AND lease_until <= ? "
                                   "LIMIT ?", (now, STEP))]
    report = end_lost_claims(db, now, lost, max_claims)
    expired = _expire(db, now)
    files = db.execute("SELECT id FROM files WHERE expires_at <= ? LIMIT ?", (now, STEP)).fetchall()
    n_purged = _purge(db, now)
    db.execute("DELETE FROM tenants WHERE n_unfinished <= 0")
    return SweepReport(report.n_recovered, report.n_dead, len(expired), n_purged, (*report.finished, *expired),
                       tuple(file_id for file_id, in files))


def _expire(db: sqlite3.Connection, now: float) -> list[str]:
    rows: list[tuple[int, str]] = []
    for model, in db.execute("SELECT model FROM routes WHERE n_queued + n_deferred > 0").fetchall():
        rows += db.execute(_EXPIRED, (model, now, STEP - len(rows))).fetchall()
    end_all(db, now, [n for n, _ in rows], JobState.EXPIRED, "deadline_passed")
    return [job_id for _, job_id in rows]


def _purge(db: sqlite3.Connection, now: float) -> int:
    """Delete records whose time is over. A batch goes after all its lines."""
    n_purged = 0
    for n, batch_id in db.execute("SELECT n, id FROM batches WHERE drop_at <= ? LIMIT 10", (now,)).fetchall():
        n_lines = delete_lines(db, batch_id, STEP - n_purged)
        n_purged += n_lines
        if n_purged < STEP:
            n_purged += db.execute("DELETE FROM batches WHERE n = ?", (n,)).rowcount
    over = [n for n, in db.execute("SELECT n FROM jobs WHERE expires_at <= ? LIMIT ?", (now, STEP - n_purged))]
    if over:
        db.execute(_HOLD, (now, HOLD_S, encode_values(over)))
        n_purged += db.execute("DELETE FROM jobs WHERE n IN (SELECT value FROM json_each(?)) AND expires_at <= ?",
                               (encode_values(over), now)).rowcount
    return n_purged


def delete_lines(db: sqlite3.Connection, batch_id: str, most: int) -> int:
    """Delete lines of an ended batch; returns how many."""
    return db.execute("DELETE FROM jobs WHERE n IN (SELECT n FROM jobs WHERE batch_id = ? LIMIT ?)",
                      (batch_id, most)).rowcount


def has_much_free(db: sqlite3.Connection) -> bool:
    """Whether a part of the file is worth returning to the disk."""
    (n_free,) = db.execute("PRAGMA freelist_count").fetchone()
    (n_pages,) = db.execute("PRAGMA page_count").fetchone()
    return bool(n_free >= MIN_FREE_PAGES and n_free >= n_pages // 4)


def vacuum(db: sqlite3.Connection) -> None:
    """Return some free pages to the disk. The sqlite3 module runs only the first step of this pragma, which is one page."""
    for _ in range(VACUUM_PAGES):
        db.execute("PRAGMA incremental_vacuum(1)")
