"""The known fields of responses requests, and their translation to the normal form and back.

Unknown fields, items and part types are not checked. Translation drops hints: `include`, `store`, `max_tool_calls`, `phase`,
ids and statuses of items, reasoning items of earlier turns (only their own provider can read them), prompt-cache markers,
and unknown fields.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from stayfast.core import conversation as normal
from stayfast.core.types import Api
from stayfast.wire import dialect
from stayfast.wire.dialect import Json
from stayfast.wire.google_options import ExtraBody, GoogleMember, read_google_options
from stayfast.wire.signatures import read_marked_signature


class ResponsesPart(Struct, gc=False):
    type: str
    text: str | None = None
    image_url: str | None = None
    detail: str | None = None
    refusal: str | None = None


class Item(Struct, gc=False):
    """Any input item; `type` determines which fields apply."""

    type: str = "message"
    role: str | None = None
    content: str | list[ResponsesPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | normal.RawObject | None = None
    output: str | list[ResponsesPart] | normal.RawObject | None = None
    encrypted_content: str | None = None


class ResponsesToolDef(Struct, gc=False):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: normal.RawObject | None = None
    strict: bool | None = None


class ResponsesToolChoice(Struct, gc=False):
    type: str
    name: str | None = None


class ResponsesFormat(dialect.NamedSchema, gc=False, kw_only=True):
    type: str


class TextConfig(Struct, gc=False):
    format: ResponsesFormat | None = None
    verbosity: str | None = None


class Reasoning(Struct, gc=False):
    effort: str | None = None


class InputTokensRequest(Struct, gc=False, kw_only=True):
    """`POST /v1/responses/input_tokens`. Other fields of a responses request are accepted too."""

    model: dialect.NonEmptyStr
    input: str | Annotated[list[Item], Meta(min_length=1)]
    instructions: str | None = None
    tools: list[ResponsesToolDef] | None = None
    tool_choice: str | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    truncation: str | None = None


class ResponsesRequest(dialect.GenerationRequest, gc=False, kw_only=True):
    """`POST /v1/responses`."""

    input: str | Annotated[list[Item], Meta(min_length=1)] | None = None
    instructions: str | None = None
    max_output_tokens: dialect.PositiveInt | None = None
    max_tool_calls: dialect.BoundedInt | None = None
    top_logprobs: dialect.BoundedInt | None = None
    tools: list[ResponsesToolDef] | None = None
    tool_choice: str | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    metadata: normal.RawObject | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: str | None = None
    previous_response_id: str | None = None
    conversation: str | normal.RawObject | None = None
    prompt: normal.RawObject | None = None
    context_management: list[normal.RawObject] | None = None
    include: list[str] | None = None
    stream_options: normal.RawObject | None = None
    moderation: normal.RawObject | None = None
    prompt_cache_options: normal.RawObject | None = None
    prompt_cache_retention: str | None = None
    extra_body: ExtraBody | None = None
    google: GoogleMember | None = None


RESPONSES_DECODER = msgspec.json.Decoder(ResponsesRequest)


_TEXTS: Final = ("input_text", "output_text", "text")
_ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


def parse_responses(request: ResponsesRequest) -> normal.Conversation:
    """The normal form of a responses request. Raises Rejected for a field without a normal form."""
    system = [request.instructions] if request.instructions else []
    messages: list[normal.Message] = []
    if isinstance(request.input, str):
        messages.append(normal.Message("user", (normal.Text(request.input),)))
    else:
        for at, item in enumerate(request.input or ()):
            message = _read_item(item, f"input[{at}]")
            if message is None:
                continue
            if message.role == "system" and not messages:
                system.append(message.text)
            else:
                messages.append(message)
    text = request.text or TextConfig()
    return normal.Conversation(
        api=Api.RESPONSES,
        messages=dialect.join_adjacent_messages(messages),
        system=tuple(system),
        tools=tuple(_read_tool(tool, f"tools[{at}]") for at, tool in enumerate(request.tools or ())),
        tool_choice=_tool_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls,
        output_format=None if text.format is None else dialect.read_output_format(
            text.format.type, text.format, "text.format", "text.format"),
        sampling=normal.Sampling(request.temperature, request.top_p),
        max_output_tokens=request.max_output_tokens,
        effort=request.reasoning.effort if request.reasoning is not None else None,
        verbosity=text.verbosity,
        user=request.safety_identifier or request.user,
        metadata=request.metadata,
        service_tier=request.service_tier,
        prompt_cache_key=request.prompt_cache_key,
        google=read_google_options(request.extra_body, request.google),
        native=_untranslatable_fields(request),
    )


def _untranslatable_fields(request: ResponsesRequest) -> tuple[str, ...]:
    in_use = {"background": request.background is True, "truncation": request.truncation not in (None, "disabled"),
              "previous_response_id": request.previous_response_id is not None, "top_logprobs": bool(request.top_logprobs)}
    for name in ("conversation", "prompt", "context_management"):
        in_use[name] = dialect.has_value(getattr(request, name))
    return dialect.list_used(in_use)


def _read_item(item: Item, path: str) -> normal.Message | None:
    """The message of an item; None for an item that is dropped."""
    match item.type:
        case "message":
            role = _ROLES.get(dialect.require(item.role, f"{path}.role"))
            if role is None:
                raise dialect.untranslatable_field(f"{path}.role", dialect.ANOTHER_PROTOCOL,
                                                   "use user, assistant, system or developer")
            if item.content is None:
                raise dialect.missing_field(f"{path}.content")
            return normal.Message(role, dialect.read_parts(item.content, f"{path}.content", _read_part))  # type: ignore[arg-type]  # values of the table are roles
        case "function_call":
            arguments = item.arguments if isinstance(item.arguments, str) else msgspec.json.encode(
                item.arguments or {}).decode()
            call_id = dialect.require(item.call_id, f"{path}.call_id")
            call = normal.ToolUse(call_id, dialect.require(item.name, f"{path}.name"), arguments)
            return normal.Message("assistant", (call,))
        case "function_call_output":
            if item.output is None:
                raise dialect.missing_field(f"{path}.output")
            if isinstance(item.output, dict):
                raise dialect.untranslatable_field(f"{path}.output", dialect.ANOTHER_PROTOCOL,
                                                   "expected text or a list of parts")
            call_id = dialect.require(item.call_id, f"{path}.call_id")
            result = normal.ToolResult(call_id, dialect.read_parts(item.output, f"{path}.output", _read_part))
            return normal.Message("user", (result,))
        case "reasoning":
            signed = item.encrypted_content if read_marked_signature(item.encrypted_content) is not None else None
            return normal.Message("assistant", (normal.Thinking("", signed),)) if signed is not None else None
    raise dialect.untranslatable_field(f"{path}.type", dialect.ANOTHER_PROTOCOL,
                            "use message, function_call, function_call_output and reasoning items")


def _read_part(part: ResponsesPart, path: str) -> normal.Text | normal.Image:
    if part.type in _TEXTS:
        return normal.Text(dialect.require(part.text, f"{path}.text"))
    if part.type == "refusal":
        return normal.Text(dialect.require(part.refusal, f"{path}.refusal"))
    if part.type == "input_image" and part.image_url is not None:
        return dialect.parse_image_url(part.image_url, part.detail)
    raise dialect.untranslatable_field(f"{path}.type", dialect.ANOTHER_PROTOCOL, "use text and images by URL")


def _read_tool(tool: ResponsesToolDef, path: str) -> normal.Tool:
    if tool.type != "function":
        raise dialect.untranslatable_field(f"{path}.type", dialect.ANOTHER_PROTOCOL, "use function tools")
    return normal.Tool(dialect.require(tool.name, f"{path}.name"), tool.description, tool.parameters, tool.strict)


def _tool_choice(choice: str | ResponsesToolChoice | None) -> normal.ToolChoice | None:
    name = choice.name if isinstance(choice, ResponsesToolChoice) and choice.type == "function" else None
    return dialect.read_tool_choice(choice, name)


def encode_body(request: normal.Conversation, model: str, *, stream: bool) -> Json:
    """Encode as a responses request that the provider does not store (`store: false`).

    Drops hints: seed, `is_error` of a tool result and thinking of earlier turns. Raises Rejected.
    """
    if request.stop:
        raise dialect.untranslatable_field("stop_sequences" if request.api is Api.MESSAGES else "stop", "responses")
    for name in ("top_k", "presence_penalty", "frequency_penalty"):
        if getattr(request.sampling, name):
            raise dialect.untranslatable_field(name, "responses")
    fields: Json = {"model": model, "input": [item for message in request.messages for item in _encode_items(message)],
                    "store": False}
    text: Json = {}
    if request.output_format is not None:
        text["format"] = {"type": "json_object"} if request.output_format.schema is None else {
            "type": "json_schema", **dialect.encode_schema(request.output_format)}
    if request.verbosity is not None:
        text["verbosity"] = request.verbosity
    optional = {
        "stream": stream or None,
        "instructions": "\n\n".join(request.system) or None,
        "max_output_tokens": request.max_output_tokens,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "tools": [_encode_tool(tool) for tool in request.tools] or None,
        "tool_choice": _encode_choice(request.tool_choice),
        "parallel_tool_calls": request.parallel_tool_calls,
        "text": text or None,
        "reasoning": {"effort": request.effort} if request.effort is not None else None,
        "safety_identifier": request.user,
        "metadata": request.metadata,
        "service_tier": request.service_tier,
        "prompt_cache_key": request.prompt_cache_key,
    }
    return fields | dialect.drop_none(optional)


def _encode_items(message: normal.Message) -> list[Json]:
    items: list[Json] = []
    content: list[Json] = []
    for part in message.parts:
        match part:
            case normal.Text():
                content.append({"type": "input_text", "text": part.text})
            case normal.Image():
                content.append(_encode_image(part))
            case normal.ToolUse():
                _flush_content(items, message.role, content)
                items.append({"type": "function_call", "call_id": part.id, "name": part.name,
                              "arguments": part.arguments or "{}"})
            case normal.ToolResult():
                _flush_content(items, message.role, content)
                items.append({"type": "function_call_output", "call_id": part.tool_use_id,
                              "output": _encode_output(part)})
    _flush_content(items, message.role, content)
    return items


def _flush_content(items: list[Json], role: str, content: list[Json]) -> None:
    if content and role == "assistant":  # output parts would need ids and annotations, plain text does not
        items.append({"type": "message", "role": role, "content": "".join(part.get("text", "") for part in content)})
    elif content:
        items.append({"type": "message", "role": role, "content": list(content)})
    content.clear()


def _encode_image(image: normal.Image) -> Json:
    return {"type": "input_image", "image_url": image.as_url, "detail": image.detail or "auto"}


def _encode_output(result: normal.ToolResult) -> str | list[Json]:
    if all(isinstance(part, normal.Text) for part in result.parts):
        return "\n".join(part.text for part in result.parts if isinstance(part, normal.Text))
    return [_encode_image(part) if isinstance(part, normal.Image) else {"type": "input_text", "text": part.text}
            for part in result.parts]


def _encode_tool(tool: normal.Tool) -> Json:
    encoded: Json = {"type": "function", "name": tool.name, "parameters": tool.parameters, "strict": tool.strict or False}
    return encoded if tool.description is None else encoded | {"description": tool.description}


def _encode_choice(choice: normal.ToolChoice | None) -> str | Json | None:
    if choice is None or choice.mode != "named":
        return None if choice is None else choice.mode
    return {"type": "function", "name": choice.name}
