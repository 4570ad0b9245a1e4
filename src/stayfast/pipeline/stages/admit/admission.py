"""Admission of a request: first its tenant's quota, then a place in the gateway. `AdmitAll` is the null object."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from math import ceil
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.constants import MAX_RETRY_AFTER_S
from stayfast.core.errors import Shed
from stayfast.core.events import AttemptDone
from stayfast.core.types import JUDGE, SUMMARY, Outcome, Usage
from stayfast.pipeline.admission.controller import (
    REJECT_REASONS,
    AdmissionController,
    AdmissionRejected,
    AdmissionRequest,
    QueuedRequest,
    QueueOutlook,
)
from stayfast.pipeline.admission.tenants import Buckets, Tenant, Tenants, own_buckets
from stayfast.pipeline.attempts.attempt import Attempt
from stayfast.pipeline.exchange import Exchange, OutcomeRecord
from stayfast.pipeline.plan import START_NOTHING, Admitted
from stayfast.policy.admission.fair_share import weighted_tokens
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.priority import BANDS, LOWEST_BAND, RecentKeys, Urgency
from stayfast.policy.admission.queue import QueueEntry
from stayfast.policy.admission.quota import NOTHING, Amount, Refusal
from stayfast.policy.fleet.slices import WAIT_S

ONE_REQUEST = (1.0, 0.0, 0.0)  # without tokens and cost
SHEDDING_S = 1.0  # the gateway counts as shedding for this long after the last rejection
JUDGES = "(judge)"  # the tenant of judgements, which are short: their usage tells nothing about clients
SUMMARIZERS = "(summary)"  # the tenant of summaries: no client has sent them, so they use up no client's quota
_OWN_TENANTS = {JUDGE: JUDGES, SUMMARY: SUMMARIZERS}
REALTIME, PLAIN, _ = Urgency


def _release_nothing() -> None:
    """An unlimited place."""


ADMITTED = Admitted(_release_nothing)
JOB_ADMITTED = Admitted(_release_nothing, band=LOWEST_BAND)
WaitForGrant = Callable[[str, str, float, float], Awaitable[bool]]  # of a tenant, a limit and a cost, until an instant


class Admit(Protocol):
    """Admits requests."""

    async def admit(self, ex: Exchange) -> Admitted:
        """Wait for a place. Raises Shed, or DeadlineExceeded in the queue."""


class AdmitAll:
    __slots__ = ()

    async def admit(self, ex: Exchange) -> Admitted:
        return JOB_ADMITTED if ex.arrival.role and ex.arrival.is_job else ADMITTED


class Admission:
    """Quotas, priorities, fair shares and a limit of requests in flight. Belongs to one loop; survives a reload, so that
    used quota stays used.
    """

    __slots__ = ("_clock", "_repeats", "_rng", "_shed_at", "_wait_for_grant", "places", "tenants")

    def __init__(self, config: AdmissionConfig, tenants: Mapping[str, TenantConfig], clock: Clock, rng: Random, *,
                 outlook: QueueOutlook | None = None, buckets: Buckets = own_buckets,
                 wait_for_grant: WaitForGrant | None = None) -> None:
        """wait_for_grant: None: no other gateway shares the quotas."""
        self._wait_for_grant = wait_for_grant
        self._clock = clock
        self._rng = rng
        self._repeats = RecentKeys()
        self._shed_at = float("-inf")
        self.tenants = Tenants(tenants, config.priority_points, buckets)
        self.places = AdmissionController(config, clock, outlook)

    def configure(self, config: AdmissionConfig, tenants: Mapping[str, TenantConfig],
                  outlook: QueueOutlook | None = None) -> None:
        """Take new settings; admitted requests keep their places. outlook: None: as before."""
        self.tenants.configure(tenants, config.priority_points, self._clock.now())
        self.places.configure(config, outlook)

    async def admit(self, ex: Exchange) -> Admitted:
        """A place, whose release charges the tenant for what was used. Raises Shed, or DeadlineExceeded in the queue."""
        now = self._clock.now()
        arrival, request, places = ex.arrival, ex.request, self.places
        tenant = self.tenants.get(_OWN_TENANTS.get(arrival.role, arrival.tenant), now)
        n_input, n_output = tenant.estimate(request)
        quota = tenant.quota
        most_usd = tenant.most_cost_usd(request, n_input, ex.policy.dearest) if quota.has_cost else 0.0
        reserved = (1.0, n_input + n_output, most_usd)
        refusal = quota.reserve(reserved, now)
        if refusal is not None and self._wait_for_grant is not None:
            refusal = await self._reserve_granted(tenant, reserved, refusal)
            now = self._clock.now()
        if refusal is not None:
            raise self._over_quota(tenant, refusal, now, ex.record.note)
        try:
            band = LOWEST_BAND if arrival.is_job else tenant.standing.band_for(
                arrival.urgency or (REALTIME if request.stream else PLAIN),
                is_retry=bool(arrival.headers) and self._is_retry(ex, tenant))
            n_read, n_written = tenant.estimate_work(n_input, n_output) if places.lanes is not None else (n_input, n_output)
            admission_request = AdmissionRequest(band, weighted_tokens(n_input, n_output), n_input, n_read, n_written,
                                                 ex.ledger.ends_at, ex.deadline.at, request.model)
            waiting = places.enter(tenant.share, admission_request, now)
            if waiting is not None:
                await self._wait(ex, waiting)
                now = self._clock.now()
        except AdmissionRejected as rejected:
            quota.reconcile(reserved, NOTHING, self._clock.now())
            raise self._shed(ex, admission_request, rejected) from None
        except BaseException:
            quota.reconcile(reserved, NOTHING, self._clock.now())
            raise
        lane, start_reply = admission_request.lane, START_NOTHING
        if lane is not None and places.lanes is not None and lane is not places.lanes.short:  # its prefills are counted
            start_reply = partial(places.note_first_token, admission_request)
        place = _Place(ex.record, tenant, places, self._clock, reserved, admission_request, n_input, now,
                       arrival.is_job)
        return Admitted(place.leave, start_reply, lane.name if lane is not None else "", band, tenant.share,
                        quota.allowances(now))

    async def admit_unread(self, tenant_name: str | None) -> Callable[[], None]:
        """Charge one request whose tokens are not known to a tenant's quota; it takes no place. Returns what refunds it.
        Raises Shed.
        """
        tenant = self.tenants.get(tenant_name, self._clock.now())
        refusal = tenant.quota.reserve(ONE_REQUEST, self._clock.now())
        if refusal is not None and self._wait_for_grant is not None:
            refusal = await self._reserve_granted(tenant, ONE_REQUEST, refusal)
        if refusal is not None:
            raise self._over_quota(tenant, refusal, self._clock.now())
        return lambda: tenant.quota.reconcile(ONE_REQUEST, NOTHING, self._clock.now())

    async def _reserve_granted(self, tenant: Tenant, reserved: Amount, refusal: Refusal | None) -> Refusal | None:
        """Reserve again after the next slice of each limit that had too little here."""
        assert self._wait_for_grant is not None
        until = self._clock.now() + WAIT_S
        while refusal is not None and await self._wait_for_grant(tenant.name, refusal.limit, refusal.wanted, until):
            refusal = tenant.quota.reserve(reserved, self._clock.now())
        return refusal

    def is_shedding(self, now: float) -> bool:
        """Whether requests wait, or one was rejected within SHEDDING_S: then no optional load is added."""
        return self.places.n_waiting > 0 or now - self._shed_at < SHEDDING_S

    async def _wait(self, ex: Exchange, waiting: QueueEntry[QueuedRequest]) -> None:
        places = self.places
        n_others, occupancy, lane = places.n_waiting - 1, places.describe_occupancy(" were"), waiting.item.request.lane
        ex.timeouts.arm_bound()
        await places.wait(waiting)
        ex.timeouts.disarm()
        waited_s = self._clock.now() - waiting.queued_at
        where = "" if lane is None else f"lane {lane.name}, "
        ex.record.note(f"queued {waited_s * 1e3:.0f} ms in {where}band {BANDS[waiting.band]}: {occupancy}, "
                       f"{n_others} others waiting")

    def _is_retry(self, ex: Exchange, tenant: Tenant) -> bool:
        is_retry = ex.arrival.is_sdk_retry
        for name, value in ex.arrival.headers:
            if name == "idempotency-key" and self._repeats.is_repeat(tenant.name, value):
                is_retry = True
        return is_retry

    def _over_quota(self, tenant: Tenant, refusal: Refusal, now: float,
                    note: Callable[[str], None] = lambda text: None) -> Shed:
        """429 with the tenant's own figures. A wait of more than MAX_RETRY_AFTER_S is only in the message: SDKs would sleep
        until the end of its Retry-After.
        """
        limit, digits = refusal.limit.replace("_", " "), ".4f" if refusal.limit.startswith("cost") else ".0f"
        left = max(0.0, refusal.level)
        note(f"over the quota of {tenant.name} on {limit}: {left:{digits}} of {refusal.capacity:{digits}} left, "
             f"{refusal.wanted:{digits}} needed, available in {_format_s(refusal.wait_s)}")
        return Shed(f"Rate limit reached for {tenant.name} on {limit}: limit {refusal.capacity:{digits}}, left "
                    f"{left:{digits}}, requested {refusal.wanted:{digits}}. Please try again in "
                    f"{_format_s(refusal.wait_s)}.",
                    reason=refusal.limit, status=429, code="rate_limit_exceeded",
                    retry_after_s=min(refusal.wait_s, MAX_RETRY_AFTER_S), is_final=refusal.wait_s > MAX_RETRY_AFTER_S,
                    allowances=tenant.quota.allowances(now))

    def _shed(self, ex: Exchange, request: AdmissionRequest, rejected: AdmissionRejected) -> Shed:
        """503. Retry-After is drawn between the wait and twice the wait, so that not all clients come back at once."""
        places = self.places
        lane = "" if request.lane is None else f"lane {request.lane.name}, "
        wait = f"predicted wait {rejected.wait_s:.2g} s" if rejected.wait_s else "no wait can be predicted yet"
        ex.record.note(f"rejected, {REJECT_REASONS[rejected.why]}: {lane}band {BANDS[request.band]}, {wait}, "
                       f"{places.describe_occupancy()}, {places.n_waiting} waiting, {places.overload_signals.summary}")
        self._shed_at = self._clock.now()
        wait_s = min(MAX_RETRY_AFTER_S, max(1.0, rejected.wait_s) * self._rng.uniform(1.0, 2.0))
        return Shed(f"The gateway is overloaded ({rejected.why.value}): {places.describe_occupancy(' are')}, "
                    f"{places.n_waiting} "
                    f"waiting. Please try again in {_format_s(wait_s)}.",
                    reason=rejected.why.value, retry_after_s=wait_s)

    def __repr__(self) -> str:
        return f"<Admission {self.places!r}, {self.tenants!r}>"


class _Place(msgspec.Struct):
    """The place of one request in the gateway."""

    record: OutcomeRecord
    tenant: Tenant
    places: AdmissionController
    clock: Clock
    reserved: Amount
    request: AdmissionRequest
    n_input: float  # estimated tokens
    began_at: float
    is_job: bool  # usually long: it teaches nothing about other requests

    def leave(self) -> None:
        """Give the place back, and charge what was used instead of what was reserved. Never awaits."""
        now, tenant = self.clock.now(), self.tenant
        used = count_used(self.record, self.n_input)
        n_input, n_output, cost_usd, ttft_s, n_read, has_left = used
        tenant.quota.reconcile(self.reserved, used.amount(self.record), now)
        if ttft_s is not None and not self.is_job:
            self.places.learn_ttft(ttft_s)
            tenant.learn_usage(n_output, cost_usd)
        if n_read is not None:
            tenant.learn_computed_tokens(self.n_input, n_read)
        took_s = now - self.began_at if self.record.attempts and not self.is_job else None
        self.places.give_back(tenant.share, self.request, weighted_tokens(n_input, n_output), took_s, now, has_left=has_left)


def _format_s(seconds: float) -> str:
    return f"{ceil(seconds)} s" if seconds >= 10 else f"{ceil(seconds * 1e3) / 1e3:g} s"


class Used(NamedTuple):
    """Tokens in and out, cost, time to the first token, prompt tokens that an upstream computed, and whether the client left
    before that token.
    """

    n_input: float
    n_output: float
    cost_usd: float
    ttft_s: float | None
    n_read: int | None
    has_left: bool

    def amount(self, record: OutcomeRecord) -> Amount:
        """What a quota is charged: nothing for a request that was rejected before any upstream was called."""
        return (1.0, self.n_input + self.n_output, self.cost_usd) if record.attempts else NOTHING


def count_used(record: OutcomeRecord, n_estimated: float) -> Used:
    """Figures that no upstream reported are estimated, except for the prompt tokens that it computed. n_estimated: prompt
    tokens. Attempts that lost to a hedge, or gave no token before our timeout, are not charged.
    """
    n_input = n_output = cost_usd = 0.0
    ttft_s, n_read, was_left = None, None, False
    for attempt in record.attempts:
        done = attempt.done
        if done is None or done.is_lost:
            continue
        ttft_s = done.ttft_s if done.ttft_s is not None else ttft_s
        reported = _reported(attempt, done)
        if reported is not None:
            n_read = reported.uncached
        if reported is not None or done.ttft_s is not None:
            usage = done.usage or Usage(output=attempt.n_content)
            n_input += usage.input_total
            n_output += usage.output
        was_left = done.outcome is Outcome.IGNORED and done.fault is None
        if was_left or reported is not None or done.ttft_s is not None:
            cost_usd += done.cost_usd or 0.0
    if n_read is None and (ttft_s is not None or was_left):
        n_input = n_estimated
    return Used(n_input, n_output, cost_usd, ttft_s, n_read, was_left and ttft_s is None)


def _reported(attempt: Attempt, done: AttemptDone) -> Usage | None:
    """The usage that the upstream reported; of an abandoned attempt, what it had reported until then."""
    if not done.is_estimated:
        return done.usage
    return attempt.stream.summary.usage if attempt.stream is not None else None
