"""The known fields of a messages or count_tokens request. Unknown fields and block types pass unread."""

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from stayfast.core.conversation import RawObject
from stayfast.wire.dialect import ABSENT, Name


class Source(Struct, gc=False):
    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class Block(Struct, gc=False):
    type: str
    text: str | None = None
    source: Source | str | None = None
    id: str | None = None
    name: str | None = None
    input: RawObject | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | RawObject | None" = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None


class User(Struct, gc=False, tag_field="role", tag="user"):
    content: str | list[Block]


class Assistant(Struct, gc=False, tag_field="role", tag="assistant"):
    content: str | list[Block]


class System(Struct, gc=False, tag_field="role", tag="system"):
    content: str | list[Block]


class ToolDef(Struct, gc=False):
    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: RawObject | None = None
    strict: bool | None = None


class Choice(Struct, gc=False):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct, gc=False):
    type: str
    budget_tokens: int | None = None


class Format(Struct, gc=False):
    type: str
    schema: RawObject | None = None


class OutputConfig(Struct, gc=False):
    effort: str | None = None
    format: Format | None = None


class Metadata(Struct, gc=False):
    user_id: str | None = None


class CountRequest(Struct, gc=False):
    """`POST /v1/messages/count_tokens`."""

    model: Name
    messages: Annotated[list[User | Assistant | System], Meta(min_length=1, max_length=100_000)]
    system: str | list[Block] | None = None
    tools: list[ToolDef] | None = None
    tool_choice: Choice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest, gc=False, kw_only=True):
    """`POST /v1/messages`."""

    max_tokens: Annotated[int, Meta(ge=0)]
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    container: Raw = ABSENT
    mcp_servers: Raw = ABSENT


MESSAGES = msgspec.json.Decoder(MessagesRequest)
COUNT = msgspec.json.Decoder(CountRequest)
