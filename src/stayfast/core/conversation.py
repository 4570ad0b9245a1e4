"""What is asked, in no protocol's words: the form between any two dialects, and what the embedded engine reads.

JSON values that belong to the caller (schemas, metadata) stay as `msgspec.Raw`: their bytes pass unread and unchanged.
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
    """A picture: either `url`, or base64 `data` with its `media_type`."""

    url: str | None = None
    data: str | None = None
    media_type: str | None = None
    detail: str | None = None

    @property
    def as_url(self) -> str:
        """One URL for both forms."""
        return self.url if self.url is not None else f"data:{self.media_type};base64,{self.data}"


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning of an earlier turn. `signature` is its provider's proof; without it no provider takes it back."""

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call the model made. `arguments` is JSON text as the model wrote it: possibly empty, possibly broken."""

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
    """One message. Tool results are parts of a user message; a role of `system` stands only between other messages."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call. `parameters` is its JSON schema (None: takes nothing)."""

    name: str
    description: str | None = None
    parameters: RawObject | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools must be called: none, any at will (auto), at least one (required), or the one named."""

    mode: Literal["auto", "none", "required", "named"]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A promise about the answer's shape. `schema` is a JSON schema (None: any JSON object)."""

    schema: RawObject | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. None: the upstream's own default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """One request for an answer. `system` holds the leading instructions, in order. `native` names the fields in use that
    only the client's own dialect can say: whoever translates refuses them.
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
