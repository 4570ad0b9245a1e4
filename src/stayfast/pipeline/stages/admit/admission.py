"""Who may come in now. `AdmitAll` is the null object: everybody, at once. `Admission` asks for quota, then for a place."""

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from random import Random
from typing import Protocol

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.constants import MAX_RETRY_AFTER_S
from stayfast.core.errors import Shed
from stayfast.core.events import AttemptDone
from stayfast.core.types import Outcome, Usage
from stayfast.pipeline.admission.controller import (
    WHY_AWAY,
    AdmissionController,
    AdmissionRejected,
    AdmissionRequest,
    QueuedRequest,
)
from stayfast.pipeline.admission.tenants import Tenant, Tenants
from stayfast.pipeline.attempts.attempt import Attempt
from stayfast.pipeline.exchange import Exchange
from stayfast.policy.admission.fair_share import weighted
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.priority import BANDS, Repeats, Urgency
from stayfast.policy.admission.queue import QueueEntry
from stayfast.policy.admission.quota import NOTHING, Amount, Refusal

SHEDDING_S = 1.0  # after the last one that was turned away
REALTIME, PLAIN, _ = Urgency
IGNORED = Outcome.IGNORED
Ticket = Callable[[], None]  # gives the place back; called exactly once


class Admit(Protocol):
    """Waits for a place, or raises Shed."""

    async def admit(self, ex: Exchange) -> Ticket:
        """A place; calling the ticket gives it back."""


def _nothing_to_give_back() -> None:
    """What an unlimited place costs."""


class AdmitAll:
    __slots__ = ()

    async def admit(self, ex: Exchange) -> Ticket:
        return _nothing_to_give_back


class Admission:
    """Quotas, priorities, fair shares and a ceiling. One loop's; outlives a reload, so that what is used stays used."""

    __slots__ = ("_clock", "_repeats", "_rng", "_shed_at", "places", "tenants")

    def __init__(self, config: AdmissionConfig, tenants: Mapping[str, TenantConfig], clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._rng = rng
        self._repeats = Repeats()
        self._shed_at = float("-inf")
        self.tenants = Tenants(tenants, config.priority_points)
        self.places = AdmissionController(config, clock)

    def configure(self, config: AdmissionConfig, tenants: Mapping[str, TenantConfig]) -> None:
        """Other settings; whoever is in stays in."""
        self.tenants.configure(tenants, config.priority_points, self._clock.now())
        self.places.configure(config)

    async def admit(self, ex: Exchange) -> Ticket:
        """A place; the ticket gives it back and charges what was used. Raises Shed, or DeadlineExceeded in the queue."""
        now = self._clock.now()
        arrival, request, places = ex.arrival, ex.request, self.places
        tenant = self.tenants.of(arrival.tenant, now)
        n_input, n_output = tenant.estimate(request)
        quota = tenant.quota
        most_usd = tenant.most_cost_usd(request, n_input, ex.terms.dearest) if quota.has_cost else 0.0
        reserved = (1.0, n_input + n_output, most_usd)
        refusal = quota.reserve(reserved, now)
        if refusal is not None:
            raise self._over_quota(ex, tenant, refusal, now)
        try:
            band = tenant.standing.band(arrival.urgency or (REALTIME if request.stream else PLAIN),
                                        is_retry=bool(arrival.headers) and self._is_retry(ex, tenant))
            n_read, n_written = tenant.work(n_input, n_output) if places.lanes is not None else (n_input, n_output)
            admission_request = AdmissionRequest(band, weighted(n_input, n_output), n_input, n_read, n_written,
                                                 ex.ledger.ends_at, ex.deadline.at,
                          request.model)
            waiting = places.enter(tenant.share, admission_request, now)
            if waiting is not None:
                await self._wait(ex, waiting)
                now = self._clock.now()
        except AdmissionRejected as refused:
            tenant.quota.reconcile(reserved, NOTHING, self._clock.now())
            raise self._no_place(ex, admission_request, refused) from None
        except BaseException:
            tenant.quota.reconcile(reserved, NOTHING, self._clock.now())
            raise
        ex.allowances = tenant.quota.allowances(now)
        ex.rank = (band, tenant.share)
        if admission_request.lane is not None:
            ex.lane = admission_request.lane.name
            if places.lanes is not None and admission_request.lane is not places.lanes.short:  # whose prefills nobody counts
                ex.on_first = partial(places.first_token, admission_request)
        return _Admitted(ex, tenant, places, self._clock, reserved, admission_request, n_input, now).leave

    def is_shedding(self, now: float) -> bool:
        """Whether somebody waits, or was turned away just now: a time for no more load than there must be."""
        return self.places.n_waiting > 0 or now - self._shed_at < SHEDDING_S

    async def _wait(self, ex: Exchange, waiting: QueueEntry[QueuedRequest]) -> None:
        places = self.places
        n_others, taken, lane = places.n_waiting - 1, places.occupancy(" were"), waiting.item.request.lane
        ex.watch.arm_bound()
        await places.wait(waiting)
        ex.watch.disarm()
        waited_s = self._clock.now() - waiting.queued_at
        where = "" if lane is None else f"lane {lane.name}, "
        ex.notes.append(f"queued {waited_s * 1e3:.0f} ms in {where}band {BANDS[waiting.band]}: {taken}, {n_others} others "
                        "waiting")

    def _is_retry(self, ex: Exchange, tenant: Tenant) -> bool:
        is_retry = ex.arrival.is_repeat
        for name, value in ex.arrival.headers:
            if name == "idempotency-key" and self._repeats.has_seen(tenant.name, value):
                is_retry = True
        return is_retry

    def _over_quota(self, ex: Exchange, tenant: Tenant, refusal: Refusal, now: float) -> Shed:
        """429 with the tenant's own figures. A wait beyond MAX_RETRY_AFTER_S is told in words, and no SDK shall sleep it."""
        limit, digits = refusal.limit.replace("_", " "), ".4f" if refusal.limit.startswith("cost") else ".0f"
        ex.notes.append(f"over the quota of {tenant.name} on {limit}: {max(0.0, refusal.level):{digits}} of "
                        f"{refusal.capacity:{digits}} left, it would take {refusal.wanted:{digits}}, which is there in "
                        f"{_format_s(refusal.wait_s)}")
        return Shed(f"Rate limit reached for {tenant.name} on {limit}: limit {refusal.capacity:{digits}}, left "
                    f"{max(0.0, refusal.level):{digits}}, requested {refusal.wanted:{digits}}. Please try again in "
                    f"{_format_s(refusal.wait_s)}.",
                    reason=refusal.limit, status=429, code="rate_limit_exceeded",
                    retry_after_s=min(refusal.wait_s, MAX_RETRY_AFTER_S), is_final=refusal.wait_s > MAX_RETRY_AFTER_S,
                    allowances=tenant.quota.allowances(now))

    def _no_place(self, ex: Exchange, admission_request: AdmissionRequest, refused: AdmissionRejected) -> Shed:
        """503. Whoever is told to come back is spread over as long again, so that not all come at once."""
        places = self.places
        where = "" if admission_request.lane is None else f"lane {admission_request.lane.name}, "
        wait = f"a predicted wait of {refused.wait_s:.2g} s" if refused.wait_s else "nothing known yet to predict a wait by"
        ex.notes.append(f"rejected, {WHY_AWAY[refused.why]}: {where}band {BANDS[admission_request.band]}, {wait}, "
                        f"{places.occupancy()}, {places.n_waiting} waiting, {places.strain.words}")
        self._shed_at = self._clock.now()
        wait_s = min(MAX_RETRY_AFTER_S, max(1.0, refused.wait_s) * self._rng.uniform(1.0, 2.0))
        return Shed(f"The gateway is overloaded ({refused.why.value}): {places.occupancy(' are')}, {places.n_waiting} "
                    f"waiting. Please try again in {_format_s(wait_s)}.",
                    reason=refused.why.value, retry_after_s=wait_s)

    def __repr__(self) -> str:
        return f"<Admission {self.places!r}, {self.tenants!r}>"


class _Admitted(msgspec.Struct):
    """One request that is in. Owned by whoever holds the ticket."""

    ex: Exchange
    tenant: Tenant
    places: AdmissionController
    clock: Clock
    reserved: Amount
    request: AdmissionRequest
    n_input: float  # as estimated
    began_at: float

    def leave(self) -> None:
        """Give the place back and charge what was used in place of what was reserved. Never awaits."""
        now, tenant = self.clock.now(), self.tenant
        n_input, n_output, cost_usd, ttft_s, n_read, has_left = self._used()
        is_used = bool(self.ex.attempts)  # refused before any upstream was asked, a request is no request
        used = (1.0, n_input + n_output, cost_usd) if is_used else NOTHING
        tenant.quota.reconcile(self.reserved, used, now)
        if ttft_s is not None:
            self.places.learn_first(ttft_s)
            tenant.learn(n_output, cost_usd)
        if n_read is not None:
            tenant.learn_read(self.n_input, n_read)
        took_s = now - self.began_at if is_used else None
        self.places.give_back(tenant.share, self.request, weighted(n_input, n_output), took_s, now, has_left=has_left)

    def _used(self) -> tuple[float, float, float, float | None, int | None, bool]:
        """Tokens in and out, cost, the time to the first token, tokens that an upstream had to read for it, whether the
        client left before that token. What none has reported is estimated, but for the tokens read. What lost a race, or
        brought nothing by our time-out, is not charged.
        """
        n_input = n_output = cost_usd = 0.0
        ttft_s, n_read, was_left = None, None, False
        for attempt in self.ex.attempts:
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
            was_left = done.outcome is IGNORED and done.fault is None
            if was_left or reported is not None or done.ttft_s is not None:
                cost_usd += done.cost_usd or 0.0
        if n_read is None and (ttft_s is not None or was_left):
            n_input = self.n_input
        return n_input, n_output, cost_usd, ttft_s, n_read, was_left and ttft_s is None


def _reported(attempt: Attempt, done: AttemptDone) -> Usage | None:
    """What its upstream has counted, of one that was given up what it had counted by then."""
    if not done.is_estimated:
        return done.usage
    return attempt.stream.sight.usage if attempt.stream is not None else None


def _format_s(seconds: float) -> str:
    return f"{ceil(seconds)} s" if seconds >= 10 else f"{ceil(seconds * 1e3) / 1e3:g} s"
