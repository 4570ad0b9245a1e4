"""Token counts: every provider's usage object in, every dialect's usage object out; and estimates without a tokenizer.

OpenAI's input counts include cached tokens; Anthropic's `input_tokens` and Converse's `inputTokens` exclude cache reads and
writes.
Reasoning tokens are part of the output in all dialects. An invalid number counts as 0: an odd usage object must not fail
an answer.

Estimates take 4 bytes per token and ignore the JSON envelope. The upper bound (`estimate_input_tokens_high`) must hold for
the least favourable vocabulary, so it estimates high:

    letters and blanks / 4,     punctuation / 2,     other scripts: UTF-8 bytes / 2,     at most one token per byte
    1 per digit, and 3/4 per number, because the text after a number starts a new token

Source: OpenAI's rule of thumb (4 characters per token); some vocabularies have a token per digit, others per three digits;
a Han character is 3 bytes and one to two tokens. When wrong: English is estimated 10 to 20 % too high, long numbers up to
three times; a script that is missing from a vocabulary takes up to one token per byte.
"""

from collections.abc import Callable
from math import ceil
from typing import Any, Final

import msgspec

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.conversation import RawObject
from stayfast.core.errors import Rejected
from stayfast.core.types import Api, DecodeTimings, Request, Usage

Json = dict[str, Any]
_MAX_TIER: Final = 16
_GEMINI_COUNTS: Final = ("promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount",
                        "cachedContentTokenCount", "totalTokenCount")
_ON_DEMAND: Final = "ON_DEMAND_"
_TRAFFIC: Final = ("ON_DEMAND_PRIORITY", "ON_DEMAND_FLEX")  # Vertex's names of tiers
_MAX_EXACT: Final = 2**53  # larger JSON numbers are not exact


def _count(fields: object, *names: str) -> int:
    if isinstance(fields, dict):
        for name in names:
            value = fields.get(name)
            if (type(value) is int or type(value) is float) and 0 <= value < _MAX_EXACT:  # excludes bool
                return int(value)
    return 0


def parse_timings(value: object) -> DecodeTimings | None:
    """Read llama.cpp's `timings`; None if they are not valid."""
    seconds = value.get("predicted_ms") if isinstance(value, dict) else None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0.0 < seconds < _MAX_EXACT:
        return None
    return DecodeTimings(_count(value, "predicted_n"), seconds / 1e3, _count(value, "draft_n"),
                         _count(value, "draft_n_accepted"))


def parse_openai_usage(value: object, tier: object = None) -> Usage | None:
    """Read chat, completions, responses, embeddings, vLLM, SGLang and DeepSeek usage; None if there is none. tier: the
    answer's `service_tier`.
    """
    if not isinstance(value, dict) or not value:
        return None
    read = written = long_lived = reasoning = 0
    inputs = value.get("prompt_tokens_details") or value.get("input_tokens_details")
    if isinstance(inputs, dict):
        read = _count(inputs, "cached_tokens")
        if "cache_write_tokens" in inputs:
            written = _count(inputs, "cache_write_tokens")
            long_lived = min(written, _count(inputs.get("cache_write_tokens_details"), "ttl_12h_tokens"))
    if "prompt_cache_hit_tokens" in value:
        read = read or _count(value, "prompt_cache_hit_tokens")
    outputs = value.get("completion_tokens_details") or value.get("output_tokens_details")
    if outputs:
        reasoning = _count(outputs, "reasoning_tokens")
    return Usage(
        n if type(n := value.get("prompt_tokens")) is int and 0 <= n < _MAX_EXACT else (
            _count(value, "prompt_tokens", "input_tokens")),
        n if type(n := value.get("completion_tokens")) is int and 0 <= n < _MAX_EXACT else (
            _count(value, "completion_tokens", "output_tokens")),
        read, written - long_lived, long_lived, reasoning, _read_tier(tier) if tier is not None else "")


def _read_tier(value: object) -> str:
    return value[:_MAX_TIER] if isinstance(value, str) else ""


def parse_anthropic_usage(value: object, before: Usage | None = None) -> Usage | None:
    """Read messages usage. `before`: earlier usage of the stream; its counts apply to fields that are missing now."""
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
        tier=_read_tier(value.get("service_tier")) or before.tier,
    )


def parse_gemini_usage(value: object) -> Usage | None:
    """Read `usageMetadata`; None if there is none. `promptTokenCount` includes cached tokens, and not those of results of
    Google's own tools. `candidatesTokenCount` excludes thoughts, unless the total shows that it includes them, as for some
    models of Vertex.
    """
    if not isinstance(value, dict) or not value:
        return None
    prompt, results, answer, thoughts, cached, total = [
        n if type(n := value.get(name, 0)) is int and 0 <= n < _MAX_EXACT else _count(value, name)
        for name in _GEMINI_COUNTS]
    inputs = prompt + results
    has_both = thoughts <= answer and inputs + answer == total
    traffic = value.get("trafficType")
    return Usage(
        input_total=inputs,
        output=answer if has_both else answer + thoughts,
        cached_read=min(inputs, cached),
        reasoning=thoughts,
        tier=_read_tier(value.get("serviceTier")).lower() or (
            traffic[len(_ON_DEMAND):].lower() if isinstance(traffic, str) and traffic in _TRAFFIC else ""),
    )


def parse_converse_usage(value: object, tier: object = None) -> Usage | None:
    """Read Converse usage; None if there is none. tier: the answer's `serviceTier`."""
    if not isinstance(value, dict) or not value:
        return None
    read, written = _count(value, "cacheReadInputTokens"), _count(value, "cacheWriteInputTokens")
    details = value.get("cacheDetails")
    long_lived = sum(_count(detail, "inputTokens") for detail in (details if isinstance(details, list) else ())
                     if isinstance(detail, dict) and detail.get("ttl") == "1h")
    long_lived = min(written, long_lived)
    return Usage(
        input_total=_count(value, "inputTokens") + read + written,
        output=_count(value, "outputTokens"),
        cached_read=read,
        cache_write_5m=written - long_lived,
        cache_write_1h=long_lived,
        tier=_read_tier(tier.get("type") if isinstance(tier, dict) else None),
    )


def encode_chat_usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.input_total,
        "completion_tokens": usage.output,
        "total_tokens": usage.input_total + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached_read,
                                  "cache_write_tokens": usage.cache_write_5m + usage.cache_write_1h},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def encode_responses_usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_total,
        "input_tokens_details": {"cached_tokens": usage.cached_read,
                                 "cache_write_tokens": usage.cache_write_5m + usage.cache_write_1h},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input_total + usage.output,
    }


def encode_messages_usage(usage: Usage) -> Json:
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
_DIGIT_MASK: Final = bytes(ord("0") if byte in _DIGITS else ord(" ") for byte in range(256))
TOKENS_PER_MESSAGE = 4  # role and separators
TOKENS_PER_IMAGE = 1600  # Anthropic's figure for a 1.15 megapixel image
_OBJECT: Final = msgspec.json.Decoder(RawObject)
_ANY: Final = msgspec.json.Decoder()
ESTIMATED_MEMBER: Final = "stayfast_estimated"  # of an answer or its usage: the counts are no upstream's
_IMAGES: Final = ("image", "image_url", "input_image")
_SKIPPED: Final = ("type", "role", "cache_control")

PROMPT_FIELDS: Final = {  # the member of a body that holds the prompt
    Api.CHAT: "messages", Api.COMPLETIONS: "prompt", Api.EMBEDDINGS: "input", Api.RESPONSES: "input",
    Api.RERANK: "documents",
    Api.MESSAGES: "messages", Api.COUNT_TOKENS: "messages", Api.INPUT_TOKENS: "input", Api.TOKENIZE: "messages",
}
_INSTRUCTIONS: Final = ("system", "instructions")
_TEXTS: Final = {Api.TOKENIZE: ("prompt",), Api.RERANK: ("query",)}  # instead of the prompt's member, or with it
_TOOLS: Final = ("tools", "functions")  # counted with field names and brackets, because the model reads those too


def estimate_tokens(value: Any) -> int:
    """Tokens of all text inside a decoded JSON value."""
    return round(_sum_tokens(value, lambda text: ceil(len(text) / BYTES_A_TOKEN)))


def estimate_usage(request: Request, text: str) -> Usage | None:
    """The estimated usage of an answer with this text; None if the prompt cannot be parsed."""
    try:
        body = _OBJECT.decode(request.body)
        prompt = [_parse_member(body, name) for name in (PROMPT_FIELDS[request.api], *_INSTRUCTIONS, *_TOOLS,
                                                           *_TEXTS.get(request.api, ()))]
    except (msgspec.DecodeError, Rejected):
        return None
    n_messages = len(prompt[0]) if isinstance(prompt[0], list) else 1
    return Usage(input_total=estimate_tokens(prompt) + TOKENS_PER_MESSAGE * n_messages, output=estimate_tokens(text))


def estimate_text_tokens_high(text: bytes) -> float:
    """An upper estimate of the tokens of a UTF-8 text, by the module's formula."""
    rest = text.translate(None, _LETTERS)
    if not rest:
        return len(text) / BYTES_A_TOKEN
    marks = rest.translate(None, _DIGITS)
    n_letters, n_digits = len(text) - len(rest), len(rest) - len(marks)
    n_tokens = n_letters / BYTES_A_TOKEN + n_digits + len(marks) / 2
    if n_digits:
        n_tokens += text.translate(_DIGIT_MASK).count(b"0 ") * 0.75
    return min(n_tokens, len(text))


def may_exceed_tokens(body: bytes, max_tokens: int) -> bool:
    """Whether a body could hold more than `most` tokens: at most one per byte, except for images."""
    return len(body) > max_tokens or b"image" in body


def estimate_input_tokens_high(request: Request) -> int:
    """An upper estimate of a request's input tokens, with tools and instructions. Raises Rejected."""
    body = _OBJECT.decode(request.body)
    value = _parse_member(body, PROMPT_FIELDS[request.api])
    n_messages = len(value) if isinstance(value, list) and value and isinstance(value[0], dict) else 0
    n_tool_tokens = sum(estimate_text_tokens_high(bytes(body[name])) for name in _TOOLS if name in body)
    instructions = [_parse_member(body, name) for name in (*_INSTRUCTIONS, *_TEXTS.get(request.api, ()))]
    return ceil(_sum_tokens([value, *instructions],
                            estimate_text_tokens_high) + n_tool_tokens) + TOKENS_PER_MESSAGE * n_messages


def _parse_member(body: RawObject, name: str) -> Any:
    """A member of a request; None if absent. Raises Rejected for an unchecked field that cannot be parsed: a number outside
    the range of a double, or half of a surrogate pair.
    """
    try:
        return _ANY.decode(body[name]) if name in body else None
    except msgspec.DecodeError as error:
        raise Rejected(f"{name} is not valid JSON: {error}", code="invalid_json", param=name) from None


def _sum_tokens(value: Any, tokens_of: Callable[[bytes], float]) -> float:
    """Sum `split_tokens(UTF-8)` over all text inside a decoded JSON value."""
    if isinstance(value, str):
        return tokens_of(value.encode())
    if isinstance(value, list):
        return sum(_sum_tokens(item, tokens_of) for item in value)
    if isinstance(value, dict):
        if value.get("type") in _IMAGES:
            return TOKENS_PER_IMAGE
        return sum(_sum_tokens(item, tokens_of) for key, item in value.items() if key not in _SKIPPED)
    return 1 if isinstance(value, int | float) and not isinstance(value, bool) else 0
