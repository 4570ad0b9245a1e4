"""What upstreams are like at this moment: for a scrape, and for /debug/state; and tracing as the settings want it.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from math import inf
from random import Random
from typing import Any, cast

import msgspec

from stayfast import __version__
from stayfast.compose.routes import unsized
from stayfast.http.client.client import split_base_url
from stayfast.observe.log import LogSink
from stayfast.observe.metrics.counters import Rows
from stayfast.observe.metrics.definitions import AFFINITY, BREAKER_STATE, EJECTED, LIMIT, PREFIX_TOKENS, TURN_THREADS
from stayfast.observe.tracing.config import Peer, TraceConfig, provider_of
from stayfast.observe.tracing.exporter import Exporter, Tracing
from stayfast.pipeline.plan import Route
from stayfast.pipeline.stages.admit.admission import Admission, Admit
from stayfast.policy.resilience.breaker import State
from stayfast.settings import HttpUpstream, Settings
from stayfast.turns import threads
from stayfast.turns.served import Served
from stayfast.upstreams.state.upstream_state import Member, Registry

_NUMBER = {State.CLOSED: 0.0, State.HALF_OPEN: 1.0, State.OPEN: 2.0}
MAX_TENANTS = 100  # the newest


def gauges(registry: Registry) -> Rows:
    """Limits and breakers, as metrics. An upstream without a limit has no series."""
    return {
        LIMIT.name: [((member.upstream.name, limited.lane), limited.limit.value) for member in registry
                     for limited in member.all_limited if limited.limit.value < inf],
        BREAKER_STATE.name: [((member.upstream.name,), max([_NUMBER[health.breaker.state] for health in member.healths],
                                                           default=0.0)) for member in registry],
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
    return [((member.upstream.name, limited.lane), limited.n_waiting) for member in registry
            for limited in member.all_limited]


def thread_gauges(served: Mapping[str, Served]) -> Rows:
    """The threads of plain functions that steps run, as a metric. Where no turn is served there is no series."""
    if not served:
        return {}
    running = threads.running()
    n_abandoned = sum(thread.is_abandoned for thread in running)
    return {TURN_THREADS.name: [(("waited_for",), len(running) - n_abandoned), (("abandoned",), n_abandoned)]}


def told(registry: Registry, routes: Mapping[str, Route], admit: Admit, *, prefix: Mapping[str, Any], worker: int,
         now: float) -> bytes:
    """One worker's view of all that decides, as JSON: names, figures and reasons; never a prompt or a key. `prefix`: what is
    known of prefix caches, by route.
    """
    admit = unsized(admit)
    state: dict[str, Any] = {"worker": worker,
                             "upstreams": {member.upstream.name: repr(member) for member in registry},
                             "extra": {member.upstream.name: _pool(member, now) for member in registry},
                             "routes": {name: _route(route, now) for name, route in routes.items()}}
    if isinstance(admit, Admission):
        state["admission"] = _admission(admit, now)
    if prefix:
        state["prefix"] = prefix
    return msgspec.json.encode(state)


def _pool(member: Member, now: float) -> str:
    member.extra.budget.turn(now)
    return repr(member.extra)


def _route(route: Route, now: float) -> dict[str, Any]:
    hedging = route.hedging
    hedging.budget.turn(now)
    state: dict[str, Any] = {"hedging": repr(hedging)}
    due = hedging.told(now) if hedging.is_on else []
    if due:
        state["due"] = due
    if route.picking is not None:
        state["picking"] = repr(route.picking)
    return state


def _admission(admit: Admission, now: float) -> dict[str, Any]:
    places, tenants = admit.places, admit.tenants
    return {"places": repr(places), "strain": repr(places.strain), "is_shedding": admit.is_shedding(now),
            "tenants": {tenant.name: tenant.told(now) for tenant in tenants.newest(MAX_TENANTS)}}


def tracing(settings: Settings, log: LogSink) -> Tracing | None:
    """Where spans are made and sent from; None: nowhere, and nothing is imported for it."""
    its = settings.tracing
    if its.exporter == "none":
        return None
    config = TraceConfig(its.endpoint, {name: value.reveal() for name, value in its.headers.items()}, its.sample,
                         its.timeout_s, its.service_name)

    def exporter() -> Exporter:
        otlp = import_module("stayfast.observe.tracing.otlp")  # here: it needs packages that only an extra brings
        return cast("Exporter", otlp.OtlpExporter(config, __version__, Random(os.urandom(16))))

    def say(level: str, event: str, reason: str) -> None:
        log.say(event, level=level, error=reason or None)

    return Tracing(config, exporter, say, Random(os.urandom(16)))


def peers(settings: Settings) -> Mapping[str, Peer]:
    """Who stands behind each upstream on the network; the others are in this machine and need no address."""
    found = {}
    for name, its in settings.upstreams.items():
        if isinstance(its, HttpUpstream):
            url = split_base_url(its.base_url)
            found[name] = Peer(provider_of(its.kind, url.host), url.host, url.port)
    return found
