"""The known fields of a chat, completions or embeddings request, and its way to the normal form and back.

Unknown fields and part types pass unread. Of fields that no other dialect can say, only their presence and their JSON type
matter. Dropped on the way in, as hints that change no meaning: `store`, `prediction`,
`logprobs: false`, prompt-cache marks, `name` of a message, `reasoning_content` of earlier turns (no provider but its own
takes it back), and fields unknown here.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from stayfast.core import conversation as normal
from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire import dialect
from stayfast.wire.dialect import Json

NChoices = Annotated[int, Meta(ge=1, le=128)]
Seed = Annotated[int, Meta(ge=-2**63, le=2**63 - 1)]  # as OpenAI documents it


class ImageUrl(Struct, gc=False):
    url: str
    detail: str | None = None


class Part(Struct, gc=False):
    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    refusal: str | None = None
    input_audio: normal.RawObject | None = None
    file: normal.RawObject | None = None


Content = str | list[Part]
TokenId = dialect.CountOrZero
Alike = Annotated[list[str | TokenId | list[TokenId]], Meta(extra_json_schema={  # no mixture: `decode` looks at that
    "anyOf": [{"items": {"type": kind}} for kind in ("string", "integer", "array")]})]


class System(Struct, gc=False, tag_field="role", tag="system"):
    content: Content
    name: str | None = None


class Developer(Struct, gc=False, tag_field="role", tag="developer"):
    content: Content
    name: str | None = None


class User(Struct, gc=False, tag_field="role", tag="user"):
    content: Content
    name: str | None = None


class FunctionCall(Struct, gc=False):
    name: str
    arguments: str = ""


class ToolCall(Struct, gc=False):
    id: str | None = None
    type: str = "function"
    function: FunctionCall | None = None


class Assistant(Struct, gc=False, tag_field="role", tag="assistant"):
    content: Content | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    function_call: FunctionCall | None = None
    audio: normal.RawObject | None = None
    name: str | None = None


class ToolMessage(Struct, gc=False, tag_field="role", tag="tool"):
    tool_call_id: str
    content: Content


class FunctionMessage(Struct, gc=False, tag_field="role", tag="function"):
    name: str
    content: str | None = None


class FunctionDef(Struct, gc=False):
    name: dialect.Name
    description: str | None = None
    parameters: normal.RawObject | None = None
    strict: bool | None = None


class ToolDef(Struct, gc=False):
    type: str
    function: FunctionDef | None = None


class NamedFunction(Struct, gc=False):
    name: dialect.Name


class NamedChoice(Struct, gc=False):
    type: str
    function: NamedFunction | None = None


class JsonSchema(dialect.NamedSchema, gc=False, kw_only=True):
    name: str


class ResponseFormat(Struct, gc=False):
    type: str
    json_schema: JsonSchema | None = None


class StreamOptions(Struct, gc=False):
    include_usage: bool | None = None


class SampledRequest(dialect.GenerationRequest, gc=False, kw_only=True):
    stream_options: StreamOptions | None = None
    n: NChoices | None = None
    presence_penalty: dialect.Number | None = None
    frequency_penalty: dialect.Number | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    logit_bias: dict[str, dialect.Number] | None = None


class ChatRequest(SampledRequest, gc=False, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[System | Developer | User | Assistant | ToolMessage | FunctionMessage], Meta(min_length=1)]
    max_tokens: dialect.Count | None = None
    max_completion_tokens: dialect.Count | None = None
    tools: list[ToolDef] | None = None
    tool_choice: str | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    safety_identifier: str | None = None
    metadata: normal.RawObject | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    store: bool | None = None
    logprobs: bool | None = None
    top_logprobs: dialect.Whole | None = None
    modalities: list[str] | None = None
    top_k: dialect.Whole | None = None  # of self-hosted engines
    audio: normal.RawObject | None = None
    functions: list[normal.RawObject] | None = None
    function_call: str | normal.RawObject | None = None
    web_search_options: normal.RawObject | None = None
    prediction: normal.RawObject | None = None
    moderation: normal.RawObject | None = None
    prompt_cache_options: normal.RawObject | None = None
    prompt_cache_retention: str | None = None


class CompletionsRequest(SampledRequest, gc=False, kw_only=True):
    """`POST /v1/completions`. `prompt`: text, texts, tokens, or lists of tokens."""

    prompt: str | Alike
    best_of: dialect.Whole | None = None
    max_tokens: dialect.CountOrZero | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: dialect.Whole | bool | None = None


class EmbeddingsRequest(Struct, gc=False):
    """`POST /v1/embeddings`."""

    model: dialect.Name
    input: Annotated[str, Meta(min_length=1)] | Annotated[Alike, Meta(min_length=1)]
    dimensions: dialect.Count | None = None
    encoding_format: str | None = None
    user: str | None = None


CHAT = msgspec.json.Decoder(ChatRequest)
COMPLETIONS = msgspec.json.Decoder(CompletionsRequest)
EMBEDDINGS = msgspec.json.Decoder(EmbeddingsRequest)


def conversation(said: ChatRequest) -> normal.Conversation:
    """The normal form of a chat request. Raises Rejected for what has none."""
    system: list[str] = []
    messages: list[normal.Message] = []
    for at, message in enumerate(said.messages):
        path = f"messages[{at}]"
        if not messages and isinstance(message, System | Developer):
            system.append(_text(message.content, f"{path}.content"))
        else:
            messages.append(_message(message, path))
    limit = said.max_completion_tokens if said.max_completion_tokens is not None else said.max_tokens
    return normal.Conversation(
        api=Api.CHAT,
        messages=dialect.join_neighbours(messages),
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


def completions_conversation(said: CompletionsRequest) -> normal.Conversation:
    """The normal form of a completions request: its prompt as one user message."""
    prompt = said.prompt[0] if isinstance(said.prompt, list) and len(said.prompt) == 1 else said.prompt
    if not isinstance(prompt, str):
        raise dialect.unsayable("prompt", "chat", "only one prompt of text can be translated")
    in_use = {"n": (said.n or 1) > 1, "best_of": (said.best_of or 1) > 1, "suffix": bool(said.suffix),
              "echo": bool(said.echo), "logprobs": said.logprobs not in (None, False), "logit_bias": bool(said.logit_bias)}
    return normal.Conversation(
        api=Api.COMPLETIONS,
        messages=(normal.Message("user", (normal.Text(prompt),)),),
        sampling=_sampling(said),
        max_output_tokens=said.max_tokens if said.max_tokens is not None else 16,  # what the protocol says without one
        stop=_stop(said.stop),
        user=said.user,
        native=dialect.list_used(in_use),
    )


def _native(said: ChatRequest) -> tuple[str, ...]:
    in_use = {"n": (said.n or 1) > 1, "logprobs": bool(said.logprobs), "logit_bias": bool(said.logit_bias),
              "modalities": any(kind != "text" for kind in said.modalities or ())}
    for name in ("audio", "functions", "function_call", "web_search_options"):
        in_use[name] = dialect.is_given(getattr(said, name), or_empty=False)
    return dialect.list_used(in_use)


def _message(message: Any, path: str) -> normal.Message:
    match message:
        case System() | Developer():
            return normal.Message("system", (normal.Text(_text(message.content, f"{path}.content")),))
        case User():
            return normal.Message("user", dialect.read_parts(message.content, f"{path}.content", _part))
        case ToolMessage():
            parts = dialect.read_parts(message.content, f"{path}.content", _part)
            return normal.Message("user", (normal.ToolResult(message.tool_call_id, parts),))
        case Assistant():
            return normal.Message("assistant", _assistant(message, path))
    raise Rejected(f"{path}.role: messages of the old role `function` cannot be translated; use tools",
                   code="unsupported_field", param=f"{path}.role")


def _assistant(message: Assistant, path: str) -> tuple[normal.Part, ...]:
    if message.function_call is not None:
        raise dialect.unsayable(f"{path}.function_call", dialect.ANOTHER, "use tool_calls")
    parts: list[normal.Part] = []
    if message.reasoning_content:
        parts.append(normal.Thinking(message.reasoning_content))
    if message.content:
        parts += dialect.read_parts(message.content, f"{path}.content", _part)
    if message.refusal:
        parts.append(normal.Text(message.refusal))
    for at, call in enumerate(message.tool_calls or ()):
        where = f"{path}.tool_calls[{at}]"
        if call.function is None:
            raise dialect.unsayable(where, dialect.ANOTHER, "only calls of type function can be translated")
        parts.append(normal.ToolUse(dialect.required(call.id, f"{where}.id"), call.function.name, call.function.arguments))
    return tuple(parts)


def _part(part: Part, path: str) -> normal.Text | normal.Image:
    if part.type == "text":
        return normal.Text(dialect.required(part.text, f"{path}.text"))
    if part.type == "refusal":
        return normal.Text(dialect.required(part.refusal, f"{path}.refusal"))
    if part.type == "image_url":
        if isinstance(part.image_url, ImageUrl):
            return dialect.image_of(part.image_url.url, part.image_url.detail)
        return dialect.image_of(dialect.required(part.image_url, f"{path}.image_url"), None)
    raise dialect.unsayable(f"{path}.type", dialect.ANOTHER, "only text and image_url parts can be translated")


def _text(content: Content, path: str) -> str:
    return dialect.join_instructions(dialect.read_parts(content, path, _part), path)


def _tool(tool: ToolDef, path: str) -> normal.Tool:
    if tool.type != "function":
        raise dialect.unsayable(f"{path}.type", dialect.ANOTHER, "only function tools can be translated")
    function = dialect.required(tool.function, f"{path}.function")
    return normal.Tool(function.name, function.description, function.parameters, function.strict)


def _tool_choice(said: str | NamedChoice | None) -> normal.ToolChoice | None:
    named = said.function if isinstance(said, NamedChoice) and said.type == "function" else None
    return dialect.read_tool_choice(said, named.name if named is not None else None)


def _output_format(said: ResponseFormat | None) -> normal.OutputFormat | None:
    if said is None:
        return None
    return dialect.read_output_format(said.type, said.json_schema, "response_format", "response_format.json_schema")


def _sampling(said: ChatRequest | CompletionsRequest) -> normal.Sampling:
    top_k = said.top_k if isinstance(said, ChatRequest) else None
    return normal.Sampling(said.temperature, said.top_p, top_k, said.seed, said.presence_penalty, said.frequency_penalty)


def _stop(said: str | list[str] | None) -> tuple[str, ...]:
    return (said,) if isinstance(said, str) else tuple(said or ())


def body(asked: normal.Conversation, model: str, *, stream: bool) -> Json:
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
    return said | dialect.drop_none(optional)


def _said_messages(asked: normal.Conversation) -> list[Json]:
    said: list[Json] = [{"role": "system", "content": text} for text in asked.system]
    for message in asked.messages:
        if message.role == "assistant":
            said.append(_said_assistant(message))
            continue
        said += [{"role": "tool", "tool_call_id": part.tool_use_id, "content": _said_result(part)}
                 for part in message.parts if isinstance(part, normal.ToolResult)]
        rest = [part for part in message.parts if isinstance(part, normal.Text | normal.Image)]
        if rest:
            said.append({"role": message.role, "content": _said_content(rest)})
    return said


def _said_assistant(message: normal.Message) -> Json:
    calls = [{"id": part.id, "type": "function", "function": {"name": part.name, "arguments": part.arguments or "{}"}}
             for part in message.parts if isinstance(part, normal.ToolUse)]
    said: Json = {"role": "assistant", "content": message.text or (None if calls else "")}
    if calls:
        said["tool_calls"] = calls
    return said


def _said_result(result: normal.ToolResult) -> str | list[Json]:
    if any(isinstance(part, normal.Image) for part in result.parts):
        raise dialect.unsayable("tool results with images", "chat", "a tool message holds text only")
    return _said_content(list(result.parts)) if result.parts else ""


def _said_content(parts: list[normal.Text | normal.Image]) -> str | list[Json]:
    if len(parts) == 1 and isinstance(parts[0], normal.Text):
        return parts[0].text
    said: list[Json] = []
    for part in parts:
        if isinstance(part, normal.Text):
            said.append({"type": "text", "text": part.text})
        else:
            image = {"url": part.as_url} | ({"detail": part.detail} if part.detail is not None else {})
            said.append({"type": "image_url", "image_url": image})
    return said


def _said_function(tool: normal.Tool) -> Json:
    return {"name": tool.name,
            **dialect.drop_none({"description": tool.description, "parameters": tool.parameters, "strict": tool.strict})}


def _said_choice(choice: normal.ToolChoice) -> str | Json:
    if choice.mode == "named":
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode


def _said_format(wanted: normal.OutputFormat) -> Json:
    if wanted.schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": dialect.encode_schema(wanted)}
