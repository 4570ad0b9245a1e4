"""One upstream of the pass-through: its place in the upstream's limits, and a breaker of its own.

Problem: an endpoint for images that fails is no reason to send no more chat requests, and the time to a first token is no
measure of how long an image takes. Rule: passed requests count in the upstream's concurrency limit and in its rate, but
neither baselines nor adaptive limits learn from them; and they have a breaker of their own, with the upstream's settings.
There is no other upstream to try, so a request is refused only while the upstream is down (the last calls all failed) and
no probe is due.
"""

from random import Random

from stayfast.core.clock import Clock
from stayfast.core.errors import Shed
from stayfast.policy.resilience.breaker import Breaker, BreakerConfig
from stayfast.upstreams.passthrough.endpoint import PassedEndpoint
from stayfast.upstreams.rate_limited import RateLimitedUpstream
from stayfast.upstreams.state.limiter import ConcurrencyLimiter, LimiterWaiter, LimitOption
from stayfast.upstreams.state.upstream_state import PROBE_EVERY_S, UpstreamState


class PassedUpstream:
    """Used on one event loop. Survives a reload with its upstream."""

    __slots__ = ("_clock", "_failed_at", "breaker", "endpoint", "member", "n_in_flight")

    def __init__(self, member: UpstreamState, endpoint: PassedEndpoint, breaker: BreakerConfig, rng: Random, clock: Clock
                 ) -> None:
        self.member = member
        self._clock = clock
        self._failed_at = float("-inf")
        self.endpoint = endpoint
        self.breaker = Breaker(breaker, rng)
        self.n_in_flight = 0  # requests and WebSockets

    @property
    def name(self) -> str:
        return self.endpoint.name

    def begin_call(self) -> int:
        """Start a call; returns its mark for the breaker. Raises Shed while the upstream is down and no probe is due."""
        breaker, now = self.breaker, self._clock.now()
        if breaker.is_enabled and breaker.is_down and not breaker.needs_probe(now):
            wait_s = self._failed_at + PROBE_EVERY_S - now
            if breaker.is_probing or wait_s > 0:
                raise Shed(f"Upstream {self.name} is down for passed requests: {breaker.why}.", reason="upstream_down",
                           code="upstream_down", retry_after_s=max(1.0, wait_s))
        return breaker.start_call()

    def end_call(self, mark: int, *, is_failed: bool) -> None:
        """The head of the response has arrived, or the call has failed before it."""
        now = self._clock.now()
        if is_failed:
            self._failed_at = now
            self.breaker.record_failure(mark, now)
        else:
            self.breaker.record_success(mark, now)

    def discard_call(self, mark: int) -> None:
        """The call has ended for a reason that is not the upstream's."""
        self.breaker.discard_call(mark)

    def record_break(self) -> None:
        """A response broke off after its head."""
        self.end_call(self.breaker.start_call(), is_failed=True)

    async def take_rate(self) -> None:
        """Raises UpstreamFailed (429) if the upstream's own rate has no room."""
        upstream = self.member.upstream
        if isinstance(upstream, RateLimitedUpstream):
            await upstream.take_unread()

    async def take_place(self, ends_at: float, tenant: str | None) -> ConcurrencyLimiter:
        """A place in the concurrency limit, for `leave_place`. Raises Shed."""
        limiter = self.member.whole_limiter
        while not limiter.has_room:
            waiter = LimiterWaiter(self._clock, ends_at, tenant=tenant or "")
            if await waiter.wait([LimitOption(limiter, 0.0)]) is not None:
                break
        limiter.acquire()
        return limiter

    def leave_place(self, limiter: ConcurrencyLimiter) -> None:
        limiter.release(0.0, has_answered=False)  # its duration is no measure of LLM requests

    def close(self) -> None:
        self.endpoint.close()

    def __repr__(self) -> str:
        return f"<PassedUpstream {self.name}: {self.n_in_flight} in flight, {self.breaker!r}>"
