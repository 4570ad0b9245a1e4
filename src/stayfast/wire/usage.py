"""Token counts: every provider's words in, every dialect's words out; and an estimate where no tokenizer is at hand.

OpenAI's input counts include cached tokens; Anthropic's `input_tokens` is what is left beside reads and writes of the
cache. Reasoning is part of the output everywhere and never added again. Numbers that are none count as 0: a strange
usage object must not cost the client its answer.

An estimate is always marked as one. One token is about 4 bytes; JSON punctuation of the envelope is not counted. A bound
(`input_tokens`) must not be passed under by what vocabularies know worst, so it counts on the high side:

    letters and blanks / 4,     punctuation / 2,     other scripts: bytes of UTF-8 / 2,     a token a byte at most
    digits 1 each, and 3/4 for each number: what follows it is no part of another token

Source: OpenAI's rule of thumb (4 characters a token); some vocabularies have a token for each digit, others for up to three;
a Han character is 3 bytes and one to two tokens. When wrong: English comes out a tenth to a fifth too long, long numbers up
to three times; scripts that a vocabulary has no words of have up to a token a byte.
"""

from collections.abc import Callable
from math import ceil
from typing import Any, Final

import msgspec

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.conversation import RawObject
from stayfast.core.errors import Rejected
from stayfast.core.types import Api, Request, Usage

Json = dict[str, Any]
_MOST: Final = 2**53  # what a JSON number can say exactly


def _count(fields: object, *names: str) -> int:
    if isinstance(fields, dict):
        for name in names:
            value = fields.get(name)
            if (type(value) is int or type(value) is float) and 0 <= value < _MOST:  # a bool is neither
                return int(value)
    return 0


def from_openai(value: object) -> Usage | None:
    """Read chat, completions, responses, embeddings, vLLM, SGLang and DeepSeek usage (None: there is none)."""
    if not isinstance(value, dict) or not value:
        return None
    inputs = value.get("prompt_tokens_details") or value.get("input_tokens_details")
    outputs = value.get("completion_tokens_details") or value.get("output_tokens_details")
    written = _count(inputs, "cache_write_tokens")
    long_lived = min(written, _count(inputs["cache_write_tokens_details"], "ttl_12h_tokens")) if (
        isinstance(inputs, dict) and "cache_write_tokens_details" in inputs) else 0
    return Usage(
        input_total=_count(value, "prompt_tokens", "input_tokens"),
        output=_count(value, "completion_tokens", "output_tokens"),
        cached_read=_count(inputs, "cached_tokens") or _count(value, "prompt_cache_hit_tokens"),
        cache_write_5m=written - long_lived,
        cache_write_1h=long_lived,
        reasoning=_count(outputs, "reasoning_tokens"),
    )


def from_anthropic(value: object, before: Usage | None = None) -> Usage | None:
    """Read messages usage. `before` is what the stream said earlier: its counts stand where the new ones are silent."""
    if not isinstance(value, dict) or not value:
        return before
    if before is None:
        before = Usage()
    read = _count(value, "cache_read_input_tokens") or before.cached_read
    long_lived = _count(value.get("cache_creation"), "ephemeral_1h_input_tokens") or before.cache_write_1h
    written = _count(value, "cache_creation_input_tokens") or before.cache_write_5m + before.cache_write_1h
    long_lived = min(written, long_lived)
    rest = _count(value, "input_tokens") or before.input_total - before.cached_read - (
        before.cache_write_5m + before.cache_write_1h)
    return Usage(
        input_total=max(0, rest) + read + written,
        output=_count(value, "output_tokens") or before.output,
        cached_read=read,
        cache_write_5m=written - long_lived,
        cache_write_1h=long_lived,
        reasoning=_count(value.get("output_tokens_details"), "thinking_tokens") or before.reasoning,
    )


def to_chat(usage: Usage) -> Json:
    """Say it as chat and completions do."""
    return {
        "prompt_tokens": usage.input_total,
        "completion_tokens": usage.output,
        "total_tokens": usage.input_total + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached_read,
                                  "cache_write_tokens": usage.cache_write_5m + usage.cache_write_1h},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def to_responses(usage: Usage) -> Json:
    """Say it as responses does."""
    return {
        "input_tokens": usage.input_total,
        "input_tokens_details": {"cached_tokens": usage.cached_read,
                                 "cache_write_tokens": usage.cache_write_5m + usage.cache_write_1h},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input_total + usage.output,
    }


def to_messages(usage: Usage) -> Json:
    """Say it as messages does."""
    written = usage.cache_write_5m + usage.cache_write_1h
    return {
        "input_tokens": max(0, usage.input_total - usage.cached_read - written),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": usage.cached_read,
        "cache_creation": {"ephemeral_5m_input_tokens": usage.cache_write_5m,
                           "ephemeral_1h_input_tokens": usage.cache_write_1h},
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


_LETTERS: Final = bytes(range(33)) + bytes(range(65, 91)) + bytes(range(97, 123))  # and blanks
_DIGITS: Final = b"0123456789"
_WHERE_DIGITS: Final = bytes(ord("0") if byte in _DIGITS else ord(" ") for byte in range(256))
TOKENS_A_MESSAGE = 4  # role and separators
TOKENS_AN_IMAGE = 1600  # Anthropic's figure for a 1.15 megapixel picture
_OBJECT: Final = msgspec.json.Decoder(RawObject)
_ANY: Final = msgspec.json.Decoder()
_PICTURES: Final = ("image", "image_url", "input_image")
_UNREAD: Final = ("type", "role", "cache_control")

PROMPT_FIELDS: Final = {  # of a body, where what is said stands
    Api.CHAT: "messages", Api.COMPLETIONS: "prompt", Api.EMBEDDINGS: "input", Api.RESPONSES: "input",
    Api.MESSAGES: "messages", Api.COUNT_TOKENS: "messages",
}
_BESIDE: Final = ("system", "instructions")
_DECLARED: Final = ("tools", "functions")  # their names and brackets are read, too


def estimate_tokens(value: Any) -> int:
    """Tokens of all text inside a decoded JSON value."""
    return round(_sum(value, lambda text: ceil(len(text) / BYTES_A_TOKEN)))


def text_tokens(text: bytes) -> float:
    """How many tokens a UTF-8 text may come to, on the high side; see above."""
    rest = text.translate(None, _LETTERS)
    if not rest:
        return len(text) / BYTES_A_TOKEN
    marks = rest.translate(None, _DIGITS)
    n_letters, n_digits = len(text) - len(rest), len(rest) - len(marks)
    n_tokens = n_letters / BYTES_A_TOKEN + n_digits + len(marks) / 2
    if n_digits:
        n_tokens += text.translate(_WHERE_DIGITS).count(b"0 ") * 0.75
    return min(n_tokens, len(text))


def may_be_over(body: bytes, most: int) -> bool:
    """Whether a body could hold more than so many tokens. No byte is more than a token, but a picture may be a few bytes."""
    return len(body) > most or b"image" in body


def input_tokens(request: Request) -> int:
    """How many tokens an upstream may have to read, on the high side, tools and instructions included. Raises Rejected."""
    body = _OBJECT.decode(request.body)
    value = _read(body, PROMPT_FIELDS[request.api])
    n_messages = len(value) if isinstance(value, list) and value and isinstance(value[0], dict) else 0
    declared = sum(text_tokens(bytes(body[name])) for name in _DECLARED if name in body)
    other_fields = [_read(body, name) for name in _BESIDE]
    return ceil(_sum([value, *other_fields], text_tokens) + declared) + TOKENS_A_MESSAGE * n_messages


def _read(body: RawObject, name: str) -> Any:
    """A member of a request, parsed; None where it is absent. Raises Rejected where a field inside that is not known holds
    what no parser takes: a number that no double holds, or half of a surrogate pair.
    """
    try:
        return _ANY.decode(body[name]) if name in body else None
    except msgspec.DecodeError as error:
        raise Rejected(f"{name} cannot be read: {error}", code="invalid_json", param=name) from None


def _sum(value: Any, tokens_of: Callable[[bytes], float]) -> float:
    """Over all text inside a decoded JSON value, by its UTF-8."""
    if isinstance(value, str):
        return tokens_of(value.encode())
    if isinstance(value, list):
        return sum(_sum(item, tokens_of) for item in value)
    if isinstance(value, dict):
        if value.get("type") in _PICTURES:
            return TOKENS_AN_IMAGE
        return sum(_sum(item, tokens_of) for key, item in value.items() if key not in _UNREAD)
    return 1 if isinstance(value, int | float) and not isinstance(value, bool) else 0


def count_tokens_answer(request: Request) -> bytes:
    """The body of an answer to /v1/messages/count_tokens, marked as an estimate. Raises Rejected."""
    body = _OBJECT.decode(request.body)
    messages = _read(body, "messages") or []
    n_tokens = estimate_tokens([messages, _read(body, "system"), _read(body, "tools")]) + TOKENS_A_MESSAGE * len(messages)
    return msgspec.json.encode({"input_tokens": n_tokens, "stayfast_estimated": True})
