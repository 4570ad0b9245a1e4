"""The quick way to read a whole chat answer says what the long way says, or leaves it alone."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Api, Sight
from stayfast.wire.chat import source
from stayfast.wire.chat.source import ChatSource
from stayfast.wire.chat.usual import usual
from stayfast.wire.decode import decode
from stayfast.wire.replay import keepable

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


@given(st.lists(st.fixed_dictionaries({"message": st.fixed_dictionaries({}, optional={
    "content": st.one_of(st.none(), st.text(max_size=3), st.just([{"type": "text", "text": "word"}]), COUNTS),
    "tool_calls": st.sampled_from([None, [], [{"id": "t"}]]), "function_call": st.sampled_from([None, {"name": "f"}]),
    "refusal": st.sampled_from([None, "", "No."])}), "finish_reason": st.just("stop")}), max_size=2))
def test_what_is_seen_to_be_text_is_kept_as_if_it_had_been_read_again(choices: list[Any]) -> None:
    """And what is not seen to be is looked at, so that the same answers are kept."""
    body, sight = msgspec.json.encode({"id": "c", "choices": choices}), Sight()
    ChatSource("u", 1, sight).see_whole(body)
    request = decode(Api.CHAT, b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}')
    kept = keepable(request, sight, body)
    sight.says_text = None
    assert kept == keepable(request, sight, body)


def test_plain_words_need_no_second_look() -> None:
    """What servers say of no calls is no call; what is no text is looked at again."""
    def says(message: bytes) -> bool | None:
        answer = usual(b'{"id": "c", "choices": [{"message": {%b}}]}' % message)
        return answer.says_text() if answer is not None else None

    assert [says(b'"content": "ab"'), says(b'"content": "ab", "tool_calls": []'),
            says(b'"content": "ab", "tool_calls": null, "refusal": null')] == [True] * 3
    assert [says(b'"content": null'), says(b'"content": ""'), says(b""), says(b'"content": ["ab"]'),
            says(b'"content": "ab", "tool_calls": [{}]')] == [False] * 5
    assert [says(b'"content": "ab", "refusal": "No."'), says(b'"content": "ab", "function_call": {}')] == [None] * 2


@pytest.mark.parametrize("content", [b"\xff", b"\\ud800", b"\\u00e9", b"\x01"])
def test_what_is_odd_is_left_to_the_long_way(content: bytes) -> None:
    assert usual(PLAIN % content) is None
