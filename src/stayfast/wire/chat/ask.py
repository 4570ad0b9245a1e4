"""Chat and completions requests to the normal form, and the normal form to a chat request.

Dropped on the way in, as hints that change no meaning: `store`, `prediction`, `logprobs: false`, prompt-cache marks,
`name` of a message, `reasoning_content` of earlier turns (no provider but its own takes it back), and fields unknown here.
"""

from typing import Any

from stayfast.core.conversation import (
    Conversation,
    Image,
    Message,
    OutputFormat,
    Part,
    Sampling,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire import dialect
from stayfast.wire.chat import schema
from stayfast.wire.dialect import ANOTHER, Json, drop_none, read_parts, required, unsayable


def conversation(said: schema.ChatRequest) -> Conversation:
    """The normal form of a chat request. Raises Rejected for what has none."""
    system: list[str] = []
    messages: list[Message] = []
    for at, message in enumerate(said.messages):
        path = f"messages[{at}]"
        if not messages and isinstance(message, schema.System | schema.Developer):
            system.append(_text(message.content, f"{path}.content"))
        else:
            dialect.append_message(messages, _message(message, path))
    limit = said.max_completion_tokens if said.max_completion_tokens is not None else said.max_tokens
    return Conversation(
        api=Api.CHAT,
        messages=tuple(messages),
        system=tuple(system),
        tools=tuple(_tool(tool, f"tools[{at}]") for at, tool in enumerate(said.tools or ())),
        tool_choice=_tool_choice(said.tool_choice),
        parallel_tool_calls=said.parallel_tool_calls,
        output_format=_output_format(said.response_format),
        sampling=_sampling(said),
        max_output_tokens=limit,
        stop=_stop(said.stop),
        effort=said.reasoning_effort,
        verbosity=said.verbosity,
        user=said.safety_identifier or said.user,
        metadata=said.metadata,
        service_tier=said.service_tier,
        prompt_cache_key=said.prompt_cache_key,
        native=_native(said),
    )


def completions_conversation(said: schema.CompletionsRequest) -> Conversation:
    """The normal form of a completions request: its prompt as one user message."""
    prompt = said.prompt[0] if isinstance(said.prompt, list) and len(said.prompt) == 1 else said.prompt
    if not isinstance(prompt, str):
        raise unsayable("prompt", "chat", "only one prompt of text can be translated")
    in_use = {"n": (said.n or 1) > 1, "best_of": (said.best_of or 1) > 1, "suffix": bool(said.suffix),
              "echo": bool(said.echo), "logprobs": said.logprobs not in (None, False), "logit_bias": bool(said.logit_bias)}
    return Conversation(
        api=Api.COMPLETIONS,
        messages=(Message("user", (Text(prompt),)),),
        sampling=_sampling(said),
        max_output_tokens=said.max_tokens if said.max_tokens is not None else 16,  # what the protocol says without one
        stop=_stop(said.stop),
        user=said.user,
        native=dialect.list_used(in_use),
    )


def _native(said: schema.ChatRequest) -> tuple[str, ...]:
    in_use = {"n": (said.n or 1) > 1, "logprobs": bool(said.logprobs), "logit_bias": bool(said.logit_bias),
              "modalities": any(kind != "text" for kind in said.modalities or ())}
    for name in ("audio", "functions", "function_call", "web_search_options"):
        in_use[name] = dialect.is_given(getattr(said, name), or_empty=False)
    return dialect.list_used(in_use)


def _message(message: Any, path: str) -> Message:
    match message:
        case schema.System() | schema.Developer():
            return Message("system", (Text(_text(message.content, f"{path}.content")),))
        case schema.User():
            return Message("user", read_parts(message.content, f"{path}.content", _part))
        case schema.ToolMessage():
            parts = read_parts(message.content, f"{path}.content", _part)
            return Message("user", (ToolResult(message.tool_call_id, parts),))
        case schema.Assistant():
            return Message("assistant", _assistant(message, path))
    raise Rejected(f"{path}.role: messages of the old role `function` cannot be translated; use tools",
                   code="unsupported_field", param=f"{path}.role")


def _assistant(message: schema.Assistant, path: str) -> tuple[Part, ...]:
    if message.function_call is not None:
        raise unsayable(f"{path}.function_call", ANOTHER, "use tool_calls")
    parts: list[Part] = []
    if message.reasoning_content:
        parts.append(Thinking(message.reasoning_content))
    if message.content:
        parts += read_parts(message.content, f"{path}.content", _part)
    if message.refusal:
        parts.append(Text(message.refusal))
    for at, call in enumerate(message.tool_calls or ()):
        where = f"{path}.tool_calls[{at}]"
        if call.function is None:
            raise unsayable(where, ANOTHER, "only calls of type function can be translated")
        parts.append(ToolUse(required(call.id, f"{where}.id"), call.function.name, call.function.arguments))
    return tuple(parts)


def _part(part: schema.Part, path: str) -> Text | Image:
    if part.type == "text":
        return Text(required(part.text, f"{path}.text"))
    if part.type == "refusal":
        return Text(required(part.refusal, f"{path}.refusal"))
    if part.type == "image_url":
        if isinstance(part.image_url, schema.ImageUrl):
            return dialect.image_of(part.image_url.url, part.image_url.detail)
        return dialect.image_of(required(part.image_url, f"{path}.image_url"), None)
    raise unsayable(f"{path}.type", ANOTHER, "only text and image_url parts can be translated")


def _text(content: schema.Content, path: str) -> str:
    return dialect.join_instructions(read_parts(content, path, _part), path)


def _tool(tool: schema.ToolDef, path: str) -> Tool:
    if tool.type != "function":
        raise unsayable(f"{path}.type", ANOTHER, "only function tools can be translated")
    function = required(tool.function, f"{path}.function")
    return Tool(function.name, function.description, function.parameters, function.strict)


def _tool_choice(said: str | schema.NamedChoice | None) -> ToolChoice | None:
    named = said.function if isinstance(said, schema.NamedChoice) and said.type == "function" else None
    return dialect.read_tool_choice(said, named.name if named is not None else None)


def _output_format(said: schema.ResponseFormat | None) -> OutputFormat | None:
    if said is None:
        return None
    return dialect.read_output_format(said.type, said.json_schema, "response_format", "response_format.json_schema")


def _sampling(said: schema.ChatRequest | schema.CompletionsRequest) -> Sampling:
    top_k = said.top_k if isinstance(said, schema.ChatRequest) else None
    return Sampling(said.temperature, said.top_p, top_k, said.seed, said.presence_penalty, said.frequency_penalty)


def _stop(said: str | list[str] | None) -> tuple[str, ...]:
    return (said,) if isinstance(said, str) else tuple(said or ())


def body(asked: Conversation, model: str, *, stream: bool) -> Json:
    """The normal form as a chat request; streams always ask for usage, since the other dialects always tell it.

    Dropped as hints: `is_error` of a tool result (its text says so) and thinking of earlier turns. Raises Rejected.
    """
    said: Json = {"model": model, "messages": _said_messages(asked)}
    if stream:
        said |= {"stream": True, "stream_options": {"include_usage": True}}
    if asked.tools:
        said["tools"] = [{"type": "function", "function": _said_function(tool)} for tool in asked.tools]
        if asked.parallel_tool_calls is not None:
            said["parallel_tool_calls"] = asked.parallel_tool_calls
        if asked.tool_choice is not None:
            said["tool_choice"] = _said_choice(asked.tool_choice)
    if asked.output_format is not None:
        said["response_format"] = _said_format(asked.output_format)
    optional = {
        "max_completion_tokens": asked.max_output_tokens,
        "temperature": asked.sampling.temperature,
        "top_p": asked.sampling.top_p,
        "top_k": asked.sampling.top_k,
        "seed": asked.sampling.seed,
        "presence_penalty": asked.sampling.presence_penalty,
        "frequency_penalty": asked.sampling.frequency_penalty,
        "stop": list(asked.stop) or None,
        "reasoning_effort": asked.effort,
        "verbosity": asked.verbosity,
        "user": asked.user,
        "metadata": asked.metadata,
        "service_tier": asked.service_tier,
        "prompt_cache_key": asked.prompt_cache_key,
    }
    return said | drop_none(optional)


def _said_messages(asked: Conversation) -> list[Json]:
    said: list[Json] = [{"role": "system", "content": text} for text in asked.system]
    for message in asked.messages:
        if message.role == "assistant":
            said.append(_said_assistant(message))
            continue
        said += [{"role": "tool", "tool_call_id": part.tool_use_id, "content": _said_result(part)}
                 for part in message.parts if isinstance(part, ToolResult)]
        rest = [part for part in message.parts if isinstance(part, Text | Image)]
        if rest:
            said.append({"role": message.role, "content": _said_content(rest)})
    return said


def _said_assistant(message: Message) -> Json:
    calls = [{"id": part.id, "type": "function", "function": {"name": part.name, "arguments": part.arguments or "{}"}}
             for part in message.parts if isinstance(part, ToolUse)]
    said: Json = {"role": "assistant", "content": message.text or (None if calls else "")}
    if calls:
        said["tool_calls"] = calls
    return said


def _said_result(result: ToolResult) -> str | list[Json]:
    if any(isinstance(part, Image) for part in result.parts):
        raise unsayable("tool results with images", "chat", "a tool message holds text only")
    return _said_content(list(result.parts)) if result.parts else ""


def _said_content(parts: list[Text | Image]) -> str | list[Json]:
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    said: list[Json] = []
    for part in parts:
        if isinstance(part, Text):
            said.append({"type": "text", "text": part.text})
        else:
            image = {"url": part.as_url} | ({"detail": part.detail} if part.detail is not None else {})
            said.append({"type": "image_url", "image_url": image})
    return said


def _said_function(tool: Tool) -> Json:
    return {"name": tool.name,
            **drop_none({"description": tool.description, "parameters": tool.parameters, "strict": tool.strict})}


def _said_choice(choice: ToolChoice) -> str | Json:
    if choice.mode == "named":
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode


def _said_format(wanted: OutputFormat) -> Json:
    if wanted.schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": dialect.encode_schema(wanted)}
