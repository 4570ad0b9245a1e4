"""Messages answers, decoded and collected."""

import json
from collections.abc import Mapping

import pytest

from stayfast.core.types import AnswerSummary
from stayfast.wire.dialect import TextDelta, ToolBegin, ToolDelta
from stayfast.wire.messages.stream_decoder import MessagesCollector, MessagesDecoder


def read_events(*events: Mapping[str, object]) -> tuple[MessagesDecoder, AnswerSummary, list[object]]:
    """A decoder that has read these events, its summary, and the deltas."""
    summary = AnswerSummary()
    decoder = MessagesDecoder("u", summary)
    deltas: list[object] = []
    for event in events:
        decoder.read_event(json.dumps(event).encode(), b"")
        deltas += decoder.event_deltas()
    return decoder, summary, deltas


def test_messages_decoder_text_is_content_and_message_stop_completes() -> None:
    """The stream is complete at message_stop, not at the stop reason."""
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}
    reason = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
    decoder, summary, deltas = read_events(text, reason)
    assert (summary.n_content, summary.finish_reason, summary.is_complete) == (1, "end_turn", False)
    assert deltas[0] == TextDelta("Hi")
    decoder.read_event(b'{"type":"message_stop"}', b"")
    assert summary.is_complete


def test_messages_decoder_call_without_arguments_gets_an_empty_object() -> None:
    """Such a call sends no input_json_delta."""
    start = {"type": "content_block_start", "index": 3, "content_block": {"type": "tool_use", "id": "t", "name": "f"}}
    _, _, deltas = read_events(start, {"type": "content_block_stop", "index": 3})
    assert deltas == [ToolBegin(0, "t", "f"), ToolDelta(0, "{}")]


@pytest.mark.parametrize("data", [b"{", b"[1]", b'{"type": 5}'])
def test_messages_decoder_invalid_event_fails_the_answer(data: bytes) -> None:
    """The failure is in the summary; nothing is raised."""
    summary = AnswerSummary()
    assert MessagesDecoder("u", summary).read_event(data, b"") == 0
    assert summary.failure is not None


@pytest.mark.parametrize(("stop_reason", "is_valid"), [("max_tokens", True), ("tool_use", False)])
def test_messages_collector_broken_input_is_valid_only_at_the_limit(stop_reason: str, is_valid: bool) -> None:
    """A call that max_tokens cut off gets an empty input, because clients do not run it."""
    collector = MessagesCollector()
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    for event in ({"type": "message_start", "message": {"id": "m"}},
                  {"type": "content_block_start", "index": 0, "content_block": block},
                  {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a'}},
                  {"type": "message_delta", "delta": {"stop_reason": stop_reason}}):
        collector.add_event(event)
    if is_valid:
        assert json.loads(collector.build_body())["content"][0]["input"] == {}
    else:
        with pytest.raises(ValueError, match="truncated"):
            collector.build_body()
