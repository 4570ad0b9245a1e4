"""How many replicas a pool needs, and why.

Problem: by the time that a queue shows too few replicas, a new one takes a cold start to help; and one that is removed in a
lull must be loaded again. Rule: the demand in replicas is the largest of

    queue         n_ready + 1                             when at least QUEUE requests a ready replica wait: at the
                                                          gateway, or in the engines
    saturation    (running + queue) / (0.7 * places of one replica)
    backlog       n_ready * backlog_s / 1.5 s             backlog_s = prompt tokens without a first token / (n_ready * V_P)
    kv            n_ready * kv_used / 0.8

The load (running + queue, and backlog_s) is looked at one cold start ahead, with Holt's linear trend, if it grows; at most
twice the present. Up at once, down to the largest demand of the last max(quiet_s, 3 * cold start), within the pool's bounds.
Without places, V_P and KV memory only the queue counts, and the advice says so. No number of replicas makes a first token
quicker than it is at an idle one: `why` says when the objective is below that floor.
Source: the thresholds of llm-d's workload autoscaling guide (queue 1, saturation 0.7, 1.5 s of prefill, KV 0.8); Holt, on
trends (1957); the window is the HPA's stabilization of scale-down.
When wrong: places learned while all requests were short; a step is no trend, so the first cold start after one is late; a
replica that others share counts wholly here.
"""

from collections import deque
from math import ceil
from typing import Final

import msgspec

from stayfast.policy.histogram import LogHistogram, Packed
from stayfast.policy.warm.config import ReplicaPoolConfig

QUEUE: Final = 1.0
SATURATION: Final = 0.7
BACKLOG_S: Final = 1.5
KV: Final = 0.8
COLD_STARTS: Final = 3.0  # of a quiet window
MAX_AHEAD: Final = 2.0
LEVEL_LEARNS, TREND_LEARNS = 0.5, 0.2


class PoolLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """One pool at one instant, over all workers. None: unknown, which is not 0."""

    n_replicas: int = 0
    n_ready: int = 0
    queue: int = 0  # requests that wait at the gateway for a place or a replica
    running: int = 0
    places: float | None = None  # of all ready replicas together
    backlog_tokens: float | None = None  # prompt tokens of calls without a first token
    prefill_tokens_per_s: float | None = None  # of one replica
    kv_used_ratio: float | None = None  # of the fullest replica
    cold_start_s: float = 60.0  # p90
    floor_s: float | None = None  # the quickest recent first token
    slo_s: float | None = None  # the objective for first tokens
    n_first: int = 0  # first tokens in the last minute, and those later than the objective
    n_late: int = 0
    engine_queue: float | None = None  # requests that wait in the engines, which the gateway counts as running
    waits: Packed = ()  # histogram of the last minute: time before the first token in which no call ran

    @property
    def wait_p95_s(self) -> float | None:
        """None: no first token came in the last minute."""
        return LogHistogram(self.waits).quantile(0.95)

    @property
    def backlog_s(self) -> float | None:
        """Seconds of prefill that wait at each ready replica."""
        if self.backlog_tokens is None or not self.prefill_tokens_per_s:
            return None
        return self.backlog_tokens / (max(1, self.n_ready) * self.prefill_tokens_per_s)

    @property
    def saturation(self) -> float | None:
        return (self.running + self.queue) / self.places if self.places else None


def merge_loads(one: PoolLoad, other: PoolLoad) -> PoolLoad:
    """The load of a pool at two workers. What workers count alone adds up; what they see of the same replicas does not."""
    waits = LogHistogram(one.waits)
    waits.merge(LogHistogram(other.waits))
    return PoolLoad(
        max(one.n_replicas, other.n_replicas), max(one.n_ready, other.n_ready), one.queue + other.queue,
        one.running + other.running, _largest(one.places, other.places),
        _sum(one.backlog_tokens, other.backlog_tokens), _largest(one.prefill_tokens_per_s, other.prefill_tokens_per_s),
        _largest(one.kv_used_ratio, other.kv_used_ratio), max(one.cold_start_s, other.cold_start_s),
        min((value for value in (one.floor_s, other.floor_s) if value is not None), default=None),
        one.slo_s if one.slo_s is not None else other.slo_s, one.n_first + other.n_first, one.n_late + other.n_late,
        _largest(one.engine_queue, other.engine_queue), waits.pack())


def _largest(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


class ScalingAdvice(msgspec.Struct, frozen=True):
    """The answer for one pool. why: the measure that decided, with its figures."""

    replicas_wanted: int
    why: str


class HoltTrend:
    """Holt's linear trend of a series with irregular steps. Pure state."""

    __slots__ = ("_at", "_level", "_trend")

    def __init__(self) -> None:
        self._level = self._trend = 0.0
        self._at: float | None = None

    def add(self, value: float, now: float) -> None:
        if self._at is None:
            self._level, self._at = value, now
            return
        step_s = now - self._at
        if step_s <= 0:
            return
        before = self._level
        self._level += self._trend * step_s
        self._level += LEVEL_LEARNS * (value - self._level)
        self._trend += TREND_LEARNS * ((self._level - before) / step_s - self._trend)
        self._at = now

    def ahead(self, value: float, seconds: float) -> float:
        """The value so much later, if it grows; at most MAX_AHEAD times the present one."""
        return min(MAX_AHEAD * value, value + max(0.0, self._trend) * seconds)


class PoolScaler:
    """The state of one pool. Pure; changed only by its owner."""

    __slots__ = ("_backlog", "_config", "_load", "_recent", "_since")

    def __init__(self, config: ReplicaPoolConfig) -> None:
        self._config = config
        self._load, self._backlog = HoltTrend(), HoltTrend()
        self._recent: deque[tuple[float, int]] = deque()  # instant, demand
        self._since: float | None = None

    def configure(self, config: ReplicaPoolConfig) -> None:
        """Use other bounds from the next advice on."""
        self._config = config

    def scale(self, load: PoolLoad, now: float) -> ScalingAdvice:
        """The advice for this load, which becomes part of the history."""
        config, demand, why = self._config, *self._demand(load, now)
        wanted = max(0, ceil(demand - 1e-9))
        quiet_s = max(config.quiet_s, COLD_STARTS * load.cold_start_s)
        if self._since is None:
            self._since = now
            self._recent.append((now, load.n_ready))  # what runs now was needed, as far as is known
        while self._recent and self._recent[0][0] <= now - quiet_s:
            self._recent.popleft()
        while self._recent and self._recent[-1][1] <= wanted:
            self._recent.pop()
        self._recent.append((now, wanted))
        largest = self._recent[0][1]
        if largest > wanted:
            wanted, why = largest, f"{why}; {largest} were needed in the last {quiet_s:.0f} s"
        if wanted < config.min_replicas:
            wanted, why = config.min_replicas, f"{why}; at least {config.min_replicas} by the pool's settings"
        if wanted > config.max_replicas:
            wanted, why = config.max_replicas, f"{why}; at most {config.max_replicas} by the pool's settings"
        if load.slo_s is not None and load.floor_s is not None and load.slo_s < load.floor_s:
            why += (f". The objective of {load.slo_s:.3g} s is below {load.floor_s:.3g} s, the quickest first token: no "
                    "number of replicas meets it")
        return ScalingAdvice(wanted, why)

    def _demand(self, load: PoolLoad, now: float) -> tuple[float, str]:
        """The demand in replicas, and the measure that decides."""
        n_ready, ahead_s = max(1, load.n_ready), load.cold_start_s
        n_now = float(load.running + load.queue)
        self._load.add(n_now, now)
        found: list[tuple[float, str]] = []
        if load.queue + (load.engine_queue or 0.0) >= QUEUE * n_ready:
            in_engines = f" and {load.engine_queue:.0f} in their engines" if load.engine_queue else ""
            found.append((load.n_ready + 1.0, f"{load.queue} requests wait at {load.n_ready} ready replicas{in_engines}"))
        if load.places and load.n_ready:
            n_ahead = self._load.ahead(n_now, ahead_s)
            grown = f", {n_ahead:.0f} in {ahead_s:.0f} s" if n_ahead > 1.05 * n_now else ""
            each = load.places / load.n_ready
            found.append((n_ahead / (SATURATION * each),
                          f"{n_now:.0f} requests{grown}, against {SATURATION:g} of {each:.0f} places each"))
        if (backlog_s := load.backlog_s) is not None:
            self._backlog.add(backlog_s, now)
            backlog_s = self._backlog.ahead(backlog_s, ahead_s)
            found.append((n_ready * backlog_s / BACKLOG_S, f"backlog {backlog_s:.2g} s of prefill, against {BACKLOG_S:g} s"))
        if load.kv_used_ratio is not None:
            found.append((n_ready * load.kv_used_ratio / KV, f"KV memory {load.kv_used_ratio:.0%} used, against {KV:.0%}"))
        if not load.places and load.backlog_s is None and load.kv_used_ratio is None:
            found.append((float(load.n_ready) if n_now else 0.0,
                          "only the queue is known: neither places, nor prefill rate, nor KV memory"))
        found.append((1.0 if n_now else 0.0, "one replica is enough" if n_now else "no load"))
        return max(found, key=lambda one: one[0])
