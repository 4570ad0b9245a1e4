"""Ends that webhooks report: made in the transaction that ends a job or batch."""

from typing import Any, Final

from stayfast.core.jobs import Report
from stayfast.stores.jobs.postgres.connections import PostgresPool, to_text

# A job that was retried ends again, and is reported again.
INSERT_REPORTS: Final = """
INSERT INTO stayfast_reports (id, subject_id, is_batch, created_at)
SELECT 'evt_' || subject_id, subject_id, false, (SELECT stayfast_now()) FROM unnest($1::text[]) AS g(subject_id)
ON CONFLICT (id) DO UPDATE SET created_at = EXCLUDED.created_at, n_attempts = 0, next_at = 0, delivered = '{}',
  is_failed = false, why = '', lease_until = NULL, token = stayfast_reports.token + 1"""
INSERT_BATCH_REPORT: Final = """
INSERT INTO stayfast_reports (id, subject_id, is_batch, created_at) VALUES ('evt_' || $1, $1, true, (SELECT stayfast_now()))
ON CONFLICT DO NOTHING"""
DELETE_REPORTS: Final = """
DELETE FROM stayfast_reports WHERE id = ANY(ARRAY(SELECT 'evt_' || g.id FROM unnest($1::text[]) AS g(id)))"""
_CLAIM: Final = """
UPDATE stayfast_reports SET token = token + 1, lease_until = (SELECT stayfast_now()) + $2 WHERE id = ANY(ARRAY(
  SELECT id FROM stayfast_reports WHERE NOT is_failed AND next_at <= (SELECT stayfast_now())
    AND (lease_until IS NULL OR lease_until <= (SELECT stayfast_now()))
  ORDER BY next_at LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING *"""
_SETTLE: Final = """
UPDATE stayfast_reports SET n_attempts = $3, next_at = $4, delivered = $5, is_failed = $6, why = $7, lease_until = NULL
WHERE id = $1 AND token = $2 RETURNING id"""
_RETRY: Final = """
UPDATE stayfast_reports SET is_failed = false, n_attempts = 0, next_at = 0 WHERE id = $1 AND is_failed RETURNING *"""


class PostgresReports:
    """The part of the store that has the reports of webhooks."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    async def claim_reports(self, worker: str, n: int, lease_s: float) -> list[Report]:
        """worker: not needed, the tokens are unique."""
        rows = await self._pool.fetch(_CLAIM, n, lease_s)
        return [_build_report(row) for row in sorted(rows, key=lambda row: (row["next_at"], row["seq"]))]

    async def settle_report(self, report: Report, *, is_done: bool) -> bool:
        if is_done:
            return bool(await self._pool.fetch("DELETE FROM stayfast_reports WHERE id = $1 AND token = $2 RETURNING id",
                                               to_text(report.id), report.token))
        return bool(await self._pool.fetch(_SETTLE, to_text(report.id), report.token, report.n_attempts, report.next_at,
                                           list(report.delivered), report.is_failed, to_text(report.why)))

    async def list_reports(self, *, is_failed: bool, limit: int) -> list[Report]:
        rows = await self._pool.fetch("SELECT * FROM stayfast_reports WHERE is_failed = $1 ORDER BY seq DESC LIMIT $2",
                                      is_failed, limit)
        return [_build_report(row) for row in rows]

    async def retry_report(self, report_id: str) -> Report | None:
        row = await self._pool.fetch_row(_RETRY, to_text(report_id))
        return None if row is None else _build_report(row)


def _build_report(row: Any) -> Report:
    return Report(row["id"], row["subject_id"], row["is_batch"], row["created_at"], row["n_attempts"], row["next_at"],
                  tuple(row["delivered"]), row["is_failed"], row["why"], row["token"])
