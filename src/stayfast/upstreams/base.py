"""The interface of an upstream.

An `AnswerStream` is a class with `close()`, not an async generator: a generator closed before its first item never runs its
`finally`, and would leak the connection. `close()` does not await, so a release cannot be interrupted.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from stayfast.core.deadline import Deadline
from stayfast.core.errors import UpstreamFailed
from stayfast.core.events import Trace
from stayfast.core.types import AnswerSummary, Api, Chunk, EventsOptions, Request, Usage
from stayfast.wire.token_counts import UpstreamCount


class PromptMarker(Protocol):
    """Adds cache breakpoints to the prompt of one attempt, and learns from its result."""

    def write(self, body: bytes, api: Api) -> bytes:
        """Return the body, in the dialect `api`, with cache breakpoints; the same body if there are none to add."""

    def is_refused(self, failed: UpstreamFailed) -> bool:
        """Whether the upstream refused the breakpoints. If so, later calls of `write` add none, and the request may be
        retried.
        """

    def on_first_token(self) -> None:
        """The first token arrived, so the provider has cached the prompt for other requests."""

    def on_end(self, usage: Usage | None) -> None:
        """The attempt has ended. Called once, however it ends. usage: as reported by the upstream; None: not reported."""


class Sending(msgspec.Struct):
    """Whether sending the request has begun. From then on the upstream may bill it."""

    has_started: bool = False


class RequestedTier(msgspec.Struct, frozen=True, gc=False):
    """A service tier of a provider, by its own word. replaces: also the one that a client chose."""

    word: str
    replaces: bool = False


class TokenCounting(Protocol):
    """Answers the token count requests of one route."""

    @property
    def uses_upstream(self) -> bool:
        """Whether the upstream's own count endpoint is called first."""

    def answer(self, request: Request, reported: UpstreamCount | None = None) -> bytes:
        """The body of the answer, in the client's dialect. reported: by the upstream; None: it is counted here. Takes
        milliseconds for a long prompt. Raises Rejected.
        """


class Call(msgspec.Struct, frozen=True, gc=False):
    """One attempt: a request, the upstream's own name of its model, and its time limits."""

    request: Request
    model: str
    request_id: str
    deadline: Deadline  # of the request as a whole
    connect_s: float  # cap for TCP and TLS
    headers: tuple[tuple[str, str], ...] = ()  # forwarded from the client (lower-case names)
    trace: Trace | None = None  # this attempt's own span, for `traceparent`
    is_continuation: bool = False  # the request ends with a partial assistant message, which the answer continues
    marker: PromptMarker | None = None  # None: the body is sent unchanged
    tenant: str | None = None
    events: EventsOptions | None = None  # None: plain chunks
    prefers_stream: bool = False  # a part of a whole answer is useful, so request a stream from the upstream if possible
    sending: Sending | None = None  # the upstream sets its `has_started`; None: not needed
    counting: TokenCounting | None = None  # of a request for a token count
    service_tier: RequestedTier | None = None  # None: as the client's body has it
    slot: int | None = None  # of the embedded engine; None: the engine chooses
    route: str = ""  # its name in the settings; empty: a request of the gateway's own
    # Records a decision of the upstream: names and figures only. It must not lead back to the Call: see gc=False.
    note: Callable[[str], object] | None = None


class AnswerStream(Protocol):
    """An answer being received, already in the client's dialect. Owns its connection. One task at a time."""

    @property
    def summary(self) -> AnswerSummary:
        """What was received so far."""

    async def next(self) -> Chunk | None:
        """The next chunk; None at the end of a complete answer. A chunk may be empty, if what was read holds no data for the
        client. Raises UpstreamFailed for any other end, including a truncated answer.
        """

    def cut(self) -> Chunk | None:
        """End the answer now, as if it had reached its length limit; sets `summary.is_cut`. Returns the closing chunk;
        None if the protocol has no such end, or if the answer is complete. No reads after it.
        """

    def close(self) -> None:
        """Release everything; closes the connection if the answer is incomplete. Safe to call again."""


class Upstream(Protocol):
    """One endpoint. Task-safe."""

    name: str
    kind: str
    always_streams: bool  # also for whole answers: only a closed stream makes this upstream stop generating

    def can_serve(self, api: Api) -> bool:
        """Whether requests of this API can be answered, natively or by translation."""

    async def open(self, call: Call) -> AnswerStream:
        """Send the request; return after the head of a successful response. Raises UpstreamFailed (connect, reset, status),
        Rejected (not translatable to this upstream's protocol) or Shed (all connections of the pool are in use). When
        cancelled, closes its connection first.
        """

    def close(self) -> None:
        """Close idle connections; those in use close with their streams."""
