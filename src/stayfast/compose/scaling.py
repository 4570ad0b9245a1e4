"""`GET /admin/scaling` and its metrics: the load of each pool over all workers, and how many replicas it needs.

Worker 0 collects the loads of all workers every EVERY_S and holds the history; the others pass queries on to it. An advice
older than FRESH_S is not shown: an old number would keep a cluster at its old size.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from typing import Final

import msgspec

from stayfast.compose.current import CurrentSystem
from stayfast.core.clock import Clock
from stayfast.observe.metrics.counters import Samples
from stayfast.observe.metrics.definitions import (
    SCALING_BACKLOG,
    SCALING_QUEUE,
    SCALING_RUNNING,
    SCALING_SATURATION,
    SCALING_WANTED,
)
from stayfast.pipeline.plan import Route
from stayfast.policy.histogram import LogHistogram, middle_of
from stayfast.policy.warm.scaling import PoolLoad, PoolScaler, ScalingAdvice, merge_loads
from stayfast.upstreams.state.signal_board import SignalBoard
from stayfast.upstreams.state.upstream_state import UpstreamState

EVERY_S: Final = 5.0
FRESH_S: Final = 3 * EVERY_S
LATE_S: Final = 60.0
Loads = dict[str, PoolLoad]  # by pool


class PoolReport(msgspec.Struct, frozen=True):
    """One pool in the JSON. null: unknown."""

    queue: int
    running: int
    n_replicas: int
    n_ready: int
    backlog_s: float | None
    saturation: float | None
    kv_used_ratio: float | None
    slo_miss: float | None
    cold_start_s: float
    replicas_wanted: int
    why: str
    fresh_s: float


class PoolScaling:
    """Of one process. Only worker 0 runs it."""

    def __init__(self, current: CurrentSystem, clock: Clock, first_tokens: Callable[[str, float], LogHistogram],
                 signals: SignalBoard) -> None:
        """signals: of the engines, which show their KV memory."""
        self._current = current
        self._signals = signals
        self._clock = clock
        self._first_tokens = first_tokens
        self._scalers: dict[str, PoolScaler] = {}
        self._loads: Loads = {}
        self._advice: dict[str, ScalingAdvice] = {}
        self._at = -inf

    async def run(self, read_others: Callable[[], Awaitable[Iterable[Loads]]]) -> None:
        """Renew the advice until cancelled. read_others: the loads of the other workers that answer."""
        while True:
            await self.renew(read_others)
            await asyncio.sleep(EVERY_S)

    async def renew(self, read_others: Callable[[], Awaitable[Iterable[Loads]]]) -> None:
        """Collect the loads, and decide. Does nothing if no route has replicas."""
        routes, own = self._current.routes(), self.read_loads()
        if not own:
            self._loads, self._advice, self._scalers = {}, {}, {}
            return
        for others in await read_others():
            own = {name: merge_loads(load, others[name]) if name in others else load for name, load in own.items()}
        now = self._clock.now()
        self._scalers = {name: self._scaler(name, routes[name]) for name in own if name in routes}
        self._advice = {name: scaler.scale(own[name], now) for name, scaler in self._scalers.items()}
        self._loads, self._at = own, now

    def _scaler(self, name: str, route: Route) -> PoolScaler:
        assert route.pool is not None
        scaler = self._scalers.get(name) or PoolScaler(route.pool.config)
        scaler.configure(route.pool.config)
        return scaler

    def read_loads(self) -> Loads:
        """What this worker sees of each pool."""
        return {name: self._read_load(route) for name, route in self._current.routes().items() if route.pool is not None}

    def _read_load(self, route: Route) -> PoolLoad:
        pool = route.pool
        assert pool is not None
        members = list({target.member: None for target in route.targets if target.member.replica is not None})
        ready = [member for member in members if member.replica is not None and member.replica.is_ready]
        settings = self._current.settings()
        slo = settings.routes[route.name].slo.ttft if settings is not None and route.name in settings.routes else None
        counts = self._first_tokens(route.name, LATE_S).counts if slo is not None else {}
        return PoolLoad(
            len(members), len(ready), sum(member.n_waiting for member in members) + pool.n_held,
            sum(member.n_in_flight for member in members), _sum_places(ready),
            _backlog_tokens(members), _prefill_rate(ready), self._read_kv_used(members),
            cold_start_s=max(replica.cold_start_s for replica in pool.replicas.values()),
            floor_s=min((member.fastest_ttft_s for member in ready if member.fastest_ttft_s), default=None),
            slo_s=slo.under_s if slo is not None else None, n_first=sum(counts.values()),
            n_late=sum(n for bucket, n in counts.items() if slo is not None and middle_of(bucket) > slo.under_s))

    def _read_kv_used(self, members: Iterable[UpstreamState]) -> float | None:
        """Of the fullest replica; None: no engine shows it, or not lately."""
        now = self._clock.now()
        shown = [self._signals.signals_of(member.upstream.name, now) for member in members]
        return max((one.kv_used_ratio for one in shown if one is not None and one.kv_used_ratio is not None), default=None)

    def report(self) -> bytes:
        """The JSON of `GET /admin/scaling`. Without pools, or without a fresh advice, `pools` is empty."""
        return msgspec.json.encode({"pools": self._reports()})

    def _reports(self) -> dict[str, PoolReport]:
        fresh_s = self._clock.now() - self._at
        if fresh_s > FRESH_S:
            return {}
        return {name: PoolReport(
            load.queue, load.running, load.n_replicas, load.n_ready, load.backlog_s, load.saturation, load.kv_used_ratio,
            load.n_late / load.n_first if load.n_first and load.slo_s is not None else None, load.cold_start_s,
            self._advice[name].replicas_wanted, self._advice[name].why, round(fresh_s, 3))
            for name, load in self._loads.items() if name in self._advice}

    def gauges(self) -> Samples:
        """Gauges of worker 0; unknown figures have no series."""
        pools = self._reports().items()
        return {
            SCALING_WANTED.name: [((name,), pool.replicas_wanted) for name, pool in pools],
            SCALING_QUEUE.name: [((name,), pool.queue) for name, pool in pools],
            SCALING_RUNNING.name: [((name,), pool.running) for name, pool in pools],
            SCALING_SATURATION.name: [((name,), pool.saturation) for name, pool in pools if pool.saturation is not None],
            SCALING_BACKLOG.name: [((name,), pool.backlog_s) for name, pool in pools if pool.backlog_s is not None]}


def _sum_places(members: Iterable[UpstreamState]) -> float | None:
    """None: one of them has no limit, or none is ready."""
    limiters = [limiter for member in members for limiter in (member.lanes.values() if member.lanes else (
        member.whole_limiter,))]
    n_places = sum(limiter.limit.value for limiter in limiters)
    return n_places if limiters and n_places < inf else None


def _backlog_tokens(members: Iterable[UpstreamState]) -> float | None:
    known = [member.predictors.ahead.n for member in members if member.predictors is not None]
    return sum(known) if known else None


def _prefill_rate(members: Iterable[UpstreamState]) -> float | None:
    """The mean of the replicas whose rate is known."""
    rates = [rate for member in members if member.predictors is not None
             and (rate := member.predictors.prefill_tokens_per_s) is not None]
    return sum(rates) / len(rates) if rates else None
