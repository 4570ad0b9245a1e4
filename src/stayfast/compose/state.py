"""What upstreams are like at this moment: for a scrape, and for whoever looks at /debug/state."""

from collections.abc import Mapping
from math import inf

import msgspec

from stayfast.observe.families import AFFINITY, BREAKER_STATE, EJECTED, LIMIT, PREFIX_TOKENS
from stayfast.observe.totals import Rows
from stayfast.pipeline.handoffs import Route
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


def chosen(routes: Mapping[str, Route]) -> Rows:
    """What routes have counted of their choices, as metrics."""
    picking = [(name, route.picking) for name, route in routes.items() if route.picking is not None]
    return {
        AFFINITY.name: [((name, *what), n) for name, one in picking for what, n in one.choices.items()],
        PREFIX_TOKENS.name: [((name, *what), n) for name, one in picking for what, n in one.tokens.items()],
    }


def ejected(routes: Mapping[str, Route], now: float) -> Rows:
    """Whom routes leave out at this moment, as a metric. A route that never leaves anybody out has no series."""
    rows: list[tuple[tuple[str, ...], float]] = []
    for name, route in routes.items():
        if route.picking is not None and route.picking.config.eject.enabled:
            out = route.picking.ejected(now)
            names = [target.member.upstream.name for target in route.targets]
            rows += [((name, upstream), float(upstream in out)) for upstream in names]
    return {EJECTED.name: rows}


def waiting(registry: Registry) -> list[tuple[tuple[str, str], int]]:
    """Requests that wait for a place, by upstream and lane."""
    return [((member.upstream.name, NO_LANE), member.n_waiting) for member in registry]


def told(registry: Registry, worker: int) -> bytes:
    """One worker's view of all upstreams, as JSON."""
    return msgspec.json.encode({"worker": worker, "upstreams": {member.upstream.name: repr(member) for member in registry}})
