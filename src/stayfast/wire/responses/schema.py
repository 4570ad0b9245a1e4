"""The known fields of a responses request. Unknown fields, items and part types pass unread."""

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from stayfast.core.conversation import RawObject
from stayfast.wire.dialect import ABSENT, Count, GenerationRequest, NamedSchema


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
    """`POST /v1/responses`."""

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
