"""The nouns of a request's life, shared by every floor."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from stayfast.core.steps import TurnSeen


class Word(StrEnum):
    """A string with a fixed set of values. Hashed as the string that it is: Enum's own hash is a Python call. Before Python
    3.12 `Word.MEMBER` costs 90 ns, ten times a name: what runs for each request unpacks its words once.
    """

    __hash__ = str.__hash__


class Api(Word):
    """One endpoint shape: what a client speaks to us, and what we speak to an upstream."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"

    @property
    def is_anthropic(self) -> bool:
        """Whether errors and events take Anthropic's shape (else OpenAI's)."""
        return self in _ANTHROPIC

    @property
    def can_stream(self) -> bool:
        """Whether the protocol has a streamed form."""
        return self not in NEVER_STREAMED


_ANTHROPIC = frozenset((Api.MESSAGES, Api.COUNT_TOKENS))
NEVER_STREAMED = frozenset((Api.EMBEDDINGS, Api.COUNT_TOKENS))


class Outcome(Word):
    """What an attempt teaches. Only success and dropped move limiters and estimators (Netflix concurrency-limits)."""

    SUCCESS = "success"
    DROPPED = "dropped"
    IGNORED = "ignored"


class Stage(Word):
    """The stages of a request, in the order of the story."""

    ADMIT = "admit"
    CACHE = "cache"
    CONTEXT = "context"
    ROUTE = "route"
    CALL = "call"
    RELAY = "relay"
    SETTLE = "settle"


ADMIT, CACHE, CONTEXT, ROUTE, CALL, RELAY, SETTLE = Stage


FROM_CACHE = "(cache)"  # who answers when no upstream does; names in settings may not be confused with it


class CacheControl(msgspec.Struct, frozen=True, gc=False):
    """What a client says of remembered answers, in the words of HTTP's Cache-Control (RFC 9111, 5.2.1)."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age_s: float | None = None
    tags: tuple[str, ...] = ()  # words for the answer, by which it may be forgotten
    keep_s: float | None = None  # how long the answer may be given again, where that is less than its route says
    namespace: str = ""  # any word; answers of another one are another's


class EventsWish(msgspec.Struct, frozen=True, gc=False):
    """A client wants a turn's typed events, not plain chunks. `late`: also the patches after the final one. `after`: the id
    of the last one that it saw, where it comes back to a turn that it was cut off from; None: it asks for the first time.
    """

    late: bool = False
    after: int | None = None


class Request(msgspec.Struct, frozen=True, gc=False):
    """What a client asked, validated by `wire.json_input.decode`. `body` is verbatim, so that nothing unknown is lost."""

    api: Api
    model: str  # the route's name, as the client sent it
    stream: bool
    body: bytes
    include_usage: bool = False  # chat and completions: stream_options.include_usage
    max_output_tokens: int | None = None
    n_choices: int = 1
    is_stateful: bool = False  # `store: true`, previous_response_id, ...: must never be sent twice
    patience_s: float | None = None  # how long the client will wait, where its body says so
    cache: CacheControl | None = None  # what its body says of remembered answers
    previous_response_id: str | None = None  # responses: the stored one that it goes on from
    is_stored: bool = False  # by its provider's default: nothing that follows stands on it yet, but twice is once too often


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts in one form for all providers. `input_total` includes cached tokens; `output` includes reasoning."""

    input_total: int = 0
    output: int = 0
    cached_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    reasoning: int = 0

    @property
    def uncached(self) -> int:
        """Input tokens that the upstream had to compute."""
        return max(0, self.input_total - self.cached_read)


class Allowance(msgspec.Struct, frozen=True, gc=False):
    """What a client has left of one limit, in whole `kind`s: requests or tokens. `full_in_s`: until all of it is there."""

    kind: str
    limit: int
    remaining: int
    full_in_s: float


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Bytes ready for the client, and how many content-bearing events they hold (0: a role, a ping, a held-back part)."""

    data: bytes
    n_content: int = 0


class AnswerSummary:
    """What has been seen so far of one answer. Owned and mutated by its transcoder; everybody else only reads it."""

    __slots__ = ("failure", "finish_reason", "is_complete", "is_cut", "is_degraded", "model", "n_content", "n_events",
                 "response_id", "turn", "usage")

    def __init__(self) -> None:
        self.n_content = 0  # content-bearing events so far
        self.n_events = 0  # all that a responses client was given so far: it numbers them
        self.finish_reason: str | None = None  # as the upstream said it
        self.usage: Usage | None = None
        self.response_id: str | None = None
        self.model: str | None = None  # as the upstream named the one that answers
        self.is_complete = False  # the protocol's own end was seen: only then is an answer whole
        self.is_cut = False  # we ended it ourselves, in its own protocol
        self.is_degraded = False  # the upstream, a gateway too, says in its head that this is not what was asked for
        self.failure: Exception | None = None  # an UpstreamFailed found inside the body
        self.turn: Callable[[], TurnSeen] | None = None  # the steps so far, where a turn of our operator's own answers
