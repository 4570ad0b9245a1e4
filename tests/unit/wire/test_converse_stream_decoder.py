"""Converse answers, streamed and whole, for clients of all protocols."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import Api, Usage
from stayfast.wire.event_stream import encode_event_frame, encode_exception_frame
from stayfast.wire.transcode import Transcoder, make_transcoder
from tests.unit.wire.altered_json import JSON, paths, replaced
from tests.unit.wire.converse_reference import CALLS, METADATA, START, TEXT, THOUGHT, delta, frames, stop, whole
from tests.unit.wire.recorded import request

CLIENTS = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)
USED = Usage(input_total=20, output=6, cached_read=5, cache_write_5m=2, cache_write_1h=1, tier="flex")


def _coder(client: Api, *, stream: bool, source_streams: bool = True) -> Transcoder:
    return make_transcoder(Api.CONVERSE, request(client, stream=stream), source_streams=source_streams, upstream="up",
                           answer_id="r1", created_at=7)


def _read(coder: Transcoder, *reads: bytes) -> bytes:
    """All bytes for the client."""
    chunks = [*(coder.feed(read) for read in reads), coder.finish()]
    return b"".join(chunk.data for chunk in chunks if chunk is not None)


def _answer(client: Api, events: tuple[tuple[str, dict[str, Any]], ...]) -> dict[str, Any]:
    """The whole answer that a client without a stream gets of these events."""
    answer: dict[str, Any] = json.loads(_read(_coder(client, stream=False), frames(events)))
    return answer


@pytest.mark.parametrize("client", CLIENTS)
def test_stream_text_complete_with_usage_after_the_stop(client: Api) -> None:
    coder = _coder(client, stream=True)
    said = _read(coder, frames(TEXT)).decode()
    summary = coder.summary
    assert summary.failure is None
    assert (summary.is_complete, summary.n_content) == (True, 2)
    assert (summary.finish_reason, summary.usage) == ("end_turn", USED)
    assert said.index("Hé") < said.index("llo")


@pytest.mark.parametrize("client", CLIENTS)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_stream_split_anywhere_same_bytes(client: Api, cuts: list[int]) -> None:
    events = TEXT if client is Api.COMPLETIONS else CALLS
    data = frames(events)
    at = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    reads = [data[start:end] for start, end in pairwise(at)]
    assert _read(_coder(client, stream=True), *reads) == _read(_coder(client, stream=True), data)


def test_stream_without_metadata_complete_without_usage() -> None:
    coder = _coder(Api.CHAT, stream=True)
    coder.feed(frames(TEXT[:-1]))
    assert not coder.summary.is_complete
    coder.finish()
    assert (coder.summary.is_complete, coder.summary.usage) == (True, None)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("n_events", range(5))
def test_stream_cut_before_the_stop_truncated(client: Api, n_events: int) -> None:
    coder = _coder(client, stream=True)
    said = _read(coder, frames(TEXT[:n_events]))
    failure = coder.summary.failure
    assert isinstance(failure, UpstreamFailed)
    assert (failure.fault, failure.can_retry, coder.summary.is_complete) == (Fault.TRUNCATED, True, False)
    assert b"[DONE]" not in said


def test_stream_cut_inside_the_stop_frame_truncated() -> None:
    coder = _coder(Api.CHAT, stream=True)
    _read(coder, frames(TEXT[:-1])[:-3])
    assert isinstance(coder.summary.failure, UpstreamFailed)
    assert coder.summary.failure.fault is Fault.TRUNCATED


def test_stream_bad_checksum_malformed_after_good_frames() -> None:
    coder = _coder(Api.CHAT, stream=True)
    data = bytearray(frames(TEXT))
    data[-len(frames(TEXT[2:])) + 60] ^= 1  # of the second piece of text
    said = _read(coder, bytes(data))
    assert isinstance(coder.summary.failure, UpstreamFailed)
    assert coder.summary.failure.fault is Fault.MALFORMED
    assert "Hé" in said.decode()
    assert b"llo" not in said


def test_chat_tool_calls_have_ids_names_and_arguments() -> None:
    answer = _answer(Api.CHAT, CALLS)
    choice = answer["choices"][0]
    assert (answer["id"], answer["created"], choice["finish_reason"]) == ("chatcmpl-r1", 7, "tool_calls")
    assert choice["message"]["content"] == "Well."
    assert choice["message"]["tool_calls"] == [
        {"id": "tooluse_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}},
        {"id": "tooluse_b", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 5, "cache_write_tokens": 3}


def test_messages_reasoning_keeps_signature_and_redacted_blocks() -> None:
    answer = _answer(Api.MESSAGES, THOUGHT)
    assert answer["content"] == [
        {"type": "thinking", "thinking": "Hmm", "signature": "c2ln"}, {"type": "redacted_thinking", "data": "aGlkZGVu"},
        {"type": "text", "text": "Yes"}]
    assert answer["id"] == "msg_r1"
    assert (answer["usage"]["input_tokens"], answer["usage"]["cache_read_input_tokens"]) == (12, 5)
    assert answer["usage"]["cache_creation"] == {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 1}


def test_responses_answer_has_an_id() -> None:
    answer = _answer(Api.RESPONSES, CALLS)
    assert answer["id"] == "resp_r1"
    assert [item["type"] for item in answer["output"]] == ["message", "function_call", "function_call"]


WHOLE: list[dict[str, Any]] = [{"reasoningContent": {"reasoningText": {"text": "Hmm", "signature": "c2ln"}}},
         {"reasoningContent": {"redactedContent": "aGlkZGVu"}}, {"text": "Well."},
         {"toolUse": {"toolUseId": "tooluse_a", "name": "weather", "input": {"city": "Köln"}}},
         {"toolUse": {"toolUseId": "tooluse_b", "name": "clock", "input": {}}}]


@pytest.mark.parametrize("client", [Api.CHAT, Api.RESPONSES, Api.MESSAGES])
def test_whole_answer_same_as_streamed(client: Api) -> None:
    events = (*THOUGHT[:8], delta(2, text="Well."), ("contentBlockStop", {"contentBlockIndex": 2}),
              ("contentBlockStart", {"start": {"toolUse": {"toolUseId": "tooluse_a", "name": "weather"}},
                                     "contentBlockIndex": 3}),
              delta(3, toolUse={"input": '{"city":"Köln"}'}), ("contentBlockStop", {"contentBlockIndex": 3}),
              ("contentBlockStart", {"start": {"toolUse": {"toolUseId": "tooluse_b", "name": "clock"}},
                                     "contentBlockIndex": 4}),
              ("contentBlockStop", {"contentBlockIndex": 4}), stop("tool_use"), METADATA)
    coder = _coder(client, stream=False, source_streams=False)
    assert json.loads(_read(coder, whole(WHOLE, "tool_use"))) == _answer(client, events)
    assert (coder.summary.usage, coder.summary.finish_reason) == (USED, "tool_use")


def test_whole_citations_are_text() -> None:
    coder = _coder(Api.CHAT, stream=False, source_streams=False)
    answer = json.loads(_read(coder, whole([{"citationsContent": {"content": [{"text": "So "}, {"text": "it is"}]}}])))
    assert answer["choices"][0]["message"]["content"] == "So it is"


@pytest.mark.parametrize(("reason", "chat", "messages"), [
    ("end_turn", "stop", "end_turn"), ("stop_sequence", "stop", "end_turn"), ("max_tokens", "length", "max_tokens"),
    ("model_context_window_exceeded", "length", "max_tokens"), ("guardrail_intervened", "content_filter", "refusal"),
    ("content_filtered", "content_filter", "refusal"), ("a_new_reason", "stop", "end_turn")])
def test_stop_reason_has_the_clients_name(reason: str, chat: str, messages: str) -> None:
    events = (*TEXT[:4], stop(reason), METADATA)
    assert _answer(Api.CHAT, events)["choices"][0]["finish_reason"] == chat
    assert _answer(Api.MESSAGES, events)["stop_reason"] == messages


def test_stop_sequence_is_named_for_messages() -> None:
    answer = _answer(Api.MESSAGES, (*TEXT[:4], stop("stop_sequence", additionalModelResponseFields={"stop_sequence": "."})))
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", ".")


@pytest.mark.parametrize("reason", ["malformed_model_output", "malformed_tool_use"])
def test_malformed_stop_retryable_failure(reason: str) -> None:
    streamed, collected = _coder(Api.CHAT, stream=True), _coder(Api.CHAT, stream=False, source_streams=False)
    _read(streamed, frames((*TEXT[:4], stop(reason), METADATA)))
    _read(collected, whole([{"text": "x"}], reason))
    for coder in (streamed, collected):
        failure = coder.summary.failure
        assert isinstance(failure, UpstreamFailed)
        assert (failure.fault, failure.can_retry, failure.status) == (Fault.IN_BAND, True, 502)
        assert failure.message.endswith(f"stopped with {reason}")


@pytest.mark.parametrize(("name", "status", "can_retry", "client_status"), [
    ("throttlingException", 429, True, 429), ("modelStreamErrorException", 502, True, 502),
    ("validationException", 400, False, 400), ("internalServerException", 500, True, 502),
    ("serviceUnavailableException", 503, True, 503), ("newException", 500, True, 502)])
def test_exception_in_the_stream_fault_and_retry(name: str, status: int, can_retry: bool, client_status: int) -> None:
    coder = _coder(Api.CHAT, stream=True)
    _read(coder, frames(TEXT[:2]) + encode_exception_frame(name, b'{"message":"why"}') + frames(TEXT[2:]))
    failure = coder.summary.failure
    assert isinstance(failure, UpstreamFailed)
    assert (failure.fault, failure.upstream_status, failure.can_retry) == (Fault.IN_BAND, status, can_retry)
    assert failure.status == client_status
    assert not coder.summary.is_complete


def test_early_end_is_a_valid_answer() -> None:
    coder = _coder(Api.MESSAGES, stream=True)
    coder.feed(frames(TEXT[:3]))
    last = coder.end_early()
    assert last is not None
    assert b"message_stop" in last.data
    assert coder.summary.is_cut


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b"{}", b'{"output":{"message":{"content":1}}}', b'{"output":1}'])
def test_whole_body_of_the_wrong_form_malformed(body: bytes) -> None:
    coder = _coder(Api.CHAT, stream=False, source_streams=False)
    assert _read(coder, body) == b""
    assert isinstance(coder.summary.failure, UpstreamFailed)
    assert coder.summary.failure.fault is Fault.MALFORMED


@settings(max_examples=300, deadline=None)
@given(client=st.sampled_from(CLIENTS), events=st.sampled_from([TEXT, CALLS, THOUGHT]), stream=st.booleans(),
       data=st.data())
def test_stream_with_one_value_replaced_never_raises(client: Api, events: tuple[tuple[str, dict[str, Any]], ...],
                                                     stream: bool, data: st.DataObject) -> None:
    """An event of a wrong type is passed, dropped or a failure."""
    at = data.draw(st.integers(0, len(events) - 1))
    name, event = events[at]
    path = data.draw(st.sampled_from(paths(event)))
    raw = encode_event_frame(name, json.dumps(replaced(event, path, data.draw(JSON))).encode())
    coder = _coder(client, stream=stream)
    _read(coder, frames(events[:at]) + raw + frames(events[at + 1:]))
    assert coder.summary.is_complete is (coder.summary.failure is None)


@settings(max_examples=200, deadline=None)
@given(client=st.sampled_from(CLIENTS), data=st.data())
def test_whole_with_one_value_replaced_never_raises(client: Api, data: st.DataObject) -> None:
    body = json.loads(whole(WHOLE, "tool_use"))
    coder = _coder(client, stream=False, source_streams=False)
    path = data.draw(st.sampled_from(paths(body)))
    _read(coder, json.dumps(replaced(body, path, data.draw(JSON))).encode())
    assert coder.summary.is_complete is (coder.summary.failure is None)


def test_metadata_before_the_stop_is_no_end() -> None:
    coder = _coder(Api.CHAT, stream=True)
    _read(coder, frames((START, delta(0, text="x"), METADATA)))
    assert isinstance(coder.summary.failure, UpstreamFailed)
