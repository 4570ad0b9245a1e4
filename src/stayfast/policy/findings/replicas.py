"""Replicas of self-hosted engines that are not ready.

Problem: a route runs with fewer replicas than its owner wants, and nothing fails: answers come late, or from the fallback.
Rule: fewer of a route's replicas are ready than `pool.min_warm`. And: the cold start of its only upstream, as it was seen,
is longer than the route's deadline, so that no request can wait for it.
Source: the practice of fleets that keep a warm pool, since a model takes from seconds to minutes to load. When wrong: during
a planned restart.
"""

from collections.abc import Iterable

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot, UpstreamRow
from stayfast.core.units import format_seconds
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.figures import deadline_s, names, number
from stayfast.policy.findings.patches import change_settings

_PHASE = "stayfast_replica_phase"


def _pools(snapshot: Snapshot) -> Iterable[tuple[str, list[UpstreamRow]]]:
    """The routes with replicas."""
    routes = snapshot.setting("routes")
    for route in routes if isinstance(routes, dict) else ():
        upstreams = names(snapshot, "routes", route, "upstreams")
        rows = [row for row in snapshot.upstreams if row.phase and row.name in upstreams]
        if rows:
            yield route, rows


def find_missing_replicas(snapshot: Snapshot) -> Iterable[Finding]:
    """Routes with fewer ready replicas than `min_warm`."""
    for route, rows in _pools(snapshot):
        min_warm = int(number(snapshot, "routes", route, "pool", "min_warm", default=0.0))
        away = [row for row in rows if row.phase != "ready"]
        n_ready = len(rows) - len(away)
        if n_ready >= min_warm:
            continue
        do = SettingsChange(f"Start {min_warm - n_ready} more for this route, or look why they do not start: `stayfast "
                            "check --live` tries each of them once.")
        if n_ready + len(away) < min_warm:
            do = change_settings("The route has fewer replicas than that.",
                                 {"routes": {route: {"pool": {"min_warm": len(rows)}}}})
        yield Finding(
            "replicas.too_few_warm", "act" if not n_ready else "warn", FindingSite(route=route),
            f"{n_ready} replicas of {route} are ready, and {min_warm} must be.",
            "; ".join(f"{row.name} is {row.phase}: {row.phase_why}" for row in away) or "No others are in the settings.",
            (Evidence("ready replicas", float(n_ready), "", None, "stayfast_pool_ready"),
             Evidence("wanted at least", float(min_warm), "", None, f"routes.{route}.pool.min_warm")),
            (do,), f'stayfast_pool_ready{{pool="{route}"}} is {min_warm} or more')


def find_slow_starts(snapshot: Snapshot) -> Iterable[Finding]:
    """Replicas whose start takes longer than a request of their route may."""
    for route, rows in _pools(snapshot):
        within_s = deadline_s(snapshot, route)
        slow = [row for row in rows if row.cold_start_s is not None and row.cold_start_s > within_s]
        has_fallback = snapshot.setting("routes", route, "on_overrun", "fallback") is not None
        if not slow or has_fallback or len(names(snapshot, "routes", route, "upstreams")) > 1:
            continue
        start_s = slow[0].cold_start_s or 0.0
        yield Finding(
            "replicas.start_over_deadline", "act", FindingSite(route=route, upstream=slow[0].name),
            f"{slow[0].name} takes {format_seconds(start_s)} to start, longer than a request of {route} may.",
            "It is the only one of the route, which has no fallback: while it starts, every request fails.",
            (Evidence("seconds to start, p90", start_s, "s", None, "stayfast_replica_cold_start_seconds"),
             Evidence("deadline", within_s, "s", None, f"routes.{route}.deadline")),
            (SettingsChange("A second replica, or a fallback (routes.NAME.fallback): a smaller model, or a provider."),),
            f"/debug/state upstreams: cold_start_p90_s of {slow[0].name} is below the deadline")


CHECKS = (
    Check("replicas.too_few_warm", "fewer replicas are ready than a route wants", find_missing_replicas,
          ("latency.tail", "latency.promise_missed", "hedging.off", "fallback.late")),
    Check("replicas.start_over_deadline", "the only replica of a route starts for longer than its deadline",
          find_slow_starts, ("engine.cold_starts",)),
)
