"""Sends webhooks: the ends of jobs, background responses and batches, signed, and retried until the receiver confirms.

A report is stored in the transaction that ends a job, so it survives a crash. Delivery is at least once: the receiver
recognises a repeated event by its `webhook-id`. An attempt that fails is repeated after a wait that doubles from 5 s to 1 h,
with jitter, for about three days (OpenAI's own time); then the report is listed as failed (`stayfast jobs webhooks`).
"""

import asyncio
from collections.abc import Callable, Sequence
from hashlib import blake2b
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec

from stayfast.core.clock import Clock, Rng
from stayfast.core.errors import StayfastError
from stayfast.core.events import Sink
from stayfast.core.jobs import Report
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.jobs.attempts import ReportError, attempt
from stayfast.jobs.config import WebhookConfig
from stayfast.jobs.service import sleep_until_notified
from stayfast.policy.resilience.retry import backoff_s
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import JobStore
from stayfast.stores.jobs.reports import ReportStore
from stayfast.wire.jobs.webhooks import batch_event_type, encode_webhook, job_event_type, signed_headers

REPORTS = "reports"  # the topic of new reports
MAX_REPORT_ATTEMPTS = 88  # about three days
_BASE_S, _CAP_S = 5.0, 3600.0
_TIMEOUT_S = 15.0
_LEASE_S = 60.0
_POLL_S = 2.0
_N_AT_ONCE = 16
_MAX_REPLY_BYTES = 16 * 1024


class WebhookSender:
    """Sends the reports of one store. Several processes may each run one; a lease prevents double work."""

    def __init__(self, store: JobStore, reports: ReportStore, configs: Callable[[], Sequence[WebhookConfig]], worker: str, *,
                 clock: Clock, rng: Rng, sink: Sink, report: ReportError) -> None:
        """configs: the receivers that are in force, also after a reload. report: gets unexpected exceptions."""
        self._store = store
        self._report_error = report
        self._reports = reports
        self._worker = worker
        self._clock = clock
        self._rng = rng
        self._sink = sink
        self._get_configs = configs
        self._configs: Sequence[WebhookConfig] = ()
        self._receivers: list[WebhookReceiver] = []

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            if not await attempt(self._turn(), self._report_error):
                await asyncio.sleep(_POLL_S)

    async def _turn(self) -> None:
        """Raises StoreUnavailable."""
        if not self._get_configs():
            await asyncio.sleep(_POLL_S)
        elif not await self.send_due():
            await sleep_until_notified(self._store, REPORTS, _POLL_S)

    async def send_due(self) -> int:
        """Send the reports that are due; returns how many there were. Raises StoreUnavailable."""
        self._use(self._get_configs())
        due = await self._reports.claim_reports(self._worker, _N_AT_ONCE, _LEASE_S)
        for failure in await asyncio.gather(*(self._send(report) for report in due), return_exceptions=True):
            if isinstance(failure, StoreUnavailable):
                raise failure
            if failure is not None:  # one report must not stop the others; it is sent again after its lease
                self._report_error(failure)
        return len(due)

    def _use(self, configs: Sequence[WebhookConfig]) -> None:
        """Send to these from now on."""
        if configs != self._configs:
            self.close()
            self._configs = configs
            self._receivers = [WebhookReceiver(config, self._clock, self._sink) for config in configs]

    async def _send(self, report: Report) -> None:
        tenant, kind = await self._describe(report)
        if not kind:  # the job is purged, and nothing is left to report
            await self._reports.settle_report(report, is_done=True)
            return
        body = encode_webhook(report.id, kind, report.subject_id, report.created_at)
        delivered, whys = list(report.delivered), []
        for receiver in self._receivers:
            if receiver.digest in delivered or not receiver.wants(tenant, kind):
                continue
            why = await receiver.send(report.id, body)
            if why:
                whys.append(why)
            else:
                delivered.append(receiver.digest)
        n_attempts = report.n_attempts + 1
        wait_s = backoff_s(n_attempts, _BASE_S, _CAP_S, self._rng, jitter=0.2)
        tried = msgspec.structs.replace(
            report, n_attempts=n_attempts, delivered=tuple(delivered), why="; ".join(whys)[:500],
            next_at=self._clock.wall() + wait_s, is_failed=bool(whys) and n_attempts >= MAX_REPORT_ATTEMPTS)
        await self._reports.settle_report(tried, is_done=not whys)

    async def _describe(self, report: Report) -> tuple[str | None, str]:
        """The tenant and the event's type; empty if the subject no longer exists."""
        if report.is_batch:
            batch = await self._store.find_batch(report.subject_id)
            return (None, "") if batch is None else (batch.tenant, batch_event_type(batch))
        job = await self._store.find(report.subject_id)
        if job is None:
            return None, ""
        return job.tenant, job_event_type(job, await self._store.find_result(job.id))

    def close(self) -> None:
        """Close the connections to the receivers."""
        for receiver in self._receivers:
            receiver.close()


class WebhookReceiver:
    """One address that receives events."""

    def __init__(self, config: WebhookConfig, clock: Clock, sink: Sink) -> None:
        parts = urlsplit(config.url)
        self._config = config
        self._clock = clock
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._client = HttpClient(f"webhook {parts.hostname}", HttpConfig(f"{parts.scheme}://{parts.netloc}", http="1.1"),
                                  sink=sink, clock=clock)
        self.digest = blake2b(config.url.encode(), digest_size=8).hexdigest()

    def wants(self, tenant: str | None, kind: str) -> bool:
        """Whether this address receives events of a tenant and type."""
        config = self._config
        return (not config.events or kind in config.events) and (not config.tenants or tenant in config.tenants)

    async def send(self, event_id: str, body: bytes) -> str:
        """One attempt, signed now. Returns why it failed; empty: it was confirmed."""
        headers = signed_headers(self._config.secret.reveal(), event_id, body, self._clock.wall())
        try:
            reply = await self._client.fetch("POST", self._path, headers, body, timeout_s=_TIMEOUT_S,
                                             max_body_bytes=_MAX_REPLY_BYTES)
        except StayfastError as error:
            return error.code
        is_confirmed = HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES
        return "" if is_confirmed else f"status {reply.status}"

    def close(self) -> None:
        """Close its idle connections."""
        self._client.close()
