"""The known fields of messages and count_tokens requests, and their translation to the normal form and back.

Unknown fields and block types are not checked. Translation drops hints: `cache_control` of the whole request and of a block
before the last of `system`, `citations`, `speed`, `inference_geo`, and unknown fields.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from stayfast.core import conversation as normal
from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire import dialect
from stayfast.wire.dialect import (
    ANOTHER_PROTOCOL,
    JSON_OBJECT_INSTRUCTION,
    BoundedFloat,
    BoundedInt,
    Json,
    NonEmptyStr,
    NonNegativeInt,
    decode_tool_arguments,
    drop_none,
    no_content_error,
    read_parts,
    require,
    untranslatable_field,
)
from stayfast.wire.google_options import ExtraBody, GoogleMember, read_google_options
from stayfast.wire.signatures import read_marked_signature


class MediaSource(Struct, gc=False):
    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class ContentBlock(Struct, gc=False):
    type: str
    text: str | None = None
    source: MediaSource | str | None = None
    id: str | None = None
    name: str | None = None
    input: normal.RawObject | None = None
    tool_use_id: str | None = None
    content: "str | list[ContentBlock] | normal.RawObject | None" = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    cache_control: normal.RawObject | None = None


class MessagesUser(Struct, gc=False, tag_field="role", tag="user"):
    content: str | list[ContentBlock]


class MessagesAssistant(Struct, gc=False, tag_field="role", tag="assistant"):
    content: str | list[ContentBlock]


class MessagesSystem(Struct, gc=False, tag_field="role", tag="system"):
    content: str | list[ContentBlock]


class MessagesToolDef(Struct, gc=False):
    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: normal.RawObject | None = None
    strict: bool | None = None
    cache_control: normal.RawObject | None = None


class MessagesToolChoice(Struct, gc=False):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct, gc=False):
    type: str
    budget_tokens: NonNegativeInt | None = None


class MessagesFormat(Struct, gc=False):
    type: str
    schema: normal.RawObject | None = None


class OutputConfig(Struct, gc=False):
    effort: str | None = None
    format: MessagesFormat | None = None


class Metadata(Struct, gc=False):
    user_id: str | None = None


class CountRequest(Struct, gc=False):
    """`POST /v1/messages/count_tokens`."""

    model: NonEmptyStr
    messages: Annotated[list[MessagesUser | MessagesAssistant | MessagesSystem], Meta(min_length=1, max_length=100_000)]
    system: str | list[ContentBlock] | None = None
    tools: list[MessagesToolDef] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    cache_control: normal.RawObject | None = None


class MessagesRequest(CountRequest, gc=False, kw_only=True):
    """`POST /v1/messages`."""

    max_tokens: NonNegativeInt
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: BoundedFloat | None = None
    top_p: BoundedFloat | None = None
    top_k: BoundedInt | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    container: str | normal.RawObject | None = None
    mcp_servers: list[normal.RawObject] | None = None
    extra_body: ExtraBody | None = None
    google: GoogleMember | None = None


MESSAGES_DECODER = msgspec.json.Decoder(MessagesRequest)


MAX_TEMPERATURE: Final = 1.0  # the other protocols allow 2
DEFAULT_MAX_TOKENS: Final = 4096  # the protocol requires a limit; all current models support this one
_MODES: Final = {"auto": "auto", "none": "none", "any": "required"}
_CHOICES: Final = {"auto": "auto", "none": "none", "required": "any"}
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_ROLES: Final[Mapping[type, normal.Role]] = {MessagesUser: "user", MessagesAssistant: "assistant", MessagesSystem: "system"}


def parse_messages(request: MessagesRequest) -> normal.Conversation:
    """The normal form of a messages request. Raises Rejected for a field without a normal form."""
    config = request.output_config or OutputConfig()
    choice = request.tool_choice
    return normal.Conversation(
        api=Api.MESSAGES,
        messages=tuple(normal.Message(_ROLES[type(message)], _read_parts(message.content, f"messages[{at}].content"))
                       for at, message in enumerate(request.messages)),
        system=() if not request.system else (dialect.join_instructions(_read_parts(request.system, "system"), "system"),),
        system_cache_ttl=_cache_ttl(request.system[-1]) if isinstance(request.system, list) and request.system else None,
        tools=tuple(_read_tool(tool, f"tools[{at}]") for at, tool in enumerate(request.tools or ())),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        output_format=_output_format(config.format),
        sampling=normal.Sampling(request.temperature, request.top_p, request.top_k),
        max_output_tokens=request.max_tokens,
        stop=tuple(request.stop_sequences or ()),
        effort=config.effort or _effort_of_budget(request.thinking),
        user=request.metadata.user_id if request.metadata is not None else None,
        service_tier="auto" if request.service_tier == "auto" else None,
        google=read_google_options(request.extra_body, request.google),
        native=tuple(name for name in ("container", "mcp_servers") if dialect.has_value(getattr(request, name))),
    )


def _read_parts(content: str | list[ContentBlock], path: str) -> tuple[normal.Part, ...]:
    return tuple(part for part in read_parts(content, path, _read_block) if part is not None)


def _cache_ttl(marked: ContentBlock | MessagesToolDef) -> str | None:
    control = marked.cache_control
    if control is None:
        return None
    return "1h" if bytes(control.get("ttl", b"")) == b'"1h"' else "5m"


def _read_block(block: ContentBlock, path: str) -> normal.Part | None:
    part, cache_ttl = _read_unmarked(block, path), _cache_ttl(block)
    if cache_ttl is None or part is None or isinstance(part, normal.Thinking):  # reasoning cannot be marked
        return part
    return replace(part, cache_ttl=cache_ttl)


def _read_unmarked(block: ContentBlock, path: str) -> normal.Part | None:
    match block.type:
        case "text":
            return normal.Text(require(block.text, f"{path}.text"))
        case "image":
            return _read_image(block.source, f"{path}.source")
        case "tool_use":
            arguments = msgspec.json.encode(block.input or {}).decode()
            return normal.ToolUse(require(block.id, f"{path}.id"), require(block.name, f"{path}.name"), arguments)
        case "tool_result":
            parts = _read_result_parts(block.content, f"{path}.content")
            return normal.ToolResult(require(block.tool_use_id, f"{path}.tool_use_id"), parts, block.is_error is True)
        case "thinking":
            return normal.Thinking(block.thinking or "", block.signature)
        case "redacted_thinking":
            return normal.Thinking("", redacted=block.data) if block.data else None
    raise untranslatable_field(f"{path}.type", ANOTHER_PROTOCOL, "use text, image, tool_use, tool_result and thinking "
                                                                 "blocks")


def _read_result_parts(content: object, path: str) -> tuple[normal.Text | normal.Image, ...]:
    if content is None:
        return ()
    if isinstance(content, dict):
        raise Rejected(f"{path}: expected text or a list of blocks", code="invalid_type", param=path)
    found: list[normal.Text | normal.Image] = []
    for at, part in enumerate(_read_parts(content, path)):  # type: ignore[arg-type]  # a str or a list of blocks is left
        if not isinstance(part, normal.Text | normal.Image):
            raise untranslatable_field(f"{path}[{at}].type", ANOTHER_PROTOCOL, "a tool result holds only text and images")
        found.append(part)
    return tuple(found)


def _read_image(source: MediaSource | str | None, path: str) -> normal.Image:
    if isinstance(source, MediaSource):
        if source.type == "base64":
            return normal.Image(data=require(source.data, f"{path}.data"),
                                media_type=require(source.media_type, f"{path}.media_type"))
        if source.type == "url":
            return normal.Image(url=require(source.url, f"{path}.url"))
    raise untranslatable_field(path, ANOTHER_PROTOCOL, "send the image as base64 or by url")


def _read_tool(tool: MessagesToolDef, path: str) -> normal.Tool:
    if tool.type not in (None, "custom"):
        raise untranslatable_field(f"{path}.type", ANOTHER_PROTOCOL, "use custom tools")
    return normal.Tool(require(tool.name, f"{path}.name"), tool.description,
                       require(tool.input_schema, f"{path}.input_schema"), tool.strict, _cache_ttl(tool))


def _tool_choice(choice: MessagesToolChoice | None) -> normal.ToolChoice | None:
    if choice is None:
        return None
    if choice.type == "tool":
        return normal.ToolChoice("named", require(choice.name, "tool_choice.name"))
    if choice.type not in _MODES:
        raise untranslatable_field("tool_choice.type", ANOTHER_PROTOCOL, "use auto, any, tool or none")
    return normal.ToolChoice(_MODES[choice.type])  # type: ignore[arg-type]  # values of the table are modes


def _output_format(output_format: MessagesFormat | None) -> normal.OutputFormat | None:
    if output_format is None:
        return None
    if output_format.type != "json_schema":
        raise untranslatable_field("output_config.format.type", ANOTHER_PROTOCOL)
    return normal.OutputFormat(require(output_format.schema, "output_config.format.schema"))


def _effort_of_budget(thinking: ThinkingConfig | None) -> str | None:
    """The reasoning effort nearest to a thinking budget; None for adaptive thinking."""
    if thinking is None or thinking.type != "enabled" or thinking.budget_tokens is None:
        return None
    if thinking.budget_tokens <= 4096:  # tokens; these thresholds are our choice
        return "low"
    return "medium" if thinking.budget_tokens <= 16_384 else "high"


def encode_body(request: normal.Conversation, model: str, *, stream: bool) -> Json:
    """Encode as a messages request; `max_tokens` is DEFAULT_MAX_TOKENS if the client set no limit.

    System messages move to the front, because not every model accepts them elsewhere. `json_object` has no field in messages
    and becomes an instruction after them. A temperature above 1 becomes 1. Drops hints: presence and frequency penalty,
    seed, verbosity, metadata, service tier, prompt-cache key, an image's detail, `name` and `strict` of an output format,
    thinking without a signature. Raises Rejected.
    """
    output = request.output_format
    system = [*request.system, *(message.text for message in request.messages if message.role == "system"),
              *((JSON_OBJECT_INSTRUCTION,) if output is not None and output.schema is None else ())]
    temperature = request.sampling.temperature
    fields: Json = {
        "model": model,
        "max_tokens": request.max_output_tokens if request.max_output_tokens is not None else DEFAULT_MAX_TOKENS,
        "messages": _encode_messages(request),
    }
    optional = {
        "stream": stream or None,
        "system": "\n\n".join(system) or None,
        "temperature": min(temperature, MAX_TEMPERATURE) if temperature is not None else None,
        "top_p": request.sampling.top_p,
        "top_k": request.sampling.top_k,
        "stop_sequences": list(request.stop) or None,
        "metadata": {"user_id": request.user} if request.user is not None else None,
        "tools": [drop_none({
            "name": tool.name, "input_schema": tool.parameters or {"type": "object", "properties": {}},
            "description": tool.description, "strict": tool.strict}) for tool in request.tools] or None,
        "tool_choice": _encode_choice(request),
        "thinking": None if request.effort is None else {"type": "adaptive" if request.effort in _EFFORTS else "disabled"},
        "output_config": _encode_config(request) or None,
    }
    return fields | drop_none(optional)


def _encode_messages(request: normal.Conversation) -> list[Json]:
    encoded = []
    for message in request.messages:
        content = [block for part in message.parts if (block := _encode_part(part)) is not None]
        if content and message.role != "system":  # messages rejects a message without content
            encoded.append({"role": message.role, "content": content})
    if not encoded:
        raise no_content_error(request.api, "messages")
    return encoded


def _encode_part(part: normal.Part) -> Json | None:
    match part:
        case normal.Text():
            return {"type": "text", "text": part.text} if part.text else None  # messages rejects empty text blocks
        case normal.Image(url=None):
            return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": part.data}}
        case normal.Image():
            return {"type": "image", "source": {"type": "url", "url": part.url}}
        case normal.Thinking():
            if part.redacted is not None:
                return {"type": "redacted_thinking", "data": part.redacted}
            return ({"type": "thinking", "thinking": part.text, "signature": part.signature}
                    if part.signature and read_marked_signature(part.signature) is None else None)
        case normal.ToolUse():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": decode_tool_arguments(part)}
        case normal.ToolResult():
            content = [block for inner in part.parts if (block := _encode_part(inner)) is not None]
            encoded: Json = {"type": "tool_result", "tool_use_id": part.tool_use_id, "content": content}
            return encoded | {"is_error": True} if part.is_error else encoded


def _encode_choice(request: normal.Conversation) -> Json | None:
    choice = request.tool_choice
    if not request.tools or (choice is None and request.parallel_tool_calls is not False):
        return None
    if choice is not None and choice.mode == "named":
        encoded: Json = {"type": "tool", "name": choice.name}
    else:
        encoded = {"type": _CHOICES[choice.mode] if choice is not None else "auto"}
    if request.parallel_tool_calls is False and encoded["type"] != "none":
        encoded["disable_parallel_tool_use"] = True
    return encoded


def _encode_config(request: normal.Conversation) -> Json:
    encoded: Json = {}
    if request.effort in _EFFORTS:
        encoded["effort"] = _EFFORTS[request.effort]
    if request.output_format is not None and request.output_format.schema is not None:
        encoded["format"] = {"type": "json_schema", "schema": request.output_format.schema}
    return encoded
