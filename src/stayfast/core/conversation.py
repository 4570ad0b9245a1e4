"""A chat request in a provider-neutral form, used to translate between two protocols and by the embedded engine.

The client's own JSON values (schemas, metadata) are `msgspec.Raw`: their bytes are neither parsed nor changed.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

from stayfast.core.types import Api

RawObject = dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image: either a `url`, or base64 `data` with its `media_type`."""

    url: str | None = None
    data: str | None = None
    media_type: str | None = None
    detail: str | None = None

    @property
    def as_url(self) -> str:
        """The URL, or a data: URL of the base64 data."""
        return self.url if self.url is not None else f"data:{self.media_type};base64,{self.data}"


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning of an earlier turn. Providers accept it back only with their `signature`. `redacted`: encrypted reasoning
    instead of a text, which only its provider can read.
    """

    text: str
    signature: str | None = None
    redacted: str | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call made by the model. `arguments` is JSON text as the model wrote it; it may be empty or invalid."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    tool_use_id: str
    parts: tuple[Text | Image, ...]
    is_error: bool = False


Part = Text | Image | Thinking | ToolUse | ToolResult
Role = Literal["user", "assistant", "system"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message. Tool results are parts of a user message; the role `system` occurs only between other messages."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call. `parameters` is its JSON schema; None: it takes no arguments."""

    name: str
    description: str | None = None
    parameters: RawObject | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the model may or must call. auto: it may call any; none: it may call none; required: it must call at least
    one; named: it must call the tool `name`.
    """

    mode: Literal["auto", "none", "required", "named"]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The required form of the answer. `schema` is a JSON schema; None: any JSON object."""

    schema: RawObject | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. None: the upstream's own default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """One chat request. `system` holds the leading instructions, in order. `native` names the fields in use that exist only
    in the client's own protocol. With any of them, the request cannot be translated to another protocol.
    """

    api: Api
    messages: tuple[Message, ...]
    system: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    output_format: OutputFormat | None = None
    sampling: Sampling = Sampling()
    max_output_tokens: int | None = None
    stop: tuple[str, ...] = ()
    effort: str | None = None  # none, minimal, low, medium, high, xhigh, max
    verbosity: str | None = None
    user: str | None = None
    metadata: RawObject | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    native: tuple[str, ...] = ()
