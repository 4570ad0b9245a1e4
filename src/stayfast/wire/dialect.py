"""What all dialects share: the normalized deltas of an answer, the interfaces of decoders, encoders and collectors, and
helpers for fields that several dialects have.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from stayfast.core.conversation import Image, Message, OutputFormat, RawObject, Text, ToolChoice, ToolUse
from stayfast.core.errors import Rejected, UpstreamFailed
from stayfast.core.types import AnswerSummary, Api, Usage
from stayfast.wire.errors import in_band_failure, malformed_answer, truncated_answer

Json = dict[str, Any]
Reason = Literal["stop", "length", "tool_calls", "content_filter"]


class Begin(Struct, frozen=True, gc=False):
    """The id and model of the answer. `created_at`: seconds since the epoch; None if the upstream does not send it."""

    id: str
    model: str
    created_at: int | None = None
    usage: Usage | None = None


class TextDelta(Struct, frozen=True, gc=False):
    """More text. Refusals are text as well."""

    text: str


class ThinkingDelta(Struct, frozen=True, gc=False):
    """More reasoning text, the `signature` at the end of a reasoning block, or a whole encrypted block (`redacted`)."""

    text: str
    signature: str = ""
    redacted: str = ""


class ToolBegin(Struct, frozen=True, gc=False):
    """The start of a tool call. `ordinal` counts the calls of one answer from 0. `signature`: Gemini's (wire.signatures)."""

    ordinal: int
    id: str
    name: str
    signature: str = ""


class ToolDelta(Struct, frozen=True, gc=False):
    """More of the JSON text of a call's arguments."""

    ordinal: int
    arguments: str


class Finish(Struct, frozen=True, gc=False):
    """Why the model stopped. `stop_sequence`: the one that stopped it, if known."""

    reason: Reason
    stop_sequence: str | None = None


Delta = Begin | TextDelta | ThinkingDelta | ToolBegin | ToolDelta | Finish


class BodyDecoder(ABC):
    """Decodes one answer that arrives as a single body. Owned by one task."""

    __slots__ = ("_upstream", "has_ended", "summary")

    def __init__(self, upstream: str, summary: AnswerSummary) -> None:
        self.summary = summary
        self.has_ended = False  # the protocol's end was read, or a failure; everything after it is ignored
        self._upstream = upstream

    @abstractmethod
    def read_body(self, body: bytes) -> None:
        """Read the answer into the summary. Never raises: a failure is stored in the summary."""

    def set_failure(self, failure: UpstreamFailed) -> None:
        self.has_ended = True
        self.summary.is_complete = False
        self.summary.failure = failure

    def fail_malformed(self, what: str) -> None:
        """`what`: a noun phrase; must not quote the answer."""
        self.set_failure(malformed_answer(self._upstream, what))

    def fail_in_band(self, parsed: object) -> None:
        """`parsed`: the error event or body that came with HTTP 200."""
        self.set_failure(in_band_failure(self._upstream, parsed))

    def fail_truncated(self) -> None:
        self.set_failure(truncated_answer(self._upstream))

    def _complete(self, usage: Usage | None, finish_reason: str | None = None, answer_id: str | None = None,
                  model: str | None = None) -> None:
        """Mark the answer as complete. An empty `answer_id` is none."""
        summary = self.summary
        summary.usage, summary.finish_reason = usage, finish_reason
        summary.response_id, summary.model = answer_id or None, model
        summary.n_content = 1
        summary.is_complete = True


class StreamDecoder(BodyDecoder):
    """Decodes one answer, streamed or whole, into an `AnswerSummary`. Owned by one task."""

    __slots__ = ("holds_only_usage",)

    def __init__(self, upstream: str, summary: AnswerSummary) -> None:
        super().__init__(upstream, summary)
        self.holds_only_usage = False  # the last event holds usage and nothing else

    @abstractmethod
    def read_event(self, data: bytes, name: bytes) -> int:
        """Read one event. Returns 1 if it holds content, else 0. Never raises: a failure is stored in the summary."""

    @abstractmethod
    def event_deltas(self) -> list[Delta]:
        """The deltas of the last event."""

    def finish(self) -> None:
        """The body has ended: the answer is complete by the rules of its protocol, or truncated."""
        if not self.has_ended:
            self.fail_truncated()

    @abstractmethod
    def body_deltas(self) -> list[Delta]:
        """The deltas of the whole answer read last."""

    @abstractmethod
    def early_end_events(self) -> list[Json]:
        """The events that end the answer as if it had reached its length limit. Sets the finish reason of the summary."""


class StreamEncoder(Protocol):
    """Encodes deltas as the events of one dialect, in the order its official SDK expects. Owned by one task."""

    def encode_delta(self, delta: Delta) -> list[Json]:
        """The events of one delta. Raises NotTranslatable."""

    def encode_end(self, usage: Usage | None) -> list[Json]:
        """The events that end the answer."""


class AnswerCollector(Protocol):
    """Collects the events of one dialect into its whole answer. Owned by one task."""

    def add_event(self, chunk: Json) -> None:
        """Add one event. Raises ValueError if it is malformed."""

    def build_body(self) -> bytes:
        """The whole answer. Raises ValueError if the events do not form one."""


T = TypeVar("T")
NonEmptyStr = Annotated[str, Meta(min_length=1)]
MAX_NUMBER: Final = 2**53 - 1  # RFC 8259, 6: larger JSON numbers are not exact, and sums with floats may overflow
PositiveInt = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
NonNegativeInt = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
BoundedInt = Annotated[int, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
BoundedFloat = Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]

ANOTHER_PROTOCOL: Final = "another protocol"
JSON_OBJECT_INSTRUCTION: Final = "Respond with one JSON object and nothing else."  # where a protocol has no such mode
_ANY: Final = msgspec.json.Decoder()
_OBJECT: Final = msgspec.json.Decoder(RawObject)
_NO_ARGUMENTS: Final = ("", "{}")


class NotTranslatable(ValueError):
    """The client's dialect cannot express this sequence of deltas."""


class GenerationRequest(Struct, gc=False, kw_only=True):
    model: NonEmptyStr
    stream: bool | None = None
    temperature: BoundedFloat | None = None
    top_p: BoundedFloat | None = None


class NamedSchema(Struct, gc=False, kw_only=True):
    name: str | None = None
    description: str | None = None
    schema: RawObject | None = None
    strict: bool | None = None


def parse_object(body: bytes) -> Json:
    """Parse a JSON object; empty if `body` is anything else. For answers: a decoder rejects them by the missing
    fields."""
    try:
        value = _ANY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def text_or_empty(value: object) -> str:
    """The value if it is text, else "". Compatible servers send other types where OpenAI sends text."""
    return value if isinstance(value, str) else ""


def read_begin(answer_id: object, model: object, created_at: object) -> Begin:
    """The beginning of an answer in one of OpenAI's protocols."""
    is_instant = isinstance(created_at, int | float) and 0 <= created_at < 2**53
    return Begin(text_or_empty(answer_id), text_or_empty(model), int(created_at) if is_instant else None)  # type: ignore[call-overload]  # checked above


def require(value: T | None, path: str) -> T:
    """`value`, which the protocol requires at `path`. Raises Rejected if it is missing."""
    if value is None:
        raise missing_field(path)
    return value


def missing_field(path: str, *, param: str = "") -> Rejected:
    return Rejected(f"{path} is required", code="missing_field", param=param or path)


def untranslatable_field(param: str, target: str, why: str = "") -> Rejected:
    """The error for a field that the upstream's protocol `target` has no equivalent of."""
    reason = f": {why}" if why else ""
    return Rejected(f"{param} cannot be translated to {target}{reason}", code="unsupported_field", param=param)


def no_content_error(client: Api, target: str) -> Rejected:
    """The error for a request whose messages are all instructions or empty; `target`: the upstream's protocol."""
    return untranslatable_field("input" if client is Api.RESPONSES else "messages", target,
                                "at least one message besides instructions must have content")


def decode_tool_arguments(call: ToolUse) -> RawObject:
    """The arguments of a call, for protocols where they are an object and not its text. Raises Rejected."""
    if call.arguments.strip() in _NO_ARGUMENTS:
        return {}
    try:
        return _OBJECT.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        raise Rejected("the arguments of a tool call must be the text of a JSON object", code="invalid_type",
                       param="arguments") from None


def drop_none(fields: Mapping[str, Any]) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def has_value(value: object, *, or_empty: bool = True) -> bool:
    """Whether a field has a value. `or_empty`: an empty list counts as no value."""
    return value is not None and not (or_empty and value == [])


def list_used(in_use: Mapping[str, bool]) -> tuple[str, ...]:
    return tuple(name for name, is_used in in_use.items() if is_used)


def join_adjacent_messages(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Join adjacent messages of one role: the texts, calls and results of one turn belong in one message."""
    joined: list[Message] = []
    for role, group in groupby(messages, key=attrgetter("role")):
        turn = list(group)
        if role == "system" or len(turn) == 1:
            joined.extend(turn)
        else:
            joined.append(Message(role, tuple([part for message in turn for part in message.parts])))
    return tuple(joined)


def read_parts(content: str | Sequence[Any], path: str, read: Callable[[Any, str], T]) -> tuple[Text | T, ...]:
    """Read each part of a content with `read(part, path)`. A plain string is one text part."""
    if isinstance(content, str):
        return (Text(content),)
    return tuple(read(part, f"{path}[{at}]") for at, part in enumerate(content))


def join_instructions(parts: Iterable[object], path: str) -> str:
    """The text of instructions. Raises Rejected if a part is not text."""
    texts = []
    for at, part in enumerate(parts):
        if not isinstance(part, Text):
            raise untranslatable_field(f"{path}[{at}]", ANOTHER_PROTOCOL, "instructions must be text")
        texts.append(part.text)
    return "\n".join(texts)


def parse_image_url(url: str, detail: str | None) -> Image:
    """An image by its URL; a base64 data URL is split into media type and data."""
    if detail == "auto":  # the default
        detail = None
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return Image(data=data, media_type=head[5:-7], detail=detail)
    return Image(url=url, detail=detail)


def read_tool_choice(choice: object, name: str | None) -> ToolChoice | None:
    """A tool choice of OpenAI's protocols. `name`: the function that it names."""
    match choice:
        case None:
            return None
        case "auto" | "none" | "required":
            return ToolChoice(choice)
    if name is None:
        raise untranslatable_field("tool_choice", ANOTHER_PROTOCOL, "use auto, none, required or one function")
    return ToolChoice("named", name)


def read_output_format(kind: str, schema: NamedSchema | None, at: str, path: str) -> OutputFormat | None:
    """An output format of OpenAI's protocols. `at`, `path`: where the kind and the schema are in the request."""
    if kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat()
    if kind != "json_schema":
        raise untranslatable_field(f"{at}.type", ANOTHER_PROTOCOL)
    schema = require(schema, path)
    return OutputFormat(require(schema.schema, f"{path}.schema"), schema.name, schema.description, schema.strict)


def encode_schema(output_format: OutputFormat) -> Json:
    """The schema of an output format, as OpenAI's protocols write it."""
    return {"name": output_format.name or "answer", "schema": output_format.schema,
            **drop_none({"description": output_format.description, "strict": output_format.strict})}
