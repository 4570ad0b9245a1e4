"""Parts of checks: windows, shares, and which upstreams answer a route."""

from collections.abc import Iterable

from stayfast.core.findings import Evidence
from stayfast.core.snapshot import Snapshot, TrafficRow, UpstreamRow

NOW_S, MINUTE_S, HOUR_S = 300.0, 60.0, 3600.0
SNAPSHOT = "/admin/snapshot"
MIB, GIB = 2**20, 2**30


def share_of(part: float, whole: float) -> float:
    """part / whole; 0 without a whole."""
    return part / whole if whole > 0 else 0.0


def observe(name: str, value: float, unit: str = "", window_s: float | None = None, source: str = SNAPSHOT) -> Evidence:
    """One figure of the snapshot."""
    return Evidence(name, float(value), unit, window_s, source)


def route_row(snapshot: Snapshot, route: str, window_s: float) -> TrafficRow:
    """The traffic of a route; an empty row if it had none."""
    return next((row for row in snapshot.rows(window_s) if row.route == route), TrafficRow(route, "", window_s))


def upstream_names(snapshot: Snapshot, route: str) -> frozenset[str]:
    """The upstreams of a route: of its settings, and of the last hour."""
    named = snapshot.setting("routes", route, "upstreams")
    return frozenset((*(str(name) for name in (named if isinstance(named, list | tuple) else ())),
                      *(row.upstream for row in snapshot.rows_by_upstream(HOUR_S) if row.route == route)))


def upstreams_of(snapshot: Snapshot, route: str) -> list[UpstreamRow]:
    """The rows of a route's upstreams."""
    names = upstream_names(snapshot, route)
    return [row for row in snapshot.upstreams if row.name in names]


def rows_of_upstream(snapshot: Snapshot, upstream: str, window_s: float) -> list[TrafficRow]:
    """The traffic that an upstream answered, by route."""
    return [row for row in snapshot.rows_by_upstream(window_s) if row.upstream == upstream]


def n_answered(rows: Iterable[TrafficRow]) -> int:
    """Requests of all rows together."""
    return sum(row.n for row in rows)
