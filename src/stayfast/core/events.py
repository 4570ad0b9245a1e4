"""Facts: what happened, as frozen records. Whoever makes one neither knows nor cares who listens (logs, metrics, tests).

`array_like`: those of a finished request are kept as msgpack (`observe.recent`), and names would double it.
"""

from typing import Protocol

import msgspec

from stayfast.core.steps import StepDone
from stayfast.core.types import Api, Outcome, Stage, Usage


class StageDone(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A stage ended. Instants are monotonic seconds; `allowance_s` is what it might have used."""

    stage: Stage
    began_at: float
    ended_at: float
    allowance_s: float

    @property
    def spent_s(self) -> float:
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


class RequestParams(msgspec.Struct, frozen=True, gc=False):
    """What a request asked of the model beside its prompt. None: it did not say."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    choice_count: int | None = None  # where it is not 1


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
    cost_usd: float | None = None  # None: no price is set, or no usage is known
    stalls: tuple[Stall, ...] = ()
    span_id: str | None = None  # 16 hex digits: what this attempt's `traceparent` named
    is_hedge: bool = False  # made beside one that still ran
    is_lost: bool = False  # ended because another attempt brought the first token
    steps: tuple[StepDone, ...] = ()  # of a turn that is served as a model, in the order in which they began
    detail: str = ""  # of a fault, for operators: addresses and the system's error numbers
    role: str = "first"  # why it was made: first, hedge, retry, fallback, rescue; not for a client: refresh, audit, judge
    is_stream: bool = True  # its client asked for a stream
    response_id: str | None = None  # as the upstream named its answer
    response_model: str | None = None  # and the model that gave it
    is_estimated: bool = False  # its upstream did not report `usage`, or not all of it: it was given up before


class Hedged(msgspec.Struct, frozen=True, gc=False):
    """A second attempt was sent beside one that still ran, or was to be sent and was not."""

    route: str
    upstream: str  # that of the attempt that still ran
    at: float
    refused: str = ""  # why it was not sent: budget, slow, busy, deadline, shedding; empty: it was
    to: str = ""  # whom it asks, or would have asked
    after_s: float = 0.0  # without a first token
    quantile: float = 1.0  # of the live distribution, which `after_s` is
    n_known: int = 0  # first tokens that say so; 0: the route races, whatever is known
    spent: float = 0.0  # of live traffic, what hedges came to in the last minute
    budget: float = 0.0  # what they may come to

    @property
    def why(self) -> str:
        if not self.n_known:
            return f"a race after {self.after_s:.2g} s"
        return (f"ttft > {self.after_s:.2g} s (p{self.quantile * 100:.0f} of {self.n_known}), "
                f"{stands(self.spent, self.budget)}")


class Retried(msgspec.Struct, frozen=True, gc=False):
    """An attempt failed, and another one is made."""

    route: str
    upstream: str  # that failed; empty: time ran out, or a limit of ours ended it
    to: str
    at: float
    what: str  # it failed with: a status, a fault or a code
    wait_s: float = 0.0
    spent: float = 0.0  # of live traffic, what all extra attempts came to in the last minute
    budget: float = 0.0  # what they may come to; 0: none is drawn on, as nothing was done for the attempt that failed

    @property
    def why(self) -> str:
        of = f" of {self.upstream}" if self.upstream else ""
        after = f", after {self.wait_s:.2g} s" if self.wait_s else ""
        return f"{self.what}{of}{after}{', ' + stands(self.spent, self.budget) if self.budget else ''}"


class RetryWithheld(msgspec.Struct, frozen=True, gc=False):
    """An attempt failed, and there is no other though it could help."""

    route: str
    upstream: str
    why: str = ""  # client: its SDK retries by itself; budget: the route's is spent; upstream: that of whom it would ask is
    spent: float = 0.0  # as in Retried
    budget: float = 0.0


class Ejected(msgspec.Struct, frozen=True, gc=False):
    """A route leaves an upstream out as an outlier, or takes it back."""

    route: str
    upstream: str
    is_out: bool
    why: str  # ours: shares and ratios


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
    cache: str | None = None  # hit, semantic, stale, miss, coalesced or bypass; None: its route has none
    saved_usd: float | None = None  # what the answer of a cache had cost; None: none gave it, or no price is set
    cache_key: bytes | None = None  # of the answer that a cache gave, or under which its own is kept
    params: RequestParams | None = None  # None: it is not traced

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
    def cost_by_role(self) -> dict[str, float]:
        """What its attempts cost, by why they were made, USD; together `cost_usd`. Empty where nothing is known."""
        costs_usd: dict[str, float] = {}
        for attempt in self.attempts:
            if attempt.cost_usd is not None:
                costs_usd[attempt.role] = costs_usd.get(attempt.role, 0.0) + attempt.cost_usd
        return costs_usd

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


class KeysFailed(msgspec.Struct, frozen=True, gc=False):
    """Requests without a valid key came faster than their address may send them. At most one a minute, for all addresses."""

    n: int  # refused beyond the limit since the last of these
    address: str  # that the newest came from; empty: a Unix socket
    limit: int  # a minute


class ConnectionOpened(msgspec.Struct, frozen=True, gc=False):
    """A new connection to an upstream: the cost that keep-alive saves. `handshake_s` spans TCP and TLS."""

    upstream: str
    handshake_s: float
    http_version: str
    tls: bool = False
    tls_resumed: bool = False


class ConnectionReused(msgspec.Struct, frozen=True, gc=False):
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


class StoreCallDone(msgspec.Struct, frozen=True, gc=False):
    """A shared store was asked, or told, something: get, put, lead, follow, tell, hear. `result`: a word of ours."""

    store: str
    what: str
    result: str
    seconds: float


class StoreChanged(msgspec.Struct, frozen=True, gc=False):
    """A shared store is left alone (open), tried again (half_open) or used as usual (closed)."""

    store: str
    state: str
    why: str


class PrefixFinding(msgspec.Struct, frozen=True, gc=False):
    """Why a provider's prefix cache is of no use to a route's prompts. Lengths and places only, never words of a prompt."""

    route: str
    upstream: str
    model: str  # the upstream's own name for it
    what: str  # moves: a block of the instructions differs from request to request; unread: what is written is never read;
    # refused: the upstream does not take what was added
    where: str  # the block, as in tools[3] or system[0]; of a refusal, the member of the request; empty: all of it
    at_byte: int  # of the block's JSON, where two of them differ first
    word: str  # what stands there: a time, a date, a UUID, a timestamp, an id, a number or text
    n_tokens: int  # of a request that cannot be read from the cache, about
    usd_a_day: float | None = None  # None: no price is set

    @property
    def detail(self) -> str:
        usd = f", ${self.usd_a_day:g} a day" if self.usd_a_day is not None else ""
        if self.what == "unread":
            return f"about {self.n_tokens} tokens of a prompt are written to the cache and never read{usd}"
        if self.what == "refused":
            return f"{self.upstream} refuses {self.where} for {self.model}: left out for an hour"
        return f"{self.word} at byte {self.at_byte} of {self.where} makes {self.n_tokens} tokens uncacheable{usd}"


class SemanticLookedUp(msgspec.Struct, frozen=True, gc=False):
    """A question was looked up by its meaning, or an audit of such a hit has begun or is over. `result`: of ours; hit,
    why it was a miss, audit_started, audit_right or audit_wrong.
    """

    route: str
    result: str


class Renewed(msgspec.Struct, frozen=True, gc=False):
    """A kept answer that had grown old, and was given all the same, was asked for again in the background."""

    route: str
    result: str  # renewed, failed, shed
    seconds: float


class TurnFailed(msgspec.Struct, frozen=True, gc=False):
    """A turn of our operator's own raised. Names and places only: what an exception says may quote a prompt."""

    upstream: str
    request_id: str
    error: str  # the exception's kind
    where: str  # its last frames: file, line and function


class LoopLag(msgspec.Struct, frozen=True, gc=False):
    """A sample of how late the event loop ran a timer: what every request waits for, beside all that it counts."""

    seconds: float


class DescriptorsExhausted(msgspec.Struct, frozen=True, gc=False):
    """This process had no file descriptor for something: an incident of its own, and no upstream's."""

    what: str  # connect, accept
    limit: int
    upstream: str | None = None  # the one that could not be called


class ConnectionsClosed(msgspec.Struct, frozen=True, gc=False):
    """Client connections without a request were closed to make room for another."""

    n: int
    n_open: int
    n_silent: int  # of those that are left


Fact = (StageDone | GapsSeen | AttemptDone | RequestDone | RequestRefused | ConnectionOpened | ConnectionReused | ProbeFailed
        | EngineState | BreakerChanged | LoopLag | Hedged | RetryWithheld | Rescued | StoreCallDone | StoreChanged
        | PrefixFinding | SemanticLookedUp | Renewed | Retried | Ejected | TurnFailed | KeysFailed | ConnectionsClosed
        | DescriptorsExhausted)


def stands(spent: float, budget: float) -> str:
    """What a budget stands at, shares of live traffic: budget 3.1/5 %. Beyond its share there is only its slack."""
    return f"budget {spent * 100:.1f}/{budget * 100:g} %{' and its slack' if spent > budget else ''}"


class Sink(Protocol):
    """Where facts go. `emit` must be cheap, must not raise and must not await."""

    def emit(self, fact: Fact) -> None:
        """Take one fact."""


class Fanout:
    """Hands each fact to several sinks, in order."""

    __slots__ = ("_sinks",)

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def emit(self, fact: Fact) -> None:
        for sink in self._sinks:
            sink.emit(fact)
