"""From settings to a system: the parts list. Nothing here runs yet."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Literal

import msgspec

from stayfast.compose.aggregate import TurnRegistry, WorkerAggregate, wrap_signals, wrap_snapshot_message
from stayfast.compose.assembly import assemble
from stayfast.compose.cache_reports import Caches
from stayfast.compose.caching import (
    SemanticCaches,
    Stores,
    make_embedding,
    make_refresher,
    make_stores,
    prefix_findings,
    prefix_state,
)
from stayfast.compose.classify import ClassifierFiles, Classifiers, make_classifiers, read_classifier_files
from stayfast.compose.context import ContextSteps
from stayfast.compose.credentials import (
    Sources,
    credential_findings,
    explain_missing_credentials,
    make_authenticator,
    make_credentials,
)
from stayfast.compose.current import CurrentSystem, Running
from stayfast.compose.embedded import limit_to_slots, make_embedded
from stayfast.compose.engine_metrics import SignalPublisher
from stayfast.compose.enough import EnoughRoutes
from stayfast.compose.fleet import (
    boot_name,
    gateway_id,
    limit_rate,
    make_quota_leases,
    quota_state,
    shared_buckets,
    tenant_quotas,
)
from stayfast.compose.fleet_host import Fleet
from stayfast.compose.keys import KeysHost
from stayfast.compose.kv_events import KvEvents, kv_event_findings, make_kv_events
from stayfast.compose.passthrough import http_config, make_pass_through
from stayfast.compose.probes import make_probes
from stayfast.compose.routes import RouteParts, bind_routes, make_routes, models_requested, queue_outlook, tier_of
from stayfast.compose.scaling import PoolScaling
from stayfast.compose.snapshot_source import SnapshotSource
from stayfast.compose.snapshots import Snapshots, make_snapshots
from stayfast.compose.state import state_report
from stayfast.compose.telemetry import bound_rows, make_span_exporter, peer_addresses
from stayfast.compose.tiers import make_tier_members
from stayfast.compose.warm import attach_replicas, connect_replicas, make_watches
from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.core.held_bytes import HeldBytes
from stayfast.core.types import Api
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.jobs.service import JobService
from stayfast.keys.table import LiveKeys
from stayfast.observe.fact_batch import FactBatch, FactConsumer
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from stayfast.observe.metrics.collector import MetricsSink
from stayfast.observe.metrics.counters import CONTENT_TYPE
from stayfast.observe.metrics.definitions import ENGINE_BOUND, WEBSOCKET_MESSAGES, WEBSOCKETS
from stayfast.observe.metrics.gen_ai import GenAiMetrics
from stayfast.observe.metrics.job_metrics import JobMetrics
from stayfast.observe.metrics.passthrough_metrics import PassThroughMetrics
from stayfast.observe.recent_requests import RecentRequests
from stayfast.observe.snapshot.reported import ReportedFindings
from stayfast.observe.snapshot.traffic import TrafficSink
from stayfast.pipeline.admission.controller import QueueOutlook
from stayfast.pipeline.attempts.readiness import ProbeConfig, Prober
from stayfast.pipeline.batching.encoder_upstream import EncoderUpstream
from stayfast.pipeline.classify.classifier import TextClassifier
from stayfast.pipeline.gateway import Gateway
from stayfast.pipeline.passthrough.service import PassThrough
from stayfast.pipeline.plan import RoutePolicy
from stayfast.pipeline.prompt_cache.cache_refresh import PrefixRefresher
from stayfast.pipeline.prompt_versions import PromptVersions
from stayfast.pipeline.stages.admit.admission import Admission, Admit, AdmitAll
from stayfast.pipeline.stages.call.midstream_failover import ThroughputMonitor, flows_of
from stayfast.pipeline.warm.replica_watch import ReplicaWatch
from stayfast.policy.admission.lanes import LANES
from stayfast.policy.admission.response_owners import ResponseOwners
from stayfast.server.config import ServerConfig
from stayfast.server.sockets.counts import SocketCounts
from stayfast.settings import (
    AddedUpstream,
    EmbeddedUpstream,
    EncoderUpstreamSettings,
    HttpUpstream,
    Settings,
    TurnUpstreamSettings,
    read_environment,
)
from stayfast.settings import Upstream as UpstreamSettings
from stayfast.settings.effective import SettingsReport
from stayfast.stores.embedder import Embedders
from stayfast.turns.function import import_turn_function
from stayfast.turns.served import ServedTurn
from stayfast.upstreams.authentication import Authenticator
from stayfast.upstreams.base import Upstream
from stayfast.upstreams.credentials.renewed import RenewedCredential
from stayfast.upstreams.dialect import DialectConfig, DialectUpstream
from stayfast.upstreams.embedded import NATIVE_LOCAL_APIS, TASK_APIS, Address, EngineEndpoint
from stayfast.upstreams.state.registry import Registry
from stayfast.upstreams.state.signal_board import SignalBoard
from stayfast.upstreams.state.upstream_state import UpstreamState
from stayfast.wire.quirks import Quirk
from stayfast.workers.channels import WorkerPeers
from stayfast.workers.fleet.quota_leases import QuotaLeases
from stayfast.workers.shared_memory import shared_owner_table
from stayfast.workers.sync import make_worker_sync

STANDARD_OUTPUT = 1


class Observers:
    """What outlives a reload: sinks, counters, the log, and what workers share. sink: takes the events in place of the
    listeners.
    """

    def __init__(self, settings: Settings, clock: Clock, siblings: WorkerPeers | None = None, sink: Sink | None = None
                 ) -> None:
        self.current = current = CurrentSystem(clock)
        self.sockets = SocketCounts()
        self.writer = LineWriter(log_config(settings))
        self.log = LogSink(log_config(settings), self.writer, clock)
        traffic = TrafficSink(clock, current.first_token_bound)
        board = SignalBoard(settings.metrics.engine_interval_s)
        scaling = PoolScaling(current, clock, traffic, board)
        self.metrics = MetricsSink(clock, traffic, slo_bounds_s(settings), lost=self._lost,
                                   in_flight=current.in_flight, queued=current.queued,
                                   gauges=lambda: current.gauges() | self.fleet.gauges() | scaling.gauges() | {
                                       ENGINE_BOUND.name: bound_rows(self.probes.engine_bounds()),
                                       WEBSOCKETS.name: self.sockets.open_rows()},
                                   counters=lambda: current.counters() | self.fleet.counters() | {
                                       WEBSOCKET_MESSAGES.name: self.sockets.message_rows()})
        recent = RecentRequests(settings.recent)
        reported = ReportedFindings(clock, lambda: [
            *prefix_findings(current.routes(), clock), *self.fleet.findings(), *credential_findings(current.credentials()),
            *kv_event_findings(current.kv_events(), clock)])
        self.probes = make_probes(siblings.n if siblings is not None else 0, current, self.log,
                                  lambda: self.writer.n_dropped, clock)
        self.tracing = make_span_exporter(settings, self.log, current.peers)
        self.held = HeldBytes(settings.server.max_buffered_bytes)
        has_metrics = settings.metrics.enabled
        gen_ai = GenAiMetrics(self.metrics.totals, current.peers) if has_metrics and settings.metrics.gen_ai else None
        listeners: list[FactConsumer | None] = [self.log, recent, traffic,
                                            self.metrics if has_metrics else None, gen_ai,
                                            JobMetrics(self.metrics.totals) if has_metrics else None,
                                            PassThroughMetrics(self.metrics.totals) if has_metrics else None,
                                            self.tracing, ThroughputMonitor(clock, current.flows), self.probes, reported]
        self.batch = FactBatch(*[listener for listener in listeners if listener is not None])
        self.sink: Sink = sink or self.batch
        gateway = gateway_id(settings.fleet, boot_name(siblings))
        self.leases = make_quota_leases(gateway, settings, siblings, clock, self.sink)
        self.worker_sync = make_worker_sync(siblings, clock)
        self.fleet = Fleet(gateway, settings, current, siblings, self.worker_sync, clock=clock, log=self.log.write_event)
        if self.leases is not None:
            self.leases.leader.count_live = lambda: self.fleet.part.n_gateways
        peers, versions = siblings or WorkerPeers(), PromptVersions(clock)
        signals = SignalPublisher(board, peers, wrap_signals)
        self.snapshots = make_snapshots(
            gateway, SnapshotSource(traffic, self.probes, reported, current, clock, flush=self.batch.flush, worker=peers.n,
                                    is_draining=lambda: self.fleet.part.is_draining, read_fleet=self.fleet.rows,
                                    versions=versions.collect),
            current, peers, clock, encode=wrap_snapshot_message, read_caches=self._read_caches,
            warn=lambda why: self.log.write_event("snapshots_not_stored", level="warning", detail=why))
        self.aggregate = WorkerAggregate(self.metrics, recent, self.batch.flush, peers, Caches(current.routes),
                                        TurnRegistry(current.turns), self.fleet, self.snapshots.answer,
                                        settings.metrics.aliases, self.probes.engine_figures,
                                        signals, versions, current.shows_prompts, scaling,
                                        current.set_drained, current.list_drained)
        self.owners = ResponseOwners(partial(shared_owner_table, siblings.directory if siblings is not None else None))

    async def _read_caches(self) -> bytes:
        return await self.aggregate.cache_stats()

    def _lost(self) -> list[tuple[str, int]]:
        """Log lines and spans that were dropped."""
        lost = [("log_lines", self.writer.n_dropped)]
        return lost if self.tracing is None else [*lost, ("spans", self.tracing.n_dropped + self.tracing.n_refused)]


def slo_bounds_s(settings: Settings) -> dict[str, list[float]]:
    """The bounds of all SLOs of all routes, by metric: their histograms get exact buckets there."""
    bounds_s: dict[str, list[float]] = {}
    for route in settings.routes.values():
        for metric, latency in route.slo.latencies():
            bounds_s.setdefault(metric, []).append(latency.under_s)
    return bounds_s


def log_config(settings: Settings) -> LogConfig:
    """How to log; text with colours is for terminals."""
    log, is_terminal = settings.log, os.isatty(STANDARD_OUTPUT)
    form: Literal["json", "text"] = ("text" if is_terminal else "json") if log.format == "auto" else log.format
    return LogConfig(level=log.level, requests=log.requests, form=form,
                     has_colour=is_terminal and not read_environment().get("NO_COLOR"), fd=STANDARD_OUTPUT)


@dataclass(frozen=True, slots=True)
class System:
    """One set of settings as objects: the `server.backend.Backend` of the server."""

    settings: Settings
    gateway: Gateway
    registry: Registry
    prober: Prober
    together: WorkerAggregate
    stores: Stores
    turns: Mapping[str, ServedTurn]  # by upstream
    credentials: Sources
    embedding: Embedders | None = None  # None: no semantic cache, or its packages are missing
    leases: QuotaLeases | None = None  # None: no other gateway shares the quotas
    refresher: PrefixRefresher | None = None  # None: no route has a budget for refreshing prompt caches
    passthrough: PassThrough | None = None  # None: it is off
    jobs: JobService | None = None  # None: this process has none
    effective: SettingsReport | None = None  # None: in a laboratory
    snapshots: Snapshots | None = None  # None: in a laboratory
    keys: LiveKeys | None = None  # None: in a laboratory
    classifiers: Classifiers = field(default_factory=Classifiers)
    files: ClassifierFiles = field(default_factory=ClassifierFiles)
    kv_events: KvEvents | None = None  # None: no engine publishes any
    watches: Sequence[ReplicaWatch] = ()

    @property
    def config(self) -> ServerConfig:
        return self.settings.server

    @property
    def text_classifiers(self) -> Mapping[str, TextClassifier]:
        return self.classifiers.by_name

    def models(self) -> Sequence[str]:
        return self.gateway.router.model_names

    @property
    def resumable(self) -> frozenset[str]:
        return frozenset(name for name, route in self.settings.routes.items() if route.resumable)

    def unready(self) -> str | None:
        """Why it is not ready. Ready at once if no upstream is to be probed."""
        if self.credentials and (why := explain_missing_credentials(self.credentials, self.settings.upstreams)) is not None:
            return why
        if self.keys is not None and not self.keys.is_known and self.config.demands_key and not self.config.keys:
            return "the store of keys cannot be read, and the settings file has no keys"
        if self.registry.has_proven or not self.prober.n_targets:
            return None
        reasons = "; ".join(f"{name}: {code}" for name, code in self.prober.complaints.items())
        return "no upstream has answered with a token yet" + (f" ({reasons})" if reasons else "")

    def state(self) -> bytes:
        """The state of upstreams, routes and admission, as JSON."""
        gateway, now = self.gateway, self.gateway.timers.clock.now()
        routes = gateway.router.routes
        return state_report(self.registry, routes, gateway.admit, signals=self.together.signals.board,
                            prefix=prefix_state(routes, now),
                            fleet=quota_state(self.leases), worker=self.together.peers.n, now=now)

    def effective_settings(self) -> bytes:
        """The effective settings and their sources, as JSON."""
        return msgspec.json.encode((self.effective or SettingsReport(self.settings)).read())

    async def metrics(self) -> tuple[str, bytes]:
        return CONTENT_TYPE, await self.together.metrics() if self.settings.metrics.enabled else b""


def build(settings: Settings, observers: Observers, doors: Mapping[str, EngineEndpoint], clock: Clock, rng: Random, *,
          old: System | None = None, jobs: JobService | None = None, keys: KeysHost | None = None,
          files: ClassifierFiles | None = None) -> System:
    """The whole system for one set of settings. doors: to the embedded engines, by upstream. old: at a reload; upstreams
    with unchanged settings keep their connections, counts and health. jobs: with the same settings. files: of classifiers;
    None: they are read here, which blocks.
    """
    sink, as_one = observers.sink, observers.worker_sync
    observers.held.resize(settings.server.max_buffered_bytes)
    if observers.leases is not None:
        observers.leases.configure(settings.fleet, tenant_quotas(settings))
    credentials = make_credentials(settings, (old.settings, old.credentials) if old is not None else None, clock, rng, sink)
    files = files or read_classifier_files(settings)
    embeds = make_embedding(settings, (old.settings, old.embedding) if old is not None else None,
                            has_head=files.needs_encoder(settings))
    registry = _registry(settings, observers, doors, clock, rng, old=old, credentials=credentials, embeds=embeds)
    attach_replicas(settings, registry, old.registry if old is not None else None)
    turns = {member.upstream.name: member.upstream for member in registry if isinstance(member.upstream, ServedTurn)}
    open_stores = make_stores(settings, (old.settings, old.stores) if old is not None else None, clock=clock, sink=sink,
                              rng=rng)
    classifiers = make_classifiers(settings, files, embeds, old.classifiers if old is not None else None, clock=clock,
                                   sink=sink)
    before = old.gateway.router.routes if old is not None else {}
    semantic = SemanticCaches(settings, embeds, clock=clock, sink=sink, serve=observers.current.serve)
    context = ContextSteps(settings, open_stores, clock=clock, serve=observers.current.serve,
                           is_shedding=observers.current.is_shedding)
    evidence = EnoughRoutes(settings, clock=clock, sink=sink, serve=observers.current.serve, classifiers=classifiers)
    kv_events = make_kv_events(settings, (old.settings, old.kv_events) if old is not None else None, clock)
    parts = RouteParts(registry, open_stores, semantic, context, evidence, classifiers, clock, sink,
                       observers.aggregate.signals.board, kv_events.exact if kv_events is not None else None)
    named = make_routes(settings, parts, before)
    bind_routes(registry, named, LANES if settings.admission.lanes is not None else ())
    connect_replicas(registry, named, sink)
    if old is not None:
        _begin_slowly(registry, old.registry, clock.now())
    outlook = QueueOutlook()
    if settings.admission.max_in_flight is not None:
        outlook = queue_outlook(named, registry, as_one.admission_limit if as_one is not None else None)
    admit = _admit(settings, old, clock, rng, observers, outlook=outlook)
    gateway = assemble(named, RoutePolicy(settings.defaults.timeouts), clock=clock, rng=rng, sink=sink, admit=admit,
                       tier_of=tier_of(settings), idempotency=settings.idempotency, owners=observers.owners,
                       key_quotas=keys.quotas if keys is not None else None, old=old.gateway if old is not None else None,
                       versions=observers.aggregate.versions if settings.prompts.track else None)
    passing = make_pass_through(settings, registry, admit if isinstance(admit, Admission) else None,
                                old.passthrough if old is not None else None, clock=clock, rng=rng, sink=sink)
    prober = Prober(_probed(settings, registry), ProbeConfig(), clock, rng, sink)
    effective = SettingsReport(settings, old.effective if old is not None else None, clock.wall())
    observers.current.swap(Running(gateway, registry, open_stores, turns, flows_of(named.values()),
                                   peer_addresses(settings), observers.leases, effective, credentials, passing, embeds,
                                   kv_events))
    return System(settings, gateway, registry, prober, observers.aggregate, open_stores, turns,
                  credentials, embedding=embeds, leases=observers.leases,
                  refresher=make_refresher(named, registry, clock, sink), passthrough=passing, jobs=jobs,
                  effective=effective, snapshots=observers.snapshots, keys=keys.live if keys is not None else None,
                  classifiers=classifiers, files=files, kv_events=kv_events,
                  watches=make_watches(settings, named, prober, clock=clock, rng=rng,
                                       board=observers.aggregate.signals.board))


def _registry(settings: Settings, observers: Observers, doors: Mapping[str, EngineEndpoint], clock: Clock, rng: Random, *,
              old: System | None, credentials: Sources, embeds: Embedders | None) -> Registry:
    """The upstreams: unchanged ones of the old system, and new ones."""
    members = []
    for name, upstream_settings in settings.upstreams.items():
        if old is not None and old.settings.upstreams.get(name) == upstream_settings and not (
                isinstance(upstream_settings, EncoderUpstreamSettings) and embeds is not old.embedding):
            member = old.registry[name]
            if isinstance(upstream_settings, TurnUpstreamSettings) and isinstance(member.upstream, ServedTurn):
                member.upstream.replace_function(import_turn_function(upstream_settings.turn))
        else:
            upstream = _upstream(name, upstream_settings, observers, doors, clock, rng=rng, embeds=embeds,
                                 old_turn=old.turns.get(name) if old is not None else None, source=credentials.get(name))
            may_act_twice = not isinstance(upstream_settings, TurnUpstreamSettings) or upstream_settings.idempotent
            limit = upstream_settings.limit
            if isinstance(upstream_settings, EmbeddedUpstream) and name in doors:
                limit = limit_to_slots(limit, doors[name].n_slots)
            member = UpstreamState(upstream, limit, upstream_settings.breaker, rng, observers.sink,
                                   is_not_idempotent=not may_act_twice)
        members.append(member)
    by_name = {member.upstream.name: member for member in members}
    before = (old.settings, old.registry) if old is not None else None
    return Registry([*members, *make_tier_members(settings, by_name, before, rng, observers.sink)])


def _begin_slowly(registry: Registry, before: Registry, now: float) -> None:
    """Upstreams that a reload added have cold caches and unknown latencies: their share of the requests grows slowly."""
    known = set(before)
    for member in registry:
        if member not in known:
            for health in member.healths:
                health.breaker.begin_slow_start(now)


def _admit(settings: Settings, old: System | None, clock: Clock, rng: Random, observers: Observers, *,
           outlook: QueueOutlook) -> Admit:
    """Admission; AdmitAll if nothing is set. At a reload used quota stays used, and taken places stay taken."""
    as_one, leases = observers.worker_sync, observers.leases
    admit = old.gateway.admit if old is not None else None
    if as_one is not None and isinstance(admit, Admission) and outlook.common is None:
        as_one.admission_limit.set_taken(0)
    if settings.admits_all:
        return AdmitAll()
    if isinstance(admit, Admission):
        admit.configure(settings.admission, settings.tenants, outlook)
    else:
        admit = Admission(settings.admission, settings.tenants, clock, rng, outlook=outlook,
                          buckets=shared_buckets(leases, as_one),
                          wait_for_grant=leases.wait_for_grant if leases is not None else None)
    if outlook.common is not None:
        outlook.common.set_taken(admit.places.n_taken)
    return admit


def _upstream(name: str, upstream_settings: UpstreamSettings, observers: Observers, doors: Mapping[str, EngineEndpoint],
              clock: Clock, *, rng: Random, embeds: Embedders | None, old_turn: ServedTurn | None,
              source: RenewedCredential[Any] | None) -> Upstream:
    """old_turn: of the same name before a reload; clients may still resume its turns. source: of its credential."""
    sink = observers.sink
    if isinstance(upstream_settings, HttpUpstream):
        leases, workers = observers.leases, observers.worker_sync
        upstream = _http(name, upstream_settings, sink, clock, observers.held,
                         authenticator=make_authenticator(source, upstream_settings))
        return limit_rate(upstream, upstream_settings.rate, leases, shared_buckets(leases, workers), clock,
                          are_requests_daily=Quirk.DAILY_REQUESTS in upstream_settings.quirks)
    if isinstance(upstream_settings, EncoderUpstreamSettings):
        return EncoderUpstream(name, embeds, clock)
    if isinstance(upstream_settings, AddedUpstream):
        return upstream_settings.build_upstream(name, clock)
    if isinstance(upstream_settings, TurnUpstreamSettings):
        return ServedTurn(name, import_turn_function(upstream_settings.turn), clock, sink,
                          resume_s=upstream_settings.resume_s,
                          is_idempotent=upstream_settings.idempotent, resume_remotely=observers.aggregate.turn,
                          resumable=old_turn.resumable if old_turn is not None else None)
    apis = TASK_APIS[upstream_settings.engine.task]
    return make_embedded(name, upstream_settings.engine, doors,
                         lambda address: _engine_client(name, address, sink, clock, apis), clock, apis=apis,
                         rng=rng)


def _http(name: str, upstream_settings: HttpUpstream, sink: Sink, clock: Clock, held: HeldBytes, *,
          authenticator: Authenticator | None) -> Upstream:
    http = http_config(upstream_settings)
    key = upstream_settings.key
    dialect = DialectConfig(
        upstream_settings.kind, upstream_settings.native_apis, key.reveal() if key is not None else None,
        tuple((header.lower(), value.reveal()) for header, value in upstream_settings.headers.items()),
        request_usage=upstream_settings.request_usage, send_deadline=upstream_settings.send_deadline,
        paths={Api(api): path for api, path in upstream_settings.paths.items()},
        key_header=upstream_settings.key_header.lower(), quirks=upstream_settings.quirks, authenticator=authenticator)
    return DialectUpstream(name, dialect, HttpClient(name, http, sink=sink, clock=clock), clock, held)


def _engine_client(name: str, address: Address, sink: Sink, clock: Clock, apis: frozenset[Api]) -> Upstream:
    http = HttpConfig(f"http://{address[0]}:{address[1]}/v1", max_connections=0, http="1.1")
    dialect = DialectConfig("embedded", apis & NATIVE_LOCAL_APIS, always_streams=True, request_usage=True,
                            quirks=(Quirk.COMPACT_JSON,))
    return DialectUpstream(name, dialect, HttpClient(name, http, sink=sink, clock=clock), clock)


def _probed(settings: Settings, registry: Registry) -> list[tuple[UpstreamState, str]]:
    """The upstreams to probe, and the model to probe each with: that of the first route that names one."""
    probed = []
    for name, upstream_settings in settings.upstreams.items():
        model = next(models_requested(settings, name), None)
        if upstream_settings.probe and model is not None and registry[name].upstream.can_serve(Api.CHAT):
            probed.append((registry[name], model))
    return probed
