"""The basic types of a request, shared by all packages."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from stayfast.core.steps import TurnSnapshot


class Word(StrEnum):
    """A string enumeration with the hash of `str`, which is faster than Enum's. Before Python 3.12, `Word.MEMBER` costs
    90 ns; hot code therefore unpacks the members into module constants.
    """

    __hash__ = str.__hash__


class Api(Word):
    """An endpoint's protocol, of a client's request or of an upstream."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    INPUT_TOKENS = "input_tokens"
    TOKENIZE = "tokenize"
    GEMINI = "gemini"  # generateContent; of upstreams only
    CONVERSE = "converse"  # of Amazon Bedrock; of upstreams only

    @property
    def is_anthropic(self) -> bool:
        """Whether errors and events have Anthropic's form (else OpenAI's)."""
        return self in _ANTHROPIC

    @property
    def can_stream(self) -> bool:
        return self not in NEVER_STREAMED


_ANTHROPIC = frozenset((Api.MESSAGES, Api.COUNT_TOKENS))
COUNT_APIS = frozenset((Api.COUNT_TOKENS, Api.INPUT_TOKENS, Api.TOKENIZE))  # count tokens
CLIENT_APIS = frozenset(Api) - {Api.GEMINI, Api.CONVERSE}  # that the gateway serves
NEVER_STREAMED = frozenset((Api.EMBEDDINGS, Api.RERANK, *COUNT_APIS))


class Outcome(Word):
    """The result of an attempt for limits and estimators; `ignored` changes none (as in Netflix concurrency-limits)."""

    SUCCESS = "success"
    DROPPED = "dropped"
    IGNORED = "ignored"


class Stage(Word):
    """The stages of a request, in order."""

    ADMIT = "admit"
    CACHE = "cache"
    CONTEXT = "context"
    ROUTE = "route"
    CALL = "call"
    RELAY = "relay"
    SETTLE = "settle"


ADMIT, CACHE, CONTEXT, ROUTE, CALL, RELAY, SETTLE = Stage


JOB = "job"  # role of an attempt at a job: its client waits elsewhere, if at all
JUDGE, VERIFY = "judge", "verify"  # roles of requests about answers: in the background, and while the client waits
SUMMARY = "summary"  # role of a request that summarizes turns of a conversation, in the background
NO_ROUTE = "none"  # the route of requests that no route matched, in counts
FROM_CACHE = "(cache)"  # the name of the cache where an upstream is named; settings cannot use it


class CacheControl(msgspec.Struct, frozen=True, gc=False):
    """A request's cache directives, after HTTP's Cache-Control (RFC 9111, 5.2.1)."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age_s: float | None = None
    tags: tuple[str, ...] = ()  # labels of the stored answer, by which it can be purged
    keep_s: float | None = None  # a shorter storage time than the route's
    namespace: str = ""  # answers are shared only within one namespace


class EventsOptions(msgspec.Struct, frozen=True, gc=False):
    """A client asks for a turn's typed events instead of plain chunks. `late`: also the patches after the final event.
    `after`: the id of the last event received, when the client reconnects; None: its first request.
    """

    late: bool = False
    after: int | None = None


LENGTH_REASONS = frozenset(("length", "max_tokens", "max_output_tokens", "MAX_TOKENS"))  # of an answer that a limit ended
REACHED = 0.9  # of its limit: an answer that ended at a length and has fewer tokens ended at another one (the context's)


class OutputCap(msgspec.Struct, frozen=True, gc=False):
    """An output limit that the gateway set. `by`: deadline (it was fitted to the time left), default or route."""

    by: str
    n_tokens: int


class Request(msgspec.Struct, frozen=True, gc=False):
    """A client's request, validated by `wire.request_body.decode`. `body` is verbatim, to preserve unknown fields."""

    api: Api
    model: str  # the route's name, as the client sent it
    stream: bool
    body: bytes
    include_usage: bool = False  # chat and completions: stream_options.include_usage
    max_output_tokens: int | None = None
    n_choices: int = 1
    is_stateful: bool = False  # `store: true`, previous_response_id, ...: must never be sent twice
    client_timeout_s: float | None = None  # the client's own time-out, if its body states one
    start_within_s: float | None = None  # the client's time to the first token, from its accept; None: no limit of its own
    cache: CacheControl | None = None  # from its body
    previous_response_id: str | None = None  # responses: the stored response that it continues
    is_background: bool = False  # responses: the client polls for the answer
    is_stored: bool = False  # stored by the provider's default: avoid a second attempt, though no response depends on it yet
    cap: OutputCap | None = None  # None: `max_output_tokens` is the client's own


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts in one form for all providers. `input_total` includes cached tokens; `output` includes reasoning."""

    input_total: int = 0
    output: int = 0
    cached_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    reasoning: int = 0
    tier: str = ""  # the provider's service tier that it reports: batch, flex, priority, ...; empty: none

    @property
    def counts(self) -> tuple[int, int, int, int, int, int]:
        """The counts alone, in the order of the constructor."""
        return (self.input_total, self.output, self.cached_read, self.cache_write_5m, self.cache_write_1h, self.reasoning)

    @property
    def uncached(self) -> int:
        """Input tokens that the upstream had to compute."""
        return max(0, self.input_total - self.cached_read)


class DecodeTimings(msgspec.Struct, frozen=True, gc=False):
    """How an engine generated one answer, by its own account. n_tokens: in `seconds`, the prompt's time excluded; n_drafted:
    tokens that were guessed.
    """

    n_tokens: int
    seconds: float
    n_drafted: int = 0
    n_accepted: int = 0


class Allowance(msgspec.Struct, frozen=True, gc=False):
    """What a client has left of one limit. `kind`: requests or tokens. `full_in_s`: seconds until it is fully refilled."""

    kind: str
    limit: int
    remaining: int
    full_in_s: float


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Bytes for the client, and the number of content events in them (0: a role, a ping, part of an event)."""

    data: bytes
    n_content: int = 0


class AnswerSummary(msgspec.Struct, eq=False):
    """The state of one answer so far. Changed only by its transcoder."""

    cap: OutputCap | None = None  # the limit that the gateway set, from the first content on
    n_content: int = 0  # content events so far
    n_progress: int = 0  # events without content that show progress: not a role, a ping, a comment or an empty delta
    n_events: int = 0  # all events sent to a responses client, for their sequence numbers
    finish_reason: str | None = None  # as the upstream sent it
    usage: Usage | None = None
    decode: DecodeTimings | None = None  # llama.cpp reports it
    response_id: str | None = None
    model: str | None = None  # as the upstream named it
    is_complete: bool = False  # the protocol's end marker was received
    is_cut: bool = False  # the gateway ended the answer early, with a valid end marker
    is_degraded: bool = False  # the upstream, a gateway too, marked the answer as a substitute
    failure: Exception | None = None  # an UpstreamFailed found inside the body
    turn: "Callable[[], TurnSnapshot] | None" = None  # the steps so far, if the operator's own turn answers

    @property
    def is_capped(self) -> bool:
        """Whether a limit that the gateway set ended the answer."""
        cap = self.cap
        return cap is not None and self.has_reached(cap.n_tokens)

    def has_reached(self, n_tokens: int) -> bool:
        """Whether an output limit of so many tokens ended the answer."""
        usage = self.usage
        return (self.finish_reason in LENGTH_REASONS and not self.is_cut
                and (usage is None or usage.output >= REACHED * n_tokens))
