"""What the dialects share: types of request fields, refusals, and the parts of requests and answers that they say alike."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from stayfast.core.conversation import Image, Message, OutputFormat, RawObject, Text, ToolChoice
from stayfast.core.errors import Rejected
from stayfast.wire.deltas import Begin

T = TypeVar("T")
Json = dict[str, Any]
Name = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1)]

ABSENT: Final = Raw(b"")
ANOTHER: Final = "another protocol"
_ANY: Final = msgspec.json.Decoder()


class Unsayable(ValueError):
    """The order of the deltas has no form in the client's dialect."""


class GenerationRequest(Struct, gc=False, kw_only=True):
    model: Name
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None


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
    """The refusal of a request that lacks the field at `path`."""
    return Rejected(f"{path} is required", code="missing_field", param=path)


def unsayable(param: str, target: str, why: str = "") -> Rejected:
    """The refusal of what the upstream's protocol has no words for."""
    reason = f": {why}" if why else ""
    return Rejected(f"{param} cannot be said to this model, which speaks {target}{reason}", code="unsupported_field",
                    param=param)


def drop_none(fields: Mapping[str, Any]) -> Json:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def is_given(raw: Raw, *, or_empty: bool = True) -> bool:
    """Whether a field that no other dialect can say was sent with a value. `or_empty`: an empty list is none."""
    data = bytes(raw)
    return data not in (b"", b"null") and not (or_empty and data == b"[]")


def list_used(in_use: Mapping[str, bool]) -> tuple[str, ...]:
    """The names of those that are."""
    return tuple(name for name, is_used in in_use.items() if is_used)


def append_message(messages: list[Message], message: Message) -> None:
    """Neighbours of one role become one message: calls, texts and results of one turn belong together."""
    if messages and messages[-1].role == message.role != "system":
        messages[-1] = Message(message.role, messages[-1].parts + message.parts)
    else:
        messages.append(message)


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
