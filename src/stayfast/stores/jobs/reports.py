"""The interface of a store for webhooks: ends of jobs and batches that are not reported yet. Job stores implement it."""

from typing import Protocol

from stayfast.core.jobs import Report


class ReportStore(Protocol):
    """Reports are made by the job store itself, in the transaction that ends a job or batch with `is_reported`. Errors and
    durability as in `stores.jobs.base`.
    """

    async def claim_reports(self, worker: str, n: int, lease_s: float) -> list[Report]:
        """At most `n` reports that are due, that have not failed, and that no other sender holds."""

    async def settle_report(self, report: Report, *, is_done: bool) -> bool:
        """End a claim: delete the report if `is_done`, else store its new fields. False: the claim was superseded."""

    async def list_reports(self, *, is_failed: bool, limit: int) -> list[Report]:
        """Newest first."""

    async def retry_report(self, report_id: str) -> Report | None:
        """Make a failed report due now, with all its attempts. None: unknown, or it has not failed."""
