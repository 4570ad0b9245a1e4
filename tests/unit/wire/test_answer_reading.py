"""What is read of a whole answer for its checks, in each dialect."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Api, Request
from stayfast.wire.answer_reading import read_answer, read_wanted_output

MESSAGE = [{"role": "user", "content": "q"}]


def request(api: Api, *, stream: bool = False, **fields: Any) -> Request:
    return Request(api, "m", stream, msgspec.json.encode({"model": "m", "messages": MESSAGE, **fields}))


def chat(message: dict[str, Any], **choice: Any) -> bytes:
    return msgspec.json.encode({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": "stop", **choice}]})


def test_chat_text_and_logprobs() -> None:
    data = chat({"content": "yes"}, logprobs={"content": [{"token": "yes", "logprob": -0.25, "top_logprobs": []}]})
    found = read_answer(request(Api.CHAT), data)
    assert found is not None
    assert (found.text, found.logprobs, found.has_refusal, found.has_tool_calls) == ("yes", (-0.25,), False, False)


def test_chat_refusal_and_tool_calls() -> None:
    refused = read_answer(request(Api.CHAT), chat({"refusal": "No."}))
    assert refused is not None
    assert refused.has_refusal
    called = read_answer(request(Api.CHAT), chat({"tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}))
    assert called is not None
    assert called.has_tool_calls


def test_chat_stream_is_collected() -> None:
    chunks = [{"id": "1", "choices": [{"index": 0, "delta": {"content": part}, "finish_reason": None, "logprobs": {
        "content": [{"token": part, "logprob": -0.5}]}}]} for part in ("ye", "s")]
    data = b"".join(b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in chunks) + b"data: [DONE]\n\n"
    found = read_answer(request(Api.CHAT, stream=True), data)
    assert found is not None
    assert (found.text, found.logprobs) == ("yes", (-0.5, -0.5))


def test_completions_logprobs_skip_null() -> None:
    data = msgspec.json.encode({"id": "1", "object": "text_completion", "created": 1, "model": "m", "choices": [
        {"index": 0, "text": "yes", "finish_reason": "stop", "logprobs": {"token_logprobs": [None, -1.0]}}]})
    found = read_answer(Request(Api.COMPLETIONS, "m", False, b'{"prompt":"q"}'), data)
    assert found is not None
    assert (found.text, found.logprobs) == ("yes", (-1.0,))


def test_messages_refusal_is_a_stop_reason() -> None:
    data = msgspec.json.encode({"id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "refusal",
                                "content": [{"type": "text", "text": "I"}],
                                "usage": {"input_tokens": 1, "output_tokens": 1}})
    found = read_answer(request(Api.MESSAGES, max_tokens=5), data)
    assert found is not None
    assert found.has_refusal
    assert found.text == "I"


def test_responses_refusal_part_logprobs_and_calls() -> None:
    parts = [{"type": "output_text", "text": "a", "annotations": [], "logprobs": [{"token": "a", "logprob": -2}]},
             {"type": "refusal", "refusal": "no"}]
    data = msgspec.json.encode({"id": "1", "object": "response", "status": "completed", "output": [
        {"type": "message", "id": "2", "role": "assistant", "status": "completed", "content": parts},
        {"type": "function_call", "id": "3", "call_id": "4", "name": "f", "arguments": "{}"}]})
    found = read_answer(Request(Api.RESPONSES, "m", False, b'{"input":"q"}'), data)
    assert found is not None
    assert (found.has_refusal, found.has_tool_calls, found.logprobs) == (True, True, (-2.0,))


@pytest.mark.parametrize(("api", "fields", "is_json", "schema"), [
    (Api.CHAT, {}, False, None), (Api.CHAT, {"response_format": {"type": "text"}}, False, None),
    (Api.CHAT, {"response_format": {"type": "json_object"}}, True, None),
    (Api.CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array"}}}}, True,
     {"type": "array"}),
    (Api.RESPONSES, {"text": {"format": {"type": "json_schema", "schema": {"type": "array"}}}}, True, {"type": "array"}),
    (Api.MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": {"type": "array"}}}}, True,
     {"type": "array"})])
def test_wanted_output_by_dialect(api: Api, fields: dict[str, Any], is_json: bool, schema: object) -> None:
    assert read_wanted_output(request(api, **fields)) == (is_json, schema)


@given(st.sampled_from([Api.CHAT, Api.COMPLETIONS, Api.MESSAGES, Api.RESPONSES, Api.EMBEDDINGS]), st.booleans(),
       st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.dictionaries(
           st.sampled_from(["choices", "message", "content", "output", "logprobs", "type", "text"]), inner, max_size=4)
           | st.lists(inner, max_size=3), max_leaves=8).map(msgspec.json.encode))
def test_reading_never_raises(api: Api, stream: bool, data: bytes) -> None:
    read_answer(Request(api, "m", stream, data), data)
    read_wanted_output(Request(api, "m", stream, data))
