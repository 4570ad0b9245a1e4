"""Facts into counts. On the request's path a fact costs a few look-ups and additions; text is made at the scrape only.

What caches saved: hits, seconds and money, by route and kind.

    seconds = (usual time to the first token of what was no hit, p50 of the last minutes of that route) - (the hit's own)
    money   = prices x the usage that was kept with the answer: what it had cost to make

The seconds are an estimate: they are what the median request would have waited just then, not what this one would have.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from stayfast.core.clock import Clock
from stayfast.core.events import (
    AttemptDone,
    ConnectionOpened,
    ConnectionReused,
    Ejected,
    EngineState,
    Fact,
    GapsSeen,
    Hedged,
    LoopLag,
    Renewed,
    RequestDone,
    RequestRefused,
    Rescued,
    RetryWithheld,
    SemanticLookedUp,
    StageDone,
    StoreCallDone,
)
from stayfast.core.types import FROM_CACHE, Outcome, Stage
from stayfast.observe.metrics import definitions as known
from stayfast.observe.metrics.counters import Histogram, Labels, MetricsSnapshot, Rows, Totals
from stayfast.policy.histogram import LogHistogram, Window, merged

USUAL_FOR_S = 10.0  # how long a median is taken for usual before it is made anew
WINDOW_S = 300.0
KINDS = {"hit": "exact", "stale": "exact", "semantic": "semantic"}


class Saved:
    """Counts it into `totals`. One loop's."""

    __slots__ = ("_clock", "_first_tokens", "_seconds", "_usd", "_usual")

    def __init__(self, totals: Totals, clock: Clock, first_tokens: Callable[[str | None, float], LogHistogram]) -> None:
        self._clock = clock
        self._first_tokens = first_tokens  # of a route, in so many last seconds, without hits
        self._usd: defaultdict[Labels, float] = totals.counters[known.CACHE_SAVED_USD.name]
        self._seconds: defaultdict[Labels, float] = totals.counters[known.CACHE_SAVED_S.name]
        self._usual: dict[str, tuple[float, float]] = {}  # by route: until when, seconds

    def take(self, fact: RequestDone) -> None:
        route, kind = fact.route or "", KINDS.get(fact.cache or "")
        if kind is None or fact.status >= 400:
            return
        if fact.saved_usd:
            self._usd[route, kind] += fact.saved_usd
        if fact.ttft_s is not None:
            saved_s = self._usual_s(route) - fact.ttft_s
            if saved_s > 0:
                self._seconds[route, kind] += saved_s

    def _usual_s(self, route: str) -> float:
        now = self._clock.now()
        until, seconds = self._usual.get(route, (-inf, 0.0))
        if now >= until:
            seconds = self._first_tokens(route, WINDOW_S).quantile(0.5) or 0.0
            if seconds:
                self._usual[route] = now + USUAL_FOR_S, seconds
        return seconds


Read = Callable[[], Iterable[tuple[str, int]]]
LIMIT_CODES = "_s_exceeded"  # ours; an upstream that says 504 has a code of its own choice
LIVE_S = 300.0
_Like = tuple[str, str, Outcome, str | None, int | None]  # route, upstream, outcome, fault, upstream's status


def outcome_of(fact: RequestDone) -> str:
    """How a request ended: ok and degraded were served; 429 is a failure, any other 4xx the client's own."""
    status = fact.status
    if status < 400:
        return "ok" if fact.degraded is None else "degraded"
    if status == 499:
        return "left"
    return "failed" if status >= 500 or status == 429 else "rejected"


class MetricsSink:
    """A listener that counts. One loop's; reading at scrape time happens on the same loop.

    `slo_bounds_s` adds exact buckets to the histograms ttft, usable, e2e, tpot and gap: a share "within 0.5 s" is then a
    count and not an interpolation. ValueError for any other name.
    """

    def __init__(self, clock: Clock, slo_bounds_s: Mapping[str, Iterable[float]] | None = None,
                 *, in_flight: Read = tuple, lost: Read = tuple, queued: Callable[[], Iterable[tuple[Labels, int]]] = tuple,
                 gauges: Callable[[], Rows] = dict, counters: Callable[[], Rows] = dict) -> None:
        """gauges, counters: rows that other objects keep, read at the scrape."""
        self._clock = clock
        self.in_flight = in_flight  # requests in flight at the moment of the scrape, by upstream
        self._queued = queued  # requests that wait, by upstream and lane
        self._gauges = gauges
        self._counters = counters
        self.lost = lost  # log lines and spans that were thrown away since the start
        self.totals = Totals(known.bounds_of(slo_bounds_s or {}))
        self._live: defaultdict[Labels, Window] = defaultdict(Window)  # route, upstream: times to the first token
        counts, histograms = self.totals.counters, self.totals.histograms
        self._requests, self._attempts = counts[known.REQUESTS.name], counts[known.ATTEMPTS.name]
        self._tokens, self._cost_usd = counts[known.TOKENS.name], counts[known.COST.name]
        self._reused, self._cache = counts[known.REUSED.name], counts[known.CACHE.name]
        self._gap_s = histograms[known.GAP.name]
        self._stage_s = {stage: histograms[known.STAGE.name][(stage.value,)] for stage in Stage}
        self._saved = Saved(self.totals, clock, self.first_tokens)
        self._places: dict[Labels, _Place] = {}  # route, upstream, outcome
        self._steps: defaultdict[str, set[str]] = defaultdict(set)  # of turns that are served, by upstream

    def take(self, facts: Sequence[Fact]) -> None:
        requests: list[RequestDone] = []
        attempts: dict[_Like, list[AttemptDone]] = {}
        for fact in facts:
            if isinstance(fact, RequestDone):
                requests.append(fact)
            elif isinstance(fact, AttemptDone):
                like = (fact.route, fact.upstream, fact.outcome, fact.fault, fact.upstream_status)
                if like in attempts:
                    attempts[like].append(fact)
                else:
                    attempts[like] = [fact]
            elif isinstance(fact, ConnectionReused):
                self._reused[(fact.upstream,)] += 1
            elif isinstance(fact, GapsSeen):
                self._gap_s[fact.route, fact.upstream].add_sorted(sorted(fact.gaps_s))
            else:
                self._take_rare(fact)
        for like, same in attempts.items():
            self._take_attempts(like, same)
        if requests:
            self._take_requests(requests)

    def snapshot(self) -> MetricsSnapshot:
        """All that this process has counted."""
        in_flight: list[tuple[Labels, float]] = [((upstream,), n) for upstream, n in self.in_flight()]
        lost: list[tuple[Labels, float]] = [((what,), n) for what, n in self.lost()]
        routes = {route for route, _ in self._live}
        live = {route: self.first_tokens(route, LIVE_S).packed() for route in routes}
        queued: list[tuple[Labels, float]] = [(where, n) for where, n in self._queued()]
        gauges = {known.IN_FLIGHT.name: in_flight, known.QUEUE_DEPTH.name: queued, **self._gauges()}
        return self.totals.snapshot({known.LOST.name: lost, **self._counters()}, gauges, live)

    def first_tokens(self, route: str | None, seconds: float) -> LogHistogram:
        """Times to the first token on a route, from accept, in the last `seconds`. What a cache answered is not among them:
        it says nothing of what is usual.
        """
        now, of = self._clock.now(), route or known.NO_ROUTE
        return merged(window.last(seconds, now) for (name, upstream), window in self._live.items()
                      if name == of and upstream != FROM_CACHE)

    def resume(self, snapshot: MetricsSnapshot) -> None:
        """Go on from what another process of this place had counted before it ended."""
        self.totals.add(snapshot, is_of_now=False)

    def _take_rare(self, fact: Fact) -> None:
        count = self.totals.counters
        if isinstance(fact, ConnectionOpened):
            tls = "none" if not fact.tls else "resumed" if fact.tls_resumed else "full"
            count[known.OPENED.name][fact.upstream, fact.http_version, tls] += 1
            self.totals.histograms[known.HANDSHAKE.name][(fact.upstream,)].add(fact.handshake_s)
        elif isinstance(fact, Hedged):
            if fact.refused:
                count[known.HEDGES.name][fact.route, f"refused_{fact.refused}"] += 1
        elif isinstance(fact, Rescued):
            count[known.RESCUES.name][fact.route, fact.result] += 1
        elif isinstance(fact, SemanticLookedUp):
            count[known.SEMANTIC.name][fact.route, fact.result] += 1
        elif isinstance(fact, RetryWithheld):
            count[known.RETRIES_WITHHELD.name][fact.route, fact.upstream] += 1
        else:
            self._take_rarest(fact)

    def _take_rarest(self, fact: Fact) -> None:
        count = self.totals.counters
        if isinstance(fact, LoopLag):
            self.totals.histograms[known.LOOP_LAG.name][()].add(fact.seconds)
        elif isinstance(fact, StoreCallDone):
            count[known.STORE.name][fact.store, fact.what, fact.result] += 1
            if fact.what == "get" and fact.result != "near":
                self.totals.histograms[known.STORE_SECONDS.name][(fact.store,)].add(fact.seconds)
        elif isinstance(fact, Ejected):
            if fact.is_out:
                count[known.EJECTIONS.name][fact.route, fact.upstream] += 1
        elif isinstance(fact, Renewed):
            count[known.CACHE_RENEWALS.name][fact.route, fact.result] += 1
        elif isinstance(fact, RequestRefused):
            count[known.REFUSED.name][str(fact.status), fact.code] += 1
        elif isinstance(fact, EngineState):
            count[known.ENGINE_STATES.name][(fact.state,)] += 1

    def _take_attempts(self, like: _Like, facts: list[AttemptDone]) -> None:
        route, upstream, outcome, fault, status = like
        # _value_: `.value` at a fifth of the cost
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
                self._cost_usd[route, upstream, fact.role] += fact.cost_usd
            if fact.is_hedge or fact.n_attempt > 1 or fact.stalls or fact.steps:
                self._take_extra(fact)
        if is_counted:
            tokens[route, upstream, "input"] += n_input
            tokens[route, upstream, "cached"] += n_cached
            tokens[route, upstream, "output"] += n_output

    def _take_extra(self, fact: AttemptDone) -> None:
        """One that was not alone, that stalled, or that has steps."""
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
            count[known.TURN_STEPS.name][fact.upstream, name, step.how] += 1
            self.totals.histograms[known.STEP_SECONDS.name][fact.upstream, name].add(step.ended_at - step.began_at)

    def _take_requests(self, facts: list[RequestDone]) -> None:
        by_place: dict[tuple[str, str, str], list[RequestDone]] = {}
        spent_s: dict[Stage, list[float]] = {stage: [] for stage in Stage}
        requests, cached = self._requests, list[RequestDone]()
        for fact in facts:
            route, outcome = fact.route or known.NO_ROUTE, outcome_of(fact)
            requests[route, fact.api._value_, str(fact.status)] += 1
            series_key = (route, fact.upstream or "", outcome)
            if series_key in by_place:
                by_place[series_key].append(fact)
            else:
                by_place[series_key] = [fact]
            for done in fact.stages:
                spent_s[done.stage].append(done.ended_at - done.began_at)
            if outcome != "ok" or fact.over_stage is not None:
                self._went_wrong(route, fact)
            if fact.cache is not None:
                self._cache[route, fact.cache] += 1
                if fact.cache in KINDS:
                    cached.append(fact)
        for series_key, same in by_place.items():
            (self._places.get(series_key) or self._place(series_key)).take(same)
        for fact in cached:
            self._saved.take(fact)
        for stage, histogram in self._stage_s.items():
            histogram.add_all(spent_s[stage])

    def _place(self, series_key: tuple[str, str, str]) -> "_Place":
        histograms, route, upstream = self.totals.histograms, series_key[0], series_key[1]
        place = _Place(histograms[known.TTFT.name][series_key], histograms[known.USABLE.name][series_key],
                       histograms[known.E2E.name][series_key],
                       histograms[known.TPOT.name][series_key], histograms[known.QUEUE_WAIT.name][(route,)],
                       histograms[known.OVERHEAD.name][(route,)], self._live[route, upstream])
        self._places[series_key] = place
        return place

    def _went_wrong(self, route: str, fact: RequestDone) -> None:
        count = self.totals.counters
        if fact.over_stage is not None:
            count[known.STAGE_OVERRUNS.name][route, fact.over_stage._value_] += 1
        if fact.shed is not None:
            count[known.SHEDS.name][route, fact.shed] += 1
        if fact.degraded is not None:
            count[known.DEGRADED.name][route, fact.degraded] += 1
        if fact.status == 499:
            count[known.CLIENT_LEFT.name][route, "before_first_token" if fact.ttft_s is None else "mid_answer"] += 1
            return
        if fact.stream and fact.n_chunks and fact.error is not None:
            count[known.TRUNCATED.name][(fact.upstream or "",)] += 1
        if fact.status == 504 and fact.error is not None and fact.error.endswith(LIMIT_CODES):
            count[known.DEADLINE_EXCEEDED.name][route, ended_in(fact.stages), fact.error] += 1


@dataclass(slots=True)
class _Place:
    """Where requests of one route, upstream and outcome are counted: one look-up for all."""

    ttft_s: Histogram
    usable_s: Histogram
    e2e_s: Histogram
    tpot_s: Histogram
    queue_s: Histogram
    own_s: Histogram
    live: Window

    def take(self, facts: list[RequestDone]) -> None:
        self.e2e_s.add_all([fact.ended_at - fact.accepted_at for fact in facts])
        self.queue_s.add_all([fact.queue_s for fact in facts if fact.queue_s is not None])
        self.tpot_s.add_all([fact.tpot_s for fact in facts if fact.tpot_s is not None])
        usable_s, ttfts_s, live = list[float](), list[float](), self.live
        for fact in facts:
            ttft_s = fact.ttft_s
            if ttft_s is not None:
                ttfts_s.append(ttft_s)
                live.add(ttft_s, fact.ended_at)
                if fact.stream:
                    usable_s.append(ttft_s)
                elif fact.status < 400:
                    usable_s.append(fact.ended_at - fact.accepted_at)
        self.ttft_s.add_all(ttfts_s)
        self.usable_s.add_all(usable_s)
        self.own_s.add_all([fact.own_s or 0.0 for fact in facts if fact.ttft_s is not None])


def ended_in(stages: tuple[StageDone, ...]) -> str:
    """The stage that a request was in when it ended; settling is what follows."""
    return next((done.stage._value_ for done in reversed(stages) if done.stage is not Stage.SETTLE), "")
