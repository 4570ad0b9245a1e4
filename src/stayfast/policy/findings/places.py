"""Which places of findings have something in common: an upstream and the routes that use it, a store and its routes.

Problem: an open breaker of a route nobody looks at would hide the missed promise of another. Rule: a place that names only
an upstream meets a route that has this upstream in its settings, as its fallback, or in its traffic; a store that has only
caches meets the routes that cache in it. What is unknown meets everything. Source: ours. When wrong: upstreams that share a
machine or a key.
"""

from collections import defaultdict
from collections.abc import Iterator

from stayfast.core.findings import FindingSite
from stayfast.core.snapshot import Snapshot
from stayfast.policy.findings.figures import names


class Places:
    """The upstreams and stores of all routes of one snapshot."""

    __slots__ = ("_cache_stores", "_store_of", "_upstreams")

    def __init__(self, snapshot: Snapshot) -> None:
        self._upstreams: defaultdict[str, set[str]] = defaultdict(set)
        routes = snapshot.setting("routes")
        for route in routes if isinstance(routes, dict) else ():
            own = names(snapshot, "routes", route, "upstreams")
            if own:
                self._upstreams[route].update(own, names(snapshot, "routes", route, "on_overrun", "fallback", "upstreams"))
        for row in snapshot.traffic:
            if row.upstream and row.route in self._upstreams:
                self._upstreams[row.route].add(row.upstream)
        self._store_of = {route: snapshot.setting("routes", route, "cache", "store") for route in self._upstreams}
        self._cache_stores = {row.name for row in snapshot.stores if row.purposes == ("cache",)}

    def meet(self, one: FindingSite, other: FindingSite) -> bool:
        """Whether no field names two different things, and neither's route is without the other's upstream or store."""
        return one.overlaps(other) and not any(self._is_apart(*pair) for pair in _pairs(one, other))

    def _is_apart(self, route: str, site: FindingSite) -> bool:
        """Whether the route is known not to use what `site` names."""
        if route not in self._upstreams:
            return False
        return bool((site.upstream and site.upstream not in self._upstreams[route])
                    or (site.store in self._cache_stores and self._store_of[route] != site.store))

    def __repr__(self) -> str:
        return f"<Places: {len(self._upstreams)} routes>"


def _pairs(one: FindingSite, other: FindingSite) -> Iterator[tuple[str, FindingSite]]:
    """The route of each with the other, if the other has no route of its own."""
    if one.route and not other.route:
        yield one.route, other
    if other.route and not one.route:
        yield other.route, one
