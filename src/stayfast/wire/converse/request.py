"""Encodes the normal form of a request as Converse, and reads the members of a client's body that only Converse has.

The members that a client may add to its body, with Converse's own names and shapes: `additionalModelRequestFields`,
`guardrailConfig`, `performanceConfig`, `requestMetadata`, `serviceTier`. They win over what the other fields become.
Source of the shapes: the service model of bedrock-runtime in botocore.
"""

from typing import Final

import msgspec
from msgspec import Struct

from stayfast.core import conversation as normal
from stayfast.wire.dialect import (
    JSON_OBJECT_INSTRUCTION,
    Json,
    decode_tool_arguments,
    drop_none,
    join_adjacent_messages,
    no_content_error,
    untranslatable_field,
)

TARGET: Final = "converse"
MAX_TEMPERATURE: Final = 1.0  # the other protocols allow 2
_IMAGE_TYPES: Final = {"image/png": "png", "image/jpeg": "jpeg", "image/jpg": "jpeg", "image/gif": "gif",
                       "image/webp": "webp"}
_CHOICES: Final[dict[str, Json]] = {"auto": {"auto": {}}, "required": {"any": {}}}
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_TIERS: Final = frozenset(("default", "flex", "priority", "reserved"))
_CLAUDE: Final = "anthropic."  # in the names of Anthropic's models, with or without a region before it
_NOVA: Final = "amazon.nova"
_LONG: Final = "1h"
_STOP_SEQUENCE: Final = "/stop_sequence"
_NO_SCHEMA: Final[Json] = {"type": "object", "properties": {}}


class ConverseMembers(Struct, gc=False, rename="camel"):
    """The members of a client's body that only Converse has."""

    additional_model_request_fields: normal.RawObject | None = None
    guardrail_config: normal.RawObject | None = None
    performance_config: normal.RawObject | None = None
    request_metadata: dict[str, str] | None = None
    service_tier: normal.RawObject | None = None


MEMBERS_DECODER: Final = msgspec.json.Decoder(ConverseMembers)
_MEMBERS: Final = {field.name: field.encode_name for field in msgspec.structs.fields(ConverseMembers)}
_MEMBER_NAMES: Final = tuple(f'"{name}"'.encode() for name in _MEMBERS.values())
_MORE: Final = "additionalModelRequestFields"


def has_members(body: bytes) -> bool:
    """Whether a client's body may have one of `ConverseMembers`."""
    return any(name in body for name in _MEMBER_NAMES)


def add_members(fields: Json, members: ConverseMembers) -> Json:
    """The request with the client's own Converse members. Those of `additionalModelRequestFields` are merged."""
    given = {name: value for field, name in _MEMBERS.items() if (value := getattr(members, field)) is not None}
    if _MORE in given and _MORE in fields:
        given[_MORE] = {**fields[_MORE], **given[_MORE]}
    return fields | given


def encode_body(request: normal.Conversation, model: str, *, stream: bool) -> Json:
    """Encode as a request to Converse or ConverseStream, which differ only in their paths.

    System messages move to the front and adjacent messages of one role are joined, because models reject other orders. A
    JSON schema becomes `outputConfig`; `json_object` has no field and becomes an instruction. A temperature above 1 becomes
    1. `top_k` is sent to Anthropic's models only: its name differs by model. Drops hints: penalties, seed, verbosity, user,
    metadata, prompt-cache key, an image's detail, `strict` of an output format, thinking without a signature, and marks of a
    prompt cache for models that are not known to have one. Raises Rejected.
    """
    output = request.output_format
    system = [*request.system, *(message.text for message in request.messages if message.role == "system"),
              *((JSON_OBJECT_INSTRUCTION,) if output is not None and output.schema is None else ())]
    temperature = request.sampling.temperature
    inference = drop_none({
        "maxTokens": request.max_output_tokens,
        "temperature": min(temperature, MAX_TEMPERATURE) if temperature is not None else None,
        "topP": request.sampling.top_p,
        "stopSequences": list(request.stop) or None,
    })
    top_k = request.sampling.top_k if _CLAUDE in model else None
    instructions: list[Json] = [{"text": text} for text in system if text]
    return {"messages": _encode_messages(request, model)} | drop_none({
        "system": [*instructions, *_cache_points(request.system_cache_ttl, model)] if instructions else None,
        "inferenceConfig": inference or None,
        "toolConfig": _encode_tools(request, model),
        "outputConfig": _encode_output(request) or None,
        "serviceTier": {"type": request.service_tier} if request.service_tier in _TIERS else None,
        _MORE: {"top_k": top_k} if top_k is not None else None,
        "additionalModelResponseFieldPaths": [_STOP_SEQUENCE] if request.stop else None,  # other models ignore it
    })


def _cache_points(ttl: str | None, model: str, *, is_tool: bool = False) -> list[Json]:
    """The block that marks the end of a prefix. Only Claude caches tools, and has the long lifetime."""
    if ttl is None or not (_CLAUDE in model or (_NOVA in model and not is_tool)):
        return []
    return [{"cachePoint": {"type": "default", **({"ttl": ttl} if ttl == _LONG and _CLAUDE in model else {})}}]


def _encode_messages(request: normal.Conversation, model: str) -> list[Json]:
    encoded = []
    for message in join_adjacent_messages(message for message in request.messages if message.role != "system"):
        content = []
        for part in message.parts:
            if (block := _encode_part(part)) is not None:
                content.append(block)
                if not isinstance(part, normal.Thinking):
                    content += _cache_points(part.cache_ttl, model)
        if content:  # a message without content is rejected
            encoded.append({"role": message.role, "content": content})
    if not encoded:
        raise no_content_error(request.api, TARGET)
    return encoded


def _encode_part(part: normal.Part) -> Json | None:
    match part:
        case normal.Text():
            return {"text": part.text} if part.text else None  # empty texts are rejected
        case normal.Image():
            return _encode_image(part)
        case normal.Thinking():
            return _encode_thinking(part)
        case normal.ToolUse():
            return {"toolUse": {"toolUseId": part.id, "name": part.name, "input": decode_tool_arguments(part)}}
        case normal.ToolResult():
            content = [block for inner in part.parts if (block := _encode_part(inner)) is not None]
            result: Json = {"toolUseId": part.tool_use_id, "content": content}
            return {"toolResult": result | {"status": "error"} if part.is_error else result}


def _encode_image(image: normal.Image) -> Json:
    if image.url is not None:
        raise untranslatable_field("an image by URL", TARGET, "send the image as base64")
    form = _IMAGE_TYPES.get(image.media_type or "")
    if form is None:
        raise untranslatable_field("an image", TARGET, "its type must be image/png, image/jpeg, image/gif or image/webp")
    return {"image": {"format": form, "source": {"bytes": image.data}}}


def _encode_thinking(part: normal.Thinking) -> Json | None:
    if part.redacted is not None:
        return {"reasoningContent": {"redactedContent": part.redacted}}
    if not part.signature:
        return None
    return {"reasoningContent": {"reasoningText": {"text": part.text, "signature": part.signature}}}


def _encode_tools(request: normal.Conversation, model: str) -> Json | None:
    choice = request.tool_choice
    if not request.tools:
        return None
    if request.parallel_tool_calls is False:
        raise untranslatable_field("parallel_tool_calls", TARGET, "it cannot limit the number of calls; leave this out, or "
                                   "set the model's own option in additionalModelRequestFields")
    if choice is not None and choice.mode == "none":
        if any(isinstance(part, normal.ToolUse | normal.ToolResult) for one in request.messages for part in one.parts):
            raise untranslatable_field("tool_choice", TARGET, "it cannot forbid calls where earlier messages hold calls, "
                                                              "which need their tools")
        return None
    tools = []
    for tool in request.tools:
        tools += [{"toolSpec": drop_none({
            "name": tool.name, "description": tool.description or None,
            "inputSchema": {"json": tool.parameters or _NO_SCHEMA}, "strict": tool.strict})},
            *_cache_points(tool.cache_ttl, model, is_tool=True)]
    if choice is None:
        return {"tools": tools}
    return {"tools": tools, "toolChoice": _CHOICES.get(choice.mode) or {"tool": {"name": choice.name}}}


def _encode_output(request: normal.Conversation) -> Json:
    """The required form of the answer, and the reasoning effort."""
    output = request.output_format
    config: Json = {}
    if output is not None and output.schema is not None:
        schema = drop_none({"schema": msgspec.json.encode(output.schema).decode(), "name": output.name,
                            "description": output.description})
        config["textFormat"] = {"type": "json_schema", "structure": {"jsonSchema": schema}}
    if request.effort in _EFFORTS:
        config["effort"] = _EFFORTS[request.effort]
    return config
