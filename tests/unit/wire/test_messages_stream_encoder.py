"""Messages events from deltas."""

import pytest

from stayfast.core.types import Api, Usage
from stayfast.wire.dialect import Begin, Delta, Finish, NotTranslatable, TextDelta, ThinkingDelta, ToolBegin, ToolDelta
from stayfast.wire.messages.stream_encoder import MessagesEncoder
from tests.unit.wire.recorded import request


def new_encoder() -> MessagesEncoder:
    """An encoder for a streamed request."""
    return MessagesEncoder(request(Api.MESSAGES, stream=True))


def test_messages_encoder_opens_one_block_at_a_time() -> None:
    """Reasoning, text and a call are three blocks, each stopped before the next starts."""
    encoder = new_encoder()
    deltas: list[Delta] = [Begin("m", "up"), ThinkingDelta("Hm.", "sig"), TextDelta("a"), TextDelta("b"),
                           ToolBegin(0, "t", "f"), ToolDelta(0, "{}"), Finish("tool_calls")]
    events = [event for delta in deltas for event in encoder.encode_delta(delta)] + encoder.encode_end(Usage(1, 2))
    kinds = [event["type"] for event in events]
    assert kinds == ["message_start", "content_block_start", "content_block_delta", "content_block_delta",
                     "content_block_stop", "content_block_start", "content_block_delta", "content_block_delta",
                     "content_block_stop", "content_block_start", "content_block_delta", "content_block_stop",
                     "message_delta", "message_stop"]
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1, 2]
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


@pytest.mark.parametrize(("finish", "stop_reason"), [
    (Finish("stop"), "end_turn"), (Finish("length"), "max_tokens"), (Finish("content_filter"), "refusal"),
    (Finish("stop", "END"), "stop_sequence")])
def test_messages_encoder_stop_reason(finish: Finish, stop_reason: str) -> None:
    """A known stop sequence takes precedence over the reason."""
    encoder = new_encoder()
    encoder.encode_delta(finish)
    assert encoder.encode_end(None)[-2]["delta"] == {"stop_reason": stop_reason, "stop_sequence": finish.stop_sequence}


def test_messages_encoder_stop_after_a_call_is_tool_use() -> None:
    """Some chat servers send "stop" after calls, which messages clients would then not run."""
    encoder = new_encoder()
    encoder.encode_delta(ToolBegin(0, "t", "f"))
    encoder.encode_delta(Finish("stop"))
    assert encoder.encode_end(None)[-2]["delta"]["stop_reason"] == "tool_use"


def test_messages_encoder_rejects_interleaved_calls() -> None:
    """The sequencer in front of it must prevent them."""
    encoder = new_encoder()
    encoder.encode_delta(ToolBegin(0, "t", "f"))
    encoder.encode_delta(ToolBegin(1, "u", "g"))
    with pytest.raises(NotTranslatable):
        encoder.encode_delta(ToolDelta(0, "{}"))
