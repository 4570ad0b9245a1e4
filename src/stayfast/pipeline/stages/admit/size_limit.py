"""Prompts that are too long for their route: refused before anything is spent on them, or sent to the route for such."""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from stayfast.core.errors import Rejected
from stayfast.core.types import Api, Stage
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import RoutePolicy
from stayfast.pipeline.stages.admit.admission import Admit, Ticket
from stayfast.pipeline.timing.timeouts import TimerWheel
from stayfast.policy.admission.priority import TenantTier
from stayfast.wire.usage import PROMPT_FIELDS, input_tokens, may_be_over

ADMIT, COUNT_TOKENS = Stage.ADMIT, Api.COUNT_TOKENS


class SizeLimited:
    """Looks at the length, then admits as `inner` does. Task-safe."""

    __slots__ = ("_alarms", "_terms", "_tier", "inner")

    def __init__(self, inner: Admit, terms: Callable[[str], RoutePolicy], tier: Callable[[str | None], TenantTier],
                 alarms: TimerWheel) -> None:
        self.inner = inner
        self._terms = terms  # of a route, by what clients send as `model`
        self._tier = tier  # of a tenant
        self._alarms = alarms

    def admit(self, ex: Exchange) -> Coroutine[Any, Any, Ticket]:
        """Raises Rejected (413) for a prompt that is too long."""
        size = ex.terms.size
        if size is None or not may_be_over(ex.request.body, size.least):
            return self.inner.admit(ex)
        n_tokens, most = self._over(ex)
        offline = size.oversize_route
        if n_tokens and offline:
            self._send_to(ex, offline)
            ex.notes.append(f"sent to route {offline}: about {n_tokens:,} tokens of prompt, and the route takes {most:,}")
            n_tokens, most = self._over(ex)
        if n_tokens:
            field = PROMPT_FIELDS[ex.request.api]
            raise Rejected(f"The prompt is too long: {field} and what goes with it come to about {n_tokens:,} tokens "
                           f"(estimated), and {ex.request.model!r} takes at most {most:,}.",
                           status=413, code="context_length_exceeded", param=field)
        return self.inner.admit(ex)

    def _over(self, ex: Exchange) -> tuple[int, int]:
        """Estimated tokens where they are too many, else 0; and how many there may be."""
        size, request = ex.terms.size, ex.request
        most = size.most(self._tier(ex.arrival.tenant)) if size is not None else None
        if most is None or request.api is COUNT_TOKENS or not may_be_over(request.body, most):
            return 0, 0
        n_tokens = input_tokens(request)
        return (n_tokens, most) if n_tokens > most else (0, most)

    def _send_to(self, ex: Exchange, route: str) -> None:
        """The same request, on another route's terms. Its time still counts from accept."""
        ex.watch.stop()
        other = Exchange(msgspec.structs.replace(ex.request, model=route), ex.arrival, self._terms(route), self._alarms)
        other.notes = ex.notes
        for name in Exchange.__slots__:
            setattr(ex, name, getattr(other, name))
        ex.enter(ADMIT)
