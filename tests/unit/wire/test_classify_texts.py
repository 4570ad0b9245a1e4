"""wire.classify.texts: the question and the texts from outside, in each dialect; the question is that of the cache."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Api, Request
from stayfast.wire.canonical import canonicalize
from stayfast.wire.classify.texts import RequestTexts, read_request_texts

USER = {"role": "user", "content": "  Where is\r\nmy card?"}


def request(api: Api, **body: Any) -> Request:
    """Undecoded, as the texts are read from the body."""
    return Request(api, "m", False, msgspec.json.encode({"model": "m", **body}))


@pytest.mark.parametrize(("api", "body"), [
    (Api.CHAT, {"messages": [{"role": "system", "content": "be kind"}, USER]}),
    (Api.CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "Where is\nmy card?"}]}]}),
    (Api.MESSAGES, {"system": "be kind", "messages": [USER], "max_tokens": 9}),
    (Api.RESPONSES, {"input": "Where is\nmy card?\n"}),
    (Api.RESPONSES, {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text",
                                                                              "text": "Where is\nmy card?"}]}]}),
])
def test_read_request_texts_question_is_that_of_the_cache(api: Api, body: dict[str, Any]) -> None:
    found = read_request_texts(request(api, **body)).question
    assert found == "Where is\nmy card?"
    assert canonicalize(request(api, **body)).question.decode() == found


@given(st.text(min_size=1))
def test_read_request_texts_any_question_is_that_of_the_cache(text: str) -> None:
    one = request(Api.CHAT, messages=[{"role": "user", "content": text}])
    canonical = canonicalize(one)
    assert canonical.why_not or canonical.question.decode() == read_request_texts(one).question


def test_read_request_texts_outside_has_users_and_tools_newest_first_and_nothing_else() -> None:
    chat = request(Api.CHAT, messages=[
        {"role": "system", "content": "rules"}, {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two", "tool_calls": []},
        {"role": "tool", "tool_call_id": "x", "content": "three"}])
    assert read_request_texts(chat) == RequestTexts("", ("three", "one"))
    messages = request(Api.MESSAGES, messages=[
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x",
                                      "content": [{"type": "text", "text": "page"}]}, {"type": "text", "text": "now?"}]}])
    assert read_request_texts(messages) == RequestTexts("now?", ("page", "now?"))
    responses = request(Api.RESPONSES, input=[
        {"role": "user", "content": "one"}, {"type": "reasoning", "summary": []},
        {"type": "function_call_output", "call_id": "x", "output": "page"}])
    assert read_request_texts(responses) == RequestTexts("", ("page", "one"))


def test_read_request_texts_completion_is_its_prompt() -> None:
    assert read_request_texts(request(Api.COMPLETIONS, prompt="go on")) == RequestTexts("go on", ("go on",))
    assert read_request_texts(request(Api.COMPLETIONS, prompt=["a", "b"])) == RequestTexts("", ("a", "b"))
    assert read_request_texts(request(Api.COMPLETIONS, prompt=[1, 2])) == RequestTexts("", ())


JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4) | st.sampled_from([
    "user", "tool", "text", "content", "tool_result"]), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(["role", "content", "type", "text", "output", "input"]), inner, max_size=4), max_leaves=12)


@given(st.sampled_from(list(Api)), JSON)
def test_read_request_texts_unknown_form_has_no_texts_and_no_error(api: Api, value: Any) -> None:
    found = read_request_texts(request(api, messages=value, input=value, prompt=value))
    assert all(isinstance(text, str) for text in (found.question, *found.outside))
