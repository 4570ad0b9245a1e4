"""Pieces, completeness and errors of answers in each dialect."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.types import AnswerSummary, Api
from stayfast.lab.load.reader import HIDDEN, NOTHING, SHOWN, AnswerParser, parser_for
from stayfast.lab.load.result import Error
from stayfast.wire.chat.stream_decoder import ChatDecoder
from stayfast.wire.messages.stream_decoder import MessagesDecoder
from stayfast.wire.responses.stream_decoder import ResponsesDecoder


def chat(**delta: Any) -> dict[str, Any]:
    """A chat chunk with this delta."""
    return {"id": "c", "choices": [{"index": 0, "delta": delta}]}


def block(**delta: Any) -> dict[str, Any]:
    """A messages event with this delta."""
    return {"type": "content_block_delta", "index": 0, "delta": delta}


PIECES: list[tuple[Api, dict[str, Any], int]] = [
    (Api.CHAT, chat(role="assistant", content=""), NOTHING),
    (Api.CHAT, chat(role="assistant"), NOTHING),
    (Api.CHAT, chat(content="a"), SHOWN),
    (Api.CHAT, chat(content=[{"type": "text", "text": "a"}]), SHOWN),
    (Api.CHAT, chat(refusal="no"), SHOWN),
    (Api.CHAT, chat(reasoning_content="hm"), HIDDEN),
    (Api.CHAT, chat(reasoning="hm"), HIDDEN),
    (Api.CHAT, chat(reasoning_details=[{"type": "reasoning.text", "text": "hm"}]), HIDDEN),
    (Api.CHAT, chat(reasoning_details=[{"type": "reasoning.encrypted", "data": "xx"}]), NOTHING),
    (Api.CHAT, chat(reasoning_content="hm", content="a"), SHOWN),
    (Api.CHAT, chat(tool_calls=[{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]), NOTHING),
    (Api.CHAT, chat(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]), SHOWN),
    (Api.CHAT, {"id": "c", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}, NOTHING),
    (Api.CHAT, {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, NOTHING),
    (Api.COMPLETIONS, {"id": "c", "choices": [{"index": 0, "text": "a"}]}, SHOWN),
    (Api.COMPLETIONS, {"id": "c", "choices": [{"index": 0, "text": ""}]}, NOTHING),
    (Api.MESSAGES, {"type": "message_start", "message": {"usage": {"input_tokens": 3}}}, NOTHING),
    (Api.MESSAGES, {"type": "ping"}, NOTHING),
    (Api.MESSAGES, {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, NOTHING),
    (Api.MESSAGES, block(type="text_delta", text="a"), SHOWN),
    (Api.MESSAGES, block(type="text_delta", text=""), NOTHING),
    (Api.MESSAGES, block(type="thinking_delta", thinking="hm"), HIDDEN),
    (Api.MESSAGES, block(type="signature_delta", signature="xx"), NOTHING),
    (Api.MESSAGES, block(type="input_json_delta", partial_json=""), NOTHING),
    (Api.MESSAGES, block(type="input_json_delta", partial_json="{"), SHOWN),
    (Api.RESPONSES, {"type": "response.created", "response": {"id": "r"}}, NOTHING),
    (Api.RESPONSES, {"type": "response.output_text.delta", "delta": "a"}, SHOWN),
    (Api.RESPONSES, {"type": "response.output_text.delta", "delta": ""}, NOTHING),
    (Api.RESPONSES, {"type": "response.function_call_arguments.delta", "delta": "{"}, SHOWN),
    (Api.RESPONSES, {"type": "response.reasoning_summary_text.delta", "delta": "hm"}, HIDDEN),
    (Api.RESPONSES, {"type": "response.output_text.done", "text": "a"}, NOTHING),
]


@pytest.mark.parametrize(("api", "event", "piece"), PIECES)
def test_parser_finds_pieces_of_each_dialect(api: Api, event: dict[str, Any], piece: int) -> None:
    """Only non-empty generated pieces count for the first token."""
    reader = parser_for(api)
    assert reader.read_event(json.dumps(event).encode(), b"") == piece
    assert not reader.has_ended


ENDS: list[tuple[Api, list[str], Error]] = [
    (Api.CHAT, ['{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}', "[DONE]"], Error.NONE),
    (Api.CHAT, ['{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'], Error.NONE),
    (Api.CHAT, ['{"choices":[{"index":0,"delta":{"content":"a"}}]}', "[DONE]"], Error.TRUNCATED),
    (Api.CHAT, ['{"choices":[{"index":0,"delta":{"content":"a"}}]}'], Error.TRUNCATED),
    (Api.CHAT, ['{"error":{"message":"no"}}'], Error.STREAM_ERROR),
    (Api.CHAT, ["{"], Error.MALFORMED),
    (Api.CHAT, ['{"choices":7}'], Error.MALFORMED),
    (Api.MESSAGES, ['{"type":"message_stop"}'], Error.NONE),
    (Api.MESSAGES, ['{"type":"message_delta","delta":{"stop_reason":"end_turn"}}'], Error.TRUNCATED),
    (Api.MESSAGES, ['{"type":"error","error":{"type":"overloaded_error","message":"no"}}'], Error.STREAM_ERROR),
    (Api.RESPONSES, ['{"type":"response.completed","response":{"usage":{"output_tokens":4}}}'], Error.NONE),
    (Api.RESPONSES, ['{"type":"response.incomplete","response":{}}'], Error.NONE),
    (Api.RESPONSES, ['{"type":"response.failed","response":{"error":{}}}'], Error.STREAM_ERROR),
    (Api.RESPONSES, ['{"type":"error","message":"no"}'], Error.STREAM_ERROR),
    (Api.RESPONSES, ['{"type":"response.output_text.delta","delta":"a"}', "[DONE]"], Error.TRUNCATED),
]


@pytest.mark.parametrize(("api", "events", "error"), ENDS)
def test_parser_stream_end_decides_completeness(api: Api, events: list[str], error: Error) -> None:
    reader = parser_for(api)
    for event in events:
        reader.read_event(event.encode(), b"")
    reader.finish()
    assert (reader.has_ended, reader.error) == (True, error)


WHOLES: list[tuple[Api, str, Error, int]] = [
    (Api.CHAT, '{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":4}}', Error.NONE, 4),
    (Api.CHAT, '{"choices":[]}', Error.MALFORMED, 0),
    (Api.CHAT, '{"error":{"message":"no"}}', Error.STREAM_ERROR, 0),
    (Api.CHAT, "[]", Error.MALFORMED, 0),
    (Api.CHAT, "", Error.MALFORMED, 0),
    (Api.MESSAGES, '{"content":[],"usage":{"input_tokens":3,"output_tokens":5}}', Error.NONE, 5),
    (Api.MESSAGES, '{"type":"error","error":{"type":"x"}}', Error.STREAM_ERROR, 0),
    (Api.RESPONSES, '{"status":"completed","output":[],"usage":{"input_tokens":3,"output_tokens":6}}', Error.NONE, 6),
    (Api.RESPONSES, '{"status":"failed","output":[],"error":null}', Error.MALFORMED, 0),
]


@pytest.mark.parametrize(("api", "body", "error", "n_output"), WHOLES)
def test_parser_reads_whole_answers(api: Api, body: str, error: Error, n_output: int) -> None:
    reader = parser_for(api)
    reader.read_body(body.encode())
    assert (reader.has_ended, reader.error) == (True, error)
    assert (reader.usage.output if reader.usage else 0) == n_output


@pytest.mark.parametrize(("api", "body", "is_empty"), [
    (Api.CHAT, '{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}', True),
    (Api.CHAT, '{"choices":[{"message":{"content":null,"tool_calls":[{"id":"t"}]}}]}', False),
    (Api.CHAT, '{"choices":[{"message":{"content":null,"reasoning_content":"hm"}}]}', False),
    (Api.COMPLETIONS, '{"choices":[{"text":""}]}', True),
    (Api.COMPLETIONS, '{"choices":[{"text":"a"}]}', False),
    (Api.MESSAGES, '{"content":[]}', True),
    (Api.MESSAGES, '{"content":[{"type":"text","text":""}]}', True),
    (Api.MESSAGES, '{"content":[{"type":"text","text":"a"}]}', False),
    (Api.MESSAGES, '{"content":[{"type":"tool_use","name":"f","input":{}}]}', False),
    (Api.RESPONSES, '{"status":"completed","output":[]}', True),
    (Api.RESPONSES, '{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":""}]}]}',
     True),
    (Api.RESPONSES, '{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"a"}]}]}',
     False),
    (Api.RESPONSES, '{"status":"completed","output":[{"type":"function_call","name":"f","arguments":"{}"}]}', False),
])
def test_parser_whole_answer_without_content_is_empty(api: Api, body: str, is_empty: bool) -> None:
    reader = parser_for(api)
    reader.read_body(body.encode())
    assert (reader.error, reader.is_empty) == (Error.NONE, is_empty)


JSON = st.recursive(st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
                        ["choices", "delta", "content", "type", "response", "usage", "message", "error", "tool_calls",
                         "function", "arguments", "finish_reason", "content_block", "text"]), inner, max_size=4),
                    max_leaves=12)


@settings(deadline=None)
@given(st.sampled_from([Api.CHAT, Api.COMPLETIONS, Api.MESSAGES, Api.RESPONSES]), st.lists(JSON | st.binary(max_size=9),
                                                                                         max_size=5))
def test_parser_any_events_raise_nothing(api: Api, events: list[Any]) -> None:
    """Any input becomes an error of the sample."""
    reader, whole = parser_for(api), parser_for(api)
    for event in events:
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        reader.read_event(data, b"")
        whole.read_body(data)
    reader.finish()
    assert reader.has_ended


def gateways(api: Api) -> ChatDecoder | MessagesDecoder | ResponsesDecoder:
    """The gateway's own decoder of the same dialect."""
    if api is Api.MESSAGES:
        return MessagesDecoder("u", AnswerSummary())
    return ResponsesDecoder("u", AnswerSummary()) if api is Api.RESPONSES else ChatDecoder("u", 1, AnswerSummary())


@pytest.mark.parametrize(("api", "events", "error"), ENDS)
def test_parser_and_gateway_agree_on_ends(api: Api, events: list[str], error: Error) -> None:
    """Two independent implementations of completeness."""
    source = gateways(api)
    for event in events:
        if not source.has_ended:
            source.read_event(event.encode(), b"")
    source.finish()
    assert source.summary.is_complete == (error is Error.NONE)


# Where the definition of a piece is stricter than the gateway's: it counts as content that a tool call has a name.
STRICTER = ('"name": "f"', '"partial_json": ""')


@pytest.mark.parametrize(("api", "event", "piece"), PIECES)
def test_parser_and_gateway_agree_on_content(api: Api, event: dict[str, Any], piece: int) -> None:
    text = json.dumps(event)
    n_content = gateways(api).read_event(text.encode(), b"")
    assert bool(n_content) == (piece != NOTHING) or any(part in text for part in STRICTER) or "reasoning_details" in text


def test_parser_for_each_dialect() -> None:
    """Each streaming dialect has a reader."""
    assert all(isinstance(parser_for(api), AnswerParser) for api in Api if api.can_stream)
