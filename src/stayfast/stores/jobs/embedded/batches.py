"""Batches and the records of files."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from stayfast.core.jobs import Batch, BatchState, FileInfo, Job, JobResult, JobState
from stayfast.stores.jobs.embedded import reports
from stayfast.stores.jobs.embedded.rows import (
    JOB_COLUMNS,
    RESULT_COLUMNS,
    decode_batch,
    decode_file,
    decode_job,
    decode_result,
    encode_batch,
    encode_file,
    encode_values,
    sql,
    tenant_key,
)
from stayfast.stores.jobs.embedded.sweeping import STEP, delete_lines, end_all

MAX_PAGE_BYTES = 4 * 1024 * 1024  # of results that are in memory at a time
_ALL_ENDED = "n_completed + n_failed + n_cancelled + n_expired"
_FREE = sql("""SELECT n FROM batches INDEXED BY batches_coordinated WHERE state IN ('validating', 'finalizing', 'cancelling')
    AND lease_until <= ? AND (state <> 'cancelling' OR $ended >= n_stored) ORDER BY n LIMIT 1""", ended=_ALL_ENDED)
_CLAIM = "UPDATE batches SET coordinator = ?, claim_ref = ?, lease_until = ?, token = token + 1 WHERE n = ?"
_INSERT = """INSERT INTO batches (id, door, tenant, state, data, n_total, n_completed, n_failed, n_cancelled, n_expired,
    finalizing_at, cancelling_at, drop_at, idempotency_key, token) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_UPDATE = """UPDATE batches SET state = ?, data = ?, n_total = ?, finalizing_at = ?, cancelling_at = ?, drop_at = ?,
    lease_until = ? WHERE id = ?"""
_FINALIZE = sql("""UPDATE batches SET state = 'finalizing', finalizing_at = ? WHERE id = ? AND state = 'in_progress'
    AND $ended >= n_total""", ended=_ALL_ENDED)
_AFTER_BATCH = " AND n < (SELECT n FROM batches WHERE id = ?)"
_BEFORE_BATCH = " AND n > (SELECT n FROM batches WHERE id = ?)"
_OLDER_FILES = " AND n < (SELECT n FROM files WHERE id = ?)"
_NEWER_FILES = " AND n > (SELECT n FROM files WHERE id = ?)"
_CANCEL = """UPDATE batches SET state = 'cancelling', cancelling_at = ? WHERE id = ?
    AND state IN ('validating', 'in_progress')"""
_QUEUED_LINES = "SELECT n FROM jobs INDEXED BY jobs_line WHERE batch_id = ? AND state = 'queued' LIMIT ?"
_OPEN = (BatchState.VALIDATING, BatchState.IN_PROGRESS)
_FINAL = tuple(state for state in BatchState if state.is_final)
_LINES = sql("""SELECT $jobs, $results FROM jobs LEFT JOIN results USING (n) WHERE batch_id = ? AND line > ?
    ORDER BY line LIMIT ?""", jobs=", ".join(f"jobs.{name}" for name in JOB_COLUMNS.split(", ")),
             results=", ".join(f"results.{name}" for name in RESULT_COLUMNS.split(", ")))
_ADD_FILE = sql("INSERT OR IGNORE INTO files ($file) VALUES (?, ?, ?, ?, ?, ?, ?, ?)")
_FIND_FILE = sql("SELECT $file FROM files WHERE id = ? AND expires_at > ?")


def _select(db: sqlite3.Connection, where: str, values: Sequence[Any]) -> list[Batch]:
    return [decode_batch(row) for row in db.execute(sql("SELECT $batch FROM batches WHERE $where", where=where), values)]


def find_batch(db: sqlite3.Connection, batch_id: str) -> Batch | None:
    """A batch."""
    found = _select(db, "id = ?", (batch_id,))
    return found[0] if found else None


def create_batch(db: sqlite3.Connection, batch: Batch) -> tuple[Batch, bool]:
    """Store a batch, unless it is stored already."""
    stored = find_batch(db, batch.id)
    if stored is None and batch.idempotency_key is not None:
        found = _select(db, "tenant = ? AND idempotency_key = ?", (tenant_key(batch.tenant), batch.idempotency_key))
        stored = found[0] if found else None
    if stored is not None:
        return stored, False
    db.execute(_INSERT, (batch.id, batch.door.value, tenant_key(batch.tenant), batch.state.value, encode_batch(batch),
                         batch.n_total, batch.n_completed, batch.n_failed, batch.n_cancelled, batch.n_expired,
                         batch.finalizing_at, batch.cancelling_at, batch.drop_at, batch.idempotency_key, batch.token))
    if batch.is_reported:
        reports.add_subject(db, batch.id, is_batch=True)
    return batch, True


def list_batches(db: sqlite3.Connection, tenant: str | None, doors: Sequence[str], after_id: str | None, limit: int, *,
                 is_forward: bool) -> list[Batch]:
    """A page of batches, newest first."""
    where, values = "tenant = ? AND door IN (SELECT value FROM json_each(?))", [tenant_key(tenant), encode_values(doors)]
    if after_id is not None:
        where += _AFTER_BATCH if is_forward else _BEFORE_BATCH
        values.append(after_id)
    found = _select(db, f"{where} ORDER BY n {'DESC' if is_forward else 'ASC'} LIMIT ?", (*values, limit))
    return found if is_forward else found[::-1]


def claim_batch(db: sqlite3.Connection, now: float, worker: str, lease_s: float, claim_ref: str) -> Batch | None:
    """The next batch with work for a coordinator. claim_ref: a repetition with the same text returns the same one."""
    if claim_ref:
        found = _select(db, "coordinator = ? AND claim_ref = ? AND lease_until > ?", (worker, claim_ref, now))
        if found:
            return found[0]
    row = db.execute(_FREE, (now,)).fetchone()
    if row is None:
        return None
    db.execute(_CLAIM, (worker, claim_ref or None, now + lease_s, row[0]))
    return _select(db, "n = ?", row)[0]


def update_batch(db: sqlite3.Connection, now: float, batch: Batch, lease_s: float | None) -> bool:
    """Write what a coordinator changed."""
    stored = find_batch(db, batch.id)
    if stored is None or stored.token != batch.token:
        return False
    if stored.state in (BatchState.CANCELLING, BatchState.FINALIZING) and batch.state in _OPEN:
        batch = replace(batch, state=stored.state)
    db.execute(_UPDATE, (batch.state.value, encode_batch(batch), batch.n_total, batch.finalizing_at or stored.finalizing_at,
                         batch.cancelling_at or stored.cancelling_at, batch.drop_at,
                         0.0 if lease_s is None else now + lease_s, batch.id))
    db.execute(_FINALIZE, (now, batch.id))
    return True


def cancel_batch(db: sqlite3.Connection, now: float, batch_id: str) -> tuple[Batch | None, bool]:
    """One step of a cancellation: the batch, and whether queued lines are left."""
    db.execute(_CANCEL, (now, batch_id))
    n_left = 0
    batch = find_batch(db, batch_id)
    if batch is not None and batch.state is BatchState.CANCELLING:
        queued = [n for n, in db.execute(_QUEUED_LINES, (batch_id, STEP))]
        end_all(db, now, queued, JobState.CANCELLED, "")
        db.execute("UPDATE jobs INDEXED BY jobs_line SET is_cancelling = 1 WHERE batch_id = ? AND state = 'running' "
                   "AND is_cancelling = 0", (batch_id,))
        n_left = len(queued)
        batch = find_batch(db, batch_id)
    return batch, n_left == STEP


def delete_batch(db: sqlite3.Connection, batch_id: str) -> bool:
    """Delete the record of an ended batch; its lines are deleted by `delete_batch_lines`."""
    return db.execute("DELETE FROM batches WHERE id = ? AND state IN (SELECT value FROM json_each(?))",
                      (batch_id, encode_values(_FINAL))).rowcount > 0


def delete_batch_lines(db: sqlite3.Connection, batch_id: str) -> int:
    """One step of it; returns how many."""
    return delete_lines(db, batch_id, STEP)


def read_lines(db: sqlite3.Connection, batch_id: str, after_line: int, limit: int) -> list[tuple[Job, JobResult | None]]:
    """A page of the lines of a batch with their results, in the order of their numbers; at least one, if there is one."""
    found: list[tuple[Job, JobResult | None]] = []
    n_bytes = 0
    for row in db.execute(_LINES, (batch_id, after_line, limit)):
        job, result = decode_job(row), None
        if row[25] is not None:
            result = decode_result(job.id, row[25:])
            n_bytes += len(result.body)
        found.append((job, result))
        if n_bytes > MAX_PAGE_BYTES:
            break
    return found


def add_file(db: sqlite3.Connection, info: FileInfo) -> None:
    """Store the record of a file; a repetition changes nothing."""
    db.execute(_ADD_FILE, encode_file(info))


def find_file(db: sqlite3.Connection, now: float, file_id: str) -> FileInfo | None:
    """The record of a file whose time is not over."""
    row = db.execute(_FIND_FILE, (file_id, now)).fetchone()
    return None if row is None else decode_file(row)


def list_files(db: sqlite3.Connection, now: float, tenant: str | None, purpose: str | None, *, after_id: str | None,
               limit: int, newest_first: bool) -> list[FileInfo]:
    """A page of records."""
    where, values = "tenant = ? AND +expires_at > ?", [tenant_key(tenant), now]
    if purpose is not None:
        where += " AND purpose = ?"
        values.append(purpose)
    if after_id is not None:
        where += _OLDER_FILES if newest_first else _NEWER_FILES
        values.append(after_id)
    order = f"ORDER BY n {'DESC' if newest_first else 'ASC'}"
    rows = db.execute(sql("SELECT $file FROM files WHERE $where $order LIMIT ?", where=where, order=order), (*values, limit))
    return [decode_file(row) for row in rows]


def delete_file(db: sqlite3.Connection, file_id: str) -> bool:
    """Delete a record."""
    return db.execute("DELETE FROM files WHERE id = ?", (file_id,)).rowcount > 0
