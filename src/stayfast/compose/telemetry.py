"""Gauges of upstreams and routes, and the span exporter."""

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from math import inf
from random import Random
from typing import cast

from stayfast import __version__
from stayfast.http.client.client import split_base_url
from stayfast.observe.log import LogSink
from stayfast.observe.metrics.counters import Samples
from stayfast.observe.metrics.definitions import (
    AFFINITY,
    BREAKER_STATE,
    EJECTED,
    LIMIT,
    PREFIX_CHECKED,
    PREFIX_TOKENS,
    TURN_THREADS,
)
from stayfast.observe.tracing.config import Peer, TraceConfig, provider_name
from stayfast.observe.tracing.exporter import Exporter, SpanExporter
from stayfast.pipeline.plan import Route
from stayfast.policy.engines.bound_by import Bound
from stayfast.policy.resilience.breaker import BreakerState
from stayfast.settings import HttpUpstream, Settings
from stayfast.turns import threads
from stayfast.turns.served import ServedTurn
from stayfast.upstreams.state.registry import Registry

_NUMBER = {BreakerState.CLOSED: 0.0, BreakerState.HALF_OPEN: 1.0, BreakerState.OPEN: 2.0}


def limit_rows(registry: Registry) -> Samples:
    """Gauges of limits and breakers. An upstream without a limit has no series."""
    return {
        LIMIT.name: [((member.upstream.name, limited.lane), limited.limit.value) for member in registry
                     for limited in member.all_limiters if limited.limit.value < inf],
        BREAKER_STATE.name: [((member.upstream.name,), max([_NUMBER[health.breaker.state] for health in member.healths],
                                                           default=0.0)) for member in registry],
    }


def selection_rows(routes: Mapping[str, Route]) -> Samples:
    """Counters of the choices of upstreams."""
    picking = [(name, route.selector) for name, route in routes.items() if route.selector is not None]
    return {
        AFFINITY.name: [((name, *what), n) for name, one in picking for what, n in one.choices.items()],
        PREFIX_TOKENS.name: [((name, *what), n) for name, one in picking for what, n in one.beliefs.tokens.items()],
        PREFIX_CHECKED.name: [((name, *what), n) for name, one in picking for what, n in one.beliefs.checked.items()],
    }


def ejection_rows(routes: Mapping[str, Route], now: float) -> Samples:
    """Gauges of ejected upstreams. A route without ejection has no series."""
    rows: list[tuple[tuple[str, ...], float]] = []
    for name, route in routes.items():
        if route.selector is not None and route.selector.config.eject.enabled:
            out = route.selector.list_ejected(now)
            names = [target.member.upstream.name for target in route.targets]
            rows += [((name, upstream), float(upstream in out)) for upstream in names]
    return {EJECTED.name: rows}


def queue_rows(registry: Registry) -> list[tuple[tuple[str, str], int]]:
    """Waiting requests, by upstream and lane."""
    return [((member.upstream.name, limited.lane), limited.n_waiting) for member in registry
            for limited in member.all_limiters]


def bound_rows(bounds: Mapping[str, str]) -> list[tuple[tuple[str, ...], float]]:
    """Of each engine that this worker reads, one series for each thing that it may be bound by."""
    return [((upstream, bound.value), float(bound == now)) for upstream, now in bounds.items() for bound in Bound]


def thread_rows(served: Mapping[str, ServedTurn]) -> Samples:
    """Gauges of the threads of synchronous steps. Without turns there is no series."""
    if not served:
        return {}
    running = threads.running_threads()
    n_abandoned = sum(thread.is_abandoned for thread in running)
    return {TURN_THREADS.name: [(("active",), len(running) - n_abandoned), (("abandoned",), n_abandoned)]}


def make_span_exporter(settings: Settings, log: LogSink, peers: Callable[[], Mapping[str, Peer]]) -> SpanExporter | None:
    """The span exporter; None: tracing is off, and nothing is imported for it."""
    trace_settings = settings.tracing
    if trace_settings.exporter == "none":
        return None
    config = TraceConfig(trace_settings.endpoint, {name: value.reveal() for name, value in trace_settings.headers.items()},
                         trace_settings.sample,
                         trace_settings.timeout_s, trace_settings.service_name)

    def make_exporter() -> Exporter:
        otlp = import_module("stayfast.observe.tracing.otlp")  # imported here, because its packages are an optional extra
        return cast("Exporter", otlp.OtlpExporter(config, __version__, Random(os.urandom(16))))

    def report(level: str, event: str, reason: str) -> None:
        log.write_event(event, level=level, error=reason or None)

    return SpanExporter(config, make_exporter, report, Random(os.urandom(16)), peers)


def peer_addresses(settings: Settings) -> Mapping[str, Peer]:
    """The network address of each HTTP upstream."""
    found = {}
    for name, upstream_settings in settings.upstreams.items():
        if isinstance(upstream_settings, HttpUpstream):
            url = split_base_url(upstream_settings.base_url)
            kind = upstream_settings.provider or upstream_settings.kind
            found[name] = Peer(provider_name(kind, url.host), url.host, url.port)
    return found
