"""The quick way to read a whole chat answer says what the long way says, or leaves it alone."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Sight
from stayfast.wire.chat import source
from stayfast.wire.chat.source import ChatSource
from stayfast.wire.chat.usual import usual

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


def seen(body: bytes) -> list[Any]:
    sight = Sight()
    ChatSource("u", 1, sight).see_whole(body)
    return [sight.usage, sight.response_id, sight.finish_reason, sight.n_content, sight.is_complete, str(sight.failure)]


@given(ANSWERS)
def test_both_ways_see_the_same(answer: dict[str, Any]) -> None:
    body = msgspec.json.encode(answer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "usual", lambda _: None)
        long_way = seen(body)
    assert seen(body) == long_way


def test_the_usual_answer_is_read_the_quick_way() -> None:
    answer = usual(PLAIN % "grüße".encode())
    assert answer is not None
    usage = answer.counted()
    assert usage is not None
    assert (usage.input_total, usage.output, usage.cached_read) == (5, 7, 3)


@pytest.mark.parametrize("content", [b"\xff", b"\\ud800", b"\\u00e9", b"\x01"])
def test_what_is_odd_is_left_to_the_long_way(content: bytes) -> None:
    assert usual(PLAIN % content) is None
