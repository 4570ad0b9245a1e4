"""Claims and how they end. A claim raises the token of its job; what a worker writes carries the token of its claim."""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence

from stayfast.core.jobs import ClaimedJob, Job, JobResult, JobState, Release
from stayfast.core.types import Usage
from stayfast.stores.jobs.base import Heartbeat, HeldJob
from stayfast.stores.jobs.embedded.rows import (
    USAGE_FIELDS,
    decode_headers,
    decode_job,
    encode_result,
    encode_values,
    sql,
)
from stayfast.stores.jobs.embedded.sweeping import end_lost_claims, promote_deferred

MAX_CLAIMED = 1000  # of one route, in one claim

_AGED = """SELECT n, rank, vft FROM jobs INDEXED BY jobs_aged WHERE model = ?1 AND state = 'queued' AND is_deferred = 0
    AND aged_at <= ?2 AND deadline_at > ?2 ORDER BY aged_at, n LIMIT ?3"""
_READY = """SELECT n, rank, vft FROM jobs INDEXED BY jobs_ready WHERE model = ?1 AND state = 'queued' AND is_deferred = 0
    AND deadline_at > ?2 ORDER BY rank, vft, deadline_at, n LIMIT ?3"""
_CLAIM = """UPDATE jobs SET state = 'running', token = token + 1, worker = ?, started_at = ?, lease_until = ?, claim_ref = ?
    WHERE n IN (SELECT value FROM json_each(?))"""
_CLAIMED = sql("SELECT $job, n, headers, body FROM jobs JOIN bodies USING (n) WHERE n IN (SELECT value FROM json_each(?))")
_REPEATED = sql("""SELECT $job, n, headers, body FROM jobs JOIN bodies USING (n)
    WHERE state = 'running' AND worker = ? AND claim_ref = ?""")
_FIND = sql("SELECT $job FROM jobs WHERE n = ?")
_ADVANCE = "INSERT INTO clocks VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET v = max(v, ?3)"
_INSERT_RESULT = sql("INSERT INTO results (n, $result) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
_END = """UPDATE jobs SET state = ?1, finished_at = ?2, expires_at = ?2 + keep_s, why = ?3, is_cancelling = 0,
    lease_until = NULL, claim_ref = NULL WHERE n = ?4"""
_ADD_USAGE = sql("UPDATE batches SET $sums WHERE id = ?",
                 sums=", ".join(f"u_{name} = u_{name} + ?" for name in USAGE_FIELDS))
_RELEASE = """UPDATE jobs SET state = 'queued', worker = NULL, lease_until = NULL, claim_ref = NULL, run_at = ?,
    is_deferred = ?, why = ?, n_failures = n_failures + ?, vft = ? WHERE n = ?"""
# Its tenant's last finish, or the virtual time, and its tokens: as at a submission with the weight 1, which is not stored.
_TAG_RETRY = """SELECT CASE WHEN ?2 THEN max(vft,
        coalesce((SELECT finish FROM flows f WHERE f.model = j.model AND f.rank = j.rank AND f.tenant = j.tenant), 0),
        coalesce((SELECT v FROM clocks c WHERE c.model = j.model AND c.rank = j.rank), 0)) + max(n_tokens, 1)
    ELSE vft END FROM jobs j WHERE n = ?1"""
_RETRY = """UPDATE jobs SET state = 'queued', worker = NULL, run_at = 0, is_deferred = 0, deadline_at = 9e999,
    n_failures = 0, n_lost = 0, finished_at = NULL, expires_at = NULL, why = '' WHERE n = ?"""
_RETRIED = (JobState.FAILED, JobState.DEAD, JobState.EXPIRED, JobState.CANCELLED)


def claim(db: sqlite3.Connection, now: float, worker: str, room: Mapping[str, int], *, lease_s: float,
          claim_ref: str = "") -> list[ClaimedJob]:
    """Claim the next jobs. claim_ref: a repetition with the same text returns the jobs of the first call."""
    if claim_ref:
        found = db.execute(_REPEATED, (worker, claim_ref)).fetchall()
        if found:
            return [_decode_claim(row) for row in found]
    promote_deferred(db, now)
    chosen = [n for model, n_free in room.items() for n in _choose(db, now, model, min(n_free, MAX_CLAIMED))]
    if not chosen:
        return []
    values = encode_values(chosen)
    db.execute(_CLAIM, (worker, now, now + lease_s, claim_ref or None, values))
    rows = db.execute(_CLAIMED, (values,)).fetchall()
    by_n = {row[25]: _decode_claim(row) for row in rows}
    return [by_n[n] for n in chosen]


def _decode_claim(row: Sequence[object]) -> ClaimedJob:
    headers, body = row[26], row[27]
    assert isinstance(body, bytes)
    return ClaimedJob(decode_job(row), body, decode_headers(headers if isinstance(headers, bytes) else None))


def _choose(db: sqlite3.Connection, now: float, model: str, n_free: int) -> list[int]:
    """The next jobs of a route. Aged ones do not advance the virtual time: they run out of its order."""
    if n_free <= 0:
        return []
    chosen = [n for n, _, _ in db.execute(_AGED, (model, now, n_free))]
    if len(chosen) == n_free:
        return chosen
    aged, v = set(chosen), dict[int, float]()
    for n, rank, vft in db.execute(_READY, (model, now, n_free)).fetchall():  # aged ones are among them
        if len(chosen) < n_free and n not in aged:
            chosen.append(n)
            v[rank] = vft
    for rank, vft in v.items():
        db.execute(_ADVANCE, (model, rank, vft))
    return chosen


def extend(db: sqlite3.Connection, now: float, worker: str, held: Sequence[HeldJob], lease_s: float) -> Heartbeat:
    """Extend leases."""
    tokens = {one.job_id: one.token for one in held}
    rows = db.execute("""SELECT id, token, is_cancelling, n FROM jobs WHERE id IN (SELECT value FROM json_each(?))
        AND state = 'running' AND worker = ?""", (encode_values(tokens), worker)).fetchall()
    mine = [row for row in rows if tokens[row[0]] == row[1]]
    db.execute("UPDATE jobs SET lease_until = ? WHERE n IN (SELECT value FROM json_each(?))",
               (now + lease_s, encode_values(row[3] for row in mine)))
    ids = {row[0] for row in mine}
    return Heartbeat(tuple(job_id for job_id in tokens if job_id not in ids), tuple(row[0] for row in mine if row[2]))


def finish(db: sqlite3.Connection, now: float, results: Sequence[JobResult]) -> list[bool]:
    """End jobs of any number of workers."""
    rows = db.execute("SELECT id, n, token, state, batch_id FROM jobs WHERE id IN (SELECT value FROM json_each(?))",
                      (encode_values(result.job_id for result in results),)).fetchall()
    running = {row[0]: row[1:] for row in rows if row[3] == JobState.RUNNING}
    ended = {row[0]: row[1:] for row in rows if row[3] != JobState.RUNNING}
    replies, accepted = [], []
    usage: defaultdict[str, list[Usage]] = defaultdict(list)
    for result in results:
        n, token, _, batch_id = running.get(result.job_id, (0, -1, "", None))
        if token != result.token:
            replies.append(result.job_id in ended and _is_repeated(db, ended[result.job_id][0], result.token))
            continue
        ended[result.job_id] = running.pop(result.job_id)
        accepted.append((n, result))
        replies.append(True)
        if batch_id is not None and result.usage is not None:
            usage[batch_id].append(result.usage)
        db.execute(_INSERT_RESULT, encode_result(n, result))
    db.executemany(_END, [(result.state.value, now, result.why, n) for n, result in accepted])
    for batch_id, parts in usage.items():
        db.execute(_ADD_USAGE, (*(sum(getattr(part, name) for part in parts) for name in USAGE_FIELDS), batch_id))
    return replies


def _is_repeated(db: sqlite3.Connection, n: int, token: int) -> bool:
    return db.execute("SELECT 1 FROM results WHERE n = ? AND token = ?", (n, token)).fetchone() is not None


def release(db: sqlite3.Connection, now: float, released: Sequence[Release]) -> list[bool]:
    """Put claimed jobs back."""
    replies = []
    for one in released:
        row = db.execute("SELECT n, token, state, is_cancelling FROM jobs WHERE id = ?", (one.job_id,)).fetchone()
        if row is None or row[1] != one.token:
            replies.append(False)
            continue
        n, _, state, is_cancelling = row
        if state != JobState.RUNNING:
            replies.append(state in (JobState.QUEUED, JobState.CANCELLED))  # a repetition
            continue
        if is_cancelling:
            end_job(db, now, n, JobState.CANCELLED, one.why)
        else:
            (vft,) = db.execute(_TAG_RETRY, (n, one.is_failure)).fetchone()
            db.execute(_RELEASE, (one.run_at, one.run_at > now, one.why, one.is_failure, vft, n))
        replies.append(True)
    return replies


def end_job(db: sqlite3.Connection, now: float, n: int, state: JobState, why: str) -> None:
    """End a job without a result."""
    db.execute(_END, (state.value, now, why, n))


def bury(db: sqlite3.Connection, now: float, job_id: str, token: int, why: str) -> bool:
    """End a claimed job as DEAD."""
    row = db.execute("SELECT n, state FROM jobs WHERE id = ? AND token = ? AND state IN ('running', 'dead')",
                     (job_id, token)).fetchone()
    if row is None:
        return False
    if row[1] == JobState.RUNNING:
        end_job(db, now, row[0], JobState.DEAD, why)
    return True


def cancel(db: sqlite3.Connection, now: float, job_id: str) -> Job | None:
    """Cancel a job."""
    row = db.execute("SELECT n, state FROM jobs WHERE id = ?", (job_id,)).fetchone()
    if row is None:
        return None
    n, state = row
    if state == JobState.QUEUED:
        end_job(db, now, n, JobState.CANCELLED, "")
    elif state == JobState.RUNNING:
        db.execute("UPDATE jobs SET is_cancelling = 1 WHERE n = ?", (n,))
    return _find(db, n)


def retry_dead(db: sqlite3.Connection, job_id: str) -> Job | None:
    """Put an ended job back into the queue."""
    row = db.execute("""SELECT jobs.n, jobs.state, batches.state FROM jobs LEFT JOIN batches ON batches.id = batch_id
        WHERE jobs.id = ?""", (job_id,)).fetchone()
    if row is None or row[1] not in _RETRIED or row[2] not in (None, "validating", "in_progress"):
        return None
    db.execute("DELETE FROM results WHERE n = ?", (row[0],))
    db.execute("UPDATE events SET is_last = 0, data = x'' WHERE job_n = ? AND is_last", (row[0],))
    db.execute(_RETRY, (row[0],))
    return _find(db, row[0])


def recover(db: sqlite3.Connection, now: float, worker: str, max_claims: int) -> int:
    """Put back the claims of workers whose ids begin with `worker`."""
    prefix = (len(worker), worker)
    found = db.execute("SELECT n FROM jobs INDEXED BY jobs_leased WHERE state = 'running' AND substr(worker, 1, ?) = ?",
                       prefix).fetchall()
    end_lost_claims(db, now, [n for n, in found], max_claims)
    db.execute("UPDATE batches SET lease_until = 0 WHERE lease_until > 0 AND substr(coordinator, 1, ?) = ?", prefix)
    return len(found)


def _find(db: sqlite3.Connection, n: int) -> Job:
    return decode_job(db.execute(_FIND, (n,)).fetchone())
