"""Chat and completions chunks from deltas."""

from typing import Any

import pytest

from stayfast.core.types import Api, Usage
from stayfast.wire.chat.stream_encoder import ChatEncoder, CompletionsEncoder
from stayfast.wire.dialect import Begin, Delta, Finish, TextDelta, ThinkingDelta, ToolBegin, ToolDelta
from tests.unit.wire.recorded import request


def test_chat_encoder_first_chunk_has_the_role_and_the_upstreams_head() -> None:
    """The role comes once, with empty content; id, model and date are the upstream's."""
    encoder = ChatEncoder(request(Api.CHAT, stream=True), 7)
    assert encoder.encode_delta(Begin("c1", "up", 5)) == []
    role, text = encoder.encode_delta(TextDelta("Hi"))
    assert (role["id"], role["model"], role["created"]) == ("c1", "up", 5)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text["choices"][0]["delta"] == {"content": "Hi"}
    assert [chunk["choices"][0]["finish_reason"] for chunk in encoder.encode_delta(Finish("length"))] == ["length"]


def test_chat_encoder_tool_call_has_null_content() -> None:
    """SDKs would read "" as an empty text beside the calls."""
    encoder = ChatEncoder(request(Api.CHAT, stream=True), 7)
    role, call = encoder.encode_delta(ToolBegin(0, "call_a", "weather"))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert call["choices"][0]["delta"]["tool_calls"][0]["id"] == "call_a"
    (arguments,) = encoder.encode_delta(ToolDelta(0, "{}"))
    assert arguments["choices"][0]["delta"] == {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}


@pytest.mark.parametrize(("fields", "n_chunks"), [
    ({"stream": True}, 0), ({"stream": True, "stream_options": {"include_usage": True}}, 1), ({}, 1)])
def test_chat_encoder_usage_chunk_only_if_the_client_wants_it(fields: dict[str, Any], n_chunks: int) -> None:
    """Whole answers always have usage, streams if asked; unknown usage is left out."""
    encoder = ChatEncoder(request(Api.CHAT, **fields), 7)
    assert len(encoder.encode_end(Usage(3, 4))) == n_chunks
    assert encoder.encode_end(None) == []


def test_completions_encoder_drops_reasoning_and_tools() -> None:
    """The protocol has no fields for them; a stop for tool calls is a plain stop."""
    encoder = CompletionsEncoder(request(Api.COMPLETIONS, stream=True), 7)
    deltas: list[Delta] = [Begin("c", "m"), ThinkingDelta("Hm."), ToolBegin(0, "c", "f"), ToolDelta(0, "{}")]
    assert [event for delta in deltas for event in encoder.encode_delta(delta)] == []
    (text,) = encoder.encode_delta(TextDelta("Hi"))
    assert (text["object"], text["choices"][0]["text"]) == ("text_completion", "Hi")
    (end,) = encoder.encode_delta(Finish("tool_calls"))
    assert end["choices"][0]["finish_reason"] == "stop"
