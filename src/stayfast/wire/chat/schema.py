"""The known fields of a chat, completions or embeddings request. Unknown fields and part types pass unread.

`Raw` fields are those that no other dialect can say: only whether they are there matters. An empty Raw means absent.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from stayfast.core.conversation import RawObject
from stayfast.wire.dialect import ABSENT, Count, GenerationRequest, Name, NamedSchema

NChoices = Annotated[int, Meta(ge=1, le=128)]


class ImageUrl(Struct, gc=False):
    url: str
    detail: str | None = None


class Part(Struct, gc=False):
    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    refusal: str | None = None


Content = str | list[Part]
Alike = Annotated[list[str | int | list[int]], Meta(extra_json_schema={  # no mixture: `decode` looks at that
    "anyOf": [{"items": {"type": kind}} for kind in ("string", "integer", "array")]})]


class System(Struct, gc=False, tag_field="role", tag="system"):
    content: Content


class Developer(Struct, gc=False, tag_field="role", tag="developer"):
    content: Content


class User(Struct, gc=False, tag_field="role", tag="user"):
    content: Content


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


class ToolMessage(Struct, gc=False, tag_field="role", tag="tool"):
    tool_call_id: str
    content: Content


class FunctionMessage(Struct, gc=False, tag_field="role", tag="function"):
    name: str
    content: str | None = None


class FunctionDef(Struct, gc=False):
    name: Name
    description: str | None = None
    parameters: RawObject | None = None
    strict: bool | None = None


class ToolDef(Struct, gc=False):
    type: str
    function: FunctionDef | None = None


class NamedFunction(Struct, gc=False):
    name: Name


class NamedChoice(Struct, gc=False):
    type: str
    function: NamedFunction | None = None


class JsonSchema(NamedSchema, gc=False, kw_only=True):
    name: str


class ResponseFormat(Struct, gc=False):
    type: str
    json_schema: JsonSchema | None = None


class StreamOptions(Struct, gc=False):
    include_usage: bool | None = None


class SampledRequest(GenerationRequest, gc=False, kw_only=True):
    stream_options: StreamOptions | None = None
    n: NChoices | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    logit_bias: dict[str, float] | None = None


class ChatRequest(SampledRequest, gc=False, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[System | Developer | User | Assistant | ToolMessage | FunctionMessage], Meta(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    tools: list[ToolDef] | None = None
    tool_choice: str | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    safety_identifier: str | None = None
    metadata: RawObject | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    store: bool | None = None
    logprobs: bool | None = None
    modalities: list[str] | None = None
    top_k: int | None = None  # of self-hosted engines
    audio: Raw = ABSENT
    functions: Raw = ABSENT
    function_call: Raw = ABSENT
    web_search_options: Raw = ABSENT


class CompletionsRequest(SampledRequest, gc=False, kw_only=True):
    """`POST /v1/completions`. `prompt`: text, texts, tokens, or lists of tokens."""

    prompt: str | Alike
    best_of: int | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | bool | None = None


class EmbeddingsRequest(Struct, gc=False):
    """`POST /v1/embeddings`."""

    model: Name
    input: Annotated[str, Meta(min_length=1)] | Annotated[Alike, Meta(min_length=1)]
    dimensions: Count | None = None
    encoding_format: str | None = None
    user: str | None = None


CHAT = msgspec.json.Decoder(ChatRequest)
COMPLETIONS = msgspec.json.Decoder(CompletionsRequest)
EMBEDDINGS = msgspec.json.Decoder(EmbeddingsRequest)
