"""Requests for token counts and their answers; the texts of prompts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire.request_body import decode
from stayfast.wire.token_counts import (
    UpstreamCount,
    check_countable,
    encode_count_answer,
    parse_upstream_count,
    read_plain_prompt,
    read_prompt_texts,
)
from tests.unit.wire.full_requests import FULL


def encoded(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


@pytest.mark.parametrize(("api", "members"), [
    (Api.COUNT_TOKENS, {"input_tokens": 7}),
    (Api.INPUT_TOKENS, {"object": "response.input_tokens", "input_tokens": 7}),
    (Api.TOKENIZE, {"count": 7, "max_model_len": None, "tokens": [], "token_strs": None})])
def test_count_answer_has_the_shape_of_its_api(api: Api, members: dict[str, Any]) -> None:
    """As the vendor's, and marked if it is estimated."""
    assert json.loads(encode_count_answer(api, UpstreamCount(7), is_estimated=False)) == members
    marked = json.loads(encode_count_answer(api, UpstreamCount(7), is_estimated=True))
    assert marked == members | {"stayfast_estimated": True}


@pytest.mark.parametrize(("fields", "param"), [
    ({}, "prompt"), ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "nobody", "content": "a"}]}, "messages[0].role"), ({"prompt": 1}, "prompt")])
def test_tokenize_request_without_one_prompt_names_the_field(fields: dict[str, Any], param: str) -> None:
    """A text or a conversation, of chat's form."""
    with pytest.raises(Rejected) as refused:
        decode(Api.TOKENIZE, encoded(**fields))
    assert refused.value.param == param


def test_tokenize_request_of_a_text_has_a_plain_prompt() -> None:
    """Of messages there is none."""
    assert read_plain_prompt(encoded(prompt="a b")) == "a b"
    assert read_plain_prompt(encoded(messages=[])) is None


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_check_countable_stored_part_is_refused(name: str) -> None:
    """Only the provider knows how long it is."""
    check_countable(encoded(input="a", **{name: None}))
    with pytest.raises(Rejected) as refused:
        check_countable(encoded(input="a", **{name: "x_1"}))
    assert refused.value.param == name


def test_prompt_texts_are_those_of_a_chat_template() -> None:
    """Contents, calls and results; not roles, ids and options. Tools as JSON."""
    read = read_prompt_texts(encoded(temperature=0.2, user="me", messages=[
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is it?"},
                                     {"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a cat"}], tools=[{"type": "function"}]))
    assert read is not None
    assert read.texts == ("Be brief.", "What is it?", "look", '{"at":1}', "a cat")
    assert (read.n_messages, read.has_media) == (4, True)
    assert json.loads(read.tools) == [{"type": "function"}]


@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES, Api.RESPONSES])
def test_prompt_texts_of_every_dialect_are_found(api: Api) -> None:
    """Requests with all known fields have texts."""
    read = read_prompt_texts(encoded(**FULL[api]))
    assert read is not None
    assert read.texts
    assert read.n_messages


@given(st.binary(max_size=200))
def test_prompt_texts_of_any_bytes_never_raise(body: bytes) -> None:
    """None where the form is unknown."""
    read_prompt_texts(body)
    parse_upstream_count(body)


@pytest.mark.parametrize(("body", "count"), [
    (b'{"input_tokens":5}', UpstreamCount(5)), (b'{"object":"response.input_tokens","input_tokens":5}', UpstreamCount(5)),
    (b'{"totalTokens":5,"promptTokensDetails":[]}', UpstreamCount(5)), (b'{"inputTokens":5}', UpstreamCount(5)),
    (b'{"count":2,"max_model_len":32,"tokens":[1,2]}', UpstreamCount(2, [1, 2], 32)),
    (b'{"input_tokens":-1}', None), (b"{}", None), (b"[]", None)])
def test_upstream_count_of_every_kind_is_read(body: bytes, count: UpstreamCount | None) -> None:
    """Anthropic, OpenAI, Gemini, Bedrock, vLLM; anything else is no count."""
    assert parse_upstream_count(body) == count
