"""The endpoints of `stayfast jobs`: jobs of all tenants, and the dead-letter list. They need an admin key."""

from typing import Any, cast

import msgspec

from stayfast.core.errors import Rejected
from stayfast.core.jobs import Job, JobFilter, JobState, Report
from stayfast.jobs.service import WORK, JobService, store_error, unknown_job
from stayfast.server.jobs.endpoint import Endpoint, EndpointReply, EndpointRequest
from stayfast.server.jobs.query import check_parameters, parse_whole
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.reports import ReportStore

DEFAULT_LISTED_JOBS, MAX_LISTED_JOBS = 50, 1000
_STATES = {state.value: state for state in JobState}


class AdminJobs:
    """Lists, shows, retries and cancels jobs of all tenants."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._reports = cast("ReportStore", service.store)  # every job store is one

    def endpoints(self) -> tuple[Endpoint, ...]:
        """For the server's table."""
        return (Endpoint("GET", "/admin/jobs", self.list_jobs), Endpoint("GET", "/admin/jobs/{id}", self.show),
                Endpoint("POST", "/admin/jobs/{id}/retry", self.retry),
                Endpoint("POST", "/admin/jobs/{id}/cancel", self.cancel),
                Endpoint("GET", "/admin/webhooks", self.list_webhooks),
                Endpoint("POST", "/admin/webhooks/{id}/retry", self.retry_webhook))

    async def list_jobs(self, request: EndpointRequest) -> EndpointReply:
        """`state` (repeated by commas), `tenant`, `batch`, `after`, `limit`: the newest matching jobs, and the queue's depth
        by route.
        """
        request.require_admin()
        what = parse_filter(request)
        jobs = await self._service.list_jobs(what)
        try:
            depths = await self._service.store.depths()
        except StoreUnavailable as error:
            raise store_error(error) from None
        return EndpointReply(body=msgspec.json.encode({
            "object": "list", "data": [describe_job(job) for job in jobs], "has_more": len(jobs) == what.limit,
            "queues": msgspec.to_builtins(depths)}))

    async def show(self, request: EndpointRequest) -> EndpointReply:
        """One job, how many run before it, and the code of its end; never its prompt or its answer."""
        request.require_admin()
        job = await self._find(request.parameters["id"])
        shown = describe_job(job)
        if job.state is JobState.QUEUED:
            shown["n_ahead"] = await self._service.store.count_ahead(job.id)
        result = await self._service.result(job)
        if result is not None:
            shown |= {"status_code": result.status_code, "upstream": result.upstream, "request_id": result.request_id,
                      "cost_usd": result.cost_usd, "usage": msgspec.to_builtins(result.usage), "why": result.why or job.why}
        return EndpointReply(body=msgspec.json.encode(shown))

    async def retry(self, request: EndpointRequest) -> EndpointReply:
        """Put an ended job without an answer back into the queue. Raises Rejected (409) for one that runs or completed."""
        request.require_admin()
        job = await self._find(request.parameters["id"])
        try:
            queued = await self._service.store.retry_dead(job.id)
            await self._service.store.notify(WORK)
        except StoreUnavailable as error:
            raise store_error(error) from None
        if queued is None:
            raise Rejected(f"Job {job.id} is {job.state.value}: only dead, failed, expired and cancelled jobs "
                           "can be retried.", status=409, code="job_not_retryable", param="id")
        return EndpointReply(body=msgspec.json.encode(describe_job(queued)))

    async def cancel(self, request: EndpointRequest) -> EndpointReply:
        """Cancel a job of any tenant."""
        request.require_admin()
        job = await self._find(request.parameters["id"])
        return EndpointReply(body=msgspec.json.encode(describe_job(await self._service.cancel(job.id, job.tenant))))

    async def list_webhooks(self, request: EndpointRequest) -> EndpointReply:
        """The webhooks that were given up, then those that wait for their next attempt, each newest first."""
        request.require_admin()
        try:
            found = [report for is_failed in (True, False) for report in await self._reports.list_reports(
                is_failed=is_failed, limit=MAX_LISTED_JOBS)]
        except StoreUnavailable as error:
            raise store_error(error) from None
        return EndpointReply(body=msgspec.json.encode({"object": "list", "data": [describe_report(each) for each in found]}))

    async def retry_webhook(self, request: EndpointRequest) -> EndpointReply:
        """Send a webhook again that was given up. Raises Rejected (404)."""
        request.require_admin()
        try:
            report = await self._reports.retry_report(request.parameters["id"])
        except StoreUnavailable as error:
            raise store_error(error) from None
        if report is None:
            raise Rejected("No failed webhook has this id: it was sent, waits for its next attempt, or is unknown.",
                           status=404, code="webhook_not_found", param="id")
        return EndpointReply(body=msgspec.json.encode(describe_report(report)))

    async def _find(self, job_id: str) -> Job:
        try:
            job = await self._service.store.find(job_id)
        except StoreUnavailable as error:
            raise store_error(error) from None
        if job is None:
            raise unknown_job(job_id)
        return job


def parse_filter(request: EndpointRequest) -> JobFilter:
    """The filter of a query. Raises Rejected for an unknown parameter or value."""
    query = request.query
    check_parameters(query, ("state", "tenant", "batch", "after", "limit"))
    words = [word for word in query.get("state", "").split(",") if word]
    for word in words:
        if word not in _STATES:
            raise Rejected(f"state must be one of {', '.join(_STATES)}.", param="state")
    limit = parse_whole(query, "limit", DEFAULT_LISTED_JOBS, MAX_LISTED_JOBS)
    return JobFilter(tenant=query.get("tenant"), is_for_tenant="tenant" in query,
                     states=tuple(_STATES[word] for word in words), batch_id=query.get("batch"),
                     after_id=query.get("after"), limit=limit)


def describe_report(report: Report) -> dict[str, Any]:
    """A webhook as JSON. `why`: of its last failure."""
    return {"id": report.id, "subject": report.subject_id, "status": "failed" if report.is_failed else "waiting",
            "created_at": report.created_at, "attempts": report.n_attempts, "next_at": report.next_at, "why": report.why}


def describe_job(job: Job) -> dict[str, Any]:
    """A job as JSON, without its request."""
    shown: dict[str, Any] = msgspec.to_builtins(job)
    return {name: value for name, value in shown.items() if value not in (None, "", {}, False)}
