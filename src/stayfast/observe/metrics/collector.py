"""Counts facts. A fact costs a few lookups and additions; the Prometheus text is built at the scrape.

Cache savings, by route and kind:

    seconds = (p50 of the route's time to the first token without hits, last 5 minutes) - (the hit's own)
    USD     = prices x the usage stored with the answer: its cost when it was made

The seconds are an estimate: the wait of the median request at that time, not of this one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from stayfast.core.classify import GuardDone, RoutedByClass, TextClassified
from stayfast.core.clock import Clock
from stayfast.core.credentials import CredentialRenewalFailed, CredentialRenewed
from stayfast.core.events import (
    UNPRICED,
    AttemptDone,
    ConnectionOpened,
    ConnectionReused,
    Ejected,
    EngineState,
    Hedged,
    LoopLag,
    Renewed,
    RequestDone,
    RequestRefused,
    Rescued,
    RetryWithheld,
    SemanticJudged,
    SemanticLookup,
    StoreCallDone,
    TokenGaps,
)
from stayfast.core.stage_times import StageDone
from stayfast.core.types import JOB, NO_ROUTE, Api, Outcome, Stage
from stayfast.observe.fact_batch import FactHandlers, one_by_one
from stayfast.observe.metrics import definitions as known
from stayfast.observe.metrics.counters import Histogram, Labels, MetricsSnapshot, Samples, Totals
from stayfast.observe.metrics.definitions import Family
from stayfast.observe.snapshot.traffic import LIMIT_CODES, TrafficSink
from stayfast.policy.histogram import LogHistogram

MEDIAN_TTL_S = 10.0  # lifetime of a computed median
WINDOW_S = 300.0
KINDS = {"hit": "exact", "stale": "exact", "semantic": "semantic"}


class CacheSavings:
    """Counts cache savings into `totals`. For one event loop."""

    __slots__ = ("_clock", "_first_tokens", "_medians", "_seconds", "_usd")

    def __init__(self, totals: Totals, clock: Clock, first_tokens: Callable[[str | None, float], LogHistogram]) -> None:
        self._clock = clock
        self._first_tokens = first_tokens  # (route, last seconds): without cache hits
        self._usd: defaultdict[Labels, float] = totals.counters[known.CACHE_SAVED_USD.name]
        self._seconds: defaultdict[Labels, float] = totals.counters[known.CACHE_SAVED_S.name]
        self._medians: dict[str, tuple[float, float]] = {}  # by route: valid until, median in seconds

    def record_hit(self, fact: RequestDone) -> None:
        route, kind = fact.route or "", KINDS.get(fact.cache or "")
        if kind is None or fact.status >= 400:
            return
        if fact.saved_usd:
            self._usd[route, kind] += fact.saved_usd
        if fact.ttft_s is not None:
            saved_s = self._median_s(route) - fact.ttft_s
            if saved_s > 0:
                self._seconds[route, kind] += saved_s

    def _median_s(self, route: str) -> float:
        now = self._clock.now()
        until, seconds = self._medians.get(route, (-inf, 0.0))
        if now >= until:
            seconds = self._first_tokens(route, WINDOW_S).quantile(0.5) or 0.0
            if seconds:
                self._medians[route] = now + MEDIAN_TTL_S, seconds
        return seconds


Read = Callable[[], Iterable[tuple[str, int]]]
STAGES = tuple(Stage)
LIVE_S = 300.0
_AttemptKey = tuple[str, str, Outcome, str | None, int | None]  # route, upstream, outcome, fault, upstream's status


def outcome_of(fact: RequestDone) -> str:
    """ok, degraded, client_left, failed (5xx, 429), or rejected (other 4xx)."""
    status = fact.status
    if status < 400:
        return "ok" if fact.degraded is None else "degraded"
    if status == 499:
        return "client_left"
    return "failed" if status >= 500 or status == 429 else "rejected"


class MetricsSink:
    """Counts facts. For one event loop, which also serves the scrapes.

    `slo_bounds_s` adds exact buckets to the histograms ttft, usable, e2e, tpot and gap, so that a share "within 0.5 s" is
    counted, not interpolated. Raises ValueError for other names.
    """

    def __init__(self, clock: Clock, traffic: TrafficSink, slo_bounds_s: Mapping[str, Iterable[float]] | None = None, *,
                 in_flight: Read = tuple, lost: Read = tuple,
                 queued: Callable[[], Iterable[tuple[Labels, int]]] = tuple,
                 gauges: Callable[[], Samples] = dict, counters: Callable[[], Samples] = dict) -> None:
        """traffic: a consumer of the same facts before this one. gauges, counters: rows that other objects keep, read at the
        scrape.
        """
        self._traffic = traffic
        self.read_in_flight = in_flight  # requests in flight at the moment of the scrape, by upstream
        self._queued = queued  # requests that wait, by upstream and lane
        self._gauges = gauges
        self._counters = counters
        self.read_lost = lost  # log lines and spans that were thrown away since the start
        self.totals = Totals(known.bounds_of(slo_bounds_s or {}))
        counts, histograms = self.totals.counters, self.totals.histograms
        self._requests, self._attempts = counts[known.REQUESTS.name], counts[known.ATTEMPTS.name]
        self._tokens = counts[known.TOKENS.name]
        self._costs = counts[known.COST.name], counts[known.UNPRICED.name]
        self._reused, self._cache = counts[known.REUSED.name], counts[known.CACHE.name]
        self._gap_s = histograms[known.GAP.name]
        self._saved = CacheSavings(self.totals, clock, self.first_tokens)
        self._series: dict[Labels, _RequestSeries] = {}  # route, upstream, outcome
        self._steps: defaultdict[str, set[str]] = defaultdict(set)  # names of served turns' steps, by upstream

    @property
    def handlers(self) -> FactHandlers:
        rare: dict[type[Any], Callable[[Any], None]] = {
            TokenGaps: self._count_gaps, ConnectionOpened: self._count_connection, Hedged: self._count_hedge,
            LoopLag: self._count_lag, StoreCallDone: self._count_store_call, Ejected: self._count_ejection,
            CredentialRenewed: self._count_renewal, CredentialRenewalFailed: self._count_renewal}
        rows: dict[type[Any], tuple[Family, Callable[[Any], Labels]]] = {
            Rescued: (known.RESCUES, lambda fact: (fact.route, fact.result)),
            SemanticLookup: (known.SEMANTIC, lambda fact: (fact.route, fact.result)),
            RetryWithheld: (known.RETRIES_WITHHELD, lambda fact: (fact.route, fact.upstream)),
            Renewed: (known.CACHE_REFRESHES, lambda fact: (fact.route, fact.result)),
            SemanticJudged: (known.SEMANTIC_JUDGED, lambda fact: (fact.route, fact.result)),
            RequestRefused: (known.REFUSED, lambda fact: (str(fact.status), fact.code)),
            EngineState: (known.ENGINE_STATES, lambda fact: (fact.state,)),
            TextClassified: (known.CLASSIFIED, lambda fact: (fact.classifier, fact.label, fact.head)),
            GuardDone: (known.GUARDED, lambda fact: (fact.route, fact.result, fact.rule)),
            RoutedByClass: (known.ROUTED_BY_CLASS, lambda fact: (fact.route, fact.label, fact.target))}
        return {RequestDone: self._count_requests, AttemptDone: self._count_attempts, ConnectionReused: self._count_reused,
                **{kind: one_by_one(count) for kind, count in rare.items()},
                **{kind: partial(_count_rows, self.totals.counters[family.name], labels)
                   for kind, (family, labels) in rows.items()}}

    def snapshot(self) -> MetricsSnapshot:
        """All counts of this process."""
        in_flight: list[tuple[Labels, float]] = [((upstream,), n) for upstream, n in self.read_in_flight()]
        lost: list[tuple[Labels, float]] = [((what,), n) for what, n in self.read_lost()]
        live = {route: self.first_tokens(route, LIVE_S).pack() for route in self._traffic.routes()}
        queued: list[tuple[Labels, float]] = [(where, n) for where, n in self._queued()]
        gauges = {known.IN_FLIGHT.name: in_flight, known.QUEUE_DEPTH.name: queued, **self._gauges()}
        return self.totals.snapshot({known.LOST.name: lost, **self._counters()}, gauges, live)

    def first_tokens(self, route: str | None, seconds: float) -> LogHistogram:
        """Times to the first token on a route in the last `seconds`, from accept, without answers from the cache."""
        return self._traffic.first_tokens(route, seconds)

    def resume_from(self, snapshot: MetricsSnapshot) -> None:
        """Add the counts of the ended process that this one replaces."""
        self.totals.add(snapshot, is_of_now=False)

    def _count_gaps(self, fact: TokenGaps) -> None:
        self._gap_s[fact.route, fact.upstream].add_all(fact.gaps_s)

    def _count_reused(self, facts: Sequence[ConnectionReused]) -> None:
        for fact in facts:
            self._reused[(fact.upstream,)] += 1

    def _count_connection(self, fact: ConnectionOpened) -> None:
        tls = "none" if not fact.tls else "resumed" if fact.tls_resumed else "full"
        self.totals.counters[known.OPENED.name][fact.upstream, fact.http_version, tls] += 1
        self.totals.histograms[known.HANDSHAKE.name][(fact.upstream,)].add(fact.handshake_s)

    def _count_hedge(self, fact: Hedged) -> None:
        if fact.refused:
            self.totals.counters[known.HEDGES.name][fact.route, f"refused_{fact.refused}"] += 1

    def _count_lag(self, fact: LoopLag) -> None:
        self.totals.histograms[known.LOOP_LAG.name][()].add(fact.seconds)

    def _count_store_call(self, fact: StoreCallDone) -> None:
        self.totals.counters[known.STORE.name][fact.store, fact.what, fact.result] += 1
        if fact.what == "get" and fact.result != "local_hit":
            self.totals.histograms[known.STORE_SECONDS.name][(fact.store,)].add(fact.seconds)

    def _count_ejection(self, fact: Ejected) -> None:
        if fact.is_out:
            self.totals.counters[known.EJECTIONS.name][fact.route, fact.upstream] += 1

    def _count_renewal(self, fact: CredentialRenewed | CredentialRenewalFailed) -> None:
        result = "renewed" if isinstance(fact, CredentialRenewed) else "failed"
        self.totals.counters[known.CREDENTIAL_RENEWALS.name][fact.upstream, result] += 1

    def _count_attempts(self, facts: Sequence[AttemptDone]) -> None:
        alike: defaultdict[_AttemptKey, list[AttemptDone]] = defaultdict(list)
        for fact in facts:
            alike[fact.route, fact.upstream, fact.outcome, fact.fault, fact.upstream_status].append(fact)
        for key, same in alike.items():
            self._count_alike(key, same)

    def _count_alike(self, key: _AttemptKey, facts: list[AttemptDone]) -> None:
        route, upstream, outcome, fault, status = key
        # _value_: a fifth of the cost of `.value`
        self._attempts[route, upstream, outcome._value_, fault or "", "" if status is None else str(status)] += len(facts)
        tokens, n_input, n_cached, n_output, is_counted = self._tokens, 0, 0, 0, False
        for fact in facts:
            usage = fact.usage
            if usage is not None:
                if fact.is_estimated:
                    tokens[route, upstream, "estimated"] += usage.input_total + usage.output
                else:
                    is_counted = True
                    n_input += usage.input_total
                    n_cached += usage.cached_read
                    n_output += usage.output
            if fact.cost_usd:
                self._costs[0][route, upstream, fact.role, fact.price] += fact.cost_usd
            elif fact.price == UNPRICED:
                self._costs[1][route, upstream] += 1
            if fact.is_hedge or fact.n_attempt > 1 or fact.stalls or fact.steps:
                self._count_extra(fact)
        if is_counted:
            tokens[route, upstream, "input"] += n_input
            tokens[route, upstream, "cached"] += n_cached
            tokens[route, upstream, "output"] += n_output

    def _count_extra(self, fact: AttemptDone) -> None:
        count, where = self.totals.counters, (fact.route, fact.upstream)
        if fact.is_hedge:
            result = "won" if fact.ttft_s is not None else "lost" if fact.fault is None else "failed"
            count[known.HEDGES.name][fact.route, result] += 1
        if fact.n_attempt > 1:
            count[known.RETRIES.name][where] += 1
        if fact.stalls:
            count[known.STALLS.name][where] += len(fact.stalls)
        names = self._steps[fact.upstream] if fact.steps else set()
        for step in fact.steps:
            if len(names) < known.MAX_STEP_NAMES:
                names.add(step.name)
            name = step.name if step.name in names else "other"
            count[known.TURN_STEPS.name][fact.upstream, name, step.outcome] += 1
            self.totals.histograms[known.STEP_SECONDS.name][fact.upstream, name].add(step.ended_at - step.began_at)

    def _count_requests(self, facts: Sequence[RequestDone]) -> None:
        alike: defaultdict[tuple[str | None, str | None, Api, int, bool], list[RequestDone]] = defaultdict(list)
        cached: list[RequestDone] = []
        for fact in facts:
            if fact.role == JOB:  # no client waits for it; the metrics of jobs have its times
                continue
            alike[fact.route, fact.upstream, fact.api, fact.status, fact.degraded is None].append(fact)
            if fact.status >= 400 or fact.degraded is not None or fact.over_stage is not None or fact.cut_by is not None:
                self._count_problems(fact.route or NO_ROUTE, fact)
            if fact.cache is not None:
                self._cache[fact.route or NO_ROUTE, fact.cache] += 1
                if fact.cache in KINDS:
                    cached.append(fact)
        for (named, upstream, api, status, _), same in alike.items():
            route = named or NO_ROUTE
            self._requests[route, api._value_, str(status)] += len(same)
            series_key = route, upstream or "", outcome_of(same[0])
            (self._series.get(series_key) or self._create_series(series_key)).take(same)
        for fact in cached:
            self._saved.record_hit(fact)

    def _create_series(self, series_key: tuple[str, str, str]) -> "_RequestSeries":
        histograms, route = self.totals.histograms, series_key[0]
        series = _RequestSeries(histograms[known.TTFT.name][series_key], histograms[known.USABLE.name][series_key],
                       histograms[known.E2E.name][series_key],
                       histograms[known.TPOT.name][series_key], histograms[known.QUEUE_WAIT.name][(route,)],
                       histograms[known.OVERHEAD.name][(route,)],
                       {stage: histograms[known.STAGE.name][route, stage.value] for stage in STAGES})
        self._series[series_key] = series
        return series

    def _count_problems(self, route: str, fact: RequestDone) -> None:
        count = self.totals.counters
        if fact.over_stage is not None:
            count[known.STAGE_OVERRUNS.name][route, fact.over_stage._value_] += 1
        if fact.shed is not None:
            count[known.SHEDS.name][route, fact.shed] += 1
        if fact.degraded is not None:
            count[known.DEGRADED.name][route, fact.degraded] += 1
        if fact.cut_by is not None:
            count[known.CUT_ANSWERS.name][route, fact.cut_by] += 1
        if fact.status == 499:
            count[known.CLIENT_LEFT.name][route, "before_first_token" if fact.ttft_s is None else "mid_answer"] += 1
            return
        if fact.stream and fact.n_chunks and fact.error is not None:
            count[known.TRUNCATED.name][(fact.upstream or "",)] += 1
        if fact.status == 504 and fact.error is not None and fact.error.endswith(LIMIT_CODES):
            count[known.DEADLINE_EXCEEDED.name][route, ended_in(fact.stages), fact.error] += 1


def _count_rows(rows: defaultdict[Labels, float], labels_of: Callable[[Any], Labels], facts: Sequence[Any]) -> None:
    """Count each fact in the row of its labels."""
    for fact in facts:
        rows[labels_of(fact)] += 1


@dataclass(slots=True)
class _RequestSeries:
    """The histograms of one route, upstream and outcome."""

    ttft_s: Histogram
    usable_s: Histogram
    e2e_s: Histogram
    tpot_s: Histogram
    queue_s: Histogram
    own_s: Histogram
    stage_s: dict[Stage, Histogram]

    def take(self, facts: list[RequestDone]) -> None:
        self.e2e_s.add_all([fact.ended_at - fact.accepted_at for fact in facts])
        self.queue_s.add_all([fact.queue_s for fact in facts if fact.queue_s is not None])
        self.tpot_s.add_all([fact.tpot_s for fact in facts if fact.tpot_s is not None])
        usable_s: list[float] = []
        ttfts_s: list[float] = []
        for fact in facts:
            ttft_s = fact.ttft_s
            if ttft_s is not None:
                ttfts_s.append(ttft_s)
                if fact.stream:
                    usable_s.append(ttft_s)
                elif fact.status < 400:
                    usable_s.append(fact.ended_at - fact.accepted_at)
        spent_s: defaultdict[Stage, list[float]] = defaultdict(list)
        for fact in facts:
            began_at = fact.times.began_at
            for stage, ended_at in fact.times.ended:
                spent_s[stage].append(ended_at - began_at)
                began_at = ended_at
        for stage, values_s in spent_s.items():
            self.stage_s[stage].add_all(values_s)
        self.ttft_s.add_all(ttfts_s)
        self.usable_s.add_all(usable_s)
        self.own_s.add_all([fact.own_s or 0.0 for fact in facts if fact.ttft_s is not None])


def ended_in(stages: tuple[StageDone, ...]) -> str:
    """The stage in which a request ended; SETTLE comes after that."""
    return next((done.stage._value_ for done in reversed(stages) if done.stage is not Stage.SETTLE), "")
