"""Responses answers, decoded, and ended early."""

import json

import pytest

from stayfast.core.types import AnswerSummary
from stayfast.wire.dialect import TextDelta, ToolBegin, ToolDelta
from stayfast.wire.responses.stream_decoder import ResponsesCollector, ResponsesDecoder
from tests.unit.wire.recorded import RESPONSES_CALL, RESPONSES_TEXT, response


def new_decoder() -> tuple[ResponsesDecoder, AnswerSummary]:
    """A decoder and its summary."""
    summary = AnswerSummary()
    return ResponsesDecoder("u", summary), summary


@pytest.mark.parametrize(("status", "is_complete"), [("completed", True), ("incomplete", True), ("cancelled", True),
                                                     ("failed", False)])
def test_responses_decoder_terminal_event_ends_the_answer(status: str, is_complete: bool) -> None:
    """Only response.failed is a failure."""
    decoder, summary = new_decoder()
    decoder.read_event(json.dumps({"type": f"response.{status}", "response": response(status, [])}).encode(), b"")
    assert (decoder.has_ended, summary.is_complete, summary.failure is None) == (True, is_complete, is_complete)


def test_responses_decoder_done_is_ignored() -> None:
    """Some servers send it; it neither ends nor fails the answer."""
    decoder, summary = new_decoder()
    assert decoder.read_event(b"[DONE]", b"") == 0
    assert (decoder.has_ended, summary.failure) == (False, None)


def test_responses_decoder_arguments_of_the_done_event_count_only_without_deltas() -> None:
    """The done event repeats all arguments."""
    decoder, _ = new_decoder()
    deltas = []
    for event in RESPONSES_CALL:
        decoder.read_event(json.dumps(event).encode(), b"")
        deltas += decoder.event_deltas()
    assert deltas[1:] == [ToolBegin(0, "call_a", "weather"), ToolDelta(0, '{"city": '), ToolDelta(0, '"Köln"}')]


def test_responses_decoder_early_end_repeats_the_open_text() -> None:
    """The item and the response are incomplete, and the sequence numbers continue."""
    decoder, summary = new_decoder()
    deltas = []
    for event in RESPONSES_TEXT[:5]:
        decoder.read_event(json.dumps(event).encode(), b"")
        deltas += decoder.event_deltas()
    assert deltas[1:] == [TextDelta("Hé")]
    events = decoder.early_end_events()
    assert [event["sequence_number"] for event in events] == [5, 6, 7, 8]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hé"
    assert (events[-1]["response"]["status"], summary.finish_reason) == ("incomplete", "max_output_tokens")


def test_responses_collector_returns_the_last_response() -> None:
    """Later events repeat the whole response."""
    collector = ResponsesCollector()
    for event in ({"type": "a", "response": {"id": 1}}, {"type": "b"}, {"type": "c", "response": {"id": 2}}):
        collector.add_event(event)
    assert json.loads(collector.build_body()) == {"id": 2}
