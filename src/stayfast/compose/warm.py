"""Replicas of the settings: which upstreams have phases, their pools, and what watches them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final, Protocol, runtime_checkable

import msgspec

from stayfast.compose.engine_metrics import open_engine_client
from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, StayfastError, UpstreamFailed
from stayfast.core.events import Sink
from stayfast.core.replicas import PhaseChanged
from stayfast.observe.metrics.counters import Samples
from stayfast.observe.metrics.definitions import COLD_START, POOL_HELD, POOL_READY, REPLICA_PHASE
from stayfast.pipeline.attempts.readiness import Prober
from stayfast.pipeline.plan import Route
from stayfast.pipeline.warm.replica_watch import ReplicaControl, ReplicaWatch, WatchParts
from stayfast.pipeline.warm.route_pool import RoutePool
from stayfast.policy.warm.config import ReplicaConfig
from stayfast.policy.warm.phases import Phase, Replica
from stayfast.settings import EmbeddedUpstream, HttpUpstream, RouteSettings, Settings
from stayfast.upstreams.state.registry import Registry
from stayfast.upstreams.state.signal_board import SignalBoard
from stayfast.upstreams.state.upstream_state import UpstreamState

ENGINES: Final = frozenset(("vllm", "sglang", "llamacpp", "tgi", "trtllm"))  # providers, as settings name them
TIMEOUT_S: Final = 2.0
WAKE_TIMEOUT_S: Final = 60.0
MAX_BODY_BYTES: Final = 1 << 16
_OK, _UNAVAILABLE = 200, 503


@runtime_checkable
class HasPhases(Protocol):
    """Settings of an upstream that may be a replica."""

    @property
    def warm(self) -> ReplicaConfig: ...

    @property
    def probe(self) -> bool: ...


def attach_replicas(settings: Settings, registry: Registry, before: Registry | None) -> None:
    """Give upstreams their phases. before: of a reload; what was known of an upstream of the same name stays."""
    known = {member.upstream.name: member.replica for member in before} if before is not None else {}
    for name, upstream in settings.upstreams.items():
        member, old = registry[name], known.get(name)
        if member.replica is not None or not isinstance(upstream, HasPhases) or not _has_phases(upstream):
            continue
        member.replica = Replica(upstream.warm)
        member.predict_ttft()  # whose prefill rate scaling needs
        if old is not None:
            member.replica.adopt(old)


def _has_phases(upstream: HasPhases) -> bool:
    if upstream.warm.phases != "auto":
        return upstream.warm.phases == "on"
    is_served = isinstance(upstream, HttpUpstream) and upstream.provider in ENGINES
    return upstream.probe and (is_served or isinstance(upstream, EmbeddedUpstream))


def make_pool(name: str, route: RouteSettings, registry: Registry, old: Route | None) -> RoutePool | None:
    """The pool of a route's own replicas; None: it has none. old: before a reload; requests may wait in its pool."""
    replicas = {up: replica for up in route.own_upstreams if (replica := registry[up].replica) is not None}
    if not replicas:
        return None
    before = old.pool if old is not None else None
    if before is not None and before.config == route.pool and before.replicas == replicas:
        return before
    return RoutePool(name, route.pool, replicas)


def connect_replicas(registry: Registry, routes: Mapping[str, Route], sink: Sink) -> None:
    """Report changes of phase to the log, and to the requests that wait for one."""
    pools = [route.pool for route in routes.values() if route.pool is not None]
    for member in registry:
        if member.replica is not None:
            own = [pool for pool in pools if member.upstream.name in pool.replicas]
            member.replica.on_change = partial(_report_change, member, own, sink)


def _report_change(member: UpstreamState, pools: Iterable[RoutePool], sink: Sink, replica: Replica) -> None:
    member.may_be_suspended = True  # until the next request finds that it is not
    sink.emit(PhaseChanged(member.upstream.name, replica.phase.value, replica.why))
    for pool in pools:
        pool.note_change()


def make_watches(settings: Settings, routes: Mapping[str, Route], prober: Prober, *, clock: Clock, rng: Random,
                 board: SignalBoard | None = None) -> Sequence[ReplicaWatch]:
    """One for each replica that is probed. board: of the engines' metrics; None: nothing reads them."""
    pools = [route.pool for route in routes.values() if route.pool is not None]
    watches = []
    for member, model in prober.targets:
        name = member.upstream.name
        if member.replica is not None:
            parts = WatchParts(prober, _make_control(name, settings, member, clock), partial(_sleeps, board, name, clock),
                               [pool for pool in pools if name in pool.replicas], clock, rng)
            watches.append(ReplicaWatch(member, member.replica, model, parts))
    return watches


def _sleeps(board: SignalBoard | None, name: str, clock: Clock) -> bool | None:
    signals = board.signals_of(name, clock.now()) if board is not None else None
    return signals.is_sleeping if signals is not None else None


def _make_control(name: str, settings: Settings, member: UpstreamState, clock: Clock) -> ReplicaControl | None:
    upstream = settings.upstreams[name]
    if isinstance(upstream, HttpUpstream):
        return EngineControl(name, upstream, clock)
    return member.upstream if isinstance(member.upstream, ReplicaControl) else None


def replica_rows(registry: Registry, routes: Mapping[str, Route]) -> Samples:
    """Gauges of replicas and pools. A replica that left the settings has no series."""
    replicas = [(member.upstream.name, member.replica) for member in registry if member.replica is not None]
    pools = [(name, route.pool) for name, route in routes.items() if route.pool is not None]
    return {
        REPLICA_PHASE.name: [((name, phase.value), float(replica.phase is phase)) for name, replica in replicas
                             for phase in Phase],
        COLD_START.name: [((name,), replica.loads.p90_s) for name, replica in replicas],
        POOL_READY.name: [((name,), pool.n_ready) for name, pool in pools],
        POOL_HELD.name: [((name,), pool.n_held) for name, pool in pools]}


class EngineControl:
    """The endpoints of an engine at the root of its base URL: /health, and those to see and end its sleep."""

    def __init__(self, name: str, upstream: HttpUpstream, clock: Clock) -> None:
        self._client, self._headers = open_engine_client(name, upstream, clock)
        self._provider = upstream.provider
        self._may_wake = upstream.warm.wake

    async def check_health(self) -> bool | None:
        status, _ = await self._fetch("GET", "/health", TIMEOUT_S)
        if status == _OK:
            return True
        return False if status in (0, _UNAVAILABLE) else None

    async def check_sleep(self) -> bool | None:
        if not self._may_wake or self._provider != "vllm":
            return None
        status, body = await self._fetch("GET", "/is_sleeping", TIMEOUT_S)
        if status != _OK:
            return None
        try:
            return msgspec.json.decode(body, type=_Sleep).is_sleeping
        except msgspec.DecodeError:
            return None

    async def wake(self) -> bool:
        is_sglang = self._provider == "sglang"
        status, _ = await self._fetch("POST", "/resume_memory_occupation" if is_sglang else "/wake_up", WAKE_TIMEOUT_S,
                                      b"{}" if is_sglang else b"")
        return status == _OK

    async def _fetch(self, method: str, path: str, timeout_s: float, body: bytes = b"") -> tuple[int | None, bytes]:
        """Status and body. 0: refused; None: no answer for another reason."""
        client = self._client
        headers = [*self._headers, ("content-type", "application/json")] if body else self._headers
        try:
            page = await client.fetch(method, f"{client.base_path}{path}", headers, body, timeout_s=timeout_s,
                                      max_body_bytes=MAX_BODY_BYTES)
        except UpstreamFailed as failed:
            return (0 if failed.fault is Fault.CONNECT else None), b""
        except StayfastError:
            return None, b""
        return page.status, page.body

    def close(self) -> None:
        self._client.close()


class _Sleep(msgspec.Struct, frozen=True):
    is_sleeping: bool
