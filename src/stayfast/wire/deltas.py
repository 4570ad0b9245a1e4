"""An answer as it grows, in no protocol's words: what sources read it into and writers say again."""

from abc import ABC, abstractmethod
from typing import Any, Literal, Protocol

from msgspec import Struct

from stayfast.core.errors import UpstreamFailed
from stayfast.core.types import Sight, Usage
from stayfast.wire.errors import truncated

Json = dict[str, Any]
Reason = Literal["stop", "length", "tool_calls", "content_filter"]


class Begin(Struct, frozen=True, gc=False):
    """The answer has a name. `created_at`: seconds since the epoch, where the upstream says it."""

    id: str
    model: str
    created_at: int | None = None
    usage: Usage | None = None


class TextDelta(Struct, frozen=True, gc=False):
    """More text. Refusals are text as well."""

    text: str


class ThinkingDelta(Struct, frozen=True, gc=False):
    """More reasoning, or the `signature` that ends a stretch of it."""

    text: str
    signature: str = ""


class ToolBegin(Struct, frozen=True, gc=False):
    """The model calls a tool. `ordinal` counts the calls of one answer from 0."""

    ordinal: int
    id: str
    name: str


class ToolDelta(Struct, frozen=True, gc=False):
    """More of the JSON text of a call's arguments."""

    ordinal: int
    arguments: str


class Finish(Struct, frozen=True, gc=False):
    """Why the model stopped. `stop_sequence`: the one it met, where that is known."""

    reason: Reason
    stop_sequence: str | None = None


Delta = Begin | TextDelta | ThinkingDelta | ToolBegin | ToolDelta | Finish


class WholeSource(ABC):
    """Reads one upstream's answer that comes in one piece. One task owns it."""

    __slots__ = ("_upstream", "ended", "sight")

    def __init__(self, upstream: str, sight: Sight) -> None:
        self.sight = sight
        self.ended = False  # nothing after this counts: the protocol's end, or a failure
        self._upstream = upstream

    @abstractmethod
    def see_whole(self, body: bytes) -> None:
        """Read the answer into the sight. Failures go to the sight, never raise."""

    def fail(self, failure: UpstreamFailed) -> None:
        """End the answer here."""
        self.ended = True
        self.sight.is_complete = False
        self.sight.failure = failure

    def _complete(self, usage: Usage | None, response_id: str | None = None, finish_reason: str | None = None) -> None:
        """The whole answer is one."""
        sight = self.sight
        sight.usage, sight.response_id, sight.finish_reason = usage, response_id, finish_reason
        sight.n_content = 1
        sight.is_complete = True


class Source(WholeSource):
    """Reads one upstream's answer, event by event or whole, into a `Sight`. One task owns it."""

    __slots__ = ("is_only_usage",)

    def __init__(self, upstream: str, sight: Sight) -> None:
        super().__init__(upstream, sight)
        self.is_only_usage = False  # the event just seen is there only because usage was asked for

    @abstractmethod
    def see(self, data: bytes, name: bytes) -> int:
        """Read one event; returns how much of it is content (1 or 0). Failures go to the sight, never raise."""

    @abstractmethod
    def deltas(self) -> list[Delta]:
        """The event just seen, in the normal form."""

    def finish(self) -> None:
        """The body has ended: whole by the protocol's rules, or truncated."""
        if not self.ended:
            self.fail(truncated(self._upstream))

    @abstractmethod
    def whole(self) -> list[Delta]:
        """The whole answer just seen, in the normal form."""

    @abstractmethod
    def ending(self) -> list[Json]:
        """The events that end the answer here, in its own dialect, as if it had met its length limit.

        Puts that reason into the sight.
        """


class Writer(Protocol):
    """Says deltas in one dialect's events, as its official SDK expects them. One task owns it."""

    def events(self, delta: Delta) -> list[Json]:
        """The events for one delta. Raises Unsayable."""
        ...

    def end(self, usage: Usage | None) -> list[Json]:
        """The events that end the answer."""
        ...


class Fold(Protocol):
    """Puts the events of one dialect together into its whole answer. One task owns it."""

    def add(self, said: Json) -> None:
        """Take one event. Raises ValueError for what cannot be one."""
        ...

    def body(self) -> bytes:
        """The whole answer. Raises ValueError where the events do not make one."""
        ...
