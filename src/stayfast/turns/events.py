"""What a turn tells while it runs: typed events on two channels, content and metadata, with ids that only grow.

    content   prefix    text that is there at once, from no model          delta   text as the model writes it
    metadata  progress, citation, degraded; patch: what has changed in the state (RFC 6902); snapshot: all of it up to here;
              final: the end of the answer, once. After it come only the patches of what it calls pending

The text of an answer is the content events in their order, nothing else. As server-sent events each has its id and its name:

    id: 7
    event: delta
    data: {"text":"It has left."}

A reader that was cut off says the last id that it saw (`Last-Event-ID`) and gets what came after that, or, where that is not
kept any more, a snapshot and what came after the snapshot. Those who know nothing of this get `text_of` each event.
"""

from typing import Any, ClassVar

import msgspec

from stayfast.turns.patch import Json, Operation

MAX_ID_DIGITS = 18


class PrefixEvent(msgspec.Struct, frozen=True):
    """Text that is there at once and needs no model."""

    name: ClassVar = "prefix"
    text: str


class DeltaEvent(msgspec.Struct, frozen=True):
    """A piece of the answer."""

    name: ClassVar = "delta"
    text: str


class ProgressEvent(msgspec.Struct, frozen=True):
    """A stage has come so far; `status`: as it is called there, like "searching", or how it ended."""

    name: ClassVar = "progress"
    stage: str
    status: str


class CitationEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A source. `start` and `end`: which characters of the text rest on it; None: all of it."""

    name: ClassVar = "citation"
    source: str
    start: int | None = None
    end: int | None = None


class DegradedEvent(msgspec.Struct, frozen=True):
    """What the answer is without, or has in a lesser form, and why: "weather", "timeout"."""

    name: ClassVar = "degraded"
    part: str
    reason: str


class PatchEvent(msgspec.Struct, frozen=True):
    """What has changed in the state."""

    name: ClassVar = "patch"
    patch: list[Operation]


class SnapshotEvent(msgspec.Struct, frozen=True):
    """All that was told up to here: for readers that come late, or back."""

    name: ClassVar = "snapshot"
    text: str
    state: dict[str, Json]
    citations: tuple[CitationEvent, ...] = ()
    degraded: tuple[DegradedEvent, ...] = ()


class FinalEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end. `how`: ok, timeout, failed or cancelled; `detail`: of an error its kind; `missing`: parts that it is without;
    `pending`: those of the state that a patch will still come for.
    """

    name: ClassVar = "final"
    outcome: str
    detail: str = ""
    missing: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


EventPayload = PrefixEvent | DeltaEvent | ProgressEvent | CitationEvent | DegradedEvent | PatchEvent | SnapshotEvent | FinalEvent
CONTENT = (PrefixEvent, DeltaEvent)


class AnswerEvent(msgspec.Struct, frozen=True):
    """One of them. `id`: 1 for the first of a turn; a snapshot has that of the last event in it."""

    id: int
    payload: EventPayload

    @property
    def is_content(self) -> bool:
        """Whether it is on the content channel."""
        return isinstance(self.payload, CONTENT)

    def sse(self) -> bytes:
        """As a server-sent event."""
        payload = self.payload
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (self.id, payload.name.encode(), msgspec.json.encode(payload))


def event_text(event: AnswerEvent, n_sent: int = 0) -> str:
    """What a plain client is given of it, which has read from the start and was given `n_given` characters up to here: the
    text of content, of a snapshot what it has not been given yet, else nothing.
    """
    payload = event.payload
    if isinstance(payload, SnapshotEvent):
        return payload.text[n_sent:]
    return payload.text if isinstance(payload, CONTENT) else ""


def parse_last_event_id(header: str) -> int:
    """What a `Last-Event-ID` says, 0 where it is empty. Raises ValueError, which names the header."""
    value = header.strip()
    if not value:
        return 0
    if not (value.isascii() and value.isdigit()) or len(value) > MAX_ID_DIGITS:
        raise ValueError("Last-Event-ID: must be the id of an event of this turn, which is a whole number")
    return int(value)


def to_json_value(value: Any) -> Json:
    """A value as plain JSON that nobody else can change. Raises ValueError where it cannot be said in JSON."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"a {type(value).__name__} that cannot be said in JSON") from error
