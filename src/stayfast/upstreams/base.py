"""What every upstream can do, whatever stands behind it.

A `AnswerStream` is a class with `close()`, never an async generator: a generator closed before its first item never runs its
`finally`, and would leak the connection. `close()` does not await, so nothing can interrupt a release.
"""

from typing import Protocol

import msgspec

from stayfast.core.deadline import Deadline
from stayfast.core.errors import UpstreamFailed
from stayfast.core.events import Trace
from stayfast.core.types import AnswerSummary, Api, Chunk, EventsWish, Request, Usage


class PromptMarker(Protocol):
    def write(self, body: bytes, api: Api) -> bytes:
        """The body as it goes out, in the dialect `api`; the very same where nothing is to be said."""

    def is_refused(self, failed: UpstreamFailed) -> bool:
        """Whether that names what was written. Where it does, nothing is from now on, and the same may be sent again."""

    def first_token(self) -> None:
        """Its answer has begun: what was marked can be read by others."""

    def ended(self, usage: Usage | None) -> None:
        """The attempt is over, with what its answer says of its prompt. Called once, whatever its end."""


class Sending:
    """Whether a request has left for its upstream, which bills it from then on."""

    __slots__ = ("has_started",)

    def __init__(self) -> None:
        self.has_started = False


class Call(msgspec.Struct, frozen=True, gc=False):
    """One attempt: a request, the upstream's own name for its model, and the time that it has."""

    request: Request
    model: str
    request_id: str
    deadline: Deadline  # of the request as a whole
    connect_s: float  # cap for TCP and TLS
    headers: tuple[tuple[str, str], ...] = ()  # of the client's, those that go on (lower-case names)
    trace: Trace | None = None  # this attempt's own span, which the upstream is told of
    goes_on: bool = False  # the request ends with the assistant's words, which are to be continued
    marker: PromptMarker | None = None  # None: bodies go out as they are
    tenant: str | None = None
    events: EventsWish | None = None  # None: it wants plain chunks
    wants_parts: bool = False  # of a whole answer the part that has come is of use: to be fetched as a stream, where it may
    sending: Sending | None = None  # set by the upstream; None: nobody wants to know


class AnswerStream(Protocol):
    """An answer on its way, already in the client's dialect. Owns its connection. One task at a time."""

    @property
    def sight(self) -> AnswerSummary:
        """What has been seen of the answer."""

    async def next(self) -> Chunk | None:
        """The next chunk; None after a whole answer. Raises UpstreamFailed for any other end, the cut one included."""

    def cut(self) -> Chunk | None:
        """End an answer that has begun here and now, as its protocol ends one that has met its length limit; the sight
        says so after it. None where that cannot be said, or where the answer is whole. Nothing may be read after it.
        """

    def close(self) -> None:
        """Release everything at once; closes the socket when the answer is not whole. Safe to call again."""


class Upstream(Protocol):
    """One endpoint that can answer. Task-safe."""

    name: str
    kind: str
    always_streams: bool  # even whole answers are fetched as streams: closing the socket is the only way to stop them

    def can_serve(self, api: Api) -> bool:
        """Whether requests of this API can be answered, natively or by translation."""

    async def open(self, call: Call) -> AnswerStream:
        """Send the request and return when the head of a good answer is in. Raises UpstreamFailed (connect, reset, status),
        Rejected (cannot be said in this upstream's protocol) or Shed (all the connections that we allow ourselves are
        taken). A cancelled `open` has closed its socket before the cancellation leaves it.
        """

    def close(self) -> None:
        """Close idle connections; those in use close when their streams do."""
