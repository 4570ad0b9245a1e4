"""The tables of the embedded store, and how its file is opened.

The rows that every claim touches are small and apart from bodies, results and events. Each order in which rows are read has
a partial index of just the rows concerned, so that a claim costs the same at a thousand queued jobs and at a million.
Triggers maintain all counts, so a count cannot differ from the rows.

A missing tenant is the blob x'' and a missing deadline is +inf: they compare with `=` and `<`, unlike NULL.
"""

import os
import sqlite3
from pathlib import Path
from typing import Final

APPLICATION_ID: Final = 0x53_46_4A_31  # "SFJ1", in the header of the file
BUSY_S: Final = 5.0  # longest wait for another process, such as a backup
CACHE_KIB: Final = 8 * 1024
LOG_BYTES: Final = 64 * 1024 * 1024  # size to which the write-ahead log is truncated
CHECKPOINT_PAGES: Final = 4000
MODE: Final = 0o600
FOLDER_MODE: Final = 0o700

_VERSION_1: Final = """
CREATE TABLE jobs (
    n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, door TEXT NOT NULL, api TEXT NOT NULL, model TEXT NOT NULL,
    state TEXT NOT NULL, tenant NOT NULL, created_at REAL NOT NULL, is_stream INTEGER NOT NULL, rank INTEGER NOT NULL,
    n_tokens INTEGER NOT NULL, run_at REAL NOT NULL, deadline_at REAL NOT NULL, keep_s REAL NOT NULL, token INTEGER NOT NULL,
    n_failures INTEGER NOT NULL, worker TEXT, started_at REAL, finished_at REAL, expires_at REAL,
    is_cancelling INTEGER NOT NULL, why TEXT NOT NULL, batch_id TEXT, line INTEGER, custom_id TEXT, metadata BLOB,
    vft REAL NOT NULL, aged_at REAL NOT NULL, is_deferred INTEGER NOT NULL, idempotency_key TEXT, digest BLOB,
    n_lost INTEGER NOT NULL DEFAULT 0, lease_until REAL, claim_ref TEXT);
CREATE INDEX jobs_ready ON jobs (model, rank, vft, deadline_at, n) WHERE state = 'queued' AND is_deferred = 0;
CREATE INDEX jobs_aged ON jobs (model, aged_at, n) WHERE state = 'queued' AND is_deferred = 0;
CREATE INDEX jobs_deferred ON jobs (run_at) WHERE state = 'queued' AND is_deferred = 1;
CREATE INDEX jobs_deadline ON jobs (model, deadline_at) WHERE state = 'queued';
CREATE INDEX jobs_leased ON jobs (lease_until) WHERE state = 'running';
CREATE INDEX jobs_expiring ON jobs (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX jobs_tenant ON jobs (tenant, n);
CREATE UNIQUE INDEX jobs_key ON jobs (tenant, door, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX jobs_line ON jobs (batch_id, line) WHERE batch_id IS NOT NULL;
CREATE TABLE bodies (n INTEGER PRIMARY KEY, headers BLOB, body BLOB NOT NULL);
CREATE TABLE results (
    n INTEGER PRIMARY KEY, token INTEGER NOT NULL, state TEXT NOT NULL, status_code INTEGER NOT NULL,
    request_id TEXT NOT NULL, upstream TEXT NOT NULL, usage BLOB, cost_usd REAL, why TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE events (
    job_n INTEGER NOT NULL, n INTEGER NOT NULL, epoch INTEGER NOT NULL, data BLOB NOT NULL, is_last INTEGER NOT NULL,
    PRIMARY KEY (job_n, n)) WITHOUT ROWID;
CREATE TABLE routes (
    model TEXT PRIMARY KEY, n_queued INTEGER NOT NULL, n_running INTEGER NOT NULL, n_deferred INTEGER NOT NULL,
    n_queued_tokens INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE tenants (tenant PRIMARY KEY, n_unfinished INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE flows (
    model TEXT NOT NULL, rank INTEGER NOT NULL, tenant NOT NULL, n_queued INTEGER NOT NULL, finish REAL NOT NULL,
    PRIMARY KEY (model, rank, tenant)) WITHOUT ROWID;
CREATE TABLE clocks (model TEXT NOT NULL, rank INTEGER NOT NULL, v REAL NOT NULL, PRIMARY KEY (model, rank)) WITHOUT ROWID;
CREATE TABLE batches (
    n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, door TEXT NOT NULL, tenant NOT NULL, state TEXT NOT NULL,
    data BLOB NOT NULL, n_total INTEGER NOT NULL, n_stored INTEGER NOT NULL DEFAULT 0,
    n_completed INTEGER NOT NULL DEFAULT 0, n_failed INTEGER NOT NULL DEFAULT 0, n_cancelled INTEGER NOT NULL DEFAULT 0,
    n_expired INTEGER NOT NULL DEFAULT 0, u_input_total INTEGER NOT NULL DEFAULT 0, u_output INTEGER NOT NULL DEFAULT 0,
    u_cached_read INTEGER NOT NULL DEFAULT 0, u_cache_write_5m INTEGER NOT NULL DEFAULT 0,
    u_cache_write_1h INTEGER NOT NULL DEFAULT 0, u_reasoning INTEGER NOT NULL DEFAULT 0,
    finalizing_at REAL, cancelling_at REAL, drop_at REAL, idempotency_key TEXT, token INTEGER NOT NULL DEFAULT 0,
    coordinator TEXT, claim_ref TEXT, lease_until REAL NOT NULL DEFAULT 0);
CREATE INDEX batches_coordinated ON batches (n) WHERE state IN ('validating', 'finalizing', 'cancelling');
CREATE INDEX batches_tenant ON batches (tenant, n);
CREATE INDEX batches_over ON batches (drop_at) WHERE drop_at IS NOT NULL;
CREATE UNIQUE INDEX batches_key ON batches (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE TABLE files (
    n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, tenant NOT NULL, purpose TEXT NOT NULL, filename TEXT NOT NULL,
    n_bytes INTEGER NOT NULL, created_at REAL NOT NULL, expires_at REAL NOT NULL, sha256 TEXT NOT NULL);
CREATE INDEX files_tenant ON files (tenant, n);
CREATE INDEX files_expiring ON files (expires_at);

CREATE TRIGGER job_queued AFTER INSERT ON jobs WHEN NEW.state = 'queued' BEGIN
    INSERT INTO routes VALUES (NEW.model, NOT NEW.is_deferred, 0, NEW.is_deferred, NEW.n_tokens * NOT NEW.is_deferred)
        ON CONFLICT DO UPDATE SET n_queued = n_queued + excluded.n_queued, n_deferred = n_deferred + excluded.n_deferred,
            n_queued_tokens = n_queued_tokens + excluded.n_queued_tokens;
    INSERT INTO tenants VALUES (NEW.tenant, 1) ON CONFLICT DO UPDATE SET n_unfinished = n_unfinished + 1;
    INSERT INTO flows VALUES (NEW.model, NEW.rank, NEW.tenant, 1, NEW.vft)
        ON CONFLICT DO UPDATE SET n_queued = n_queued + 1, finish = max(finish, excluded.finish); END;
CREATE TRIGGER line_stored AFTER INSERT ON jobs WHEN NEW.batch_id IS NOT NULL BEGIN
    UPDATE batches SET n_stored = n_stored + 1, n_cancelled = n_cancelled + (NEW.state = 'cancelled')
        WHERE id = NEW.batch_id; END;
CREATE TRIGGER job_changed AFTER UPDATE OF state, is_deferred ON jobs BEGIN
    UPDATE routes SET
        n_queued = n_queued + (NEW.state = 'queued' AND NOT NEW.is_deferred)
            - (OLD.state = 'queued' AND NOT OLD.is_deferred),
        n_running = n_running + (NEW.state = 'running') - (OLD.state = 'running'),
        n_deferred = n_deferred + (NEW.state = 'queued' AND NEW.is_deferred) - (OLD.state = 'queued' AND OLD.is_deferred),
        n_queued_tokens = n_queued_tokens + NEW.n_tokens * (NEW.state = 'queued' AND NOT NEW.is_deferred)
            - OLD.n_tokens * (OLD.state = 'queued' AND NOT OLD.is_deferred)
        WHERE model = NEW.model; END;
CREATE TRIGGER job_unqueued AFTER UPDATE OF state ON jobs WHEN OLD.state = 'queued' AND NEW.state <> 'queued' BEGIN
    UPDATE flows SET n_queued = n_queued - 1 WHERE model = OLD.model AND rank = OLD.rank AND tenant = OLD.tenant;
    DELETE FROM flows WHERE model = OLD.model AND rank = OLD.rank AND tenant = OLD.tenant AND n_queued <= 0; END;
CREATE TRIGGER job_requeued AFTER UPDATE OF state ON jobs WHEN OLD.state <> 'queued' AND NEW.state = 'queued' BEGIN
    INSERT INTO flows VALUES (NEW.model, NEW.rank, NEW.tenant, 1, NEW.vft)
        ON CONFLICT DO UPDATE SET n_queued = n_queued + 1, finish = max(finish, excluded.finish); END;
CREATE TRIGGER job_ended AFTER UPDATE OF state ON jobs
    WHEN OLD.state IN ('queued', 'running') AND NEW.state NOT IN ('queued', 'running') BEGIN
    UPDATE tenants SET n_unfinished = n_unfinished - 1 WHERE tenant = NEW.tenant; END;
CREATE TRIGGER job_reopened AFTER UPDATE OF state ON jobs
    WHEN OLD.state NOT IN ('queued', 'running') AND NEW.state IN ('queued', 'running') BEGIN
    INSERT INTO tenants VALUES (NEW.tenant, 1) ON CONFLICT DO UPDATE SET n_unfinished = n_unfinished + 1; END;
CREATE TRIGGER line_changed AFTER UPDATE OF state ON jobs WHEN NEW.batch_id IS NOT NULL BEGIN
    UPDATE batches SET
        n_completed = n_completed + (NEW.state = 'completed') - (OLD.state = 'completed'),
        n_failed = n_failed + (NEW.state IN ('failed', 'dead')) - (OLD.state IN ('failed', 'dead')),
        n_cancelled = n_cancelled + (NEW.state = 'cancelled') - (OLD.state = 'cancelled'),
        n_expired = n_expired + (NEW.state = 'expired') - (OLD.state = 'expired')
        WHERE id = NEW.batch_id;
    UPDATE batches SET state = 'finalizing', finalizing_at = NEW.finished_at
        WHERE id = NEW.batch_id AND state = 'in_progress'
            AND n_completed + n_failed + n_cancelled + n_expired >= n_total; END;
CREATE TRIGGER job_deleted AFTER DELETE ON jobs BEGIN
    DELETE FROM bodies WHERE n = OLD.n;
    DELETE FROM results WHERE n = OLD.n;
    DELETE FROM events WHERE job_n = OLD.n; END;
"""
_VERSION_2: Final = """
CREATE TABLE reports (
    subject_id TEXT PRIMARY KEY, is_batch INTEGER NOT NULL, state TEXT NOT NULL DEFAULT 'open',
    n_ends INTEGER NOT NULL DEFAULT 0, created_at REAL NOT NULL DEFAULT 0, n_attempts INTEGER NOT NULL DEFAULT 0,
    next_at REAL NOT NULL DEFAULT 0, lease_until REAL NOT NULL DEFAULT 0, delivered TEXT NOT NULL DEFAULT '[]',
    why TEXT NOT NULL DEFAULT '', token INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE INDEX reports_due ON reports (next_at) WHERE state = 'due';
CREATE INDEX reports_failed ON reports (created_at) WHERE state = 'failed';
CREATE TRIGGER job_reported AFTER UPDATE OF state ON jobs
    WHEN OLD.state IN ('queued', 'running') AND NEW.state NOT IN ('queued', 'running') BEGIN
    UPDATE reports SET state = 'due', n_ends = n_ends + 1, created_at = NEW.finished_at, n_attempts = 0, next_at = 0,
        lease_until = 0, delivered = '[]', why = '', token = token + 1 WHERE subject_id = NEW.id; END;
CREATE TRIGGER batch_reported AFTER UPDATE OF state ON batches
    WHEN NEW.state IN ('completed', 'failed', 'expired', 'cancelled') AND OLD.state <> NEW.state BEGIN
    UPDATE reports SET state = 'due', n_ends = n_ends + 1, next_at = 0, lease_until = 0, token = token + 1
        WHERE subject_id = NEW.id; END;
CREATE TRIGGER job_report_over AFTER DELETE ON jobs BEGIN
    DELETE FROM reports WHERE subject_id = OLD.id AND state IN ('open', 'done'); END;
CREATE TRIGGER batch_report_over AFTER DELETE ON batches BEGIN
    DELETE FROM reports WHERE subject_id = OLD.id AND state IN ('open', 'done'); END;
"""
_VERSION_3: Final = """
CREATE TABLE keys (
    id TEXT PRIMARY KEY, n INTEGER NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL, is_live INTEGER NOT NULL,
    drop_at REAL NOT NULL, used_at REAL NOT NULL DEFAULT 0, data BLOB NOT NULL) WITHOUT ROWID;
CREATE UNIQUE INDEX keys_changed ON keys (n);
CREATE UNIQUE INDEX keys_name ON keys (tenant, name) WHERE is_live = 1;
CREATE INDEX keys_ended ON keys (is_live, drop_at);
CREATE TABLE key_version (n INTEGER NOT NULL);
INSERT INTO key_version VALUES (0);
CREATE TABLE spend (
    day INTEGER NOT NULL, tenant TEXT NOT NULL, key_id TEXT NOT NULL, route TEXT NOT NULL, model TEXT NOT NULL,
    n_requests INTEGER NOT NULL, n_input INTEGER NOT NULL, n_cached INTEGER NOT NULL, n_output INTEGER NOT NULL,
    nano_usd INTEGER NOT NULL, nano_usd_list INTEGER NOT NULL, n_unpriced INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, key_id, route, model)) WITHOUT ROWID;
CREATE TABLE spend_writers (id TEXT PRIMARY KEY, n INTEGER NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX spend_writers_over ON spend_writers (at);
"""
# MIGRATIONS[k] changes version k of the schema to version k + 1, all missing ones in one transaction.
MIGRATIONS: Final = (_VERSION_1, _VERSION_2, _VERSION_3)


class ForeignFile(sqlite3.DatabaseError):
    """The file is not a store of jobs, or one of a newer version. It is not changed."""


def open_file(path: Path, *, is_durable: bool = True) -> sqlite3.Connection:
    """Open the store's file for writing, and create or migrate its tables. Raises sqlite3.Error (ForeignFile) and OSError.

    is_durable: synchronise the log at each commit; False is for simulations.
    """
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, MODE))
    db = _connect(path)
    try:
        version = _read_version(db)
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'OFF'}")
        db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        _migrate(db, version)
    except BaseException:
        db.close()
        raise
    return db


def open_reader(path: Path) -> sqlite3.Connection:
    """A second connection, for reading alone. Raises sqlite3.Error."""
    db = _connect(path)
    db.execute("PRAGMA query_only = ON")
    return db


def describe_problem(path: Path) -> str:
    """Why an existing file cannot be a store of jobs; empty if it can, or does not exist. Does not change the file."""
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=0.0, uri=True)
        try:
            _read_version(db)
        finally:
            db.close()
    except sqlite3.OperationalError:  # in use, missing, or not readable for this user
        return ""
    except sqlite3.DatabaseError as error:
        return str(error)
    return ""


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=256)
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    return db


def _read_version(db: sqlite3.Connection) -> int:
    """The version of the schema; 0 for an empty file."""
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return 0
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise ForeignFile("not a store of jobs of Stayfast; the file is not changed")
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise ForeignFile(f"version {version} of the store is newer than this program, which has version {len(MIGRATIONS)}; "
                          "the file is not changed")
    return version


def _migrate(db: sqlite3.Connection, version: int) -> None:
    if version == len(MIGRATIONS):
        return
    identity = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {len(MIGRATIONS)};"
    try:
        db.executescript(f"BEGIN IMMEDIATE; {' '.join(MIGRATIONS[version:])} {identity} COMMIT;")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
