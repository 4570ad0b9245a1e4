"""The system that serves now, for objects that outlive a reload: metrics, workers' answers, judges of semantic caches.

They are made before any system, and each of them reads what it needs from here when it needs it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from stayfast.compose.caching import Stores, prefix_counts, prefix_gauges, semantic_gauges, store_rows
from stayfast.compose.credentials import Sources, credential_gauges
from stayfast.compose.embedded import speculation_rows
from stayfast.compose.encoder_metrics import encoder_counts, encoder_gauges
from stayfast.compose.enough import tier_evidence_counts, tier_evidence_gauges
from stayfast.compose.fleet import quota_counters, quota_gauges
from stayfast.compose.history_reports import history_counts
from stayfast.compose.kv_events import KvEvents, kv_event_counts, kv_event_gauges
from stayfast.compose.passthrough import passed_rows
from stayfast.compose.routes import prediction_error_rows, route_cache_rows
from stayfast.compose.telemetry import ejection_rows, limit_rows, queue_rows, selection_rows, thread_rows
from stayfast.compose.tiers import tier_rows
from stayfast.compose.warm import replica_rows
from stayfast.core.clock import Clock
from stayfast.core.types import Request
from stayfast.observe.metrics.counters import Labels, Samples
from stayfast.observe.metrics.definitions import PASSED_IN_FLIGHT, RETRY_BUDGET
from stayfast.observe.tracing.config import Peer
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.pipeline.passthrough.service import PassThrough
from stayfast.pipeline.plan import Route
from stayfast.pipeline.stages.admit.admission import Admission, Admit
from stayfast.pipeline.stages.relay import Reply
from stayfast.policy.resilience.stall import TokenFlow
from stayfast.policy.warm.phases import Phase
from stayfast.settings import Settings
from stayfast.settings.effective import SettingsReport
from stayfast.stores.embedder import Embedders
from stayfast.turns.served import ServedTurn
from stayfast.upstreams.state.registry import Registry
from stayfast.upstreams.state.upstream_state import UpstreamState
from stayfast.workers.fleet.quota_leases import QuotaLeases

GATEWAY = "(gateway)"  # the "upstream" of requests that wait before one is chosen; settings cannot name one like this


@dataclass(frozen=True, slots=True)
class Running:
    """The parts of one system that outlasting objects read."""

    gateway: Gateway
    registry: Registry
    stores: Stores
    turns: Mapping[str, ServedTurn]  # by upstream
    flows: Mapping[str, TokenFlow]  # of upstreams with an alternative, by name
    peers: Mapping[str, Peer]  # network addresses of upstreams, by name
    leases: QuotaLeases | None = None  # None: no other gateway shares the quotas
    effective: SettingsReport | None = None  # None: in a laboratory
    credentials: Sources = field(default_factory=dict)
    passthrough: PassThrough | None = None  # None: it is off
    embedding: Embedders | None = None  # None: nothing needs an encoder
    kv_events: KvEvents | None = None  # None: no engine publishes any


class CurrentSystem:
    """Empty before the first system is built. Belongs to one loop."""

    __slots__ = ("_clock", "_running", "read_job_gauges")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: Running | None = None
        self.read_job_gauges: Callable[[], Samples] = dict  # of this process's jobs

    def swap(self, running: Running) -> None:
        """A system was built, at the start or by a reload."""
        self._running = running

    async def serve(self, request: Request, arrival: Arrival) -> Reply:
        """Serve a request that the gateway makes itself."""
        assert self._running is not None
        return await self._running.gateway.serve(request, arrival)

    def routes(self) -> Mapping[str, Route]:
        return self._running.gateway.router.routes if self._running is not None else {}

    def admission(self) -> Admit | None:
        """None: no system runs yet."""
        return self._running.gateway.admit if self._running is not None else None

    def is_shedding(self) -> bool:
        """Whether requests are rejected or wait now, so that no optional load is added."""
        admit = self.admission()
        return isinstance(admit, Admission) and admit.is_shedding(self._clock.now())

    def turns(self) -> Mapping[str, ServedTurn]:
        return self._running.turns if self._running is not None else {}

    def flows(self) -> Mapping[str, TokenFlow]:
        return self._running.flows if self._running is not None else {}

    def credentials(self) -> Sources:
        return self._running.credentials if self._running is not None else {}

    def kv_events(self) -> KvEvents | None:
        return self._running.kv_events if self._running is not None else None

    def peers(self) -> Mapping[str, Peer]:
        return self._running.peers if self._running is not None else {}

    def settings(self) -> Settings | None:
        """None: no system runs yet."""
        effective = self.effective()
        return effective.origin if effective is not None else None

    def effective(self) -> SettingsReport | None:
        """None: no system runs yet."""
        return self._running.effective if self._running is not None else None

    def shows_prompts(self) -> bool:
        """Whether admins may read the texts of system prompts."""
        settings = self.settings()
        return settings is not None and settings.prompts.content

    def first_token_promise(self, route: str) -> tuple[float, float] | None:
        """Seconds to the first token that a route promises, and the promised share; None: no promise."""
        settings = self.settings()
        promised = settings.routes[route].slo.ttft if settings is not None and route in settings.routes else None
        return (promised.under_s, promised.share) if promised is not None else None

    def first_token_bound(self, route: str) -> float | None:
        """The first part of `first_token_promise`."""
        promise = self.first_token_promise(route)
        return promise[0] if promise is not None else None

    def members(self) -> Iterable[UpstreamState]:
        return self._running.registry if self._running is not None else ()

    def set_drained(self, upstream: str, what: str) -> bool:
        """drain: prefer all other upstreams to this one. undrain: end that. False: it is unknown, or has no phases."""
        member = next((member for member in self.members() if member.upstream.name == upstream), None)
        if member is None or member.replica is None:
            return False
        if what == "drain":
            member.replica.drain(self._clock.now())
        else:
            member.replica.undrain(self._clock.now())
        return True

    def list_drained(self) -> list[str]:
        """The upstreams that an operator drains."""
        return [member.upstream.name for member in self.members()
                if member.replica is not None and member.replica.phase is Phase.DRAINING]

    def in_flight(self) -> Iterable[tuple[str, int]]:
        """Requests in flight, by upstream."""
        return [(member.upstream.name, member.n_in_flight) for member in self._running.registry] if self._running else ()

    def queued(self) -> Iterable[tuple[Labels, int]]:
        """Requests that wait, by upstream and lane; for a place in the gateway, by band."""
        if self._running is None:
            return ()
        admit = self._running.gateway.admit
        in_gateway = admit.places.queue_depths() if isinstance(admit, Admission) else ()
        return [*(((GATEWAY, band), n) for band, n in in_gateway), *queue_rows(self._running.registry)]

    def n_queued_for(self, upstream: str) -> int:
        """Requests of all workers that wait for a place at an upstream, and of this one for a place in the gateway."""
        running = self._running
        member = next((one for one in self.members() if one.upstream.name == upstream), None)
        if running is None or member is None:
            return 0
        shared = [limited.shared_limit for limited in member.all_limiters if limited.shared_limit is not None]
        admit = running.gateway.admit
        in_gateway = admit.places.n_waiting if isinstance(admit, Admission) else 0
        return member.n_waiting + sum(limit.n_waiting_elsewhere() for limit in shared) + in_gateway

    def gauges(self) -> Samples:
        running = self._running
        if running is None:
            return {}
        routes, now = running.gateway.router.routes, self._clock.now()
        return {**limit_rows(running.registry), **replica_rows(running.registry, routes),
                **ejection_rows(routes, now), **prediction_error_rows(running.registry),
                **route_cache_rows(routes),
                **store_rows(running.stores), **prefix_gauges(routes, now), **semantic_gauges(routes),
                **encoder_gauges(running.embedding),
                **tier_evidence_gauges(routes),
                **thread_rows(running.turns), **self.read_job_gauges(), **quota_gauges(running.leases),
                **credential_gauges(running.credentials), **kv_event_gauges(running.kv_events, now),
                PASSED_IN_FLIGHT.name: passed_rows(running.passthrough),
                RETRY_BUDGET.name: [((route.name,), route.hedging.budget.extra_share(now)) for route in routes.values()]}

    def counters(self) -> Samples:
        routes, running = self.routes(), self._running
        leases = running.leases if running is not None else None
        return {**selection_rows(routes), **tier_rows(routes), **tier_evidence_counts(routes), **prefix_counts(routes),
                **history_counts(routes), **kv_event_counts(self.kv_events()),
                **encoder_counts(running.embedding if running is not None else None),
                **speculation_rows(running.registry if running is not None else ()),
                **quota_counters(leases)} if routes else {}
