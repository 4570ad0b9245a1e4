"""Settings in, a system out; read it as a parts list. Nothing here runs yet."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal

from stayfast.compose.aggregate import TurnRegistry, WorkerAggregate
from stayfast.compose.assembly import assemble
from stayfast.compose.caching import (
    Stores,
    embedding,
    held,
    prefix_counts,
    prefix_gauges,
    prefix_state,
    semantic_gauges,
    stores,
    warmer,
)
from stayfast.compose.caching import begin as begin_semantic
from stayfast.compose.routes import errors, foresee, introduce, learned_rows, models_requested, routes, tier_of
from stayfast.compose.state import state_report
from stayfast.compose.telemetry import chosen, ejected, gauges, peers, thread_gauges, tracing, waiting
from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.core.held_bytes import HeldBytes
from stayfast.core.types import Api
from stayfast.engine.config import TINY
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.observe.batch import Batch, Listener
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from stayfast.observe.metrics.collector import MetricsSink
from stayfast.observe.metrics.counters import CONTENT_TYPE
from stayfast.observe.metrics.definitions import RETRY_BUDGET
from stayfast.observe.metrics.gen_ai import GenAi
from stayfast.observe.recent import Recent
from stayfast.pipeline.attempts.readiness import ProbeConfig, Prober
from stayfast.pipeline.gateway import Gateway
from stayfast.pipeline.plan import RoutePolicy
from stayfast.pipeline.prompt_cache.cache_refresh import PrefixRefresher
from stayfast.pipeline.stages.admit.admission import Admission, Admit, AdmitAll
from stayfast.pipeline.stages.call.midstream_failover import ThroughputMonitor, flows_of
from stayfast.policy.admission.lanes import LANES
from stayfast.policy.admission.response_owners import ResponseOwners
from stayfast.server.config import ServerConfig
from stayfast.settings import AddedUpstream, HttpUpstream, Settings, TurnUpstreamSettings, environment
from stayfast.settings import Upstream as UpstreamSettings
from stayfast.stores.embedder import Embedding
from stayfast.turns.function import import_turn_function
from stayfast.turns.remote_resume import ResumeRemotely
from stayfast.turns.served import ServedTurn
from stayfast.upstreams.base import Upstream
from stayfast.upstreams.dialect import DialectConfig, DialectUpstream
from stayfast.upstreams.local import Address, EngineDoor, LocalUpstream
from stayfast.upstreams.state.upstream_state import Registry, UpstreamState
from stayfast.workers.channels import WorkerPeers
from stayfast.workers.shared_memory import common_words
from stayfast.workers.sync import WorkerSync, as_one

STANDARD_OUTPUT = 1
GATEWAY = "(gateway)"  # no upstream's: where requests wait before one is chosen


class Observers:
    """Sinks that outlive a reload: counters go on, the log stays open."""

    def __init__(self, settings: Settings, clock: Clock, siblings: WorkerPeers | None = None) -> None:
        self.writer = LineWriter(log_config(settings))
        self.log = LogSink(log_config(settings), self.writer, clock)
        self.metrics = MetricsSink(clock, slo_bounds_s(settings), lost=self._lost)
        self.recent = Recent(settings.recent)
        self.tracing = tracing(settings, self.log)
        self.sagging = ThroughputMonitor(clock)
        self.held = HeldBytes(settings.server.max_buffered_bytes)
        self.gen_ai = GenAi(self.metrics.totals) if settings.metrics.enabled and settings.metrics.gen_ai else None
        listeners: list[Listener | None] = [self.log, self.recent, self.metrics if settings.metrics.enabled else None,
                                            self.gen_ai, self.tracing, self.sagging]
        self.batch = Batch(*[listener for listener in listeners if listener is not None])
        self.sink: Sink = self.batch
        self.together = WorkerAggregate(self.metrics, self.recent, self.batch.flush, siblings or WorkerPeers())
        self.as_one = as_one(siblings, clock)
        self.owners = ResponseOwners(partial(common_words, siblings.folder if siblings is not None else None))

    def _lost(self) -> list[tuple[str, int]]:
        """What was thrown away for want of a reader."""
        lost = [("log_lines", self.writer.n_dropped)]
        return lost if self.tracing is None else [*lost, ("spans", self.tracing.n_dropped + self.tracing.n_refused)]


def slo_bounds_s(settings: Settings) -> dict[str, list[float]]:
    """What every promise of every route must be counted at, exactly; by metric."""
    bounds_s: dict[str, list[float]] = {}
    for route in settings.routes.values():
        for metric, latency in route.slo.latencies():
            bounds_s.setdefault(metric, []).append(latency.under_s)
    return bounds_s


def log_config(settings: Settings) -> LogConfig:
    """How to log; text and its colours are for terminals."""
    log, is_terminal = settings.log, os.isatty(STANDARD_OUTPUT)
    form: Literal["json", "text"] = ("text" if is_terminal else "json") if log.format == "auto" else log.format
    return LogConfig(level=log.level, requests=log.requests, form=form,
                     has_colour=is_terminal and not environment().get("NO_COLOR"), fd=STANDARD_OUTPUT)


@dataclass(frozen=True, slots=True)
class System:
    """One set of settings as objects: what `server.backend.Backend` asks for."""

    settings: Settings
    gateway: Gateway
    registry: Registry
    prober: Prober
    together: WorkerAggregate
    stores: Stores
    embedding: Embedding | None = None  # None: no semantic cache, or nothing to embed with
    warmer: PrefixRefresher | None = None  # None: no route has a budget for asking again

    @property
    def config(self) -> ServerConfig:
        return self.settings.server

    def models(self) -> Sequence[str]:
        return self.gateway.router.model_names

    def unready(self) -> str | None:
        """Why it cannot serve yet. Where no upstream is to be probed, the operator has said not to wait for one."""
        if self.registry.has_proven or not self.prober.n_targets:
            return None
        reasons = "; ".join(f"{name}: {code}" for name, code in self.prober.complaints.items())
        return "no upstream has answered with a token yet" + (f" ({reasons})" if reasons else "")

    def state(self) -> bytes:
        """What upstreams, routes and admission are like, as JSON."""
        gateway, now = self.gateway, self.gateway.timers.clock.now()
        routes = gateway.router.routes
        return state_report(self.registry, routes, gateway.admit, prefix=prefix_state(routes, now),
                            worker=self.together.siblings.n, now=now)

    async def metrics(self) -> tuple[str, bytes]:
        return CONTENT_TYPE, await self.together.metrics() if self.settings.metrics.enabled else b""


def build(settings: Settings, observers: Observers, doors: Mapping[str, EngineDoor], clock: Clock, rng: Random, *,
          old: System | None = None) -> System:
    """The whole system for one set of settings. `doors` leads to the embedded engines, by upstream.

    After a reload, upstreams whose settings are those of the `old` system go on as they are: connections, counts, proof.
    """
    sink = observers.sink
    observers.held.limit = settings.server.max_buffered_bytes
    registry = _registry(settings, observers, doors, clock, rng, old=old)
    admit = _admit(settings, old, clock, rng, observers.as_one)
    open_stores = stores(settings, (old.settings, old.stores) if old is not None else None, clock=clock, sink=sink, rng=rng)
    before = old.gateway.router.routes if old is not None else {}
    named = routes(settings, registry, before, open_stores, clock=clock, sink=sink)
    introduce(registry, named, LANES if settings.admission.lanes is not None else ())
    if old is not None:
        _begin_slowly(registry, old.registry, clock.now())
    embeds = embedding(settings, (old.settings, old.embedding) if old is not None else None)
    observers.sagging.flows = flows_of(named.values())
    gateway = assemble(named, RoutePolicy(settings.defaults.timeouts), clock=clock, rng=rng, sink=sink, admit=admit,
                       tier_of=tier_of(settings), idempotency=settings.idempotency, owners=observers.owners,
                       old=old.gateway if old is not None else None)
    router = gateway.router
    begin_semantic(router.routes, settings, embeds, clock=clock, rng=rng, sink=sink, serve=gateway.serve)
    if observers.tracing is not None:
        observers.tracing.peers = peers(settings)
    if observers.gen_ai is not None:
        observers.gen_ai.peers = peers(settings)
    if isinstance(admit, Admission) and settings.admission.max_in_flight is not None:
        foresee(admit.places, router, registry)
    prober = Prober(_probed(settings, registry), ProbeConfig(), clock, rng, sink)
    observers.together.caches.routes = router.routes
    observers.metrics.queued = lambda: [
        *(((GATEWAY, band), n) for band, n in (admit.places.depths() if isinstance(admit, Admission) else ())),
        *waiting(registry)]
    observers.metrics.limits = lambda: {
        **gauges(registry), **ejected(gateway.router.routes, clock.now()),
        **errors(registry), **learned_rows(gateway.router.routes), **held(open_stores),
        **prefix_gauges(gateway.router.routes, clock.now()),
        **semantic_gauges(gateway.router.routes), **thread_gauges(observers.together.turns.served), RETRY_BUDGET.name: [
        ((route.name,), route.hedging.budget.extra_share(clock.now())) for route in gateway.router.routes.values()]}
    observers.metrics.counted = lambda: {**chosen(gateway.router.routes), **prefix_counts(gateway.router.routes)}
    observers.metrics.in_flight = lambda: [(member.upstream.name, member.n_in_flight) for member in registry]
    return System(settings, gateway, registry, prober, observers.together, open_stores, embedding=embeds,
                  warmer=warmer(gateway.router.routes, registry, clock, sink))


def _registry(settings: Settings, observers: Observers, doors: Mapping[str, EngineDoor], clock: Clock, rng: Random, *,
              old: System | None) -> Registry:
    """The upstreams: those that go on, and new ones."""
    sink, together = observers.sink, observers.together
    registry = Registry([
        old.registry[name] if old is not None and old.settings.upstreams.get(name) == upstream_settings
        else UpstreamState(_upstream(name, upstream_settings, doors, sink, clock, ask_others=together.turn,
                                     held=observers.held),
                    upstream_settings.limit, upstream_settings.breaker, rng, sink)
        for name, upstream_settings in settings.upstreams.items()])
    _settle_turns(settings, registry, together.turns)
    return registry


def _settle_turns(settings: Settings, registry: Registry, turns: TurnRegistry) -> None:
    """Give each its function as it is now, and the turns that clients may come back to. What runs goes on as it is."""
    found: dict[str, ServedTurn] = {}
    for name, upstream_settings in settings.upstreams.items():
        if not isinstance(upstream_settings, TurnUpstreamSettings):
            continue
        member = registry[name]
        member.is_not_idempotent = not upstream_settings.idempotent
        assert isinstance(member.upstream, ServedTurn)
        found[name] = member.upstream
        member.upstream.function = import_turn_function(upstream_settings.turn)
        if name in turns.served:
            member.upstream.resumable = turns.served[name].resumable
    turns.served = found


def _begin_slowly(registry: Registry, before: Registry, now: float) -> None:
    """Upstreams that a reload brought have cold caches, and no known pace: they get more and more of the requests."""
    known = set(before)
    for member in registry:
        if member not in known:
            for health in member.healths:
                health.breaker.begin_slowly(now)


def _admit(settings: Settings, old: System | None, clock: Clock, rng: Random, as_one: WorkerSync | None) -> Admit:
    """Who comes in: everybody, where nothing is set. After a reload what tenants have used stays used."""
    before = old.gateway.admit if old is not None else None
    if as_one is not None and isinstance(before, Admission):
        before.places.common = None  # unless it has a ceiling, below
        as_one.places.taken(0)
    if settings.admits_all:
        return AdmitAll()
    if not isinstance(before, Admission):
        before = Admission(settings.admission, settings.tenants, clock, rng)
        if as_one is not None:
            before.tenants.buckets = as_one.bucket
    else:
        before.configure(settings.admission, settings.tenants)
    if as_one is not None and settings.admission.max_in_flight is not None:
        before.places.common = as_one.places
        as_one.places.taken(before.places.n_taken)
        before.places.configure(settings.admission)
    return before


def _upstream(name: str, upstream_settings: UpstreamSettings, doors: Mapping[str, EngineDoor], sink: Sink, clock: Clock, *,
              ask_others: ResumeRemotely, held: HeldBytes) -> Upstream:
    if isinstance(upstream_settings, HttpUpstream):
        return _http(name, upstream_settings, sink, clock, held)
    if isinstance(upstream_settings, AddedUpstream):
        return upstream_settings.make(name, clock)
    if isinstance(upstream_settings, TurnUpstreamSettings):
        return ServedTurn(name, import_turn_function(upstream_settings.turn), clock, sink,
                          resume_s=upstream_settings.resume_s,
                          is_idempotent=upstream_settings.idempotent,
                      ask_others=ask_others)
    return LocalUpstream(name, doors[name], lambda address: _engine_client(name, address, sink, clock), clock,
                         calls_tools=upstream_settings.engine.model != TINY)


def _http(name: str, upstream_settings: HttpUpstream, sink: Sink, clock: Clock, held: HeldBytes) -> Upstream:
    http = HttpConfig(upstream_settings.base_url, max_connections=upstream_settings.max_connections or 0,
                      http=upstream_settings.http, keepalive_s=upstream_settings.keepalive_s,
                      ca_file=upstream_settings.ca_file, verify=upstream_settings.verify)
    dialect = DialectConfig(
        upstream_settings.kind, upstream_settings.native_apis, upstream_settings.key.reveal()
        if upstream_settings.key is not None else None,
        tuple((header.lower(), value.reveal()) for header, value in upstream_settings.headers.items()),
        request_usage=upstream_settings.request_usage,
        send_deadline=upstream_settings.send_deadline)
    return DialectUpstream(name, dialect, HttpClient(name, http, sink=sink, clock=clock), clock, held)


def _engine_client(name: str, address: Address, sink: Sink, clock: Clock) -> Upstream:
    http = HttpConfig(f"http://{address[0]}:{address[1]}/v1", max_connections=0, http="1.1")
    dialect = DialectConfig("embedded", frozenset({Api.CHAT, Api.COMPLETIONS}), always_streams=True, request_usage=True)
    return DialectUpstream(name, dialect, HttpClient(name, http, sink=sink, clock=clock), clock)


def _probed(settings: Settings, registry: Registry) -> list[tuple[UpstreamState, str]]:
    """The members to ask for a token, and the model to ask each for: that of the first route that names one."""
    probed = []
    for name, upstream_settings in settings.upstreams.items():
        model = next(models_requested(settings, name), None)
        if upstream_settings.probe and model is not None and registry[name].upstream.can_serve(Api.CHAT):
            probed.append((registry[name], model))
    return probed
