"""The known fields of a responses request, and its way to the normal form and back.

Unknown fields, items and part types pass unread. Dropped on the way in, as hints: `include`, `store`, `max_tool_calls`,
`phase`, ids and statuses of items, reasoning items of earlier turns (only their provider can read them), prompt-cache
marks, and fields unknown here.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct

from stayfast.core.conversation import (
    Conversation,
    Image,
    Message,
    OutputFormat,
    RawObject,
    Sampling,
    Text,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from stayfast.core.types import Api
from stayfast.wire import dialect
from stayfast.wire.dialect import (
    ABSENT,
    ANOTHER,
    Count,
    GenerationRequest,
    Json,
    NamedSchema,
    drop_none,
    missing,
    read_parts,
    required,
    unsayable,
)


class Part(Struct, gc=False):
    type: str
    text: str | None = None
    image_url: str | None = None
    detail: str | None = None
    refusal: str | None = None


class Item(Struct, gc=False):
    """Any input item; which fields count depends on `type`."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | RawObject | None = None
    output: str | list[Part] | RawObject | None = None


class ToolDef(Struct, gc=False):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: RawObject | None = None
    strict: bool | None = None


class Choice(Struct, gc=False):
    type: str
    name: str | None = None


class Format(NamedSchema, gc=False, kw_only=True):
    type: str


class TextConfig(Struct, gc=False):
    format: Format | None = None
    verbosity: str | None = None


class Reasoning(Struct, gc=False):
    effort: str | None = None


class ResponsesRequest(GenerationRequest, gc=False, kw_only=True):
    input: str | Annotated[list[Item], Meta(min_length=1)] | None = None
    instructions: str | None = None
    max_output_tokens: Count | None = None
    top_logprobs: int | None = None
    tools: list[ToolDef] | None = None
    tool_choice: str | Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    metadata: RawObject | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: str | None = None
    previous_response_id: str | None = None
    conversation: Raw = ABSENT
    prompt: Raw = ABSENT
    context_management: Raw = ABSENT


RESPONSES = msgspec.json.Decoder(ResponsesRequest)


_TEXTS: Final = ("input_text", "output_text", "text")
_ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


def conversation(said: ResponsesRequest) -> Conversation:
    """The normal form of a responses request. Raises Rejected for what has none."""
    system = [said.instructions] if said.instructions else []
    messages: list[Message] = []
    if isinstance(said.input, str):
        messages.append(Message("user", (Text(said.input),)))
    else:
        for at, item in enumerate(said.input or ()):
            message = _item(item, f"input[{at}]")
            if message is None:
                continue
            if message.role == "system" and not messages:
                system.append(message.text)
            else:
                dialect.append_message(messages, message)
    text = said.text or TextConfig()
    return Conversation(
        api=Api.RESPONSES,
        messages=tuple(messages),
        system=tuple(system),
        tools=tuple(_tool(tool, f"tools[{at}]") for at, tool in enumerate(said.tools or ())),
        tool_choice=_tool_choice(said.tool_choice),
        parallel_tool_calls=said.parallel_tool_calls,
        output_format=_output_format(text.format),
        sampling=Sampling(said.temperature, said.top_p),
        max_output_tokens=said.max_output_tokens,
        effort=said.reasoning.effort if said.reasoning is not None else None,
        verbosity=text.verbosity,
        user=said.safety_identifier or said.user,
        metadata=said.metadata,
        service_tier=said.service_tier,
        prompt_cache_key=said.prompt_cache_key,
        native=_native(said),
    )


def _native(said: ResponsesRequest) -> tuple[str, ...]:
    in_use = {"background": said.background is True, "truncation": said.truncation not in (None, "disabled"),
              "previous_response_id": said.previous_response_id is not None, "top_logprobs": bool(said.top_logprobs)}
    for name in ("conversation", "prompt", "context_management"):
        in_use[name] = dialect.is_given(getattr(said, name))
    return dialect.list_used(in_use)


def _item(item: Item, path: str) -> Message | None:
    match item.type:
        case "message":
            role = _ROLES.get(required(item.role, f"{path}.role"))
            if role is None:
                raise unsayable(f"{path}.role", ANOTHER, "use user, assistant, system or developer")
            if item.content is None:
                raise missing(f"{path}.content")
            return Message(role, read_parts(item.content, f"{path}.content", _part))  # type: ignore[arg-type]  # values of the table are roles
        case "function_call":
            arguments = item.arguments if isinstance(item.arguments, str) else msgspec.json.encode(
                item.arguments or {}).decode()
            return Message("assistant", (ToolUse(required(item.call_id, f"{path}.call_id"),
                                                 required(item.name, f"{path}.name"), arguments),))
        case "function_call_output":
            if item.output is None:
                raise missing(f"{path}.output")
            if isinstance(item.output, dict):
                raise unsayable(f"{path}.output", ANOTHER, "expected text or a list of parts")
            return Message("user", (ToolResult(required(item.call_id, f"{path}.call_id"),
                                               read_parts(item.output, f"{path}.output", _part)),))
        case "reasoning":
            return None
    raise unsayable(f"{path}.type", ANOTHER, "items of this type cannot be translated")


def _part(part: Part, path: str) -> Text | Image:
    if part.type in _TEXTS:
        return Text(required(part.text, f"{path}.text"))
    if part.type == "refusal":
        return Text(required(part.refusal, f"{path}.refusal"))
    if part.type == "input_image" and part.image_url is not None:
        return dialect.image_of(part.image_url, part.detail)
    raise unsayable(f"{path}.type", ANOTHER, "only text and images by URL can be translated")


def _tool(tool: ToolDef, path: str) -> Tool:
    if tool.type != "function":
        raise unsayable(f"{path}.type", ANOTHER, "only function tools can be translated")
    return Tool(required(tool.name, f"{path}.name"), tool.description, tool.parameters, tool.strict)


def _tool_choice(said: str | Choice | None) -> ToolChoice | None:
    return dialect.read_tool_choice(said, said.name if isinstance(said, Choice) and said.type == "function" else None)


def _output_format(said: Format | None) -> OutputFormat | None:
    return dialect.read_output_format(said.type, said, "text.format", "text.format") if said is not None else None


def body(asked: Conversation, model: str, *, stream: bool) -> Json:
    """The normal form as a responses request that its provider does not keep (`store: false`). Dropped as hints: seed,
    `is_error` of a tool result and thinking of earlier turns. Raises Rejected.
    """
    _refuse(asked)
    said: Json = {"model": model, "input": [item for message in asked.messages for item in _said_items(message)],
                  "store": False}
    text: Json = {}
    if asked.output_format is not None:
        text["format"] = _said_format(asked.output_format)
    if asked.verbosity is not None:
        text["verbosity"] = asked.verbosity
    optional = {
        "stream": stream or None,
        "instructions": "\n\n".join(asked.system) or None,
        "max_output_tokens": asked.max_output_tokens,
        "temperature": asked.sampling.temperature,
        "top_p": asked.sampling.top_p,
        "tools": [_said_tool(tool) for tool in asked.tools] or None,
        "tool_choice": _said_choice(asked.tool_choice),
        "parallel_tool_calls": asked.parallel_tool_calls,
        "text": text or None,
        "reasoning": {"effort": asked.effort} if asked.effort is not None else None,
        "safety_identifier": asked.user,
        "metadata": asked.metadata,
        "service_tier": asked.service_tier,
        "prompt_cache_key": asked.prompt_cache_key,
    }
    return said | drop_none(optional)


def _refuse(asked: Conversation) -> None:
    if asked.stop:
        raise unsayable("stop_sequences" if asked.api is Api.MESSAGES else "stop", "responses")
    for name in ("top_k", "presence_penalty", "frequency_penalty"):
        if getattr(asked.sampling, name):
            raise unsayable(name, "responses")


def _said_items(message: Message) -> list[Json]:
    items: list[Json] = []
    content: list[Json] = []
    for part in message.parts:
        match part:
            case Text():
                content.append({"type": "input_text", "text": part.text})
            case Image():
                content.append(_said_image(part))
            case ToolUse():
                _flush(items, message.role, content)
                items.append({"type": "function_call", "call_id": part.id, "name": part.name,
                              "arguments": part.arguments or "{}"})
            case ToolResult():
                _flush(items, message.role, content)
                items.append({"type": "function_call_output", "call_id": part.tool_use_id, "output": _said_output(part)})
    _flush(items, message.role, content)
    return items


def _flush(items: list[Json], role: str, content: list[Json]) -> None:
    if content and role == "assistant":  # its parts would need ids and annotations, its text alone does not
        items.append({"type": "message", "role": role, "content": "".join(part.get("text", "") for part in content)})
    elif content:
        items.append({"type": "message", "role": role, "content": list(content)})
    content.clear()


def _said_image(image: Image) -> Json:
    return {"type": "input_image", "image_url": image.as_url, "detail": image.detail or "auto"}


def _said_output(result: ToolResult) -> str | list[Json]:
    if all(isinstance(part, Text) for part in result.parts):
        return "\n".join(part.text for part in result.parts if isinstance(part, Text))
    return [_said_image(part) if isinstance(part, Image) else {"type": "input_text", "text": part.text}
            for part in result.parts]


def _said_tool(tool: Tool) -> Json:
    said: Json = {"type": "function", "name": tool.name, "parameters": tool.parameters, "strict": tool.strict or False}
    return said if tool.description is None else said | {"description": tool.description}


def _said_choice(choice: ToolChoice | None) -> str | Json | None:
    if choice is None or choice.mode != "named":
        return None if choice is None else choice.mode
    return {"type": "function", "name": choice.name}


def _said_format(wanted: OutputFormat) -> Json:
    return {"type": "json_object"} if wanted.schema is None else {"type": "json_schema", **dialect.encode_schema(wanted)}
