"""Answers in one piece: verbatim in one's own dialect, translated in another, failures found inside HTTP 200."""

import json
from typing import Any

import pytest
from anthropic.types import Message
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from stayfast.core.errors import UpstreamFailed
from stayfast.core.types import CLIENT_APIS, COUNT_APIS, AnswerSummary, Api, Chunk, Usage
from stayfast.wire.transcode import make_transcoder
from tests.unit.wire.recorded import MESSAGE_ITEM, Json, request, response
from tests.unit.wire.whole_answers import ANSWERS, CHAT, MESSAGE

TALKERS = (Api.CHAT, Api.RESPONSES, Api.MESSAGES)


def answer(source: Api, client: Api, body: bytes, **fields: Any) -> tuple[bytes | None, AnswerSummary]:
    """`body` from an upstream that speaks `source`, for a client of `client`, fed byte by byte."""
    coder = make_transcoder(source, request(client, **fields), source_streams=False, upstream="up", created_at=77)
    for at in range(len(body)):
        assert coder.feed(body[at : at + 1]) is None
    last = coder.finish()
    assert last is None or isinstance(last, Chunk)
    return (None if last is None else last.data), coder.summary


@pytest.mark.parametrize("api", sorted(CLIENT_APIS))
def test_whole_own_dialect_passes_verbatim(api: Api) -> None:
    """The bytes are the upstream's, spaces and unknown fields included, and usage is read from them."""
    body = json.dumps({**ANSWERS[api], "unknown": 1.50}, indent=1).encode()
    got, summary = answer(api, api, body)
    assert got == body
    assert (summary.is_complete, summary.failure, summary.n_content) == (True, None, 1)
    assert (summary.usage is None) is (api in COUNT_APIS)


def test_whole_chat_answer_in_other_dialects() -> None:
    """Text, call, reason and usage, in models that the official SDKs validate."""
    got, _ = answer(Api.CHAT, Api.MESSAGES, json.dumps(CHAT).encode())
    message = Message.model_validate_json(got or b"")
    assert [block.type for block in message.content] == ["text", "tool_use"]
    assert (message.stop_reason, message.usage.input_tokens, message.usage.cache_read_input_tokens) == ("tool_use", 12, 8)
    got, _ = answer(Api.CHAT, Api.RESPONSES, json.dumps(CHAT).encode())
    said = Response.model_validate_json(got or b"")
    assert (said.output_text, said.status) == ("Hé", "completed")
    assert said.output[1].type == "function_call"
    assert said.usage is not None
    assert said.usage.total_tokens == 26
    got, _ = answer(Api.CHAT, Api.COMPLETIONS, json.dumps(CHAT).encode())
    assert Completion.model_validate_json(got or b"").choices[0].text == "Hé"


def test_whole_message_in_other_dialects() -> None:
    """Reasoning and an empty input are translated; ids are kept, a missing date is added."""
    got, _ = answer(Api.MESSAGES, Api.CHAT, json.dumps(MESSAGE).encode())
    said = ChatCompletion.model_validate_json(got or b"")
    assert (said.created, said.choices[0].message.content, said.choices[0].finish_reason) == (77, "Hé", "stop")
    assert said.choices[0].message.tool_calls is not None
    assert json.loads(got or b"")["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert said.usage is not None
    assert said.usage.prompt_tokens == 20
    got, _ = answer(Api.MESSAGES, Api.RESPONSES, json.dumps(MESSAGE).encode())
    assert [item.type for item in Response.model_validate_json(got or b"").output] == [
        "reasoning", "message", "function_call"]


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_whole_incomplete_responses(reason: str) -> None:
    """The reason is translated."""
    said = response("incomplete", [MESSAGE_ITEM], incomplete_details={"reason": reason})
    chat, summary = answer(Api.RESPONSES, Api.CHAT, json.dumps(said).encode())
    message, _ = answer(Api.RESPONSES, Api.MESSAGES, json.dumps(said).encode())
    chat_reason, stop_reason = {"max_output_tokens": ("length", "max_tokens"),
                                "content_filter": ("content_filter", "refusal")}[reason]
    assert json.loads(chat or b"")["choices"][0]["finish_reason"] == chat_reason
    assert json.loads(message or b"")["stop_reason"] == stop_reason
    assert summary.finish_reason == reason


@pytest.mark.parametrize("api", sorted(CLIENT_APIS))
def test_whole_error_inside_200_is_a_failure(api: Api) -> None:
    """An error object where the answer should be never reaches the client as an answer."""
    error: Json = {"error": {"type": "overloaded_error", "message": "secret trouble"}}
    got, summary = answer(api, api, json.dumps({"type": "error", **error} if api.is_anthropic else error).encode())
    assert got is None
    assert isinstance(summary.failure, UpstreamFailed)
    assert (summary.failure.fault, summary.failure.upstream_status) == ("in_band", 529)
    assert "secret" not in summary.failure.message
    assert not summary.is_complete


@pytest.mark.parametrize("api", sorted(CLIENT_APIS))
@pytest.mark.parametrize(("body", "fault"), [
    (b"", "truncated"), (b"  \n", "truncated"), (b"{", "malformed"), (b"<html>", "malformed"), (b"{}", "malformed"),
    (b"[]", "malformed"), (b"null", "malformed"), (b"\xff\xfe", "malformed"),
    (b'{"choices": 1, "content": 1, "output": 1, "data": 1, "input_tokens": "x"}', "malformed"),
    (b'{"choices": [1], "content": {}, "output": {}, "data": {}}', "malformed")])
def test_whole_invalid_answer_is_a_failure(api: Api, body: bytes, fault: str) -> None:
    """Empty, partial and foreign bodies."""
    got, summary = answer(api, api, body)
    assert got is None
    assert isinstance(summary.failure, UpstreamFailed)
    assert summary.failure.fault == fault


def test_whole_failed_response_is_a_failure() -> None:
    """Status failed inside HTTP 200 is the upstream's failure, with its code."""
    said = response("failed", [], error={"code": "rate_limit_exceeded", "message": "slow"})
    _, summary = answer(Api.RESPONSES, Api.RESPONSES, json.dumps(said).encode())
    assert isinstance(summary.failure, UpstreamFailed)
    assert (summary.failure.upstream_status, summary.failure.status) == (429, 429)


@pytest.mark.parametrize("source", TALKERS)
@pytest.mark.parametrize("client", TALKERS)
def test_whole_odd_parts_never_raise(source: Api, client: Api) -> None:
    """Parts of the wrong type are left out or fail the answer; no other exception leaves a transcoder."""
    strange: list[Json] = [
        {"choices": [{"message": {"content": 5, "tool_calls": [7, {"function": 3}, {"id": 1, "function": {"name": 2}}]}}]},
        {"choices": []}, {"choices": [{"message": {"content": [{"text": "part"}, 3]}}], "created": 1e300},
        {"content": [1, {"type": "text", "text": 7}, {"type": "tool_use", "input": [1]}], "usage": [1]},
        {"output": [1, {"type": "message", "content": 3}, {"type": "function_call"}], "incomplete_details": 3}]
    for said in strange:
        got, summary = answer(source, client, json.dumps(said).encode())
        assert (got is None) is (summary.failure is not None)


def test_whole_message_usage() -> None:
    """Anthropic's input counts are added up."""
    _, summary = answer(Api.MESSAGES, Api.CHAT, json.dumps(MESSAGE).encode())
    assert summary.usage == Usage(input_total=20, output=6, cached_read=8, cache_write_5m=2)
