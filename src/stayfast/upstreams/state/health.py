"""Whether one model at one upstream is to be preferred: its breaker, and for how long it is left alone for what it said.

Most upstreams are asked for one model, and have one of these. Where there are several each has its own, so that what one
of them does (no such model, a quota that is used up, errors) moves no request for another.
"""

from collections.abc import Iterable, Iterator
from random import Random

from stayfast.core.events import BreakerChanged, Sink
from stayfast.policy.resilience.breaker import Breaker, BreakerConfig

MAX_UNNAMED = 64  # models that only clients name: the oldest is forgotten
MAX_NAME = 64  # characters of such a name in a reason


class Health:
    """Of one model at one upstream. Changed only by its Member."""

    __slots__ = ("_name", "_sink", "_told", "alone_until", "breaker", "model", "why_alone")

    def __init__(self, name: str, model: str | None, breaker: Breaker, sink: Sink) -> None:
        self.model = model  # None: any
        self.breaker = breaker
        self.alone_until = float("-inf")
        self.why_alone = ""
        self._name = name
        self._sink = sink
        self._told = breaker.state

    def leave_alone(self, until: float, why: str) -> None:
        """Others go first until then."""
        if until > self.alone_until:
            self.alone_until, self.why_alone = until, why

    def tell(self) -> None:
        breaker = self.breaker
        if breaker.state is not self._told:
            self._told = breaker.state
            why = breaker.why if self.model is None else f"model {self.model[:MAX_NAME]!r}: {breaker.why}"
            self._sink.emit(BreakerChanged(self._name, breaker.state.value, why))

    def learned(self) -> None:
        """Its breaker was told something by another process."""
        if self.breaker.said:
            self.tell()
        self._told = self.breaker.state  # what others changed, they have told

    def __repr__(self) -> str:
        return repr(self.breaker) if self.model is None else f"{self.model[:MAX_NAME]!r}: {self.breaker!r}"


class Models:
    """The healths of an upstream that is asked for several models: of those that settings name, and the newest others."""

    __slots__ = ("_config", "_name", "_named", "_rng", "_sink", "_unnamed")

    def __init__(self, name: str, config: BreakerConfig, rng: Random, sink: Sink) -> None:
        self._name = name
        self._config = config
        self._rng = rng
        self._sink = sink
        self._named: dict[str, Health] = {}
        self._unnamed: dict[str, Health] = {}

    def of(self, model: str) -> Health:
        """The health of this model; it is well where nothing is known of it."""
        found = self._named.get(model) or self._unnamed.get(model)
        if found is None:
            if len(self._unnamed) >= MAX_UNNAMED:
                del self._unnamed[next(iter(self._unnamed))]
            self._unnamed[model] = found = self._made(model)
        return found

    def name(self, models: Iterable[str]) -> None:
        """Settings name these."""
        self._named = {model: self._named.get(model) or self._unnamed.pop(model, None) or self._made(model)
                       for model in models}

    @property
    def named(self) -> Iterable[Health]:
        """Of the models that settings name."""
        return self._named.values()

    def __iter__(self) -> Iterator[Health]:
        yield from self._named.values()
        yield from self._unnamed.values()

    def _made(self, model: str) -> Health:
        return Health(self._name, model, Breaker(self._config, self._rng), self._sink)
