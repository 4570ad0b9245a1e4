"""Requests for token counts and their answers, of Anthropic, OpenAI and vLLM; the texts of any prompt.

An answer that no vocabulary and no upstream has counted is marked by `stayfast_estimated`. vLLM's `max_model_len` is the
upstream's, else null. Its `tokens` are the ids of a text in a known vocabulary; of messages the gateway does not know the
chat template, so there are none.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from stayfast.core.conversation import RawObject
from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire.chat.request import ChatMessages, ChatToolDef
from stayfast.wire.dialect import NonEmptyStr
from stayfast.wire.usage import ESTIMATED_MEMBER

_OBJECT: Final = msgspec.json.Decoder(RawObject)
_ANY: Final = msgspec.json.Decoder()
_TEXT_MEMBERS: Final = ("text", "content", "thinking", "refusal", "arguments", "output", "name", "description")
_NESTED: Final = ("content", "output", "tool_calls", "function", "function_call", "input")
_PROMPTS: Final = ("system", "instructions", "messages", "input", "prompt")
_TOOLS: Final = ("tools", "functions")
_NO_TEXT: Final = ("image", "image_url", "input_image", "input_file", "input_audio", "document", "file", "audio")


class TokenizeRequest(Struct, gc=False):
    """`POST /tokenize`: a text, or a conversation as in chat completions. Only `prompt` or `messages` may be given."""

    model: NonEmptyStr
    prompt: str | None = None
    messages: ChatMessages | None = None
    tools: list[ChatToolDef] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class UpstreamCount(NamedTuple):
    """What an upstream's count endpoint answers. token_ids, max_model_len: vLLM's only."""

    n_tokens: int
    token_ids: Sequence[int] = ()
    max_model_len: int | None = None


class PromptTexts(NamedTuple):
    """What a chat template writes into a prompt."""

    texts: tuple[str, ...]
    n_messages: int  # 0: a text alone
    tools: str  # as compact JSON; empty: none
    has_media: bool  # images, audio or files


def read_prompt_texts(body: bytes) -> PromptTexts | None:
    """The texts of a request in any client's dialect; None: its form is unknown."""
    try:
        members = _OBJECT.decode(body)
        prompts = [_ANY.decode(members[name]) for name in _PROMPTS if name in members]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    found: list[str] = []
    n_messages, has_media = 0, False
    for prompt in prompts:
        if isinstance(prompt, list):
            n_messages += sum(isinstance(item, dict) for item in prompt)
        try:
            for text in _iterate_texts(prompt):
                found.append(text)
                has_media = has_media or not text
        except RecursionError:
            return None
    tools = "".join(bytes(members[name]).decode(errors="replace") for name in _TOOLS if name in members)
    return PromptTexts(tuple(filter(None, found)), n_messages, tools, has_media)


def _iterate_texts(value: Any) -> Iterator[str]:
    """All texts of a prompt; an empty one for each image or file."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _iterate_texts(item)
    elif isinstance(value, dict):
        if value.get("type") in _NO_TEXT:
            yield ""
            return
        for name, item in value.items():
            if name in _NESTED and isinstance(item, list | dict):
                yield from _iterate_texts(item) if name != "input" or isinstance(item, list) else (
                    msgspec.json.encode(item).decode(),)
            elif name in _TEXT_MEMBERS and isinstance(item, str):
                yield item


def read_plain_prompt(request_body: bytes) -> str | None:
    """The text of a tokenize request; None: it has messages."""
    return _PLAIN.decode(request_body).prompt


class _Plain(Struct, gc=False):
    prompt: str | None = None


_PLAIN: Final = msgspec.json.Decoder(_Plain)


def encode_count_answer(api: Api, count: UpstreamCount, *, is_estimated: bool) -> bytes:
    """The answer of a count endpoint in its own dialect."""
    answer: dict[str, Any]
    if api is Api.TOKENIZE:
        answer = {"count": count.n_tokens, "max_model_len": count.max_model_len, "tokens": list(count.token_ids),
                  "token_strs": None}
    elif api is Api.INPUT_TOKENS:
        answer = {"object": "response.input_tokens", "input_tokens": count.n_tokens}
    else:
        answer = {"input_tokens": count.n_tokens}
    return msgspec.json.encode(answer | {ESTIMATED_MEMBER: True} if is_estimated else answer)


class _CountFields(Struct, gc=False):
    input_tokens: int | None = None  # Anthropic, OpenAI
    of_bedrock: int | None = msgspec.field(default=None, name="inputTokens")
    of_gemini: int | None = msgspec.field(default=None, name="totalTokens")
    count: int | None = None  # vLLM, SGLang
    tokens: list[int] | None = None
    max_model_len: int | None = None


_COUNT: Final = msgspec.json.Decoder(_CountFields)


def parse_upstream_count(body: bytes) -> UpstreamCount | None:
    """What a count endpoint of any kind answered; None: no count of at least 0."""
    try:
        found = _COUNT.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    counts = (found.input_tokens, found.of_bedrock, found.of_gemini, found.count)
    n_tokens = next((count for count in counts if count is not None), -1)
    return UpstreamCount(n_tokens, found.tokens or (), found.max_model_len) if n_tokens >= 0 else None


def check_countable(body: bytes) -> None:
    """Raises Rejected for a prompt of which a part is stored at a provider."""
    members = _OBJECT.decode(body)
    for name in ("previous_response_id", "conversation"):
        if bytes(members.get(name, b"null")) not in (b"null", b'""'):
            raise Rejected(f"{name}: only the provider has the stored part of this prompt. Its route counts here: send the "
                           "whole input, or set context.tokenizer: upstream.", code="unsupported_field", param=name)
