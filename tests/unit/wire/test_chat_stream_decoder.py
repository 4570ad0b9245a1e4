"""Whole chat answers: any form of the fields gives a complete or a failed answer."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import AnswerSummary, Usage
from stayfast.wire.chat.stream_decoder import LARGE_BYTES, ChatDecoder

COUNTS = st.one_of(st.integers(-2, 2**54), st.floats(allow_nan=False, allow_infinity=False), st.none(), st.booleans(),
                   st.text(max_size=3))
DETAILS = st.one_of(st.none(), st.dictionaries(
    st.sampled_from(["cached_tokens", "cache_write_tokens", "reasoning_tokens", "audio_tokens"]), COUNTS, max_size=3),
    COUNTS)
USAGES = st.one_of(st.none(), st.fixed_dictionaries(
    {"prompt_tokens": st.integers(0, 9), "completion_tokens": st.integers(0, 9)},
    optional={"input_tokens": COUNTS, "prompt_tokens_details": DETAILS, "completion_tokens_details": DETAILS,
              "input_tokens_details": DETAILS, "output_tokens_details": DETAILS, "prompt_cache_hit_tokens": COUNTS}),
    st.dictionaries(st.sampled_from(["prompt_tokens", "input_tokens", "output_tokens"]), COUNTS))
CHOICES = st.lists(st.fixed_dictionaries({}, optional={
    "index": COUNTS, "message": st.one_of(st.dictionaries(st.just("content"), st.text(max_size=5)), COUNTS),
    "text": st.text(max_size=3), "finish_reason": st.one_of(st.none(), st.sampled_from(["stop", "length"]), COUNTS)}),
    max_size=3)
ANSWERS = st.fixed_dictionaries({}, optional={
    "id": st.one_of(st.text(max_size=5), COUNTS), "choices": st.one_of(CHOICES, COUNTS), "usage": USAGES,
    "error": st.one_of(st.none(), st.dictionaries(st.just("message"), st.text(max_size=5)), COUNTS)})
PLAIN = (b'{"id": "c-1", "choices": [{"index": 0, "message": {"content": "%b"}, "finish_reason": "stop"}], '
         b'"usage": {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}}')


def seen(body: bytes) -> AnswerSummary:
    summary = AnswerSummary()
    ChatDecoder("u", 1, summary).read_body(body)
    return summary


@given(ANSWERS)
def test_chat_decoder_any_body_is_complete_or_failed(answer: dict[str, Any]) -> None:
    summary = seen(msgspec.json.encode(answer))
    assert summary.is_complete is (summary.failure is None)
    assert summary.response_id is None or isinstance(summary.response_id, str)
    assert summary.finish_reason is None or isinstance(summary.finish_reason, str)


@pytest.mark.parametrize("content", ["grüße".encode(), b"\\u00e9"])
def test_chat_decoder_reads_usage_id_and_reason(content: bytes) -> None:
    summary = seen(PLAIN % content)
    assert (summary.usage, summary.response_id, summary.finish_reason) == (Usage(5, 7, 3), "c-1", "stop")


@pytest.mark.parametrize("content", [b"\xff", b"\\ud800", b"\x01"])
def test_chat_decoder_invalid_json_is_a_failure(content: bytes) -> None:
    summary = seen(PLAIN % content)
    assert summary.failure is not None
    assert not summary.is_complete


@pytest.mark.parametrize("n_bytes", [0, LARGE_BYTES])
def test_chat_decoder_reads_the_service_tier(n_bytes: int) -> None:
    """Also of a large answer, whose text is not decoded: the price depends on it."""
    body = (b'{"id": "c", "service_tier": "flex", "choices": [{"message": {"content": "%b"}, "finish_reason": "stop"}], '
            b'"usage": {"prompt_tokens": 5, "completion_tokens": 7}}' % (b"x" * n_bytes))
    assert seen(body).usage == Usage(5, 7, tier="flex")


def test_chat_decoder_reads_the_service_tier_of_a_stream() -> None:
    summary = AnswerSummary()
    chunk = b'{"id": "c", "service_tier": "flex", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}'
    ChatDecoder("u", 1, summary).read_event(chunk, b"")
    assert summary.usage == Usage(5, 7, tier="flex")
