"""Facts: frozen records of what happened, emitted to a `Sink` (logs, metrics, traces, tests).

Records of finished requests are `array_like`: `observe.recent_requests` stores them as msgpack, half as long without names.
"""

from typing import Protocol

import msgspec

from stayfast.core.classify import ClassifierFact
from stayfast.core.credentials import CredentialRenewalFailed, CredentialRenewed
from stayfast.core.keys import KeyChanged
from stayfast.core.passthrough import PassedThrough
from stayfast.core.replicas import PhaseChanged
from stayfast.core.samples import PromptSampled, QuotaReported
from stayfast.core.stage_times import StageDone, StageTimes
from stayfast.core.steps import StepDone
from stayfast.core.types import Api, Outcome, Stage, Usage

UNPRICED = "unpriced"  # tokens without a known price


class Trace(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A request's place in a distributed trace (W3C trace context). All ids are lower-case hex."""

    trace_id: str  # 32 digits
    span_id: str  # 16 digits: the request's own span; empty if tracing is off
    parent_id: str | None = None  # 16 digits: the caller's span, if the client sent a `traceparent`
    is_sampled: bool = True
    state: str = ""  # `tracestate`, passed on unchanged
    is_random: bool = False  # the last 14 digits of the trace id are random, according to its creator (level 2)


class Stall(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A pause between two chunks that is long enough for a reader to notice."""

    at: float  # arrival of the chunk before the pause
    seconds: float


class TokenGaps(msgspec.Struct, frozen=True, gc=False):
    """Pauses between the parts of running answers, in batches, as a fact for each pause would cost too much."""

    route: str
    upstream: str
    gaps_s: list[float]  # never empty; listeners must not change it


class RequestParams(msgspec.Struct, frozen=True, gc=False):
    """The sampling parameters of a request. None: not given."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    choice_count: int | None = None  # if it is not 1


class AttemptDone(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One call to one upstream ended. `ttft_s`: from the attempt's start to its first content; None: there was none."""

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
    upstream_status: int | None = None  # the upstream's HTTP status, if it was an error
    usage: Usage | None = None
    finish_reason: str | None = None
    cost_usd: float | None = None  # None: no price is set, or no usage is known
    stalls: tuple[Stall, ...] = ()
    span_id: str | None = None  # 16 hex digits: the span named in this attempt's `traceparent`
    is_hedge: bool = False  # sent while another attempt still ran
    is_lost: bool = False  # ended because another attempt brought the first token
    steps: tuple[StepDone, ...] = ()  # of a turn that is served as a model, in order of their start
    detail: str = ""  # of a fault, for operators: addresses and system error numbers
    role: str = "first"  # first, hedge, retry, fallback, rescue, escalation; without a client: refresh, audit, judge, verify
    is_stream: bool = True  # the client asked for a stream
    response_id: str | None = None  # the upstream's name for its answer
    response_model: str | None = None  # the model that the upstream named in its answer
    is_estimated: bool = False  # the upstream did not report all of `usage`, because the attempt was cancelled
    n_running: int = 0  # calls of this process at the upstream when it started, itself included
    n_content: int = 0  # events with content
    last_s: float | None = None  # from its start to its last content; None: there was none
    price: str = ""  # where `cost_usd` comes from: own, table or reported; unpriced: tokens without a price


class Hedged(msgspec.Struct, frozen=True, gc=False):
    """A hedge (second attempt) was sent while the first still ran, or was due but not sent."""

    route: str
    upstream: str  # of the attempt that still ran
    at: float
    refused: str = ""  # why it was not sent: budget, slow, busy, deadline, shedding; empty: it was sent
    to: str = ""  # the upstream of the hedge
    after_s: float = 0.0  # seconds without a first token
    quantile: float = 1.0  # of the live distribution, at `after_s`
    n_known: int = 0  # first tokens in that distribution; 0: the route always hedges (mode: race)
    spent: float = 0.0  # hedges of the last minute, as a share of live traffic
    budget: float = 0.0  # the limit of that share

    @property
    def why(self) -> str:
        if not self.n_known:
            return f"race: no first token after {self.after_s:.2g} s"
        return (f"no first token after {self.after_s:.2g} s (p{self.quantile * 100:.0f} of {self.n_known}), "
                f"{describe_budget(self.spent, self.budget)}")


class Retried(msgspec.Struct, frozen=True, gc=False):
    """An attempt failed, and another one follows."""

    route: str
    upstream: str  # of the failed attempt; empty: time ran out, or the gateway's own limit ended it
    to: str
    at: float
    what: str  # the failure: a status, a fault or a code
    wait_s: float = 0.0
    spent: float = 0.0  # all extra attempts of the last minute, as a share of live traffic
    budget: float = 0.0  # the limit of that share; 0: this attempt is not charged, as the failed one did no work

    @property
    def why(self) -> str:
        source = f" from {self.upstream}" if self.upstream else ""
        pause = f", after {self.wait_s:.2g} s" if self.wait_s else ""
        return f"{self.what}{source}{pause}{', ' + describe_budget(self.spent, self.budget) if self.budget else ''}"


class RetryWithheld(msgspec.Struct, frozen=True, gc=False):
    """An attempt failed, and no other follows although it could help."""

    route: str
    upstream: str
    why: str = ""  # client: its SDK retries; budget: the route's is empty; upstream: that of the next upstream is
    spent: float = 0.0  # as in Retried
    budget: float = 0.0


class Ejected(msgspec.Struct, frozen=True, gc=False):
    """A route ejects an upstream as an outlier, or takes it back."""

    route: str
    upstream: str
    is_out: bool
    why: str  # shares and ratios


class Rescued(msgspec.Struct, frozen=True, gc=False):
    """A running answer stalled or broke off on a route with a `stall` setting."""

    route: str
    upstream: str  # of the attempt that stalled
    at: float
    result: str  # rescued, failed, ended; or refused_ and the reason for which no action was taken


class RequestDone(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A request ended, with whatever result. Emitted once for each request."""

    request_id: str
    api: Api
    route: str | None  # the route's name in the settings (bounded); None: no route matched
    model: str  # as the client sent it; unbounded
    stream: bool
    status: int  # 499: the client disconnected first
    accepted_at: float
    ended_at: float
    wall_at: float
    times: StageTimes
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
    degraded: str | None = None  # fallback, template, partial or capped: what replaced a failure
    tpot_s: float | None = None  # (last content - first content) / (output tokens - 1), where both are known
    gap_max_s: float | None = None  # the longest wait between two chunks after the first content
    trace: Trace | None = None
    queue_s: float | None = None  # from accept to the start of the first stage
    attempts: tuple[AttemptDone, ...] = ()  # in order of their start
    notes: tuple[str, ...] = ()  # decisions and their reasons in words; names and figures only
    shed: str | None = None  # why it was rejected: one of a few fixed words
    cache: str | None = None  # hit, semantic, stale, miss, coalesced or bypass; None: the route has no cache
    saved_usd: float | None = None  # original cost of the cached answer; None: no cache hit, or no price is set
    cache_key: bytes | None = None  # of the cached answer, or of the entry that stores this answer
    params: RequestParams | None = None  # None: not traced
    role: str = ""  # job: an attempt at a job; empty: a request of a client
    is_client_retry: bool = False  # the client's SDK announces that it retries
    body_mark: int | None = None  # 32 bits: equal for equal bodies in this process, keyed by its hash seed
    key_id: str = ""  # of a stored key
    cut_by: str | None = None  # whose output limit ended the answer: client, default, route, deadline, upstream

    @property
    def stages(self) -> tuple[StageDone, ...]:
        """In order; to count or to log them, `times` costs less."""
        return self.times.each()

    @property
    def own_s(self) -> float | None:
        """Seconds before the first token without a running attempt. None if none came, or of another request's call."""
        if self.ttft_s is None or self.cache == "coalesced":
            return None
        own_s, until, first_at = 0.0, self.accepted_at, self.accepted_at + self.ttft_s
        for attempt in self.attempts:
            if attempt.began_at > until:
                own_s += attempt.began_at - until
            if attempt.ended_at >= first_at:
                return own_s
            until = max(until, attempt.ended_at)
        return own_s + first_at - until

    @property
    def cost_by_role(self) -> dict[str, float]:
        """The cost of all attempts in USD by their role. Empty if no cost is known."""
        costs_usd: dict[str, float] = {}
        for attempt in self.attempts:
            if attempt.cost_usd is not None:
                costs_usd[attempt.role] = costs_usd.get(attempt.role, 0.0) + attempt.cost_usd
        return costs_usd

    @property
    def price(self) -> str:
        """Where the cost comes from: own prices, the table of list prices, or reported by the upstream; unpriced: no tokens
        have a price; partial: some have none; mixed: several of these. Empty: no tokens.
        """
        attempts = self.attempts
        if len(attempts) == 1:
            return attempts[0].price
        found = {attempt.price for attempt in attempts if attempt.price}
        return next(iter(found)) if len(found) == 1 else "" if not found else "partial" if UNPRICED in found else "mixed"

    @property
    def cost_usd(self) -> float | None:
        """The known cost of all attempts; None if no cost is known."""
        if len(self.attempts) == 1:
            return self.attempts[0].cost_usd
        costs_usd = [attempt.cost_usd for attempt in self.attempts if attempt.cost_usd is not None]
        return sum(costs_usd) if costs_usd else None


class RequestRefused(msgspec.Struct, frozen=True, gc=False):
    """The server itself refused a request: not HTTP, not authorised, not decodable, draining. Once for each request."""

    request_id: str
    path: str  # a known path, or "other"
    status: int
    code: str
    wall_at: float
    seconds: float
    tenant: str | None = None


class KeysFailed(msgspec.Struct, frozen=True, gc=False):
    """An address sent requests without a valid key faster than allowed. At most one a minute, for all addresses."""

    n: int  # requests refused since the last of these facts
    address: str  # of the latest one; empty: a Unix socket
    limit: int  # a minute


class ConnectionOpened(msgspec.Struct, frozen=True, gc=False):
    """A new connection to an upstream. `handshake_s` covers TCP and TLS; `connect_s`: TCP alone."""

    upstream: str
    handshake_s: float
    http_version: str
    tls: bool = False
    tls_resumed: bool = False
    connect_s: float | None = None


class ConnectionReused(msgspec.Struct, frozen=True, gc=False):
    upstream: str


class ProbeFailed(msgspec.Struct, frozen=True, gc=False):
    """An upstream's start-up probe got no token. Emitted when the reason changes, not for each probe."""

    upstream: str
    code: str
    message: str  # names the upstream; never contains a key, a prompt or an upstream's own text


class EngineState(msgspec.Struct, frozen=True, gc=False):
    """The embedded engine changed state: starting, ready, crashed, stopped."""

    state: str
    pid: int | None = None
    detail: str | None = None


class BreakerChanged(msgspec.Struct, frozen=True, gc=False):
    """An upstream's breaker opened (suspended), half-opened (probed) or closed (used normally)."""

    upstream: str
    state: str
    why: str  # counts and times, never an upstream's own text


class StoreCallDone(msgspec.Struct, frozen=True, gc=False):
    """A call to a shared store ended: get, put, lead, follow, tell, hear. `result` is one of a few fixed words."""

    store: str
    what: str
    result: str
    seconds: float


class StoreChanged(msgspec.Struct, frozen=True, gc=False):
    """A shared store's breaker opened (suspended), half-opened (probed) or closed (used normally)."""

    store: str
    state: str
    why: str


class PrefixFinding(msgspec.Struct, frozen=True, gc=False):
    """Why a provider's prompt cache cannot serve a route's prompts. Lengths and positions only, never words of a prompt."""

    route: str
    upstream: str
    model: str  # the upstream's own name for it
    what: str  # moves: an instruction block differs between requests; unread: cache entries are written but never read;
    # refused: the upstream rejected an added field
    where: str  # the block, as in tools[3] or system[0]; of a refusal, the request's field; empty: the whole prompt
    at_byte: int  # of the block's JSON, where two requests differ first
    word: str  # kind of the differing text: a time, a date, a UUID, a timestamp, an id, a number or text
    n_tokens: int  # of a request that cannot be read from the cache; estimated
    usd_a_day: float | None = None  # None: no price is set

    @property
    def detail(self) -> str:
        usd = f", ${self.usd_a_day:g} a day" if self.usd_a_day is not None else ""
        if self.what == "unread":
            return f"about {self.n_tokens} tokens of a prompt are written to the cache and never read{usd}"
        if self.what == "refused":
            return f"{self.upstream} rejects {self.where} for {self.model}; the field is left out for an hour"
        return f"{self.word} at byte {self.at_byte} of {self.where} makes {self.n_tokens} tokens uncacheable{usd}"


class SemanticLookup(msgspec.Struct, frozen=True, gc=False):
    """A semantic look-up or audit. `result`: hit, the reason of a miss, audit_started, audit_right or audit_wrong."""

    route: str
    result: str


class SemanticJudged(msgspec.Struct, frozen=True, gc=False):
    """Answers were compared: same, different, words (by words, no model), unclear (no yes or no), failed, no_budget."""

    route: str
    result: str


class JudgeUnclear(msgspec.Struct, frozen=True, gc=False):
    """The model that compares the answers of a semantic cache gives no verdicts. Emitted once."""

    route: str
    judge: str  # the route whose model it is
    n: int  # unclear replies in a row
    what: str  # the last one: error 400, an empty reply, other words


class Renewed(msgspec.Struct, frozen=True, gc=False):
    """A stale cached answer was served, and a background call to renew it ended."""

    route: str
    result: str  # renewed, failed, shed
    seconds: float


class TurnFailed(msgspec.Struct, frozen=True, gc=False):
    """An operator's own turn raised. Names and places only, as the text of an exception may quote a prompt."""

    upstream: str
    request_id: str
    error: str  # the exception's kind
    where: str  # its last frames: file, line and function


class LoopLag(msgspec.Struct, frozen=True, gc=False):
    """How late the event loop ran a timer: a delay that every request shares."""

    seconds: float


class DescriptorsExhausted(msgspec.Struct, frozen=True, gc=False):
    """This process ran out of file descriptors; no upstream is at fault."""

    what: str  # connect, accept
    limit: int
    upstream: str | None = None  # the upstream that could not be called


class ConnectionsClosed(msgspec.Struct, frozen=True, gc=False):
    """Idle client connections were closed to make room for new ones."""

    n: int
    n_open: int
    n_silent: int  # idle connections that remain


class JobEnded(msgspec.Struct, frozen=True, gc=False):
    """A job of this process ended. waited_s: from its creation, or the instant it was due, to its last claim."""

    route: str
    door: str
    state: str
    waited_s: float
    run_s: float


class BatchEnded(msgspec.Struct, frozen=True, gc=False):
    """A batch was completed. seconds: from its creation to its files of results."""

    route: str  # of its first line
    n_lines: int
    seconds: float


class JobReturned(msgspec.Struct, frozen=True, gc=False):
    """A claimed job went back to the queue. why: a code. is_failure: an attempt failed, and another follows."""

    route: str
    why: str
    is_failure: bool


class JobLeaseLost(msgspec.Struct, frozen=True, gc=False):
    """The claim of a running job was superseded; its result is discarded."""

    route: str


class JobsSwept(msgspec.Struct, frozen=True, gc=False):
    """What one sweep of the store of jobs changed, if anything."""

    n_recovered: int
    n_dead: int
    n_expired: int


class JobStoreCalled(msgspec.Struct, frozen=True, gc=False):
    """A call to the store of jobs ended. result: ok, full, unavailable."""

    what: str
    result: str
    seconds: float


Fact = (TokenGaps | AttemptDone | RequestDone | RequestRefused | ConnectionOpened | ConnectionReused |
        ProbeFailed | EngineState | BreakerChanged | LoopLag | Hedged | RetryWithheld | Rescued | StoreCallDone |
        StoreChanged | PrefixFinding | SemanticLookup | SemanticJudged | JudgeUnclear | Renewed | Retried | Ejected |
        TurnFailed | KeysFailed | ConnectionsClosed | DescriptorsExhausted | JobEnded | BatchEnded | JobReturned |
        JobLeaseLost | JobsSwept | JobStoreCalled | PromptSampled | QuotaReported | CredentialRenewed |
        CredentialRenewalFailed | PassedThrough | KeyChanged | ClassifierFact | PhaseChanged)


def describe_budget(spent: float, budget: float) -> str:
    """The use of a retry budget, as shares of live traffic: extra attempts 3.1 %, limit 5 %."""
    return (f"extra attempts {spent * 100:.1f} %, limit {budget * 100:g} %"
            f"{' plus low-traffic allowance' if spent > budget else ''}")


class Sink(Protocol):
    """Receives facts. `emit` must be cheap, must not raise and must not await."""

    def emit(self, fact: Fact) -> None: ...


class Fanout:
    """Passes each fact to several sinks, in order."""

    __slots__ = ("_sinks",)

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def emit(self, fact: Fact) -> None:
        for sink in self._sinks:
            sink.emit(fact)
