"""Prompts that are too long for their route: sent to the route for long prompts, or rejected before anything is spent."""

from collections.abc import Callable

from stayfast.core.errors import Rejected
from stayfast.core.types import COUNT_APIS
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import RoutePolicy
from stayfast.pipeline.timing.timeouts import TimerWheel
from stayfast.policy.admission.priority import TenantTier
from stayfast.wire.usage import PROMPT_FIELDS, estimate_input_tokens_high, may_exceed_tokens


class SizeLimit:
    """The limits of all routes. Holds no state of a request."""

    __slots__ = ("_policy_of", "_tier_of", "_timers")

    def __init__(self, policy_of: Callable[[str], RoutePolicy], tier_of: Callable[[str | None], TenantTier],
                 timers: TimerWheel) -> None:
        """policy_of: by the model that a client names. tier_of: by tenant."""
        self._policy_of = policy_of
        self._tier_of = tier_of
        self._timers = timers

    def redirect(self, ex: Exchange) -> Exchange:
        """The request itself; or the same request on the `oversize_route` of its route, if it is too long for this one. Its
        time still counts from accept.
        """
        size = ex.policy.size
        if size is None or not size.oversize_route:
            return ex
        n_tokens, most = self._excess(ex)
        if not n_tokens:
            return ex
        route = size.oversize_route
        ex.record.note(f"sent to route {route}: about {n_tokens:,} prompt tokens, and this route takes {most:,}")
        return self.move(ex, route)

    def move(self, ex: Exchange, route: str, *, is_bounded: bool = False) -> Exchange:
        """The same request on another route; see `Exchange.move_to`."""
        return ex.move_to(route, self._policy_of(route), self._timers, is_bounded=is_bounded)

    def check(self, ex: Exchange) -> None:
        """Raises Rejected (413) for a prompt that is too long."""
        n_tokens, most = self._excess(ex)
        if n_tokens:
            field = PROMPT_FIELDS[ex.request.api]
            raise Rejected(f"The prompt is too long: {field} and the rest of the prompt have about {n_tokens:,} tokens "
                           f"(estimated), and {ex.request.model!r} takes at most {most:,}.",
                           status=413, code="context_length_exceeded", param=field)

    def _excess(self, ex: Exchange) -> tuple[int, int]:
        """Estimated tokens if they are too many, else 0; and the limit."""
        size, request = ex.policy.size, ex.request
        if size is None or request.api in COUNT_APIS or not may_exceed_tokens(request.body, size.lowest_limit):
            return 0, 0
        most = size.max_tokens_for(self._tier_of(ex.arrival.tenant))
        if most is None or not may_exceed_tokens(request.body, most):
            return 0, 0
        n_tokens = estimate_input_tokens_high(request)
        return (n_tokens, most) if n_tokens > most else (0, most)
