"""What webhooks report. Triggers make a report due in the transaction that ends its job or batch.

    open -> due -> done | failed,   failed -> due (`retry_report`)

A job that is retried after its end is reported again at its next one, as another event.
"""

import json
import sqlite3

from stayfast.core.jobs import Report
from stayfast.stores.jobs.embedded.rows import Row, sql

FAILED_KEEP_S = 2_592_000.0
_COLUMNS = ("subject_id, n_ends, is_batch, created_at, n_attempts, next_at, delivered, state, why, token")
_ADD = "INSERT OR IGNORE INTO reports (subject_id, is_batch) VALUES (?, ?)"
_CLAIM = sql("""UPDATE reports SET lease_until = ?2 + ?3, token = token + 1,
        created_at = CASE created_at WHEN 0 THEN ?2 ELSE created_at END
    WHERE subject_id IN (SELECT subject_id FROM reports WHERE state = 'due' AND next_at <= ?2 AND lease_until <= ?2
        ORDER BY next_at LIMIT ?1) RETURNING $report""", report=_COLUMNS)
_SETTLE = """UPDATE reports SET state = ?, n_attempts = ?, next_at = ?, delivered = ?, why = ?, lease_until = 0
    WHERE subject_id = ? AND token = ? AND state = 'due'"""
_LIST = sql("SELECT $report FROM reports WHERE state = ? ORDER BY created_at DESC LIMIT ?", report=_COLUMNS)
_RETRY = sql("""UPDATE reports SET state = 'due', n_attempts = 0, next_at = 0, lease_until = 0
    WHERE 'evt_' || subject_id || '_' || n_ends = ? AND state = 'failed' RETURNING $report""", report=_COLUMNS)
_FORGET = "DELETE FROM reports WHERE state = 'failed' AND created_at < ?"
_DELETE_ORPHAN = """DELETE FROM reports WHERE subject_id = ? AND state = 'done'
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = subject_id)
    AND NOT EXISTS (SELECT 1 FROM batches WHERE id = subject_id)"""


def add_subject(db: sqlite3.Connection, subject_id: str, *, is_batch: bool) -> None:
    """A job or batch whose end is to be reported."""
    db.execute(_ADD, (subject_id, is_batch))


def claim_reports(db: sqlite3.Connection, now: float, n: int, lease_s: float) -> list[Report]:
    """The next reports that are due. Failed ones are dropped after FAILED_KEEP_S."""
    db.execute(_FORGET, (now - FAILED_KEEP_S,))
    return [_decode(row) for row in db.execute(_CLAIM, (n, now, lease_s)).fetchall()]


def settle_report(db: sqlite3.Connection, report: Report, *, is_done: bool) -> bool:
    """Store how an attempt ended."""
    state = "done" if is_done else "failed" if report.is_failed else "due"
    is_settled = db.execute(_SETTLE, (state, report.n_attempts, report.next_at, json.dumps(report.delivered), report.why,
                                      report.subject_id, report.token)).rowcount > 0
    if is_settled and is_done:
        db.execute(_DELETE_ORPHAN, (report.subject_id,))
    return is_settled


def list_reports(db: sqlite3.Connection, *, is_failed: bool, limit: int) -> list[Report]:
    """Failed ones, or ones that are due."""
    return [_decode(row) for row in db.execute(_LIST, ("failed" if is_failed else "due", limit))]


def retry_report(db: sqlite3.Connection, report_id: str) -> Report | None:
    """Make a failed one due."""
    row = db.execute(_RETRY, (report_id,)).fetchone()
    return None if row is None else _decode(row)


def _decode(row: Row) -> Report:
    subject_id, n_ends, is_batch, created_at, n_attempts, next_at, delivered, state, why, token = row
    return Report(f"evt_{subject_id}_{n_ends}", subject_id, bool(is_batch), created_at, n_attempts, next_at,
                  tuple(json.loads(delivered)), state == "failed", why, token)
