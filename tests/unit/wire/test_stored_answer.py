"""Which answers are stored, and which stored answers can be replayed as a stream."""

from typing import Any

import msgspec
import pytest

from stayfast.core.types import AnswerSummary, Api, Request
from stayfast.wire.chat.stream_decoder import ChatDecoder
from stayfast.wire.request_body import decode
from stayfast.wire.stored_answer import encode_stored_stream, read_stored_text, storable_body
from stayfast.wire.stream_report import REPORT_MEMBER

HELLO = [{"role": "user", "content": "hello"}]
CHAT: dict[str, Any] = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "m", "system_fingerprint": "fp",
    "choices": [{"index": 0, "logprobs": None, "finish_reason": "stop", "message": {
        "role": "assistant", "content": "Hi.", "refusal": None, "annotations": []}}]}
MESSAGES: dict[str, Any] = {
    "id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn", "stop_sequence": None,
    "content": [{"type": "text", "text": "Hi.", "citations": None}], "usage": {"input_tokens": 1, "output_tokens": 1}}
RESPONSE: dict[str, Any] = {
    "id": "r", "object": "response", "created_at": 1, "status": "completed", "model": "m", "error": None, "output": [
        {"id": "msg", "type": "message", "status": "completed", "role": "assistant", "content": [
            {"type": "output_text", "text": "Hi.", "annotations": [], "logprobs": []}]}]}
WHOLE = {Api.CHAT: CHAT, Api.MESSAGES: MESSAGES, Api.RESPONSES: RESPONSE}
CITED = {"type": "url_citation", "url": "https://example.com"}


def asking(api: Api) -> Request:
    """A request for a stream."""
    said = {"input": "hello"} if api is Api.RESPONSES else {"messages": HELLO}
    return decode(api, msgspec.json.encode({"model": "m", "stream": True, "max_tokens": 9, **said}))


def changed(api: Api, path: list[Any], value: object) -> bytes:
    """The whole answer, with one member more."""
    whole = msgspec.json.decode(msgspec.json.encode(WHOLE[api]))
    place = whole
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return bytes(msgspec.json.encode(whole))


@pytest.mark.parametrize("api", list(WHOLE))
def test_in_events_whole_answer_becomes_a_stream(api: Api) -> None:
    """Empty members and metadata are no obstacle."""
    assert b"Hi." in encode_stored_stream(asking(api), msgspec.json.encode(WHOLE[api]))


@pytest.mark.parametrize(("api", "path", "value"), [
    (Api.CHAT, ["choices", 0, "message", "annotations"], [CITED]), (Api.CHAT, ["choices", 0, "message", "weird"], "W"),
    (Api.CHAT, ["citations"], ["https://example.com"]), (Api.CHAT, ["choices", 0, "logprobs"], {"content": [1]}),
    (Api.MESSAGES, ["content", 0, "citations"], [CITED]), (Api.MESSAGES, ["content", 0, "type"], "redacted_thinking"),
    (Api.MESSAGES, ["weird"], 1), (Api.RESPONSES, ["output", 0, "content", 0, "annotations"], [CITED]),
    (Api.RESPONSES, ["output", 0, "weird"], 1), (Api.RESPONSES, ["citations"], ["https://example.com"])])
def test_in_events_answer_with_unknown_fields_is_rejected(api: Api, path: list[Any], value: object) -> None:
    """A stream would lose the field."""
    with pytest.raises(ValueError, match="cannot hold"):
        encode_stored_stream(asking(api), changed(api, path, value))


@pytest.mark.parametrize("api", WHOLE)
def test_read_stored_text_unreadable_number_is_empty(api: Api) -> None:
    """JSON allows numbers beyond every float; a chat answer that has one is passed through unread."""
    body = msgspec.json.encode(WHOLE[api])
    odd = body[:-1] + b',"odd":1e999}'
    assert read_stored_text(asking(api), body) == "Hi."
    assert read_stored_text(asking(api), odd) == ""


def test_is_storable_several_choices_are_not_stored() -> None:
    """One choice was requested."""
    request = msgspec.structs.replace(asking(Api.CHAT), stream=False)
    summary = AnswerSummary()
    summary.is_complete, summary.n_content, summary.finish_reason = True, 1, "stop"
    assert storable_body(request, summary, msgspec.json.encode(CHAT)) is not None
    other = {"index": 1, "message": {"role": "assistant", "content": "other"}}
    assert storable_body(request, summary, changed(Api.CHAT, ["choices"], [*CHAT["choices"], other])) is None


REPORT = {"request_id": "of another", "upstream": "u", "attempts": 1, "timings_ms": {"total": 1.0}}
USAGE = {"input_tokens": 1, "output_tokens": 1}
ENDS: dict[Api, Any] = {  # the stream of a gateway behind us: its last event, by the report in it
    Api.CHAT: lambda report: [
        {**CHAT, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "Hi."}}]},
        {**CHAT, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
         "stayfast": report}],
    Api.MESSAGES: lambda report: [
        {"type": "message_start", "message": {**MESSAGES, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE, "stayfast": report},
        {"type": "message_stop"}],
    Api.RESPONSES: lambda report: [{"type": "response.completed", "response": {**RESPONSE, "stayfast": report}}]}


@pytest.mark.parametrize("api", list(WHOLE))
def test_is_storable_gateway_report_is_removed(api: Api) -> None:
    """The report belongs to another request; a degraded answer is not stored at all."""
    summary = AnswerSummary()
    summary.is_complete, summary.n_content = True, 1
    summary.finish_reason = {Api.CHAT: "stop", Api.MESSAGES: "end_turn"}.get(api, "completed")
    plain, degraded = (b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in ENDS[api](report))
                       for report in (REPORT, {**REPORT, "degraded": "template"}))
    kept = storable_body(asking(api), summary, plain)
    assert kept is not None
    assert REPORT_MEMBER not in msgspec.json.decode(kept)
    assert b"Hi." in encode_stored_stream(asking(api), kept)
    assert storable_body(asking(api), summary, degraded) is None
    whole = msgspec.structs.replace(asking(api), stream=False)
    kept = storable_body(whole, summary, changed(api, ["stayfast"], REPORT))
    assert kept is not None
    assert REPORT_MEMBER not in msgspec.json.decode(kept)
    assert storable_body(whole, summary, changed(api, ["stayfast"], {**REPORT, "degraded": "partial"})) is None


@pytest.mark.parametrize(("message", "is_kept"), [
    (b'"content": "ab"', True), (b'"content": "ab", "tool_calls": []', True),
    (b'"content": "ab", "tool_calls": null, "refusal": null', True), (b'"content": "ab", "refusal": ""', True),
    (b'"content": null', False), (b'"content": ""', False), (b"", False), (b'"content": ["ab"]', False),
    (b'"content": "ab", "tool_calls": [{}]', False), (b'"content": "ab", "refusal": "No."', False),
    (b'"content": "ab", "function_call": {"name": "f"}', False)])
def test_is_storable_chat_answer_only_if_text(message: bytes, is_kept: bool) -> None:
    body = b'{"id": "c", "choices": [{"message": {%b}, "finish_reason": "stop"}]}' % message
    request = decode(Api.CHAT, b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}')
    summary = AnswerSummary()
    ChatDecoder("u", 1, summary).read_body(body)
    assert (storable_body(request, summary, body) is not None) is is_kept



def test_in_events_geminis_signature_of_a_text_is_no_obstacle() -> None:
    """Gemini does not require it; the stream leaves it out where its dialect has no place."""
    signed = {"google": {"thought_signature": "c2ln"}}
    chat = changed(Api.CHAT, ["choices", 0, "message", "extra_content"], signed)
    assert b"Hi." in encode_stored_stream(asking(Api.CHAT), chat)
    item = {"id": "rs", "type": "reasoning", "status": "completed", "summary": [], "encrypted_content": "gemini:c2ln"}
    response = changed(Api.RESPONSES, ["output"], [*RESPONSE["output"], item])
    assert b"Hi." in encode_stored_stream(asking(Api.RESPONSES), response)
    foreign = changed(Api.RESPONSES, ["output"], [*RESPONSE["output"], {**item, "encrypted_content": "gAAAA"}])
    with pytest.raises(ValueError, match="cannot hold"):
        encode_stored_stream(asking(Api.RESPONSES), foreign)


def test_storable_geminis_answer_is_stored_as_translated() -> None:
    """Its finish reason is Gemini's own word."""
    summary = AnswerSummary()
    summary.is_complete, summary.n_content, summary.finish_reason = True, 1, "STOP"
    request = decode(Api.CHAT, msgspec.json.encode({"model": "m", "messages": HELLO}))
    assert storable_body(request, summary, msgspec.json.encode(CHAT)) is not None
    summary.finish_reason = "MAX_TOKENS"
    assert storable_body(request, summary, msgspec.json.encode(CHAT)) is None
