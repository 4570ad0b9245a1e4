"""The phase of one replica of a self-hosted engine, and the share of the requests that it gets.

Problem: a health endpoint answers before the engine's first token is quick, and a replica that gets its full share at once
starts with an empty cache and a queue. Rule: a replica counts as ready after a token that came through the chat API; then
its share grows:

    share = 0.1 + 0.9 * (now - ready_at) / slow_start_s
    share = 1    as soon as the median of its last 10 or more first-token times is within 1.5 times that of its siblings

A replica that this gateway has not yet observed is `warming` with share 1, so a restart of the gateway moves no request: its
first evidence decides. A token makes it ready without slow start; a refused connection makes it `loading`. A ready one is
`loading` after N_REFUSED refusals in a row without a token between them. The share orders upstreams, nothing else: if all
others are worse, a replica in any phase is tried (policy/routing/load_balancing.py).
Source: Envoy's slow-start mode (a linear share with a minimum of 10 %); fleets' practice to require a token, since `/health`
of engines only says that the process accepts connections.
When wrong: an engine that restarts within one check and is refused nothing is not noticed; first-token times compare only if
siblings get similar prompts; a replica that sleeps without a metric or endpoint for it looks slow, not asleep.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from statistics import median
from types import MappingProxyType
from typing import Final

from stayfast.policy.warm.cold_start import ColdStartTimes
from stayfast.policy.warm.config import ReplicaConfig

FIRST_SHARE: Final = 0.1
N_REFUSED: Final = 2
N_COMPARED: Final = 10  # first-token times before the comparison with siblings counts
KEEPS_UP_FACTOR: Final = 1.5


class Phase(StrEnum):
    LOADING = "loading"  # no connection, or 503: its process starts or is gone
    WARMING = "warming"  # it accepts connections, and has not answered yet
    READY = "ready"
    SLEEPING = "sleeping"  # its weights are out of the accelerator's memory
    DRAINING = "draining"  # the operator wants no more requests there


class ReplicaEvent(StrEnum):
    """What is observed of a replica."""

    REFUSED = "refused"
    LISTENING = "listening"
    ANSWERED = "answered"  # with a token
    ASLEEP = "asleep"
    AWAKE = "awake"
    DRAIN = "drain"
    UNDRAIN = "undrain"


@dataclass(frozen=True, slots=True)
class PhaseRule:
    """share: of its requests. ends_by: the next phase, by event; other events change nothing."""

    share: float
    ends_by: Mapping[ReplicaEvent, Phase]


_EVENT = ReplicaEvent
RULES: Final[Mapping[Phase, PhaseRule]] = MappingProxyType({
    Phase.LOADING: PhaseRule(0.0, {_EVENT.LISTENING: Phase.WARMING, _EVENT.ANSWERED: Phase.READY,
                                   _EVENT.ASLEEP: Phase.SLEEPING, _EVENT.DRAIN: Phase.DRAINING}),
    Phase.WARMING: PhaseRule(0.0, {_EVENT.REFUSED: Phase.LOADING, _EVENT.ANSWERED: Phase.READY,
                                   _EVENT.ASLEEP: Phase.SLEEPING, _EVENT.DRAIN: Phase.DRAINING}),
    Phase.READY: PhaseRule(1.0, {_EVENT.REFUSED: Phase.LOADING, _EVENT.ASLEEP: Phase.SLEEPING,
                                 _EVENT.DRAIN: Phase.DRAINING}),
    Phase.SLEEPING: PhaseRule(0.0, {_EVENT.REFUSED: Phase.LOADING, _EVENT.AWAKE: Phase.WARMING, _EVENT.ANSWERED: Phase.READY,
                                    _EVENT.DRAIN: Phase.DRAINING}),
    Phase.DRAINING: PhaseRule(0.0, {_EVENT.UNDRAIN: Phase.WARMING}),
})


class Replica:
    """The state of one replica. Pure; changed only by its owner. Instants are seconds and never go back. `on_change` is
    called after each change of phase, `on_wake` when a request needs it while it sleeps.
    """

    __slots__ = ("_is_assumed", "_n_refused", "_started_at", "_ttfts_s", "config", "entered_at", "last_token_at", "loads",
                 "on_change", "on_wake", "phase", "ready_at", "wakes", "why")

    def __init__(self, config: ReplicaConfig) -> None:
        self.config = config
        self.phase = Phase.WARMING
        self.why = "not observed yet"
        self.entered_at = -inf
        self.loads = ColdStartTimes(config.cold_start_s)
        self.wakes = ColdStartTimes(config.cold_start_s)
        self.ready_at = -inf  # of the slow start; -inf: it is over
        self.last_token_at = -inf
        self.on_change: Callable[[Replica], None] | None = None
        self.on_wake: Callable[[], None] | None = None
        self._is_assumed = True  # nothing is known of it yet
        self._started_at: float | None = None  # of the start that runs; None: not observed from its begin
        self._n_refused = 0
        self._ttfts_s: deque[float] = deque(maxlen=2 * N_COMPARED)

    def adopt(self, before: "Replica") -> None:
        """Take over what is known of the same upstream, which had other settings before a reload."""
        self.phase, self.why, self.entered_at = before.phase, before.why, before.entered_at
        self.loads, self.wakes = before.loads, before.wakes
        self.ready_at, self.last_token_at = before.ready_at, before.last_token_at
        self._is_assumed, self._started_at = before._is_assumed, before._started_at

    @property
    def is_ready(self) -> bool:
        """Whether it has shown a token, or nothing is known against it."""
        return self.phase is Phase.READY or self._is_assumed

    @property
    def is_starting(self) -> bool:
        return self.phase in (Phase.LOADING, Phase.WARMING) and not self._is_assumed

    def share(self, now: float) -> float:
        """The share of its requests, 0 to 1."""
        if self.phase is not Phase.READY:
            return 1.0 if self._is_assumed else RULES[self.phase].share
        if self.ready_at == -inf:
            return 1.0
        slow_s = self.config.slow_start_s
        if now >= self.ready_at + slow_s:
            self.ready_at = -inf
            return 1.0
        return FIRST_SHARE + (1 - FIRST_SHARE) * (now - self.ready_at) / slow_s

    def note_token(self, ttft_s: float, now: float) -> None:
        """A first token came through it, of a request or a probe."""
        self._n_refused = 0
        self.last_token_at = now
        if self.phase is Phase.READY:
            self._ttfts_s.append(ttft_s)
            return
        started_at, had_slept = self._started_at, self.phase is Phase.SLEEPING or self.why == "woken"
        is_assumed = self._is_assumed
        if self._enter(ReplicaEvent.ANSWERED, "a token came", now):
            self._ttfts_s.clear()
            self.ready_at = -inf if is_assumed or not self.config.slow_start_s else now
            if started_at is not None:
                (self.wakes if had_slept else self.loads).add_start(now - started_at)
            self._started_at = None

    def note_refused(self, now: float, why: str) -> None:
        """It refused a connection, or answered 503 to a check."""
        self._n_refused += 1
        if self.phase is Phase.READY and self._n_refused < N_REFUSED:
            return
        if self._enter(ReplicaEvent.REFUSED, why, now):
            self._started_at = now

    def note_listening(self, now: float) -> None:
        """Its health endpoint is well."""
        self._n_refused = 0
        if self.config.ready_by == "health" and self.phase in (Phase.LOADING, Phase.WARMING):
            self.note_token(0.0, now)
        else:
            self._enter(ReplicaEvent.LISTENING, "it accepts connections, and has sent no token yet", now)

    def note_sleep(self, now: float, *, is_asleep: bool) -> None:
        """The engine says whether it sleeps."""
        self._enter(ReplicaEvent.ASLEEP if is_asleep else ReplicaEvent.AWAKE, "it sleeps" if is_asleep else "woken", now)

    def note_woken(self, now: float) -> None:
        """The engine accepted a request to wake, sent `now`."""
        if self._enter(ReplicaEvent.AWAKE, "woken", now):
            self._started_at = now

    def drain(self, now: float) -> None:
        """Prefer all others from now on. Running answers end as usual."""
        self._enter(ReplicaEvent.DRAIN, "the operator drains it", now)

    def undrain(self, now: float) -> None:
        """Use it again, after its next token."""
        self._enter(ReplicaEvent.UNDRAIN, "the operator drains it no more, and it has sent no token since", now)

    def request_wake(self) -> None:
        """It is needed. Does nothing unless it sleeps and its settings allow to wake it."""
        if self.phase is Phase.SLEEPING and self.config.wake and self.on_wake is not None:
            self.on_wake()

    @property
    def cold_start_s(self) -> float:
        """The time from a start to its first token: of a wake while it sleeps, else of a load."""
        return (self.wakes if self.phase is Phase.SLEEPING else self.loads).p90_s

    def left_s(self, now: float) -> float | None:
        """The time until it is probably ready. None: it neither starts nor may be woken."""
        if self.is_ready:
            return 0.0
        if self.phase is Phase.DRAINING or (self.phase is Phase.SLEEPING and not self.config.wake):
            return None
        if self.phase is Phase.SLEEPING:
            return self.wakes.p90_s
        times = self.wakes if self.why == "woken" else self.loads
        return times.left_s(now - (self._started_at if self._started_at is not None else self.entered_at))

    @property
    def ttft_p50_s(self) -> float | None:
        """Of its last first tokens; None: too few."""
        return median(self._ttfts_s) if len(self._ttfts_s) >= N_COMPARED else None

    def compare(self, siblings_s: list[float]) -> None:
        """End the slow start if it keeps up with its siblings. siblings_s: their `ttft_p50_s`, where known."""
        own_s = self.ttft_p50_s
        if self.ready_at != -inf and own_s is not None and siblings_s and own_s <= KEEPS_UP_FACTOR * median(siblings_s):
            self.ready_at = -inf

    def _enter(self, event: ReplicaEvent, why: str, now: float) -> bool:
        """Whether the event changed its phase."""
        phase = RULES[self.phase].ends_by.get(event)
        if phase is None:
            return False
        self.phase, self.why, self.entered_at = phase, why, now
        self._is_assumed = False
        self._n_refused = 0
        self.ready_at = -inf
        if self.on_change is not None:
            self.on_change(self)
        return True

    def __repr__(self) -> str:
        return f"<Replica {self.phase.value}: {self.why}; {self.loads!r}>"
