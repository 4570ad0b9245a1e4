"""What upstreams are like at this moment: for a scrape, and for whoever looks at /debug/state."""

from math import inf

import msgspec

from stayfast.observe.families import BREAKER_STATE, LIMIT
from stayfast.observe.totals import Rows
from stayfast.policy.breaker import State
from stayfast.upstreams.registry import Registry

_NUMBER = {State.CLOSED: 0.0, State.HALF_OPEN: 1.0, State.OPEN: 2.0}
NO_LANE = ""


def gauges(registry: Registry) -> Rows:
    """Limits and breakers, as metrics. An upstream without a limit has no series."""
    return {
        LIMIT.name: [((member.upstream.name, NO_LANE), member.limit.value) for member in registry
                     if member.limit.value < inf],
        BREAKER_STATE.name: [((member.upstream.name,), _NUMBER[member.breaker.state]) for member in registry],
    }


def waiting(registry: Registry) -> list[tuple[tuple[str, str], int]]:
    """Requests that wait for a place, by upstream and lane."""
    return [((member.upstream.name, NO_LANE), member.n_waiting) for member in registry]


def told(registry: Registry, worker: int) -> bytes:
    """One worker's view of all upstreams, as JSON."""
    return msgspec.json.encode({"worker": worker, "upstreams": {member.upstream.name: repr(member) for member in registry}})
