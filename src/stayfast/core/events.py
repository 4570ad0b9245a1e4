"""Facts: what happened, as frozen records. Whoever makes one neither knows nor cares who listens (logs, metrics, tests).

`array_like`: those of a finished request are kept as msgpack (`observe.recent`), and names would double it.
"""

from typing import Protocol

import msgspec

from stayfast.core.types import Api, Outcome, Stage, Usage


class StageDone(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A stage ended. Instants are monotonic seconds; `allowance_s` is what it might have used."""

    stage: Stage
    began_at: float
    ended_at: float
    allowance_s: float

    @property
    def spent_s(self) -> float:
        """Seconds used."""
        return self.ended_at - self.began_at


class Trace(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where a request stands in a distributed trace (W3C trace context). All ids are lower-case hex."""

    trace_id: str  # 32 digits
    span_id: str  # 16 digits: the request's own span; empty where tracing is off and it has none
    parent_id: str | None = None  # 16 digits: the caller's span, where the client sent a `traceparent`
    is_sampled: bool = True
    state: str = ""  # `tracestate`, passed on as it came
    is_random: bool = False  # whoever began the trace says that its id's last 14 digits are random (level 2)


class Stall(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A gap between two chunks that was long enough to be felt."""

    at: float  # when the chunk before it had come
    seconds: float


class GapsSeen(msgspec.Struct, frozen=True, gc=False):
    """Waits between the parts of running answers, in batches: one fact for each would cost more than the part."""

    route: str
    upstream: str
    gaps_s: list[float]  # the listeners' to read, never empty


class AttemptDone(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One call to one upstream ended. `ttft_s` is from the attempt's start to its first content (None: none came)."""

    route: str
    upstream: str
    began_at: float
    ended_at: float
    outcome: Outcome
    ttft_s: float | None = None
    fault: str | None = None
    n_attempt: int = 1
    request_id: str = ""
    api: Api = Api.CHAT
    kind: str = ""  # of the upstream: openai, anthropic, embedded, simulated, ...
    model: str = ""  # the upstream's own name for it
    upstream_status: int | None = None  # what the upstream answered where that was an error
    usage: Usage | None = None
    finish_reason: str | None = None
    cost_usd: float | None = None  # None: no price is set, or no usage was reported
    stalls: tuple[Stall, ...] = ()
    span_id: str | None = None  # 16 hex digits: what this attempt's `traceparent` named
    is_hedge: bool = False  # made beside one that still ran
    is_lost: bool = False  # ended because another attempt brought the first token; then `usage` is an estimate of its prompt


class Hedged(msgspec.Struct, frozen=True, gc=False):
    """A second attempt was sent beside one that still ran, or was to be sent and was not."""

    route: str
    upstream: str  # that of the attempt that still ran
    at: float
    refused: str = ""  # why it was not sent: budget, slow, busy, deadline, shedding; empty: it was


class RetryWithheld(msgspec.Struct, frozen=True, gc=False):
    """An attempt failed, and the budget of extra attempts had no room for another."""

    route: str
    upstream: str


class Rescued(msgspec.Struct, frozen=True, gc=False):
    """A running answer stalled or broke off on a route that does something about it."""

    route: str
    upstream: str  # that of the attempt that stalled
    at: float
    result: str  # rescued, failed, ended; refused_ and why: nothing was done then


class RequestDone(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A request's life is over; one a request, whatever its end."""

    request_id: str
    api: Api
    route: str | None  # the route's name in the settings (bounded); None: no route matched
    model: str  # what the client asked for (anything)
    stream: bool
    status: int  # 499: the client left first
    accepted_at: float
    ended_at: float
    wall_at: float
    stages: tuple[StageDone, ...]
    upstream: str | None = None
    n_attempts: int = 0
    ttft_s: float | None = None  # from accept
    n_chunks: int = 0
    usage: Usage | None = None
    finish_reason: str | None = None
    error: str | None = None  # a code, never a message that could quote a prompt
    tenant: str | None = None
    total_s: float | None = None  # from accept to the deadline
    over_stage: Stage | None = None  # the first stage that used more than its allowance
    degraded: str | None = None  # fallback, template or partial: what the route did instead of failing
    tpot_s: float | None = None  # (last content - first content) / (output tokens - 1), where both are known
    gap_max_s: float | None = None  # the longest wait between two chunks after the first content
    trace: Trace | None = None
    queue_s: float | None = None  # from accept to when the first stage looked at it
    attempts: tuple[AttemptDone, ...] = ()  # every call made for it, in the order of their starts
    notes: tuple[str, ...] = ()  # what was decided about it and why, in words; names and figures only
    shed: str | None = None  # why it was turned away: one of a few words of ours
    cache: str | None = None  # hit, miss, coalesced or bypass; None: its route has none

    @property
    def own_s(self) -> float | None:
        """Seconds before the first token in which no attempt was under way: ours. None where no token came, or came of an
        attempt that another request made.
        """
        if self.ttft_s is None or self.cache == "coalesced":
            return None
        waited_s, until, first_at = 0.0, self.accepted_at, self.accepted_at + self.ttft_s
        for attempt in self.attempts:
            ended_at = min(first_at, attempt.ended_at)
            if ended_at > until:
                waited_s += ended_at - max(attempt.began_at, until)
                until = ended_at
        return max(0.0, self.ttft_s - waited_s)

    @property
    def cost_usd(self) -> float | None:
        """What all its attempts cost, as far as known; None where nothing is."""
        whole_usd = None
        for attempt in self.attempts:
            if attempt.cost_usd is not None:
                whole_usd = attempt.cost_usd if whole_usd is None else whole_usd + attempt.cost_usd
        return whole_usd


class RequestRefused(msgspec.Struct, frozen=True, gc=False):
    """The edge answered by itself: not HTTP, not authorised, not decodable, draining. One a request, like RequestDone."""

    request_id: str
    path: str  # a known path, or "other"
    status: int
    code: str
    wall_at: float
    seconds: float
    tenant: str | None = None


class ConnectionOpened(msgspec.Struct, frozen=True, gc=False):
    """A new connection to an upstream: the cost that keep-alive saves. `handshake_s` spans TCP and TLS."""

    upstream: str
    handshake_s: float
    http_version: str
    tls: bool = False
    tls_resumed: bool = False


class ConnectionReused(msgspec.Struct, frozen=True, gc=False):
    """A request went out on a pooled connection."""

    upstream: str


class ProbeFailed(msgspec.Struct, frozen=True, gc=False):
    """An upstream that must prove itself did not answer with a token; told when the reason changes, not each time."""

    upstream: str
    code: str
    message: str  # ours: names the upstream, never a key, a prompt or an upstream's own text


class EngineState(msgspec.Struct, frozen=True, gc=False):
    """The embedded engine changed state: starting, ready, crashed, stopped."""

    state: str
    pid: int | None = None
    detail: str | None = None


class BreakerChanged(msgspec.Struct, frozen=True, gc=False):
    """An upstream is left alone (open), tried again (half_open) or used as usual (closed)."""

    upstream: str
    state: str
    why: str  # ours: counts and times, never an upstream's own text


class LoopLag(msgspec.Struct, frozen=True, gc=False):
    """A sample of how late the event loop ran a timer: what every request waits for, beside all that it counts."""

    seconds: float


Fact = (StageDone | GapsSeen | AttemptDone | RequestDone | RequestRefused | ConnectionOpened | ConnectionReused | ProbeFailed
        | EngineState | BreakerChanged | LoopLag | Hedged | RetryWithheld | Rescued)


class Sink(Protocol):
    """Where facts go. `emit` must be cheap, must not raise and must not await."""

    def emit(self, fact: Fact) -> None:
        """Take one fact."""
        ...


class Fanout:
    """Hands each fact to several sinks, in order."""

    __slots__ = ("_sinks",)

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def emit(self, fact: Fact) -> None:
        """Take one fact."""
        for sink in self._sinks:
            sink.emit(fact)
