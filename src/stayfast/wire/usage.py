"""Token counts: every provider's words in, every dialect's words out.

OpenAI's input counts include cached tokens; Anthropic's `input_tokens` is what is left beside reads and writes of the
cache. Reasoning is part of the output everywhere and never added again. Numbers that are none count as 0: a strange
usage object must not cost the client its answer.
"""

from typing import Any, Final

from stayfast.core.types import Usage

Json = dict[str, Any]
_MOST: Final = 2**53  # what a JSON number can say exactly


def _count(fields: object, *names: str) -> int:
    if isinstance(fields, dict):
        for name in names:
            value = fields.get(name)
            if (type(value) is int or type(value) is float) and 0 <= value < _MOST:  # a bool is neither
                return int(value)
    return 0


def from_openai(said: object) -> Usage | None:
    """Read chat, completions, responses, embeddings, vLLM, SGLang and DeepSeek usage (None: there is none)."""
    if not isinstance(said, dict) or not said:
        return None
    inputs = said.get("prompt_tokens_details") or said.get("input_tokens_details")
    outputs = said.get("completion_tokens_details") or said.get("output_tokens_details")
    written = _count(inputs, "cache_write_tokens")
    long_lived = min(written, _count(inputs["cache_write_tokens_details"], "ttl_12h_tokens")) if (
        isinstance(inputs, dict) and "cache_write_tokens_details" in inputs) else 0
    return Usage(
        input_total=_count(said, "prompt_tokens", "input_tokens"),
        output=_count(said, "completion_tokens", "output_tokens"),
        cached_read=_count(inputs, "cached_tokens") or _count(said, "prompt_cache_hit_tokens"),
        cache_write_5m=written - long_lived,
        cache_write_1h=long_lived,
        reasoning=_count(outputs, "reasoning_tokens"),
    )


def from_anthropic(said: object, before: Usage | None = None) -> Usage | None:
    """Read messages usage. `before` is what the stream said earlier: its counts stand where the new ones are silent."""
    if not isinstance(said, dict) or not said:
        return before
    if before is None:
        before = Usage()
    read = _count(said, "cache_read_input_tokens") or before.cached_read
    long_lived = _count(said.get("cache_creation"), "ephemeral_1h_input_tokens") or before.cache_write_1h
    written = _count(said, "cache_creation_input_tokens") or before.cache_write_5m + before.cache_write_1h
    long_lived = min(written, long_lived)
    rest = _count(said, "input_tokens") or before.input_total - before.cached_read - (
        before.cache_write_5m + before.cache_write_1h)
    return Usage(
        input_total=max(0, rest) + read + written,
        output=_count(said, "output_tokens") or before.output,
        cached_read=read,
        cache_write_5m=written - long_lived,
        cache_write_1h=long_lived,
        reasoning=_count(said.get("output_tokens_details"), "thinking_tokens") or before.reasoning,
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
