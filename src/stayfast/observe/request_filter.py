"""Which recent requests a listing shows, and the order of the slowest."""

import msgspec

from stayfast.core.events import RequestDone
from stayfast.observe.metrics.collector import outcome_of


class RequestFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Conditions on a finished request; all that are given must hold."""

    route: str | None = None
    upstream: str | None = None  # any attempt went there
    status: str | None = None  # three digits, or 4xx and the like
    outcome: str | None = None  # as in `outcome_of`
    since: float | None = None  # seconds since the epoch: it ended then or later

    def matches(self, fact: RequestDone) -> bool:
        """Whether the request meets all conditions."""
        status, upstream = self.status, self.upstream
        return ((self.route is None or fact.route == self.route)
                and (upstream is None or fact.upstream == upstream
                     or any(attempt.upstream == upstream for attempt in fact.attempts))
                and (status is None or str(fact.status) == status or status == f"{fact.status // 100}xx")
                and (self.outcome is None or outcome_of(fact) == self.outcome)
                and (self.since is None or fact.wall_at >= self.since))


def wait_s(fact: RequestDone) -> float:
    """What its client waited for: the first token; without one, the end."""
    return fact.ttft_s if fact.ttft_s is not None else fact.ended_at - fact.accepted_at
