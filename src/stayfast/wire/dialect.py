"""What the dialects share: an answer as it grows, in no protocol's words, what reads it and says it, and the types, refusals
and parts of requests and answers that they say alike.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from stayfast.core.conversation import Image, Message, OutputFormat, RawObject, Text, ToolChoice
from stayfast.core.errors import Rejected, UpstreamFailed
from stayfast.core.types import AnswerSummary, Usage
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

    def __init__(self, upstream: str, sight: AnswerSummary) -> None:
        self.sight = sight
        self.ended = False  # nothing after this counts: the protocol's end, or a failure
        self._upstream = upstream

    @abstractmethod
    def see_whole(self, body: bytes) -> None:
        """Read the answer into the sight. Failures go to the sight, never raise."""

    def fail(self, failure: UpstreamFailed) -> None:
        self.ended = True
        self.sight.is_complete = False
        self.sight.failure = failure

    def _complete(self, usage: Usage | None, answer: Json | None = None, finish_reason: str | None = None) -> None:
        """`answer`: with its id and its model."""
        sight, answer = self.sight, answer or {}
        sight.usage, sight.finish_reason = usage, finish_reason
        sight.response_id, sight.model = optional_text(answer.get("id")) or None, optional_text(answer.get("model"))
        sight.n_content = 1
        sight.is_complete = True


class StreamDecoder(WholeSource):
    """Reads one upstream's answer, event by event or whole, into a `AnswerSummary`. One task owns it."""

    __slots__ = ("is_only_usage",)

    def __init__(self, upstream: str, sight: AnswerSummary) -> None:
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
        """The events that end the answer as if it had met its length limit; the sight has that reason then."""


class StreamEncoder(Protocol):
    """Says deltas in one dialect's events, as its official SDK expects them. One task owns it."""

    def events(self, delta: Delta) -> list[Json]:
        """The events for one delta. Raises NotTranslatable."""

    def end(self, usage: Usage | None) -> list[Json]:
        """The events that end the answer."""


class AnswerCollector(Protocol):
    """Puts the events of one dialect together into its whole answer. One task owns it."""

    def add(self, chunk: Json) -> None:
        """Take one event. Raises ValueError for what cannot be one."""

    def body(self) -> bytes:
        """The whole answer. Raises ValueError where the events do not make one."""


T = TypeVar("T")
Name = Annotated[str, Meta(min_length=1)]
MAX_NUMBER: Final = 2**53 - 1  # RFC 8259, 6: beyond it JSON numbers are not exact, and sums with floats may overflow
Count = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
CountOrZero = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Whole = Annotated[int, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Number = Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]

ANOTHER: Final = "another protocol"
_ANY: Final = msgspec.json.Decoder()


class NotTranslatable(ValueError):
    """The order of the deltas has no form in the client's dialect."""


class GenerationRequest(Struct, gc=False, kw_only=True):
    model: Name
    stream: bool | None = None
    temperature: Number | None = None
    top_p: Number | None = None


class NamedSchema(Struct, gc=False, kw_only=True):
    name: str | None = None
    description: str | None = None
    schema: RawObject | None = None
    strict: bool | None = None


def object_in(body: bytes) -> Json:
    """The JSON object that `body` is; empty where it is none. For answers, which are judged by what they lack."""
    try:
        value = _ANY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def optional_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def text_or_empty(value: object) -> str:
    """The value, where it is text, else nothing: compatible servers put other types where OpenAI puts text."""
    return value if isinstance(value, str) else ""


def read_begin(answer_id: object, model: object, created_at: object) -> Begin:
    """The beginning of an answer of OpenAI's protocols."""
    is_instant = isinstance(created_at, int | float) and 0 <= created_at < 2**53
    return Begin(text_or_empty(answer_id), text_or_empty(model), int(created_at) if is_instant else None)  # type: ignore[call-overload]  # checked above


def required(value: T | None, path: str) -> T:
    """`value`, which the protocol demands at `path`. Raises Rejected where it is missing."""
    if value is None:
        raise missing(path)
    return value


def missing(path: str) -> Rejected:
    return Rejected(f"{path} is required", code="missing_field", param=path)


def unsayable(param: str, target: str, why: str = "") -> Rejected:
    """The refusal of what the upstream's protocol has no words for."""
    reason = f": {why}" if why else ""
    return Rejected(f"{param} cannot be said to this model, which speaks {target}{reason}", code="unsupported_field",
                    param=param)


def drop_none(fields: Mapping[str, Any]) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def is_given(value: object, *, or_empty: bool = True) -> bool:
    """Whether a field that no other dialect can say was sent with a value. `or_empty`: an empty list is none."""
    return value is not None and not (or_empty and value == [])


def list_used(in_use: Mapping[str, bool]) -> tuple[str, ...]:
    return tuple(name for name, is_used in in_use.items() if is_used)


def join_neighbours(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Neighbours of one role become one message: calls, texts and results of one turn belong together."""
    joined: list[Message] = []
    for role, turn in groupby(messages, key=attrgetter("role")):
        said = list(turn)
        if role == "system" or len(said) == 1:
            joined.extend(said)
        else:
            joined.append(Message(role, tuple([part for message in said for part in message.parts])))
    return tuple(joined)


def read_parts(content: str | Sequence[Any], path: str, read: Callable[[Any, str], T]) -> tuple[Text | T, ...]:
    """The parts of a content, each by `read` with its path. A plain text is one part."""
    if isinstance(content, str):
        return (Text(content),)
    return tuple(read(part, f"{path}[{at}]") for at, part in enumerate(content))


def join_instructions(parts: Iterable[object], path: str) -> str:
    """The text of instructions. Raises Rejected where a part is something else."""
    texts = []
    for at, part in enumerate(parts):
        if not isinstance(part, Text):
            raise unsayable(f"{path}[{at}]", ANOTHER, "instructions must be text")
        texts.append(part.text)
    return "\n".join(texts)


def image_of(url: str, detail: str | None) -> Image:
    """An image by its URL; base64 data URLs are taken apart."""
    if detail == "auto":  # what silence means
        detail = None
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return Image(data=data, media_type=head[5:-7], detail=detail)
    return Image(url=url, detail=detail)


def read_tool_choice(choice: object, name: str | None) -> ToolChoice | None:
    """A choice of tools as OpenAI's protocols have it. `name`: the one function that it asks for."""
    match choice:
        case None:
            return None
        case "auto" | "none" | "required":
            return ToolChoice(choice)
    if name is None:
        raise unsayable("tool_choice", ANOTHER, "use auto, none, required or one function")
    return ToolChoice("named", name)


def read_output_format(kind: str, wanted: NamedSchema | None, at: str, path: str) -> OutputFormat | None:
    """A format as OpenAI's protocols have it: its kind stands at `at`, its schema, `wanted`, at `path`."""
    if kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat()
    if kind != "json_schema":
        raise unsayable(f"{at}.type", ANOTHER)
    wanted = required(wanted, path)
    return OutputFormat(required(wanted.schema, f"{path}.schema"), wanted.name, wanted.description, wanted.strict)


def encode_schema(wanted: OutputFormat) -> Json:
    """A format's schema as OpenAI's protocols have it."""
    return {"name": wanted.name or "answer", "schema": wanted.schema,
            **drop_none({"description": wanted.description, "strict": wanted.strict})}
