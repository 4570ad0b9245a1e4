"""What routes do with their providers' prefix caches: from settings, and as metrics and state."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.observe.families import PREFIX_CACHE, PREFIX_CACHE_TOKENS, PREFIX_MOVING, PREFIX_WAITS
from stayfast.observe.totals import Rows
from stayfast.pipeline.handoffs import Route
from stayfast.pipeline.prefixing import Prefixing
from stayfast.pipeline.stages.context import AsSent, Context, LaidOut
from stayfast.pipeline.warming import Warmer
from stayfast.policy.affinity import AffinityConfig
from stayfast.settings import Route as RouteSettings
from stayfast.settings import Settings
from stayfast.upstreams.state.upstream_state import Registry


def prefixing(name: str, its: RouteSettings, old: Route | None, clock: Clock, sink: Sink) -> Prefixing | None:
    """What a route knows of its providers' caches; None where it does not see to them."""
    if its.prefix.mode == "off":
        return None
    before = old.terms.prefix if old is not None else None
    return before if before is not None and before.config == its.prefix else Prefixing(name, its.prefix, clock, sink)


def context_of(settings: Settings) -> Context:
    """What fits requests for their upstreams."""
    return LaidOut() if any(route.prefix.mode != "off" for route in settings.routes.values()) else AsSent()


def warmer(routes: Mapping[str, Route], registry: Registry, clock: Clock, sink: Sink) -> Warmer | None:
    """Who asks for what providers would forget; None where no route has a budget for it."""
    those = [one for _, one in _of(routes) if one.hot is not None]
    return Warmer(those, {member.upstream.name: member for member in registry}, clock, sink) if those else None


def affinity(its: RouteSettings) -> AffinityConfig:
    """What draws a request to an upstream: a cache is of use only to who comes back to it, so `prefix` wants affinity."""
    if its.prefix.mode != "off" and its.affinity.mode == "off" and its.pick != "order":
        return replace(its.affinity, mode="both")
    return its.affinity


def prefix_counts(routes: Mapping[str, Route]) -> Rows:
    """What they have counted, as metrics."""
    their = _of(routes)
    return {PREFIX_CACHE.name: [((name, *what), n) for name, one in their for what, n in one.counts.items()],
            PREFIX_CACHE_TOKENS.name: [((name, *what), n) for name, one in their for what, n in one.tokens.items()],
            PREFIX_WAITS.name: [((name,), one.leads.n_waited) for name, one in their]}


def prefix_gauges(routes: Mapping[str, Route], now: float) -> Rows:
    """What moves at this moment, as a metric."""
    return {PREFIX_MOVING.name: [((name, upstream), n) for name, one in _of(routes)
                                 for upstream, n in one.findings.moving_tokens(now).items()]}


def prefix_state(routes: Mapping[str, Route], now: float) -> dict[str, Any]:
    """By route, as JSON can say it: what it did, and what it found."""
    return {name: {"requests": {f"{upstream} {result}": n for (upstream, result), n in one.counts.items()},
                   "input_tokens": {f"{upstream} {kind}": n for (upstream, kind), n in one.tokens.items()},
                   "findings": [{"upstream": found.upstream, "model": found.model, "what": found.what,
                                 "detail": found.detail, "seen_s_ago": round(now - seen_at, 1)}
                                for seen_at, found in one.findings.all.values()]}
            for name, one in _of(routes)}


def _of(routes: Mapping[str, Route]) -> list[tuple[str, Prefixing]]:
    return [(name, route.terms.prefix) for name, route in routes.items() if route.terms.prefix is not None]
