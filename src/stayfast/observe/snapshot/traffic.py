"""Counts requests by route and upstream, in ticks of 1 s and slots of 5 s. A consumer of facts, on the path of requests.

Exact: all counts, and the times to the first token and to the end. All else (stages, gaps, time per token, ...) costs three
times as much, so busy series sample it: of the requests of one slot, after request n the next k - 1 are left out, and it
counts k times.

    k = 1 + n // N,  N = 256 / busy series, from 8 to 128

So the first N requests of a slot all count, and n requests cost about N * (1 + ln(n / N)) of them. Means and shares stay
unbiased; the n of such a `Spread` is an estimate.

Figures of attempts (attempts, retries, hedges, stalls, faults, tokens, cost) belong to the upstream that was called, all
others to the one that answered. Answers of the cache have the upstream `(cache)`, requests that ended before any call an
empty one. Requests of jobs are not counted. At most MAX_SERIES series: further ones are summed as `(other)`.

Memory: one series has an open slot, a tick, and MAX_CLOSED closed slots until worker 0 fetches them; a slot of 500 varied
requests takes about 40 kB (tests), an idle series 3 kB.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from math import floor, inf, log2
from typing import Any

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.events import AttemptDone, BreakerChanged, Hedged, RequestDone
from stayfast.core.types import FROM_CACHE, JOB, NO_ROUTE
from stayfast.observe.fact_batch import FactHandlers, one_by_one
from stayfast.observe.snapshot.parts import (
    BUCKETS_PER_QUARTER,
    OTHER,
    STAGES,
    Counts,
    SeriesKey,
    TrafficPart,
)
from stayfast.policy.histogram import PER_OCTAVE, LogHistogram, Window, bucket_of

TICK_S = 1.0
SLOT_S = 5.0
MAX_SERIES = 200
MAX_CLOSED = 24  # slots of two minutes
LIMIT_CODES = "_s_exceeded"  # suffix of the gateway's own codes of time limits
HITS = frozenset(("hit", "stale", "semantic"))
_DETAILED, _MIN_DETAILED, _MAX_DETAILED = 256, 8, 128
_SCALE = float(PER_OCTAVE)
_ZERO = 30.0 * _SCALE
_LEAST = 2.0**-29
CLOSED = "closed"
_STAGE_INDEX = {stage: number for number, stage in enumerate(STAGES, 1)}
Promise = Callable[[str], float | None]  # seconds to the first token that a route promises


class ClosedSlot(msgspec.Struct, frozen=True):
    """All series of one span of SLOT_S. number: its start in monotonic seconds over SLOT_S, the same in all workers."""

    number: int
    series: list[tuple[str, str, TrafficPart]]


class LiveSeries(msgspec.Struct, frozen=True, omit_defaults=True):
    """One series now. heat: times to the first token of the last whole tick. open: the open slot."""

    route: str
    upstream: str
    n_tick: int = 0
    heat: Counts = {}
    open: TrafficPart = msgspec.field(default_factory=TrafficPart)


class _Series:
    """One route and upstream."""

    __slots__ = ("last_heat", "last_n", "n_tick", "next_detailed", "part", "promise_s", "route", "tick", "upstream",
                 "window")

    def __init__(self, route: str, upstream: str, promise_s: float) -> None:
        self.route = route
        self.upstream = upstream
        self.promise_s = promise_s
        self.part = TrafficPart()
        self.tick: defaultdict[int, int] = defaultdict(int)  # of the open tick, not yet in `part`
        self.n_tick = 0
        self.last_heat: Counts = {}  # of the tick before
        self.last_n = 0
        self.next_detailed = 0  # number of the next request of the slot whose details count
        self.window = Window()  # times to the first token of an hour

    def count_times(self, facts: list[RequestDone]) -> None:
        tick, e2e, promise_s, n_late, n_streamed = self.tick, self.part.e2e_s, self.promise_s, 0, 0
        for fact in facts:
            ttft_s = fact.ttft_s
            if ttft_s is not None:
                tick[floor(log2(ttft_s) * _SCALE + _ZERO) if ttft_s > _LEAST else 0] += 1
                if ttft_s > promise_s:
                    n_late += 1
            spent_s = fact.ended_at - fact.accepted_at
            bucket = floor(log2(spent_s) * _SCALE + _ZERO) if spent_s > _LEAST else 0
            e2e[bucket] = e2e.get(bucket, 0) + 1
            if fact.stream:
                n_streamed += 1
        self.part.n_late += n_late
        self.part.n_streamed += n_streamed

    def close_tick(self, now: float) -> None:
        tick = self.tick
        self.last_heat, self.last_n = tick, self.n_tick
        if self.n_tick:
            counts = self.part.ttft_s
            for bucket, n in tick.items():
                counts[bucket] = counts.get(bucket, 0) + n
            self.window.add_all(tick, now)
            self.tick, self.n_tick = defaultdict(int), 0

    def close_slot(self) -> TrafficPart | None:
        """The slot; None: nothing happened in it."""
        part = self.part
        if not part.n and not part.n_attempts and not part.n_hedges_refused:
            return None
        self.part, self.next_detailed = TrafficPart(), 0
        return part

    def open_part(self, *, has_details: bool) -> TrafficPart:
        """The open slot, the open tick included. It shares what does not change until it is encoded or merged."""
        part = msgspec.structs.replace(self.part) if has_details else self.part.without_details()
        part.ttft_s = dict(part.ttft_s)
        for bucket, n in self.tick.items():
            part.ttft_s[bucket] = part.ttft_s.get(bucket, 0) + n
        return part


class TrafficSink:
    """The traffic of one worker. For one event loop."""

    def __init__(self, clock: Clock, promise_s: Promise = lambda route: None) -> None:
        self._clock = clock
        self._promise_s = promise_s
        self._series: dict[SeriesKey, _Series] = {}
        self._by_fact: dict[tuple[str | None, str | None], _Series] = {}  # the same, by a fact's own names
        self._closed: deque[ClosedSlot] = deque(maxlen=MAX_CLOSED)
        self._tick = -1  # number of the open tick
        self._tick_ends_at = -inf
        self._n_detailed = _MAX_DETAILED
        self._breaker_changes: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=1000))
        self._breakers: dict[str, str] = {}  # states

    @property
    def handlers(self) -> FactHandlers:
        return {RequestDone: self._count_requests, Hedged: one_by_one(self._count_hedge),
                BreakerChanged: one_by_one(self._count_breaker)}

    def _count_requests(self, facts: Sequence[RequestDone]) -> None:
        self.roll(self._clock.now())
        by_series: defaultdict[tuple[str | None, str | None], list[RequestDone]] = defaultdict(list)
        for fact in facts:
            if fact.role != JOB:
                by_series[fact.route, fact.upstream].append(fact)
        for key, same in by_series.items():
            self._take(self._by_fact.get(key) or self._find(key), same)

    def roll(self, now: float) -> None:
        """Close the tick and the slot if they have ended."""
        if now < self._tick_ends_at:
            return
        tick = int(now // TICK_S)
        before, self._tick, self._tick_ends_at = self._tick, tick, (tick + 1) * TICK_S
        for series in self._series.values():
            series.close_tick(before * TICK_S)
        slot_before, slot = int(before * TICK_S // SLOT_S), int(tick * TICK_S // SLOT_S)
        if slot != slot_before:
            self._close_slot(slot_before, now)
        if tick != before + 1:  # nothing happened in the last whole tick
            for series in self._series.values():
                series.last_heat, series.last_n = {}, 0

    def closed_since(self, number: int) -> list[ClosedSlot]:
        """The closed slots with higher numbers, oldest first. Slots without requests are left out."""
        self.roll(self._clock.now())
        return [slot for slot in self._closed if slot.number > number]

    def live(self, *, has_details: bool = False) -> list[LiveSeries]:
        """All series now. To be encoded or merged at once: they share counts with the running slot."""
        self.roll(self._clock.now())
        return [LiveSeries(series.route, series.upstream, series.last_n, series.last_heat,
                           series.open_part(has_details=has_details)) for series in self._series.values()]

    def first_tokens(self, route: str | None, seconds: float) -> LogHistogram:
        """Times to the first token on a route in the last `seconds`, from accept, without answers from the cache."""
        now, whole = self._clock.now(), LogHistogram()
        self.roll(now)
        for series in self._of_route(route or NO_ROUTE):
            series.window.add_recent_to(seconds, now, whole)
            whole.add_counts(series.tick)
        return whole

    def own_times(self, route: str, seconds: float) -> LogHistogram:
        """Times before the first token in which no call to an upstream ran, on a route in the last `seconds` (at most two
        minutes): queues, waits for a place or a replica, own work. Sampled, as all details are.
        """
        now, whole = self._clock.now(), LogHistogram()
        self.roll(now)
        for slot in self._closed:
            if (slot.number + 1) * SLOT_S > now - seconds:
                for name, upstream, part in slot.series:
                    if name == route and upstream != FROM_CACHE:
                        whole.add_counts(part.own_s)
        for series in self._of_route(route):
            whole.add_counts(series.part.own_s)
        return whole

    def routes(self) -> set[str]:
        """Routes with requests since the start."""
        return {route for route, _ in self._series}

    def breaker_changes(self, seconds: float) -> dict[str, int]:
        """How often the breaker of each upstream opened or closed in the last `seconds`; at most 1000. Probes that fail are
        no changes.
        """
        since = self._clock.now() - seconds
        return {upstream: n for upstream, instants in self._breaker_changes.items()
                if (n := sum(at >= since for at in instants))}

    def _of_route(self, route: str) -> Iterable[_Series]:
        return [series for series in self._series.values() if series.route == route and series.upstream != FROM_CACHE]

    def _find(self, key: tuple[str | None, str | None]) -> _Series:
        route, upstream = key[0] or NO_ROUTE, key[1] or ""
        if (route, upstream) not in self._series and len(self._series) >= MAX_SERIES:
            route = upstream = OTHER
        series = self._series.get((route, upstream))
        if series is None:
            series = self._series[route, upstream] = _Series(route, upstream, self._promise_of(route))
        if route != OTHER:
            self._by_fact[key] = series
        return series

    def _promise_of(self, route: str) -> float:
        promise_s = self._promise_s(route)
        return inf if promise_s is None else promise_s

    def _close_slot(self, number: int, now: float) -> None:
        busy = []
        for series in self._series.values():
            part = series.close_slot()
            if part is not None:
                busy.append((series.route, series.upstream, part))
            series.promise_s = self._promise_of(series.route)
        if busy:
            self._closed.append(ClosedSlot(number, busy))
        self._n_detailed = max(_MIN_DETAILED, min(_MAX_DETAILED, _DETAILED // (len(busy) or 1)))
        if len(self._series) >= MAX_SERIES:
            self._drop_idle(now)

    def _drop_idle(self, now: float) -> None:
        """Drop series without requests in the last hour."""
        idle = {key for key, series in self._series.items() if not series.window.merge_last(3600.0, now).n}
        self._series = {key: series for key, series in self._series.items() if key not in idle}
        self._by_fact = {}

    def _count_hedge(self, fact: Hedged) -> None:
        if fact.refused:
            self.roll(self._clock.now())
            self._find((fact.route, fact.upstream)).part.n_hedges_refused += 1

    def _count_breaker(self, fact: BreakerChanged) -> None:
        if (fact.state == CLOSED) != (self._breakers.get(fact.upstream, CLOSED) == CLOSED):
            self._breaker_changes[fact.upstream].append(self._clock.now())
        self._breakers[fact.upstream] = fact.state

    def _take(self, series: _Series, facts: list[RequestDone]) -> None:
        part, n_before, n = series.part, series.part.n, len(facts)
        series.n_tick += n
        part.n = n_before + n
        series.count_times(facts)
        self._count_calls(series, facts)
        for fact in facts:
            if fact.status != 200 or fact.over_stage is not None or fact.cache is not None or fact.degraded is not None \
                    or fact.is_client_retry or fact.error is not None:
                self._count_unusual(series, fact)
        number = series.next_detailed
        while number < part.n:
            weight = 1 + number // self._n_detailed
            _count_details(part, facts[number - n_before], weight)
            number += weight
        series.next_detailed = number

    def _count_calls(self, series: _Series, facts: list[RequestDone]) -> None:
        part, upstream = series.part, series.upstream
        n_calls = n_input = n_cached = n_output = 0
        for fact in facts:
            attempts = fact.attempts
            if len(attempts) != 1 or attempts[0].upstream != upstream or attempts[0].fault is not None or attempts[0].stalls:
                self._count_attempts(attempts)
                continue
            attempt, n_calls = attempts[0], n_calls + 1
            usage, cost_usd = attempt.usage, attempt.cost_usd
            if usage is not None:
                n_input += usage.input_total
                n_cached += usage.cached_read
                n_output += usage.output
                if cost_usd is None:
                    part.n_unpriced += 1
            if cost_usd:
                _add(part.cost_usd, attempt.role, cost_usd)
        part.n_attempts += n_calls
        part.n_input_tokens += n_input
        part.n_cached_tokens += n_cached
        part.n_output_tokens += n_output

    def _count_unusual(self, series: _Series, fact: RequestDone) -> None:
        part, status = series.part, fact.status
        if fact.over_stage is not None:
            _add(part.over_stages, fact.over_stage.value, 1)
        if fact.cache is not None:
            _add(part.cache, fact.cache, 1)
            if fact.saved_usd and fact.cache in HITS and status < 400:
                part.saved_usd += fact.saved_usd
        part.n_client_retries += fact.is_client_retry
        part.n_degraded += fact.degraded is not None
        part.n_shed += fact.shed is not None
        if status == 499:
            part.n_left += 1
            return
        if status == 429 or status >= 500:
            part.n_failed += 1
            part.n_late += fact.ttft_s is None and series.promise_s < inf
        elif status >= 400:
            part.n_rejected += 1
        if fact.error is not None:
            part.n_truncated += fact.stream and fact.n_chunks > 0
            part.n_deadline += status == 504 and fact.error.endswith(LIMIT_CODES)

    def _count_attempts(self, attempts: tuple[AttemptDone, ...]) -> None:
        for attempt in attempts:
            key = (attempt.route, attempt.upstream)
            part, role, usage = (self._by_fact.get(key) or self._find(key)).part, attempt.role, attempt.usage
            part.n_attempts += 1
            part.n_retries += role == "retry"
            part.n_fallbacks += role == "fallback"
            part.n_stalls += len(attempt.stalls)
            if attempt.is_hedge:
                part.n_hedges += 1
                part.n_hedges_won += attempt.ttft_s is not None
            if attempt.upstream_status is not None:
                _add(part.faults, str(attempt.upstream_status), 1)
            elif attempt.fault is not None:
                _add(part.faults, attempt.fault, 1)
            if usage is not None:
                part.n_input_tokens += usage.input_total
                part.n_cached_tokens += usage.cached_read
                part.n_output_tokens += usage.output
                part.n_unpriced += attempt.cost_usd is None
            if attempt.cost_usd:
                _add(part.cost_usd, role, attempt.cost_usd)


def _count_details(part: TrafficPart, fact: RequestDone, weight: int) -> None:
    """Count what is sampled. weight: how many requests this one stands for."""
    _add_time(part.tpot_s, fact.tpot_s, weight)
    _add_time(part.gap_most_s, fact.gap_max_s, weight)
    _add_time(part.queue_s, fact.queue_s, weight)
    for attempt in fact.attempts:
        _add_time(part.attempt_s, attempt.ttft_s, weight)
    sums = _count_first_token(part, fact, fact.ttft_s, weight) if fact.ttft_s is not None else [0.0] * (1 + len(STAGES))
    began_at = fact.times.began_at
    stages_s = part.stages_s
    for stage, ended_at in fact.times.ended:
        spent_s, began_at = ended_at - began_at, ended_at
        counts = stages_s.get(stage)
        if counts is None:
            counts = stages_s[stage.value] = {}
        bucket = floor(log2(spent_s) * _SCALE + _ZERO) if spent_s > _LEAST else 0  # _add_time, for each of them
        counts[bucket] = counts.get(bucket, 0) + weight
        sums[_STAGE_INDEX[stage]] += weight * spent_s


def _count_first_token(part: TrafficPart, fact: RequestDone, ttft_s: float, weight: int) -> list[float]:
    """Returns the sums of such requests by stage."""
    if fact.stream or fact.status < 400:
        _add_time(part.usable_s, ttft_s if fact.stream else fact.ended_at - fact.accepted_at, weight)
    _add_time(part.own_s, fact.own_s, weight)
    quarter = bucket_of(ttft_s) // BUCKETS_PER_QUARTER
    sums = part.by_ttft.get(quarter)
    if sums is None:
        sums = part.by_ttft[quarter] = [0.0] * (1 + len(STAGES))
    sums[0] += weight
    return sums


def _add_time(counts: Counts, seconds: float | None, n: int) -> None:
    if seconds is not None:
        bucket = floor(log2(seconds) * _SCALE + _ZERO) if seconds > _LEAST else 0
        counts[bucket] = counts.get(bucket, 0) + n


def _add(counts: dict[Any, Any], key: int | str, n: float) -> None:
    counts[key] = counts.get(key, 0) + n
