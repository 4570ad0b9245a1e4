"""The known fields of chat, completions and embeddings requests, and their translation to the normal form and back.

Unknown fields and part types are not checked. Of fields that no other dialect has, only presence and JSON type are checked.
Translation drops hints that do not change the meaning: `store`, `prediction`, `logprobs: false`, prompt-cache markers,
`name` of a message, `reasoning_content` of earlier turns (only its own provider accepts it), and unknown fields.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from stayfast.core import conversation as normal
from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire import dialect
from stayfast.wire.dialect import Json
from stayfast.wire.google_options import ExtraBody, GoogleMember, read_google_options
from stayfast.wire.signatures import ExtraContent, encode_extra_content, mark_signature, read_extra_content

NChoices = Annotated[int, Meta(ge=1, le=128)]
Seed = Annotated[int, Meta(ge=-2**63, le=2**63 - 1)]  # as OpenAI documents it


class ImageUrl(Struct, gc=False):
    url: str
    detail: str | None = None


class ChatPart(Struct, gc=False):
    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    refusal: str | None = None
    input_audio: normal.RawObject | None = None
    file: normal.RawObject | None = None


Content = str | list[ChatPart]
TokenId = dialect.NonNegativeInt
PromptList = Annotated[list[str | TokenId | list[TokenId]], Meta(extra_json_schema={  # `decode` rejects mixtures
    "anyOf": [{"items": {"type": kind}} for kind in ("string", "integer", "array")]})]


class ChatSystem(Struct, gc=False, tag_field="role", tag="system"):
    content: Content
    name: str | None = None


class Developer(Struct, gc=False, tag_field="role", tag="developer"):
    content: Content
    name: str | None = None


class ChatUser(Struct, gc=False, tag_field="role", tag="user"):
    content: Content
    name: str | None = None


class FunctionCall(Struct, gc=False):
    name: str
    arguments: str = ""


class ToolCall(Struct, gc=False):
    id: str | None = None
    type: str = "function"
    function: FunctionCall | None = None
    extra_content: ExtraContent | None = None


class ChatAssistant(Struct, gc=False, tag_field="role", tag="assistant"):
    content: Content | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    function_call: FunctionCall | None = None
    audio: normal.RawObject | None = None
    name: str | None = None
    extra_content: ExtraContent | None = None


class ToolMessage(Struct, gc=False, tag_field="role", tag="tool"):
    tool_call_id: str
    content: Content


class FunctionMessage(Struct, gc=False, tag_field="role", tag="function"):
    name: str
    content: str | None = None


class FunctionDef(Struct, gc=False):
    name: dialect.NonEmptyStr
    description: str | None = None
    parameters: normal.RawObject | None = None
    strict: bool | None = None


class ChatToolDef(Struct, gc=False):
    type: str
    function: FunctionDef | None = None


class NamedFunction(Struct, gc=False):
    name: dialect.NonEmptyStr


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
    presence_penalty: dialect.BoundedFloat | None = None
    frequency_penalty: dialect.BoundedFloat | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    logit_bias: dict[str, dialect.BoundedFloat] | None = None


ChatMessages = Annotated[list[ChatSystem | Developer | ChatUser | ChatAssistant | ToolMessage | FunctionMessage],
                         Meta(min_length=1)]


class ChatRequest(SampledRequest, gc=False, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: ChatMessages
    max_tokens: dialect.PositiveInt | None = None
    max_completion_tokens: dialect.PositiveInt | None = None
    tools: list[ChatToolDef] | None = None
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
    top_logprobs: dialect.BoundedInt | None = None
    modalities: list[str] | None = None
    top_k: dialect.BoundedInt | None = None  # of self-hosted engines
    audio: normal.RawObject | None = None
    functions: list[normal.RawObject] | None = None
    function_call: str | normal.RawObject | None = None
    web_search_options: normal.RawObject | None = None
    prediction: normal.RawObject | None = None
    moderation: normal.RawObject | None = None
    prompt_cache_options: normal.RawObject | None = None
    prompt_cache_retention: str | None = None
    extra_body: ExtraBody | None = None
    google: GoogleMember | None = None


class CompletionsRequest(SampledRequest, gc=False, kw_only=True):
    """`POST /v1/completions`. `prompt`: text, texts, tokens, or lists of tokens."""

    prompt: str | PromptList
    best_of: dialect.BoundedInt | None = None
    max_tokens: dialect.NonNegativeInt | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: dialect.BoundedInt | bool | None = None


class EmbeddingsRequest(Struct, gc=False):
    """`POST /v1/embeddings`."""

    model: dialect.NonEmptyStr
    input: Annotated[str, Meta(min_length=1)] | Annotated[PromptList, Meta(min_length=1)]
    dimensions: dialect.PositiveInt | None = None
    encoding_format: str | None = None
    user: str | None = None


CHAT_DECODER = msgspec.json.Decoder(ChatRequest)
COMPLETIONS_DECODER = msgspec.json.Decoder(CompletionsRequest)
EMBEDDINGS_DECODER = msgspec.json.Decoder(EmbeddingsRequest)


def parse_chat(request: ChatRequest) -> normal.Conversation:
    """The normal form of a chat request. Raises Rejected for a field without a normal form."""
    system: list[str] = []
    messages: list[normal.Message] = []
    for at, message in enumerate(request.messages):
        path = f"messages[{at}]"
        if not messages and isinstance(message, ChatSystem | Developer):
            system.append(_read_instructions(message.content, f"{path}.content"))
        else:
            messages.append(_read_message(message, path))
    limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    output = request.response_format
    return normal.Conversation(
        api=Api.CHAT,
        messages=dialect.join_adjacent_messages(messages),
        system=tuple(system),
        tools=tuple(_read_tool(tool, f"tools[{at}]") for at, tool in enumerate(request.tools or ())),
        tool_choice=_tool_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls,
        output_format=None if output is None else dialect.read_output_format(
            output.type, output.json_schema, "response_format", "response_format.json_schema"),
        sampling=_read_sampling(request),
        max_output_tokens=limit,
        stop=_stop_sequences(request.stop),
        effort=request.reasoning_effort,
        verbosity=request.verbosity,
        user=request.safety_identifier or request.user,
        metadata=request.metadata,
        service_tier=request.service_tier,
        prompt_cache_key=request.prompt_cache_key,
        google=read_google_options(request.extra_body, request.google),
        native=_untranslatable_fields(request),
    )


def parse_completions(request: CompletionsRequest) -> normal.Conversation:
    """The normal form of a completions request: its prompt becomes one user message."""
    prompt = request.prompt[0] if isinstance(request.prompt, list) and len(request.prompt) == 1 else request.prompt
    if not isinstance(prompt, str):
        raise dialect.untranslatable_field("prompt", "chat", "use one prompt, as text")
    in_use = {"n": (request.n or 1) > 1, "best_of": (request.best_of or 1) > 1, "suffix": bool(request.suffix),
              "echo": bool(request.echo), "logprobs": request.logprobs not in (None, False),
              "logit_bias": bool(request.logit_bias)}
    return normal.Conversation(
        api=Api.COMPLETIONS,
        messages=(normal.Message("user", (normal.Text(prompt),)),),
        sampling=_read_sampling(request),
        max_output_tokens=request.max_tokens if request.max_tokens is not None else 16,  # the protocol's default
        stop=_stop_sequences(request.stop),
        user=request.user,
        native=dialect.list_used(in_use),
    )


def _untranslatable_fields(request: ChatRequest) -> tuple[str, ...]:
    in_use = {"n": (request.n or 1) > 1, "logprobs": bool(request.logprobs), "logit_bias": bool(request.logit_bias),
              "modalities": any(kind != "text" for kind in request.modalities or ())}
    for name in ("audio", "functions", "function_call", "web_search_options"):
        in_use[name] = dialect.has_value(getattr(request, name), or_empty=False)
    return dialect.list_used(in_use)


def _read_message(message: Any, path: str) -> normal.Message:
    match message:
        case ChatSystem() | Developer():
            return normal.Message("system", (normal.Text(_read_instructions(message.content, f"{path}.content")),))
        case ChatUser():
            return normal.Message("user", dialect.read_parts(message.content, f"{path}.content", _read_part))
        case ToolMessage():
            parts = dialect.read_parts(message.content, f"{path}.content", _read_part)
            return normal.Message("user", (normal.ToolResult(message.tool_call_id, parts),))
        case ChatAssistant():
            return normal.Message("assistant", _read_assistant_parts(message, path))
    raise Rejected(f"{path}.role: messages of the old role `function` cannot be translated; use tools",
                   code="unsupported_field", param=f"{path}.role")


def _read_assistant_parts(message: ChatAssistant, path: str) -> tuple[normal.Part, ...]:
    if message.function_call is not None:
        raise dialect.untranslatable_field(f"{path}.function_call", dialect.ANOTHER_PROTOCOL, "use tool_calls")
    parts: list[normal.Part] = []
    if message.reasoning_content:
        parts.append(normal.Thinking(message.reasoning_content))
    if message.content:
        parts += dialect.read_parts(message.content, f"{path}.content", _read_part)
    if message.refusal:
        parts.append(normal.Text(message.refusal))
    for at, call in enumerate(message.tool_calls or ()):
        call_path = f"{path}.tool_calls[{at}]"
        if call.function is None:
            raise dialect.untranslatable_field(call_path, dialect.ANOTHER_PROTOCOL, "use calls of type function")
        call_id = dialect.require(call.id, f"{call_path}.id")
        parts.append(normal.ToolUse(call_id, call.function.name, call.function.arguments,
                                    read_extra_content(call.extra_content)))
    if (signature := read_extra_content(message.extra_content)) is not None:
        parts.append(normal.Thinking("", mark_signature(signature)))
    return tuple(parts)


def _read_part(part: ChatPart, path: str) -> normal.Text | normal.Image:
    if part.type == "text":
        return normal.Text(dialect.require(part.text, f"{path}.text"))
    if part.type == "refusal":
        return normal.Text(dialect.require(part.refusal, f"{path}.refusal"))
    if part.type == "image_url":
        if isinstance(part.image_url, ImageUrl):
            return dialect.parse_image_url(part.image_url.url, part.image_url.detail)
        return dialect.parse_image_url(dialect.require(part.image_url, f"{path}.image_url"), None)
    raise dialect.untranslatable_field(f"{path}.type", dialect.ANOTHER_PROTOCOL, "use text and image_url parts")


def _read_instructions(content: Content, path: str) -> str:
    return dialect.join_instructions(dialect.read_parts(content, path, _read_part), path)


def _read_tool(tool: ChatToolDef, path: str) -> normal.Tool:
    if tool.type != "function":
        raise dialect.untranslatable_field(f"{path}.type", dialect.ANOTHER_PROTOCOL, "use function tools")
    function = dialect.require(tool.function, f"{path}.function")
    return normal.Tool(function.name, function.description, function.parameters, function.strict)


def _tool_choice(choice: str | NamedChoice | None) -> normal.ToolChoice | None:
    named = choice.function if isinstance(choice, NamedChoice) and choice.type == "function" else None
    return dialect.read_tool_choice(choice, named.name if named is not None else None)


def _read_sampling(request: ChatRequest | CompletionsRequest) -> normal.Sampling:
    top_k = request.top_k if isinstance(request, ChatRequest) else None
    return normal.Sampling(request.temperature, request.top_p, top_k, request.seed, request.presence_penalty,
                           request.frequency_penalty)


def _stop_sequences(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def encode_body(request: normal.Conversation, model: str, *, stream: bool) -> Json:
    """Encode as a chat request. Streams always ask for usage, because the other dialects always report it.

    Drops hints: `is_error` of a tool result and thinking of earlier turns. Raises Rejected.
    """
    fields: Json = {"model": model, "messages": _encode_messages(request)}
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    if request.tools:
        fields["tools"] = [{"type": "function", "function": dialect.drop_none({
            "name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": tool.strict})}
            for tool in request.tools]
        if request.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = request.parallel_tool_calls
        if (choice := request.tool_choice) is not None:
            fields["tool_choice"] = choice.mode if choice.mode != "named" else {
                "type": "function", "function": {"name": choice.name}}
    if request.output_format is not None:
        fields["response_format"] = {"type": "json_object"} if request.output_format.schema is None else {
            "type": "json_schema", "json_schema": dialect.encode_schema(request.output_format)}
    optional = {
        "max_completion_tokens": request.max_output_tokens,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "top_k": request.sampling.top_k,
        "seed": request.sampling.seed,
        "presence_penalty": request.sampling.presence_penalty,
        "frequency_penalty": request.sampling.frequency_penalty,
        "stop": list(request.stop) or None,
        "reasoning_effort": request.effort,
        "verbosity": request.verbosity,
        "user": request.user,
        "metadata": request.metadata,
        "service_tier": request.service_tier,
        "prompt_cache_key": request.prompt_cache_key,
    }
    return fields | dialect.drop_none(optional)


def _encode_messages(request: normal.Conversation) -> list[Json]:
    encoded: list[Json] = [{"role": "system", "content": text} for text in request.system]
    for message in request.messages:
        if message.role == "assistant":
            encoded.append(_encode_assistant(message))
            continue
        encoded += [{"role": "tool", "tool_call_id": part.tool_use_id, "content": _encode_result(part)}
                 for part in message.parts if isinstance(part, normal.ToolResult)]
        rest = [part for part in message.parts if isinstance(part, normal.Text | normal.Image)]
        if rest:
            encoded.append({"role": message.role, "content": _encode_content(rest)})
    return encoded


def _encode_assistant(message: normal.Message) -> Json:
    calls = [{"id": part.id, "type": "function", "function": {"name": part.name, "arguments": part.arguments or "{}"},
              **({"extra_content": encode_extra_content(part.signature)} if part.signature is not None else {})}
             for part in message.parts if isinstance(part, normal.ToolUse)]
    encoded: Json = {"role": "assistant", "content": message.text or (None if calls else "")}
    if calls:
        encoded["tool_calls"] = calls
    return encoded


def _encode_result(result: normal.ToolResult) -> str | list[Json]:
    if any(isinstance(part, normal.Image) for part in result.parts):
        raise dialect.untranslatable_field("a tool result with images", "chat", "tool messages hold only text")
    return _encode_content(list(result.parts)) if result.parts else ""


def _encode_content(parts: list[normal.Text | normal.Image]) -> str | list[Json]:
    if len(parts) == 1 and isinstance(parts[0], normal.Text):
        return parts[0].text
    encoded: list[Json] = []
    for part in parts:
        if isinstance(part, normal.Text):
            encoded.append({"type": "text", "text": part.text})
        else:
            image = {"url": part.as_url} | ({"detail": part.detail} if part.detail is not None else {})
            encoded.append({"type": "image_url", "image_url": image})
    return encoded
