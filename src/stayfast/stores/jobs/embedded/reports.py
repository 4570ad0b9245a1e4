"""Ends of jobs and batches that webhooks have not confirmed. A trigger stores the jobs', `update_batch` the batches'."""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from stayfast.core.jobs import Report
from stayfast.stores.jobs.embedded.rows import sql

_COLUMNS: Final = "id, subject_id, is_batch, created_at, n_attempts, next_at, delivered, is_failed, why, token"
_DUE: Final = """SELECT n FROM reports WHERE is_failed = 0 AND next_at <= ?1 AND lease_until <= ?1
    ORDER BY next_at, n LIMIT ?2"""
_CLAIM: Final = "UPDATE reports SET token = token + 1, sender = ?, lease_until = ? WHERE n = ?"
_FIND: Final = sql("SELECT $columns FROM reports WHERE n = ?", columns=_COLUMNS)
_LIST: Final = sql("SELECT $columns FROM reports WHERE is_failed = ? ORDER BY n DESC LIMIT ?", columns=_COLUMNS)
_ADD: Final = """INSERT OR REPLACE INTO reports (id, subject_id, is_batch, created_at, next_at)
    VALUES ('evt_' || ?1, ?1, 1, ?2, ?2)"""
_SETTLE: Final = """UPDATE reports SET n_attempts = ?, next_at = ?, delivered = ?, is_failed = ?, why = ?, lease_until = 0
    WHERE id = ? AND token = ?"""
_to_msgpack = msgspec.msgpack.Encoder().encode
_to_delivered = msgspec.msgpack.Decoder(tuple[str, ...]).decode


def _decode(row: Sequence[Any]) -> Report:
    report_id, subject_id, is_batch, created_at, n_attempts, next_at, delivered, is_failed, why, token = row
    return Report(report_id, subject_id, bool(is_batch), created_at, n_attempts, next_at,
                  () if delivered is None else _to_delivered(delivered), bool(is_failed), why, token)


def add_batch_report(db: sqlite3.Connection, now: float, batch_id: str) -> None:
    """The end of a batch is to be reported."""
    db.execute(_ADD, (batch_id, now))


def claim_reports(db: sqlite3.Connection, now: float, worker: str, n: int, lease_s: float) -> list[Report]:
    """Claim reports that are due."""
    found = db.execute(_DUE, (now, n)).fetchall()
    db.executemany(_CLAIM, [(worker, now + lease_s, number) for number, in found])
    return [_decode(db.execute(_FIND, row).fetchone()) for row in found]


def settle_report(db: sqlite3.Connection, report: Report, *, is_done: bool) -> bool:
    """End a claim."""
    if is_done:
        return db.execute("DELETE FROM reports WHERE id = ? AND token = ?", (report.id, report.token)).rowcount > 0
    return db.execute(_SETTLE, (report.n_attempts, report.next_at, _to_msgpack(report.delivered), report.is_failed,
                                report.why, report.id, report.token)).rowcount > 0


def list_reports(db: sqlite3.Connection, *, is_failed: bool, limit: int) -> list[Report]:
    """Newest first."""
    return [_decode(row) for row in db.execute(_LIST, (is_failed, limit))]
