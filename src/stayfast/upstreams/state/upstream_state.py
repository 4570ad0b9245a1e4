"""Every upstream by name, with its state: latencies, limits, breakers, and whether it ever answered.

Each model at an upstream has a breaker of its own (`ModelHealth`): an error of one moves no request for another.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import inf
from random import Random

from stayfast.core.constants import MAX_RETRY_AFTER_S
from stayfast.core.events import BreakerChanged, Fanout, Sink
from stayfast.policy.resilience.baselines import (
    FAILED,
    JUDGED,
    LOST,
    REFUSED,
    UNKNOWN_JUDGED_AFTER_S,
    CallRecord,
    CallTally,
    DueBuckets,
    LatencyBaselines,
    classify,
    count_slow,
    log_of,
)
from stayfast.policy.resilience.breaker import Breaker, BreakerConfig
from stayfast.policy.resilience.limits import AdaptiveLimit, LimitConfig
from stayfast.policy.resilience.queueing import Concurrency
from stayfast.policy.resilience.retry_budget import UpstreamRetryBudget
from stayfast.policy.resilience.stall import TokenFlow
from stayfast.policy.resilience.ttft import TtftPredictors
from stayfast.policy.routing.load_balancing import CandidateLoad, LatencyEstimate, PrefillBacklog
from stayfast.policy.warm.phases import Replica
from stayfast.upstreams.base import Upstream
from stayfast.upstreams.state.limiter import ConcurrencyLimiter, FastestTtft

REFUSED_S = 60.0  # suspension after a refused key or an unknown model
PROBE_EVERY_S = 10.0  # at an upstream that hangs and has no alternative; each probe costs its client the whole wait
MAX_UNNAMED, MAX_NAME = 64, 64  # models that no setting names (the oldest is dropped), and characters of such a name


class ModelHealth:
    """Of one model at one upstream. Two instants until which others are preferred: `suspended_until`, by the upstream's own
    Retry-After (nothing is sent before it); `refused_until`, our guess after refused keys or models (no request waits).
    """

    __slots__ = ("_failed_after_s", "_failed_at", "_name", "_reported_state", "_sink", "breaker", "model", "n_refused",
                 "refusal_reason", "refused_until", "suspend_reason", "suspended_until")

    def __init__(self, name: str, model: str | None, breaker: Breaker, sink: Sink) -> None:
        self.model = model  # None: any
        self.breaker = breaker
        self.suspended_until = self.refused_until = float("-inf")
        self.suspend_reason = self.refusal_reason = ""
        self.n_refused = 0  # requests in a row, since the last first token
        self._failed_at = float("-inf")  # of the last failed call
        self._failed_after_s = 0.0  # its duration
        self._name = name
        self._sink = sink
        self._reported_state = breaker.state

    def suspend(self, until: float, why: str) -> None:
        """Suspend until then."""
        if until > self.suspended_until:
            self.suspended_until, self.suspend_reason = until, why

    def is_available(self, now: float) -> bool:
        """Whether it is not suspended; its breaker may be open."""
        return now >= self.suspended_until and now >= self.refused_until

    def record_failure(self, after_s: float, now: float) -> None:
        """The endpoint failed a call, `after_s` after its start."""
        self._failed_at, self._failed_after_s = now, after_s

    def is_hanging(self, most_s: float, now: float) -> bool:
        """Whether a call would probably fail after more than `most_s`: its breaker reports it down, its last failure took
        longer, and no probe is due. If it is the only upstream left, a probe is due every PROBE_EVERY_S.
        """
        breaker = self.breaker
        if self._failed_after_s <= most_s or not breaker.is_down or breaker.needs_probe(now):
            return False
        return breaker.is_probing or now < self._failed_at + PROBE_EVERY_S

    def probe_due_s(self, now: float) -> float:
        """Seconds until the next probe, if it is the only upstream left."""
        return max(0.0, self._failed_at + PROBE_EVERY_S - now)

    def record_refusal(self, now: float, why: str, *, n_enough: int) -> None:
        """A key or a model was refused. The `n_enough`-th refusal in a row suspends it."""
        self.n_refused += 1
        if self.n_refused >= n_enough:
            self.refused_until, self.refusal_reason = now + REFUSED_S, why

    def record_acceptance(self) -> None:
        """A first token came, which ends a suspension after refusals."""
        self.n_refused = 0
        self.refused_until = float("-inf")

    def report_changes(self) -> None:
        """Emit an event if the state of its breaker has changed."""
        breaker = self.breaker
        if breaker.state is not self._reported_state:
            self._reported_state = breaker.state
            why = breaker.why if self.model is None else f"model {self.model[:MAX_NAME]!r}: {breaker.why}"
            self._sink.emit(BreakerChanged(self._name, breaker.state.value, why))

    def adopt_news(self) -> None:
        if self.breaker.published_state:
            self.report_changes()
        self._reported_state = self.breaker.state  # the other process has reported its own change

    def __repr__(self) -> str:
        return repr(self.breaker) if self.model is None else f"{self.model[:MAX_NAME]!r}: {self.breaker!r}"


class ModelHealths:
    """The health of each model of one upstream: those that settings name, and the newest others."""

    __slots__ = ("_config", "_name", "_named", "_rng", "_sink", "_unnamed")

    def __init__(self, name: str, config: BreakerConfig, rng: Random, sink: Sink) -> None:
        self._name = name
        self._config = config
        self._rng = rng
        self._sink = sink
        self._named: dict[str, ModelHealth] = {}
        self._unnamed: dict[str, ModelHealth] = {}

    def health_of(self, model: str) -> ModelHealth:
        """The health of this model; healthy, if it is new."""
        found = self._named.get(model) or self._unnamed.get(model)
        if found is None:
            if len(self._unnamed) >= MAX_UNNAMED:
                del self._unnamed[next(iter(self._unnamed))]
            self._unnamed[model] = found = self._new_health(model)
        return found

    def set_named(self, models: Iterable[str]) -> None:
        self._named = {model: self._named.get(model) or self._unnamed.pop(model, None) or self._new_health(model)
                       for model in models}

    @property
    def named(self) -> Iterable[ModelHealth]:
        return self._named.values()

    def __iter__(self) -> Iterator[ModelHealth]:
        yield from self._named.values()
        yield from self._unnamed.values()

    def _new_health(self, model: str) -> ModelHealth:
        return ModelHealth(self._name, model, Breaker(self._config, self._rng), self._sink)


N_FAILED_IN_ROW_UNPROVEN = 10
N_REFUSALS_TO_SUSPEND = 2  # requests in a row, for refusals that may be a single request's fault (402, 403)


class RunningCall(CallRecord):
    """A call at an upstream."""

    __slots__ = ("health", "limiter", "n_answered", "n_answered_before", "n_running")

    health: ModelHealth
    limiter: ConcurrencyLimiter
    n_running: int  # calls at the upstream at its start, of all lanes, including itself
    n_answered_before: int  # first tokens of the upstream until its start
    n_answered: int | None  # first tokens during its wait, including its own; None: it is still waiting


class UpstreamState:
    """One upstream and its live state. Changed only on the event loop; nothing here awaits."""

    __slots__ = ("_breaker_config", "_limit_config", "_n_refused", "_pace", "_rng", "_sink", "_unclassified", "backlog",
                 "baselines", "concurrency", "fastest_ttft", "flow", "is_not_idempotent", "is_proven", "lanes",
                 "may_be_suspended", "models", "n_in_flight", "own_health", "pending", "predictors", "replica",
                 "retry_budget", "upstream", "whole_limiter")

    def __init__(self, upstream: Upstream, limit: LimitConfig | None = None, breaker: BreakerConfig | None = None,
                 rng: Random | None = None, sink: Sink | None = None, *, is_not_idempotent: bool = False) -> None:
        limit, breaker = limit or LimitConfig(), breaker or BreakerConfig()
        self.upstream = upstream
        self.baselines = LatencyBaselines()
        self.concurrency = Concurrency()
        self.lanes: dict[str, ConcurrencyLimiter] | None = None  # None: one limit for all lanes
        self._limit_config = limit
        self.models: ModelHealths | None = None  # None: routes request a single model
        self.retry_budget = UpstreamRetryBudget()  # of attempts beyond the clients' own requests, over all routes
        self.backlog: PrefillBacklog | None = None  # None: no route chooses between it and others
        self.may_be_suspended = False  # something other than its breaker has moved requests to other upstreams
        self.flow: TokenFlow | None = None  # None: no route measures the flow of its answers
        self.is_not_idempotent = is_not_idempotent  # a request that may have reached it must not be sent again
        self.n_in_flight = 0
        self.is_proven = False  # it has sent a token, and has not failed many times in a row since
        self.predictors: TtftPredictors | None = None  # of the time to a first token; None: not needed
        self.replica: Replica | None = None  # None: no engine of your own, or its phases are off
        self.fastest_ttft = FastestTtft()
        self._sink = sink or Fanout()
        self._rng = rng = rng or Random(upstream.name)
        self.whole_limiter = ConcurrencyLimiter(upstream.name, limit, rng=rng, quickest=self.fastest_ttft)
        self._breaker_config = breaker
        self._pace = LatencyEstimate()
        self.own_health = ModelHealth(upstream.name, None, Breaker(breaker, self._rng), self._sink)
        self.pending: dict[RunningCall, None] = {}  # without a first token, oldest first
        self._unclassified: DueBuckets[RunningCall] = DueBuckets()
        self._n_refused = 0  # requests refused for their key, in a row

    def predict_ttft(self) -> None:
        self.predictors = self.predictors or TtftPredictors()

    def track_backlog(self, *, is_tracked: bool) -> None:
        self.backlog = (self.backlog or PrefillBacklog()) if is_tracked else None

    def track_flow(self) -> TokenFlow:
        self.flow = self.flow or TokenFlow()
        return self.flow

    @property
    def breaker(self) -> Breaker:
        return self.own_health.breaker

    @property
    def slow_factor(self) -> float:
        return self._breaker_config.slow_factor

    @property
    def n_failed_in_row(self) -> int:
        return self.breaker.n_failed_in_row

    def split_by_lane(self, lanes: Sequence[str]) -> None:
        """Give each lane its own limit; without lanes, or if the limit is fixed, one for all. Waiting requests requeue."""
        before, wanted = list(self.lanes or ()), list(lanes) if self.whole_limiter.limit.is_adaptive else []
        if before == wanted:
            return
        waiting = self.all_limiters
        self.lanes = {lane: ConcurrencyLimiter(self.upstream.name, self._limit_config, lane, self._rng, self.fastest_ttft)
                      for lane in wanted} or None
        for limiter in waiting:
            limiter.requeue_waiters()

    def limiter_of(self, lane: str) -> ConcurrencyLimiter:
        """The limiter of a lane; the common one, if the lane has none."""
        return self.whole_limiter if self.lanes is None else self.lanes.get(lane, self.whole_limiter)

    @property
    def all_limiters(self) -> Sequence[ConcurrencyLimiter]:
        return (self.whole_limiter,) if self.lanes is None else (self.whole_limiter, *self.lanes.values())

    @property
    def n_waiting(self) -> int:
        """Requests that wait for a permit; one that waits at several upstreams counts once over all of them."""
        return sum(limiter.n_waiting for limiter in self.all_limiters)

    @property
    def has_room(self) -> bool:
        return self.whole_limiter.has_room

    @property
    def fastest_ttft_s(self) -> float:
        """Roughly the shortest recent time to a first token; 0: unknown."""
        return self.fastest_ttft.seconds

    @property
    def limit(self) -> AdaptiveLimit:
        return self.whole_limiter.limit

    def set_models(self, models: Collection[str], *, any_model: bool) -> None:
        """The models that settings name, and whether clients may name others. A single model uses the upstream's health."""
        if len(models) < 2 and not any_model:
            self.models = None
            return
        if self.models is None:
            self.models = ModelHealths(self.upstream.name, self._breaker_config, self._rng, self._sink)
        self.models.set_named(models)

    def health_of(self, model: str) -> ModelHealth:
        return self.own_health if self.models is None or not model else self.models.health_of(model)

    @property
    def healths(self) -> Iterable[ModelHealth]:
        return (self.own_health,) if self.models is None else self.models

    @property
    def shared_healths(self) -> Iterable[ModelHealth]:
        return (self.own_health,) if self.models is None else self.models.named

    def load_of(self, now: float, model: str = "") -> CandidateLoad:
        if now >= self._unclassified.next_at:
            self._classify_due_calls(now)
        health = self.own_health if self.models is None else self.health_of(model)
        breaker = health.breaker
        share = breaker.traffic_share(now) if health.is_available(now) else 0.0
        if self.replica is not None:
            share = min(share, self.replica.share(now))
        n_before: float = self.n_in_flight
        if self.backlog is not None:
            n_before += self.backlog.work
        seconds = self._pace.load_s(n_before, self.baselines.all.baseline_s, now)
        if self.flow is not None:
            seconds *= self.flow.load_factor(now)
        return CandidateLoad(seconds, share, share == 0.0 and breaker.needs_probe(now))

    @property
    def is_ready_replica(self) -> bool:
        """Whether it is an engine of your own that sent a token since its start; its breaker may be open."""
        return self.replica is not None and self.replica.is_ready

    def is_healthy(self, now: float, model: str) -> bool:
        """Whether it is not suspended, its breaker not open, and its replica ready."""
        health = self.health_of(model)
        if self.replica is not None and not self.replica.is_ready:
            return False
        return health.is_available(now) and health.breaker.traffic_share(now) > 0

    def is_failing(self, now: float, model: str) -> bool:
        """Whether it fails, sent a Retry-After, or is no ready replica. A breaker that is open for slowness only does not
        count.
        """
        health = self.health_of(model)
        if not health.is_available(now) or (self.replica is not None and not self.replica.is_ready):
            return True
        return health.breaker.n_failed_in_row > 0 and health.breaker.traffic_share(now) == 0

    def suspend_reason(self, now: float, model: str) -> str:
        """Why it is suspended; empty if it is not."""
        health = self.health_of(model)
        replica = self.replica
        is_unready = replica is not None and not replica.is_ready
        self.may_be_suspended = is_unready or any(not health.is_available(now) for health in self.healths)
        if replica is not None and is_unready:
            return f"it is {replica.phase.value}, {replica.why}"
        if now < health.refused_until:
            return health.refusal_reason
        return health.suspend_reason if now < health.suspended_until else ""

    def record_start(self, call: RunningCall, now: float) -> None:
        """An attempt with a permit starts."""
        self.n_in_flight += 1
        classify_at = call.slow_at
        if classify_at == inf:
            call.baseline.n_unknown += 1
            classify_at = now + UNKNOWN_JUDGED_AFTER_S
        self.pending[call] = None
        unclassified, limit = self._unclassified, self._limit_config
        unclassified.add(call, max(classify_at, now + limit.p95_high_s) if limit.mode == "aimd" else classify_at)
        if now >= unclassified.next_at:
            self._classify_due_calls(now)

    def record_success(self) -> None:
        self.is_proven = True

    def record_first_token(self, call: RunningCall, now: float) -> None:
        """The first token of a call arrived."""
        usual, norm, ttft_s = self.baselines, call.actual_baseline or call.baseline, call.took_s or 0.0
        if call.slow_at == inf:
            call.baseline.n_unknown -= 1
            log_s = log_of(ttft_s)
            usual.learn(call.baseline, log_s)
            if norm is not call.baseline:
                norm.learn(log_s)
        self.is_proven = True
        self._n_refused = 0
        if call.health.n_refused:
            call.health.record_acceptance()
        self.fastest_ttft.learn(ttft_s)
        if self.replica is not None:
            self.replica.note_token(ttft_s, now)
        usual_s, ratio = usual.all.baseline_s, norm.ratio(ttft_s)
        self.concurrency.record_first_token(call.n_running + self._n_in_other_workers(), ttft_s, norm.baseline_s)
        call.n_answered = self.concurrency.n_answered - call.n_answered_before
        call.health.breaker.record_success(call.mark, now, is_slow=now >= call.slow_at and not self.is_own_load(call, now))
        self._pace.add_sample(ratio * usual_s if ratio is not None else ttft_s, usual_s, now)
        call.health.report_changes()

    def record_slower_than_hedge(self, call: RunningCall, ratio: float, now: float, *, is_slow: bool) -> None:
        """An attempt was cancelled for a faster one. ratio: its duration by its usual time to a first token."""
        usual_s = self.baselines.all.baseline_s
        self._pace.add_lower_bound(ratio * usual_s, usual_s, now)
        if is_slow:
            call.n_answered = self.concurrency.n_answered - call.n_answered_before
            if self.is_own_load(call, now):
                call.health.breaker.discard_call(call.mark)
            else:
                call.health.breaker.record_lost(call.mark, now)
            call.health.report_changes()

    def is_ordinary(self, call: RunningCall) -> bool:
        """Whether concurrency at its start was no higher than what recently went well: if slow, not because of it."""
        return self.concurrency.is_ordinary(call.n_running + self._n_in_other_workers())

    def record_no_answer(self, now: float) -> None:
        """A call ended without a first token, for another reason than a failure of the upstream."""
        self._pace.record_unanswered(now)

    def record_refusal(self, health: ModelHealth, now: float, why: str, *, is_key: bool, n_enough: int) -> None:
        """A request was refused for its key or model; see `ModelHealth.record_refusal`."""
        self.may_be_suspended = True
        health.record_refusal(now, why, n_enough=n_enough)
        if is_key:
            self._n_refused += 1
            if self._n_refused >= N_FAILED_IN_ROW_UNPROVEN:
                self.is_proven = False

    def record_drop(self, call: RunningCall, now: float, *, is_endpoint: bool, retry_after_s: float | None) -> None:
        """The endpoint refused or failed an attempt."""
        health, is_waiting = call.health, call.took_s is None
        breaker = health.breaker
        if is_endpoint:
            breaker.record_failure(call.mark if is_waiting else breaker.start_call(), now)
            health.record_failure(now - call.began_at, now)
            if breaker.n_failed_in_row >= N_FAILED_IN_ROW_UNPROVEN:
                self.is_proven = False
        elif is_waiting:
            breaker.discard_call(call.mark)
        if retry_after_s:
            self.may_be_suspended = True
            health.suspend(now + min(retry_after_s, MAX_RETRY_AFTER_S),
                               f"its Retry-After is {retry_after_s:.3g} s")
        self._pace.record_failure(self.baselines.all.baseline_s, now)
        if call.verdict is JUDGED:
            self._unclassified.add(call, now)
        call.verdict = FAILED if is_endpoint else REFUSED
        health.report_changes()

    def adopt_news(self) -> None:
        """Adopt the news of other processes in breakers and limits."""
        for health in self.healths:
            health.adopt_news()
        for limiter in self.all_limiters:
            limiter.grant_waiters()

    def _classify_due_calls(self, now: float) -> None:
        """Classify calls that are old enough to be known as fast or slow, and update limits and breakers."""
        for at, calls in self._unclassified.pop_due(now):
            for call in calls:
                call.is_slow = call.verdict is LOST or call.took_s is None or call.took_s >= call.slow_at - call.began_at
                call.is_queued = call.is_slow and self.is_own_load(call, now)
            if self.models is not None:
                self._update_model_breakers(calls, now)
            n_slow = n_quick = 0
            for limiter, limiter_calls in self._group_by_limiter(calls):
                tally = self._update_limit(limiter, limiter_calls, at)
                n_slow, n_quick = n_slow + tally.n_slow, n_quick + tally.n_quick
            if self.models is None:
                self.breaker.record_verdicts(n_slow, n_quick, now)
        self.own_health.report_changes()
        for limiter in self.all_limiters:
            limiter.grant_waiters()

    def is_own_load(self, call: RunningCall, now: float) -> bool:
        """Whether a slow call was slow because of this gateway's own load."""
        n_here, n_answered = call.n_running, call.n_answered
        if n_answered is None:
            n_answered = self.concurrency.n_answered - call.n_answered_before
        waited_s = call.took_s if call.took_s is not None else now - call.began_at
        n_running = n_here + self._n_in_other_workers()
        return self.concurrency.explains_slowness(n_running, n_answered * n_running / n_here, waited_s, self.slow_factor)

    def _n_in_other_workers(self) -> int:
        """Calls of other processes at this upstream, if known."""
        if self.whole_limiter.shared_limit is None:
            return 0
        return sum(limiter.shared_limit.n_elsewhere() for limiter in self.all_limiters if limiter.shared_limit is not None)

    def _group_by_limiter(self, calls: Sequence[RunningCall]) -> Iterable[tuple[ConcurrencyLimiter, Sequence[RunningCall]]]:
        """Group calls by the limiter that admitted them."""
        if self.lanes is None:
            return ((self.whole_limiter, calls),)
        return [(limiter, [call for call in calls if call.limiter is limiter])
                for limiter in dict.fromkeys([call.limiter for call in calls])]

    def _update_limit(self, limiter: ConcurrencyLimiter, calls: Sequence[RunningCall], at: float) -> CallTally:
        limit, common = limiter.limit, limiter.shared_limit
        # latency under overload must not become the baseline
        baselines = None if limiter.n_waiting_shares else self.baselines
        tally = classify(calls, baselines, self.breaker.mark, wants_seconds=limit.uses_seconds)
        if limit.is_adaptive and tally.n:
            samples, n_peak = tally.samples, tally.n_peak
            if common is not None:
                n_elsewhere = common.n_elsewhere()
                samples, n_peak = [(took, n + n_elsewhere) for took, n in samples], n_peak + n_elsewhere
            limit.add_samples(samples, tally.n, tally.n_dropped, n_peak, at)
        return tally

    def _update_model_breakers(self, calls: Sequence[RunningCall], now: float) -> None:
        for health in dict.fromkeys([call.health for call in calls]):
            breaker = health.breaker
            breaker.record_verdicts(*count_slow([call for call in calls if call.health is health], breaker.mark), now)
            health.report_changes()

    def __repr__(self) -> str:
        state = "proven" if self.is_proven else "unproven"
        flow = f" {self.flow!r}" if self.flow is not None else ""
        alone = "".join(f" suspended, last: {why}" for health in dict.fromkeys((self.own_health, *self.healths))
                        for why in (health.suspend_reason, health.refusal_reason) if why)
        healths = " ".join(repr(health) for health in self.healths)
        limits = repr(self.whole_limiter.limit) if self.lanes is None else " ".join(map(repr, self.all_limiters))
        return (f"<UpstreamState {self.upstream.name}: {self.n_in_flight} in flight, {self.n_waiting} waiting, {state}; "
                f"{limits} {healths} {self.baselines!r} {self._pace!r}{flow}{alone}>")
