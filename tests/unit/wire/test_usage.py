"""Token counts of every provider, in one form and back."""

from typing import Any

import pytest

from stayfast.core.types import DecodeTimings, Usage
from stayfast.wire import usage

ANTHROPIC = {"input_tokens": 10, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 5, "output_tokens": 3,
             "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 3},
             "output_tokens_details": {"thinking_tokens": 1}}


@pytest.mark.parametrize(("said", "expected"), [
    ({"prompt_tokens": 20, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 4},
      "completion_tokens_details": {"reasoning_tokens": 2}}, Usage(20, 6, 8, 4, 0, 2)),
    ({"input_tokens": 20, "output_tokens": 6, "input_tokens_details": {
        "cached_tokens": 8, "cache_write_tokens": 4, "cache_write_tokens_details": {"ttl_12h_tokens": 3}},
      "output_tokens_details": {"reasoning_tokens": 2}}, Usage(20, 6, 8, 1, 3, 2)),
    ({"prompt_tokens": 20, "completion_tokens": 6, "prompt_cache_hit_tokens": 15, "prompt_cache_miss_tokens": 5},
     Usage(20, 6, 15)),
    ({"prompt_tokens": 3, "total_tokens": 3}, Usage(3)),
    ({"prompt_tokens": 3, "prompt_tokens_details": None, "completion_tokens": None}, Usage(3)),
    ({"prompt_tokens": "many", "completion_tokens": True, "prompt_tokens_details": [1]}, Usage()),
    ({"prompt_tokens": -4, "completion_tokens": 1e300}, Usage()),
    (None, None), ({}, None), ([1], None), ("x", None)])
def test_usage_openai_and_compatible_servers(said: Any, expected: Usage | None) -> None:
    """Chat, responses, DeepSeek, embeddings, and objects that are strange or none."""
    assert usage.parse_openai_usage(said) == expected


def test_usage_anthropic_input_is_the_sum_of_three() -> None:
    """The total includes cache reads and writes."""
    assert usage.parse_anthropic_usage(ANTHROPIC) == Usage(23, 3, 8, 2, 3, 1)
    assert usage.parse_anthropic_usage(None) is None


def test_usage_message_delta_extends_the_start() -> None:
    """The delta's counts are cumulative; missing ones are taken from the start."""
    start = usage.parse_anthropic_usage(ANTHROPIC)
    assert usage.parse_anthropic_usage({"output_tokens": 50}, start) == Usage(23, 50, 8, 2, 3, 1)
    assert usage.parse_anthropic_usage({"input_tokens": 40, "output_tokens": 50}, start) == Usage(53, 50, 8, 2, 3, 1)
    assert usage.parse_anthropic_usage(None, start) == start


@pytest.mark.parametrize("counts", [Usage(), Usage(20, 6), Usage(23, 3, 8, 5, 0, 1)])
def test_usage_encoded_is_parsed_back(counts: Usage) -> None:
    """Each dialect's form holds every count that it has a place for."""
    assert usage.parse_openai_usage(usage.encode_chat_usage(counts)) == counts
    assert usage.parse_openai_usage(usage.encode_responses_usage(counts)) == counts
    assert usage.parse_anthropic_usage(usage.encode_messages_usage(counts)) == counts
    assert usage.encode_chat_usage(counts)["total_tokens"] == counts.input_total + counts.output


def test_usage_has_the_tier_that_the_provider_reports() -> None:
    """OpenAI's stands beside the usage, Anthropic's in it; nonsense is none, and a long word is cut."""
    counts = {"prompt_tokens": 1, "completion_tokens": 2}
    found = [usage.parse_openai_usage(counts, tier) for tier in ("flex", None, 7, "x" * 99)]
    assert [one.tier for one in found if one is not None] == ["flex", "", "", "x" * 16]
    first = usage.parse_anthropic_usage({"input_tokens": 1, "service_tier": "batch"})
    assert first is not None
    assert first.tier == "batch"
    last = usage.parse_anthropic_usage({"output_tokens": 5}, first)
    assert (last is not None and last.tier, last is not None and last.output) == ("batch", 5)


@pytest.mark.parametrize(("said", "expected"), [
    ({"promptTokenCount": 20, "candidatesTokenCount": 6, "thoughtsTokenCount": 4, "totalTokenCount": 33,
      "cachedContentTokenCount": 8, "toolUsePromptTokenCount": 3}, Usage(23, 10, 8, reasoning=4)),
    ({"promptTokenCount": 20, "candidatesTokenCount": 10, "thoughtsTokenCount": 4, "totalTokenCount": 30},
     Usage(20, 10, reasoning=4)),
    ({"promptTokenCount": 5, "cachedContentTokenCount": 50}, Usage(5, cached_read=5)),
    ({"promptTokenCount": 5, "trafficType": "ON_DEMAND_FLEX"}, Usage(5, tier="flex")),
    ({"promptTokenCount": 5, "trafficType": "ON_DEMAND"}, Usage(5)),
    ({"promptTokenCount": 5, "serviceTier": "PRIORITY", "trafficType": ["x"]}, Usage(5, tier="priority")),
    ({"promptTokenCount": "x", "candidatesTokenCount": None}, Usage()), ({}, None), (None, None), ([1], None)])
def test_usage_gemini_thoughts_are_output_and_cached_tokens_input(said: Any, expected: Usage | None) -> None:
    """The second form, of some models of Vertex, has the thoughts within the candidates."""
    assert usage.parse_gemini_usage(said) == expected


@pytest.mark.parametrize(("timings", "expected"), [
    ({"predicted_n": 40, "predicted_ms": 80.0, "draft_n": 26, "draft_n_accepted": 24}, DecodeTimings(40, 0.08, 26, 24)),
    ({"predicted_n": 40, "predicted_ms": 80}, DecodeTimings(40, 0.08)),
    ({"predicted_n": 40, "predicted_ms": 0.0}, None), ({"predicted_n": 40, "predicted_ms": True}, None),
    ({"predicted_n": 40, "predicted_ms": "8"}, None), ({}, None), ([1], None), ("x", None)])
def test_timings_of_llama_cpp_are_read(timings: Any, expected: DecodeTimings | None) -> None:
    """Without guesses it reports none; anything odd is no timings, and no error."""
    assert usage.parse_timings(timings) == expected
