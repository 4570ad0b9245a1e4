"""An upstream with the provider's limits on requests and tokens, shared by all workers and all gateways with the same key.

Problem: N gateways that each take a provider's limit for their own cause its 429s, and each 429 costs a trip and a part of
the limit. Rule: a call reserves one request and its most tokens before it is sent, as a tenant's request does; its end
charges what was used. A call beyond a limit fails at once, as the provider's own 429 would: other upstreams are tried, and
this one is left alone until the limit has room. The provider's own figure is the truth: if an answer reports less than the
shared level, others use the same key, and the difference is charged:

    max(0, level - left) / n             n gateways, each of which corrects its part; at most every CORRECT_EVERY_S

if its call was sent after that of the last correction. Source: ours.
When wrong: tokens of running calls are estimates, which the provider counts in another way. A report of more than the level
corrects nothing: slices of other gateways are a part of what the provider has left.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from stayfast.core.clock import Clock
from stayfast.core.constants import BYTES_A_TOKEN, MAX_RETRY_AFTER_S
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import NEVER_STREAMED, AnswerSummary, Api, Chunk, Request
from stayfast.policy.admission.quota import NOTHING, Amount, Refusal, TenantQuota
from stayfast.policy.fleet.slices import WAIT_S
from stayfast.upstreams.base import AnswerStream, Call, Upstream
from stayfast.upstreams.dialect import HttpStream
from stayfast.wire.rate_headers import parse_remaining

CORRECT_EVERY_S: Final = 1.0
_FIRST_OUTPUT: Final = 256.0  # tokens, of an answer without max_tokens before the first one
_LEARNS: Final = 0.05
_TOO_MANY: Final = 429
WaitForGrant = Callable[[str, str, float, float], Awaitable[bool]]  # of a name, a limit and a cost, until an instant


class UpstreamRate:
    """The limits of one provider, as far as this worker knows. `n_gateways`: that share them now."""

    __slots__ = ("_are_requests_daily", "_clock", "_corrected_at", "_n_gateways", "_name", "_usual_output",
                 "_wait_for_grant", "quota")

    def __init__(self, name: str, quota: TenantQuota, clock: Clock, *, n_gateways: Callable[[], int] = lambda: 1,
                 wait_for_grant: WaitForGrant | None = None, are_requests_daily: bool = False) -> None:
        """name: of the limits, in all gateways. are_requests_daily: see `parse_remaining`."""
        self._are_requests_daily = are_requests_daily
        self.quota = quota
        self._name = name
        self._clock = clock
        self._n_gateways = n_gateways
        self._wait_for_grant = wait_for_grant
        self._usual_output = _FIRST_OUTPUT
        self._corrected_at = float("-inf")  # when the call was sent whose answer was used

    async def reserve(self, request: Request) -> Amount | Refusal:
        """Take a call's amount from each limit."""
        return await self.reserve_amount((1.0, self._estimate(request), 0.0))

    async def reserve_amount(self, amount: Amount) -> Amount | Refusal:
        """The same for known figures."""
        now = self._clock.now()
        until, refusal = now + WAIT_S, self.quota.reserve(amount, now)
        while (refusal is not None and self._wait_for_grant is not None
                and await self._wait_for_grant(self._name, refusal.limit, refusal.wanted, until)):
            refusal = self.quota.reserve(amount, self._clock.now())
        return amount if refusal is None else refusal

    def settle(self, reserved: Amount, summary: AnswerSummary | None) -> None:
        """A call has ended. None: the provider has not had it."""
        used = reserved
        if summary is None:
            used = NOTHING
        elif summary.usage is not None:
            used = (1.0, float(summary.usage.input_total + summary.usage.output), 0.0)
            self._usual_output += (summary.usage.output - self._usual_output) * _LEARNS
        self.quota.reconcile(reserved, used, self._clock.now())

    def correct(self, headers: Mapping[str, str], sent_at: float) -> None:
        """The head of an answer to a call that was sent at `sent_at`."""
        if sent_at - self._corrected_at < CORRECT_EVERY_S:
            return
        remaining, now = parse_remaining(headers, are_requests_daily=self._are_requests_daily), self._clock.now()
        for limit, left in remaining.items():
            if limit in self.quota.levels(now):
                bucket = self.quota.bucket_for(limit)
                bucket.charge(max(0.0, bucket.level(now) - left) / self._n_gateways(), now)
                self._corrected_at = sent_at

    def _estimate(self, request: Request) -> float:
        n_input = len(request.body) / BYTES_A_TOKEN
        if request.api in NEVER_STREAMED:
            return n_input
        most = request.max_output_tokens
        return n_input + (self._usual_output if most is None else most) * request.n_choices

    def __repr__(self) -> str:
        return f"<UpstreamRate {self._name!r} {self.quota!r}>"


class RateLimitedUpstream:
    """An `Upstream` behind its provider's limits."""

    def __init__(self, upstream: Upstream, rate: UpstreamRate, clock: Clock) -> None:
        self.name = upstream.name
        self.kind = upstream.kind
        self.always_streams = upstream.always_streams
        self.rate = rate
        self._upstream = upstream
        self._clock = clock

    def can_serve(self, api: Api) -> bool:
        return self._upstream.can_serve(api)

    async def open(self, call: Call) -> AnswerStream:
        reserved = self._granted(await self.rate.reserve(call.request))
        sent_at = self._clock.now()
        try:
            stream = await self._upstream.open(call)
        except BaseException as error:
            is_unsent = isinstance(error, UpstreamFailed) and error.fault is Fault.CONNECT
            self.rate.settle(reserved, None if is_unsent else AnswerSummary())
            raise
        if isinstance(stream, HttpStream):
            self.rate.correct(stream.headers, sent_at)
        return _MeteredStream(stream, self.rate, reserved)

    @property
    def inner(self) -> Upstream:
        """The upstream behind the limits."""
        return self._upstream

    async def take_unread(self) -> None:
        """Take one request, whose tokens are not known, from the limits. Raises UpstreamFailed, for the client as a 429."""
        try:
            self._granted(await self.rate.reserve_amount((1.0, 0.0, 0.0)))
        except UpstreamFailed as full:
            full.status = _TOO_MANY
            raise

    def _granted(self, reserved: Amount | Refusal) -> Amount:
        if isinstance(reserved, Refusal):
            limit = reserved.limit.replace("_", " ")
            raise UpstreamFailed(self.name, Fault.STATUS, f"upstream {self.name} has no room in its limit of "
                                 f"{reserved.capacity:.0f} {limit}", upstream_status=_TOO_MANY, kind="rate_limit_error",
                                 code="rate_limit_exceeded", retry_after_s=min(reserved.wait_s, MAX_RETRY_AFTER_S))
        return reserved

    def close(self) -> None:
        self._upstream.close()

    def __repr__(self) -> str:
        return f"<RateLimitedUpstream {self._upstream!r}>"


class _MeteredStream:
    """An answer whose end settles the reservation."""

    __slots__ = ("_rate", "_reserved", "_stream")

    def __init__(self, stream: AnswerStream, rate: UpstreamRate, reserved: Amount) -> None:
        self._stream = stream
        self._rate = rate
        self._reserved: Amount | None = reserved

    @property
    def summary(self) -> AnswerSummary:
        return self._stream.summary

    @property
    def headers(self) -> Mapping[str, str]:
        """Of the upstream's answer; names in lower case."""
        return self._stream.headers if isinstance(self._stream, HttpStream) else {}

    async def next(self) -> Chunk | None:
        return await self._stream.next()

    def cut(self) -> Chunk | None:
        return self._stream.cut()

    def close(self) -> None:
        self._stream.close()
        if self._reserved is not None:
            self._rate.settle(self._reserved, self._stream.summary)
            self._reserved = None
