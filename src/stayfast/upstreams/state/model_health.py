"""The health of each model at an upstream: its breaker, and until when others are preferred."""

from collections.abc import Iterable, Iterator
from random import Random

from stayfast.core.events import BreakerChanged, Sink
from stayfast.policy.resilience.breaker import Breaker, BreakerConfig

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
