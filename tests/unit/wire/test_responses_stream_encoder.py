"""Responses events from deltas."""

import pytest

from stayfast.core.types import Api, Usage
from stayfast.wire.dialect import Begin, Delta, Finish, NotTranslatable, Reason, TextDelta, ToolBegin, ToolDelta
from stayfast.wire.responses.stream_encoder import ResponsesEncoder
from tests.unit.wire.recorded import request


def new_encoder() -> ResponsesEncoder:
    """An encoder for a streamed request."""
    return ResponsesEncoder(request(Api.RESPONSES, stream=True), 7)


def test_responses_encoder_numbers_all_events_in_sequence() -> None:
    """From response.created to the terminal event, whose response repeats all items."""
    encoder = new_encoder()
    deltas: list[Delta] = [Begin("r", "up", 5), TextDelta("a"), TextDelta("b"), ToolBegin(0, "call", "f"),
                           ToolDelta(0, '{"x":1}'), Finish("tool_calls")]
    events = [event for delta in deltas for event in encoder.encode_delta(delta)] + encoder.encode_end(Usage(1, 2))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    response = events[-1]["response"]
    assert (events[-1]["type"], response["status"], response["created_at"]) == ("response.completed", "completed", 5)
    text, call = response["output"]
    assert text["content"][0]["text"] == "ab"
    assert (call["call_id"], call["arguments"], call["status"]) == ("call", '{"x":1}', "completed")


@pytest.mark.parametrize(("reason", "detail"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_responses_encoder_incomplete_answer_has_the_reason(reason: Reason, detail: str) -> None:
    """The terminal event and the open item are incomplete."""
    encoder = new_encoder()
    encoder.encode_delta(TextDelta("a"))
    encoder.encode_delta(Finish(reason))
    (end,) = encoder.encode_end(None)
    assert (end["type"], end["response"]["incomplete_details"]) == ("response.incomplete", {"reason": detail})
    assert end["response"]["output"][0]["status"] == "incomplete"


def test_responses_encoder_call_without_arguments_has_an_empty_object() -> None:
    """SDKs parse the arguments."""
    encoder = new_encoder()
    encoder.encode_delta(ToolBegin(0, "call", "f"))
    encoder.encode_delta(Finish("tool_calls"))
    (end,) = encoder.encode_end(None)
    assert end["response"]["output"][0]["arguments"] == "{}"


def test_responses_encoder_rejects_interleaved_calls() -> None:
    """The sequencer in front of it must prevent them."""
    encoder = new_encoder()
    encoder.encode_delta(ToolBegin(0, "c", "f"))
    encoder.encode_delta(ToolBegin(1, "d", "g"))
    with pytest.raises(NotTranslatable):
        encoder.encode_delta(ToolDelta(0, "{}"))
