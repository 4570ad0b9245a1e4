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
    log_of,
    of_mark,
)
from stayfast.policy.resilience.breaker import Breaker, BreakerConfig
from stayfast.policy.resilience.limits import AdaptiveLimit, LimitConfig
from stayfast.policy.resilience.queueing import Concurrency
from stayfast.policy.resilience.retry_budget import UpstreamRetryBudget
from stayfast.policy.resilience.stall import TokenFlow
from stayfast.policy.resilience.ttft import Predictor
from stayfast.policy.routing.load_balancing import CandidateLoad, LatencyEstimate, PrefillBacklog
from stayfast.upstreams.base import Upstream
from stayfast.upstreams.state.limiter import ConcurrencyLimiter, QuickestTtft

MAX_UNNAMED, MAX_NAME = 64, 64  # models that only clients name (the oldest is forgotten), and characters of such a name


class ModelHealth:
    """Of one model at one upstream. Two instants until which others are preferred: `alone_until`, by the upstream's own
    Retry-After (nothing is sent before it); `refused_until`, our guess after refused keys or models (no request waits).
    """

    __slots__ = ("_failed_after_s", "_failed_at", "_name", "_reported_state", "_sink", "alone_until", "breaker", "model",
                 "n_refused", "refused_until", "why_alone", "why_refused")

    def __init__(self, name: str, model: str | None, breaker: Breaker, sink: Sink) -> None:
        self.model = model  # None: any
        self.breaker = breaker
        self.alone_until = self.refused_until = float("-inf")
        self.why_alone = self.why_refused = ""
        self.n_refused = 0  # requests in a row, since the last first token
        self._failed_at = float("-inf")  # the last call that failed, and how long it had run by then
        self._failed_after_s = 0.0
        self._name = name
        self._sink = sink
        self._reported_state = breaker.state

    def leave_alone(self, until: float, why: str) -> None:
        """Others go first until then, and a retry here waits for it."""
        if until > self.alone_until:
            self.alone_until, self.why_alone = until, why

    def is_preferred(self, now: float) -> bool:
        """Whether nothing but its breaker moves requests to others."""
        return now >= self.alone_until and now >= self.refused_until

    def failed(self, after_s: float, now: float) -> None:
        """A call failed by the endpoint's fault, so long after its start."""
        self._failed_at, self._failed_after_s = now, after_s

    def is_hanging(self, most_s: float, now: float) -> bool:
        """Whether a call would most likely fail, and only after more than `most_s`: its breaker says that it is down, it
        failed as late before, and no probe is due. Where nobody else is left, one probe each PROBE_EVERY_S is.
        """
        breaker = self.breaker
        if self._failed_after_s <= most_s or not breaker.is_down or breaker.wants_probe(now):
            return False
        return breaker.is_probing or now < self._failed_at + PROBE_EVERY_S

    def probe_due_s(self, now: float) -> float:
        """Seconds until a request is let through as a probe where nobody else is left."""
        return max(0.0, self._failed_at + PROBE_EVERY_S - now)

    def refused(self, now: float, why: str, *, n_enough: int) -> None:
        """A key or a model was refused: others go first from the `n_enough`-th refusal in a row on."""
        self.n_refused += 1
        if self.n_refused >= n_enough:
            self.refused_until, self.why_refused = now + REFUSED_S, why

    def accepted(self) -> None:
        """A first token came: whatever was refused is accepted again."""
        self.n_refused = 0
        self.refused_until = float("-inf")

    def report_changes(self) -> None:
        """Say it where its breaker has changed."""
        breaker = self.breaker
        if breaker.state is not self._reported_state:
            self._reported_state = breaker.state
            why = breaker.why if self.model is None else f"model {self.model[:MAX_NAME]!r}: {breaker.why}"
            self._sink.emit(BreakerChanged(self._name, breaker.state.value, why))

    def learned(self) -> None:
        if self.breaker.published_state:
            self.report_changes()
        self._reported_state = self.breaker.state  # what others changed, they have told

    def __repr__(self) -> str:
        return repr(self.breaker) if self.model is None else f"{self.model[:MAX_NAME]!r}: {self.breaker!r}"


class Models:
    """The health of each model of one upstream: those that settings name, and the newest others."""

    __slots__ = ("_config", "_name", "_named", "_rng", "_sink", "_unnamed")

    def __init__(self, name: str, config: BreakerConfig, rng: Random, sink: Sink) -> None:
        self._name = name
        self._config = config
        self._rng = rng
        self._sink = sink
        self._named: dict[str, ModelHealth] = {}
        self._unnamed: dict[str, ModelHealth] = {}

    def of(self, model: str) -> ModelHealth:
        """The health of this model; it is well where nothing is known of it."""
        found = self._named.get(model) or self._unnamed.get(model)
        if found is None:
            if len(self._unnamed) >= MAX_UNNAMED:
                del self._unnamed[next(iter(self._unnamed))]
            self._unnamed[model] = found = self._made(model)
        return found

    def name(self, models: Iterable[str]) -> None:
        self._named = {model: self._named.get(model) or self._unnamed.pop(model, None) or self._made(model)
                       for model in models}

    @property
    def named(self) -> Iterable[ModelHealth]:
        return self._named.values()

    def __iter__(self) -> Iterator[ModelHealth]:
        yield from self._named.values()
        yield from self._unnamed.values()

    def _made(self, model: str) -> ModelHealth:
        return ModelHealth(self._name, model, Breaker(self._config, self._rng), self._sink)


N_FAILED_IN_ROW_UNPROVEN = 10
REFUSED_S = 60.0  # for which others go before one that refused a key, or does not know a model
PROBE_EVERY_S = 10.0  # at an only upstream that hangs; each costs its client the whole wait
N_REFUSED_ENOUGH = 2  # requests in a row, where one alone may be at fault for its refusal (402, 403)


class RunningCall(CallRecord):
    """A call at an upstream, with what lets it run there and what is told of its end."""

    __slots__ = ("health", "limited", "n_answered", "n_answered_before", "n_running")

    health: ModelHealth
    limited: ConcurrencyLimiter
    n_running: int  # calls at the upstream when it began, of all lanes and itself included
    n_answered_before: int  # first tokens of the upstream
    n_answered: int | None  # first tokens during its wait, its own included; None: it waits


class UpstreamState:
    """One upstream and its live state. Changed only on the event loop; nothing here awaits."""

    __slots__ = ("_breaker_config", "_limit_config", "_n_refused", "_pace", "_rng", "_sink", "_unjudged", "backlog",
                 "concurrency", "flow", "has_news", "is_not_idempotent", "is_proven", "lanes", "models", "n_in_flight",
                 "own_health", "pending", "predictor", "quickest", "retry_budget", "slow_factor", "upstream", "usual",
                 "whole_limiter")

    def __init__(self, upstream: Upstream, limit: LimitConfig | None = None, breaker: BreakerConfig | None = None,
                 rng: Random | None = None, sink: Sink | None = None, *, is_not_idempotent: bool = False) -> None:
        limit, breaker = limit or LimitConfig(), breaker or BreakerConfig()
        self.upstream = upstream
        self.usual = LatencyBaselines()
        self.concurrency = Concurrency()
        self.lanes: dict[str, ConcurrencyLimiter] | None = None  # None: all share one limit
        self._limit_config = limit
        self.models: Models | None = None  # None: it is asked for one
        self.retry_budget = UpstreamRetryBudget()  # of attempts beyond what clients asked, by all routes
        self.backlog: PrefillBacklog | None = None  # None: nobody chooses between it and others
        self.has_news = False  # something but its breaker has moved requests to others
        self.flow: TokenFlow | None = None  # how its answers flow, where somebody judges that
        self.is_not_idempotent = is_not_idempotent  # what it was asked and may have heard is not to be asked a second time
        self.n_in_flight = 0
        self.is_proven = False  # it answered with a real token, and has not failed many times in a row since
        self.predictor: Predictor | None = None  # None: nobody asks what a first token will take
        self.quickest = QuickestTtft()
        self._sink = sink or Fanout()
        self.slow_factor = breaker.slow_factor
        self._rng = rng = rng or Random(upstream.name)
        self.whole_limiter = ConcurrencyLimiter(upstream.name, limit, rng=rng, quickest=self.quickest)
        self._breaker_config = breaker
        self._pace = LatencyEstimate()
        # of whatever it is asked for
        self.own_health = ModelHealth(upstream.name, None, Breaker(breaker, self._rng), self._sink)
        self.pending: dict[RunningCall, None] = {}  # without a first token, oldest first
        self._unjudged: DueBuckets[RunningCall] = DueBuckets()
        self._n_refused = 0  # keys, in a row

    def predict_ttft(self) -> None:
        self.predictor = self.predictor or Predictor()

    def track_backlog(self, *, is_tracked: bool) -> None:
        self.backlog = (self.backlog or PrefillBacklog()) if is_tracked else None

    def track_flow(self) -> TokenFlow:
        self.flow = self.flow or TokenFlow()
        return self.flow

    @property
    def breaker(self) -> Breaker:
        return self.own_health.breaker

    @property
    def n_failed_in_row(self) -> int:
        return self.breaker.n_failed_in_row

    def split_by_lane(self, lanes: Sequence[str]) -> None:
        """Give each lane a limit of its own; no lanes, or a fixed limit: one for all. Waiting requests wait anew."""
        before, wanted = list(self.lanes or ()), list(lanes) if self.whole_limiter.limit.learns else []
        if before == wanted:
            return
        waiting = self.all_limited
        self.lanes = {lane: ConcurrencyLimiter(self.upstream.name, self._limit_config, lane, self._rng, self.quickest)
                      for lane in wanted} or None
        for limited in waiting:
            limited.send_on()

    def limited(self, lane: str) -> ConcurrencyLimiter:
        """The places of a lane; of what is in none, and where there are none, those of all."""
        return self.whole_limiter if self.lanes is None else self.lanes.get(lane, self.whole_limiter)

    @property
    def all_limited(self) -> Sequence[ConcurrencyLimiter]:
        return (self.whole_limiter,) if self.lanes is None else (self.whole_limiter, *self.lanes.values())

    @property
    def n_waiting(self) -> int:
        """Requests that wait for a place; one that waits at several upstreams counts once over all of them."""
        return sum(limited.n_waiting for limited in self.all_limited)

    @property
    def has_room(self) -> bool:
        return self.whole_limiter.has_room

    @property
    def quickest_s(self) -> float:
        """About the shortest of its recent times to a first token; 0: none is known."""
        return self.quickest.seconds

    @property
    def limit(self) -> AdaptiveLimit:
        return self.whole_limiter.limit

    def set_models(self, models: Collection[str], *, any_model: bool) -> None:
        """Settings ask it for these models, and for whatever clients name. Of one alone there is nothing to tell apart."""
        if len(models) < 2 and not any_model:
            self.models = None
            return
        if self.models is None:
            self.models = Models(self.upstream.name, self._breaker_config, self._rng, self._sink)
        self.models.name(models)

    def health(self, model: str) -> ModelHealth:
        return self.own_health if self.models is None or not model else self.models.of(model)

    @property
    def healths(self) -> Iterable[ModelHealth]:
        return (self.own_health,) if self.models is None else self.models

    @property
    def shared(self) -> Iterable[ModelHealth]:
        return (self.own_health,) if self.models is None else self.models.named

    def load(self, now: float, model: str = "") -> CandidateLoad:
        if now >= self._unjudged.next_at:
            self._judge(now)
        health = self.own_health if self.models is None else self.health(model)
        breaker = health.breaker
        share = breaker.share(now) if health.is_preferred(now) else 0.0
        n_before: float = self.n_in_flight
        if self.backlog is not None:
            n_before += self.backlog.work
        seconds = self._pace.load_s(n_before, self.usual.all.baseline_s, now)
        if self.flow is not None:
            seconds *= self.flow.load_factor(now)
        return CandidateLoad(seconds, share, share == 0.0 and breaker.wants_probe(now))

    def is_well(self, now: float, model: str) -> bool:
        """Whether it is to be preferred to one that is not."""
        health = self.health(model)
        return health.is_preferred(now) and health.breaker.share(now) > 0

    def is_failing(self, now: float, model: str) -> bool:
        """Whether it fails, or sent a Retry-After. A breaker that is open for slowness only does not count."""
        health = self.health(model)
        if not health.is_preferred(now):
            return True
        return health.breaker.n_failed_in_row > 0 and health.breaker.share(now) == 0

    def why_alone(self, now: float, model: str) -> str:
        """Why others go first, where that is not by its breaker; empty where they do not."""
        health = self.health(model)
        self.has_news = any(not one.is_preferred(now) for one in self.healths)
        if now < health.refused_until:
            return health.why_refused
        return health.why_alone if now < health.alone_until else ""

    def started(self, call: RunningCall, now: float) -> None:
        """An attempt begins that has its place."""
        self.n_in_flight += 1
        judged_at = call.slow_at
        if judged_at == inf:
            call.norm.n_unknown += 1
            judged_at = now + UNKNOWN_JUDGED_AFTER_S
        self.pending[call] = None
        unjudged, limit = self._unjudged, self._limit_config
        unjudged.add(call, max(judged_at, now + limit.bad_s) if limit.mode == "aimd" else judged_at)
        if now >= unjudged.next_at:
            self._judge(now)

    def succeeded(self) -> None:
        self.is_proven = True

    def answered(self, call: RunningCall, now: float) -> None:
        """Its first token came."""
        usual, norm, ttft_s = self.usual, call.real or call.norm, call.took_s or 0.0
        if call.slow_at == inf:
            call.norm.n_unknown -= 1
            log_s = log_of(ttft_s)
            usual.learn(call.norm, log_s)
            if norm is not call.norm:
                norm.learn(log_s)
        self.is_proven = True
        self._n_refused = 0
        call.health.accepted()
        self.quickest.learn(ttft_s)
        usual_s, ratio = usual.all.baseline_s, norm.ratio(ttft_s)
        self.concurrency.answered(call.n_running + self._n_elsewhere(), ttft_s, norm.baseline_s)
        call.n_answered = self.concurrency.n_answered - call.n_answered_before
        call.health.breaker.succeeded(call.mark, now, is_slow=now >= call.slow_at and not self.is_own_load(call, now))
        self._pace.took(ratio * usual_s if ratio is not None else ttft_s, usual_s, now)
        call.health.report_changes()

    def outlasted(self, call: RunningCall, ratio: float, now: float, *, is_slow: bool) -> None:
        """An attempt was given up for a quicker one, after so many times its usual time."""
        usual_s = self.usual.all.baseline_s
        self._pace.outlasted(ratio * usual_s, usual_s, now)
        if is_slow:
            call.n_answered = self.concurrency.n_answered - call.n_answered_before
            if self.is_own_load(call, now):
                call.health.breaker.forgotten(call.mark)
            else:
                call.health.breaker.outlasted(call.mark, now)
            call.health.report_changes()

    def is_ordinary(self, call: RunningCall) -> bool:
        """Whether no more ran when it began than lately went well: if it is slow, that is not for its company."""
        return self.concurrency.is_ordinary(call.n_running + self._n_elsewhere())

    def learned_nothing(self, now: float) -> None:
        """A call ended without a first token, by nobody's fault here."""
        self._pace.vain(now)

    def refused(self, health: ModelHealth, now: float, why: str, *, is_key: bool, n_enough: int) -> None:
        """A request was refused for its key, or for a model that is not there; see `ModelHealth.refused`."""
        self.has_news = True
        health.refused(now, why, n_enough=n_enough)
        if is_key:
            self._n_refused += 1
            if self._n_refused >= N_FAILED_IN_ROW_UNPROVEN:
                self.is_proven = False

    def dropped(self, call: RunningCall, now: float, *, is_endpoint: bool, retry_after_s: float | None) -> None:
        """An attempt was refused, or failed by the endpoint's fault."""
        health, is_waiting = call.health, call.took_s is None
        breaker = health.breaker
        if is_endpoint:
            breaker.failed(call.mark if is_waiting else breaker.began(), now)
            health.failed(now - call.began_at, now)
            if breaker.n_failed_in_row >= N_FAILED_IN_ROW_UNPROVEN:
                self.is_proven = False
        elif is_waiting:
            breaker.forgotten(call.mark)
        if retry_after_s:
            self.has_news = True
            health.leave_alone(now + min(retry_after_s, MAX_RETRY_AFTER_S),
                               f"it asked to be left alone for {retry_after_s:.3g} s")
        self._pace.failed(self.usual.all.baseline_s, now)
        if call.became is JUDGED:
            self._unjudged.add(call, now)
        call.became = FAILED if is_endpoint else REFUSED
        health.report_changes()

    def learned(self) -> None:
        """Its breakers or its limit were told something by another process."""
        for health in self.healths:
            health.learned()
        for limited in self.all_limited:
            limited.call_up()

    def _judge(self, now: float) -> None:
        """Learn from the calls of which it is known by now whether they were slow."""
        for at, calls in self._unjudged.due(now):
            for call in calls:
                call.is_queued = (call.became is LOST or call.is_slow) and self.is_own_load(call, now)
            if self.models is not None:
                self._judge_models(calls, now)
            n_slow = n_quick = 0
            for limited, of_it in self._by_limit(calls):
                judged = self._judge_limited(limited, of_it, at)
                n_slow, n_quick = n_slow + judged.n_slow, n_quick + judged.n_quick
            if self.models is None:
                self.breaker.judged(n_slow, n_quick, now)
        self.own_health.report_changes()
        for limited in self.all_limited:
            limited.call_up()

    def is_own_load(self, call: RunningCall, now: float) -> bool:
        """Whether a slow call was slow for our own load."""
        n_here, n_answered = call.n_running, call.n_answered
        if n_answered is None:
            n_answered = self.concurrency.n_answered - call.n_answered_before
        waited_s = call.took_s if call.took_s is not None else now - call.began_at
        n_running = n_here + self._n_elsewhere()
        return self.concurrency.explains(n_running, n_answered * n_running / n_here, waited_s, self.slow_factor)

    def _n_elsewhere(self) -> int:
        """Calls of other processes at this upstream, where that is known."""
        if self.whole_limiter.common is None:
            return 0
        return sum(limited.common.n_elsewhere() for limited in self.all_limited if limited.common is not None)

    def _by_limit(self, calls: Sequence[RunningCall]) -> Iterable[tuple[ConcurrencyLimiter, Sequence[RunningCall]]]:
        """All of these, each with those that it let run."""
        if self.lanes is None:
            return ((self.whole_limiter, calls),)
        return [(limited, [call for call in calls if call.limited is limited])
                for limited in dict.fromkeys([call.limited for call in calls])]

    def _judge_limited(self, limited: ConcurrencyLimiter, calls: Sequence[RunningCall], at: float) -> CallTally:
        limit, common = limited.limit, limited.common
        usual = None if limited.n_due else self.usual  # what the limit has not mended yet would become usual
        judged = classify(calls, usual, self.breaker.mark, wants_seconds=limit.learns_seconds)
        if limit.learns and judged.n:
            samples, n_peak = judged.samples, judged.n_peak
            if common is not None:
                n_elsewhere = common.n_elsewhere()
                samples, n_peak = [(took, n + n_elsewhere) for took, n in samples], n_peak + n_elsewhere
            limit.judged(samples, judged.n, judged.n_dropped, n_peak, at)
        return judged

    def _judge_models(self, calls: Sequence[RunningCall], now: float) -> None:
        for health in dict.fromkeys([call.health for call in calls]):
            breaker = health.breaker
            breaker.judged(*of_mark([call for call in calls if call.health is health], breaker.mark), now)
            health.report_changes()

    def __repr__(self) -> str:
        state = "proven" if self.is_proven else "unproven"
        flow = f" {self.flow!r}" if self.flow is not None else ""
        alone = "".join(f" left alone, last: {why}" for health in dict.fromkeys((self.own_health, *self.healths))
                        for why in (health.why_alone, health.why_refused) if why)
        healths = " ".join(repr(health) for health in self.healths)
        limits = repr(self.whole_limiter.limit) if self.lanes is None else " ".join(map(repr, self.all_limited))
        return (f"<UpstreamState {self.upstream.name}: {self.n_in_flight} in flight, {self.n_waiting} waiting, {state}; "
                f"{limits} {healths} {self.usual!r} {self._pace!r}{flow}{alone}>")


class Registry:
    """Name to member; fixed for the life of one set of settings. A reload hands on the members that did not change."""

    __slots__ = ("_members",)

    def __init__(self, members: Iterable[UpstreamState]) -> None:
        self._members = {member.upstream.name: member for member in members}

    def __getitem__(self, name: str) -> UpstreamState:
        return self._members[name]

    def __iter__(self) -> Iterator[UpstreamState]:
        return iter(self._members.values())

    @property
    def has_proven(self) -> bool:
        """Whether at least one upstream answered with a real token: what readiness means."""
        return any(member.is_proven for member in self._members.values())

    def close(self, successor: "Registry | None" = None) -> None:
        """Close what is idle, but for the members that `kept` goes on with; what is in use closes with its stream."""
        for name, member in self._members.items():
            if successor is None or successor._members.get(name) is not member:
                member.upstream.close()
