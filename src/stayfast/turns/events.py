"""The events of a turn's answer: typed, on two channels (content and metadata), with increasing ids.

    content   prefix    text that is available at once, without a model      delta   text as the model writes it
    metadata  progress, citation, degraded; patch: a change of the state (RFC 6902); snapshot: everything up to here;
              final: the end of the answer, exactly once. Only the patches of its pending fields follow it

The text of an answer is the content events in order. As server-sent events each has its id and its name:

    id: 7
    event: delta
    data: {"text":"It has left."}

A reader that reconnects sends the last id it received (`Last-Event-ID`) and gets the events after it; if they were dropped,
a snapshot and the events after the snapshot. Plain clients get the `event_text` of each event.
"""

from typing import Any, ClassVar

import msgspec

from stayfast.turns.patch import Json, Operation

MAX_ID_DIGITS = 18


class PrefixEvent(msgspec.Struct, frozen=True):
    """Text that is available at once, without a model."""

    name: ClassVar = "prefix"
    text: str


class DeltaEvent(msgspec.Struct, frozen=True):
    """A piece of the answer."""

    name: ClassVar = "delta"
    text: str


class ProgressEvent(msgspec.Struct, frozen=True):
    """The status of a stage: the application's own text, such as "searching", or an outcome."""

    name: ClassVar = "progress"
    stage: str
    status: str


class CitationEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A source of the characters `start` to `end` of the text; None: of all of it."""

    name: ClassVar = "citation"
    source: str
    start: int | None = None
    end: int | None = None


class DegradedEvent(msgspec.Struct, frozen=True):
    """A part that the answer lacks, or has in a lesser form, and the reason: "weather", "timeout"."""

    name: ClassVar = "degraded"
    part: str
    reason: str


class PatchEvent(msgspec.Struct, frozen=True):
    """A change of the state."""

    name: ClassVar = "patch"
    patch: list[Operation]


class SnapshotEvent(msgspec.Struct, frozen=True):
    """The sum of all events up to here, for readers that are slow or reconnect."""

    name: ClassVar = "snapshot"
    text: str
    state: dict[str, Json]
    citations: tuple[CitationEvent, ...] = ()
    degraded: tuple[DegradedEvent, ...] = ()


class FinalEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end. `outcome`: ok, timeout, failed or cancelled. `detail`: the class of an exception. `missing`: the parts that
    the answer lacks. `pending`: fields of the state that a later patch will set.
    """

    name: ClassVar = "final"
    outcome: str
    detail: str = ""
    missing: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


EventPayload = (PrefixEvent | DeltaEvent | ProgressEvent | CitationEvent | DegradedEvent | PatchEvent | SnapshotEvent
                | FinalEvent)
CONTENT = (PrefixEvent, DeltaEvent)


class AnswerEvent(msgspec.Struct, frozen=True):
    """`id`: 1 for the first event of a turn; a snapshot has the id of the last event it includes."""

    id: int
    payload: EventPayload

    @property
    def is_content(self) -> bool:
        """Whether it is on the content channel."""
        return isinstance(self.payload, CONTENT)

    def sse(self) -> bytes:
        """The event as a server-sent event."""
        payload = self.payload
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (self.id, payload.name.encode(), msgspec.json.encode(payload))


def event_text(event: AnswerEvent, n_sent: int = 0) -> str:
    """The text of the event for a plain client that got `n_sent` characters so far: the text of a content event, the rest
    of a snapshot's text, else nothing.
    """
    payload = event.payload
    if isinstance(payload, SnapshotEvent):
        return payload.text[n_sent:]
    return payload.text if isinstance(payload, CONTENT) else ""


def parse_last_event_id(header: str) -> int:
    """The id in a `Last-Event-ID` header, 0 if it is empty. Raises ValueError, with the name of the header."""
    value = header.strip()
    if not value:
        return 0
    if not (value.isascii() and value.isdigit()) or len(value) > MAX_ID_DIGITS:
        raise ValueError("Last-Event-ID: must be the id of an event of this turn, an integer")
    return int(value)


def to_json_value(value: Any) -> Json:
    """A copy of the value as plain JSON types. Raises ValueError if it cannot be encoded as JSON."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"a {type(value).__name__} that cannot be encoded as JSON") from error
