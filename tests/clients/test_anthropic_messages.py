"""Anthropic's SDK for Python, messages, through the gateway to each upstream dialect."""

import anthropic
import pytest
from anthropic.types import Message, MessageParam, ToolChoiceToolParam, ToolResultBlockParam, Usage

from tests.clients.asks import MESSAGES_TOOL, OSLO, PARIS, TOOL_ANSWERS, TOOL_NAME, WHOLE_TEXT, Weather, prompt
from tests.clients.gateway import UPSTREAM_MODEL
from tests.clients.script import N_CACHED_TOKENS, N_INPUT_TOKENS, N_OUTPUT_TOKENS, THOUGHT
from tests.clients.upstream import Upstream

MAX_TOKENS = 64
pytestmark = pytest.mark.sockets


def _ask(marker: str, scenario: str = "good") -> list[MessageParam]:
    return [{"role": "user", "content": prompt(marker, scenario)}]


def _check_whole(answer: Message) -> None:
    assert (answer.type, answer.role) == ("message", "assistant")
    assert _text(answer) == WHOLE_TEXT
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    _check_usage(answer.usage)


def _check_usage(usage: Usage) -> None:
    assert usage.input_tokens == N_INPUT_TOKENS - N_CACHED_TOKENS
    assert usage.cache_read_input_tokens == N_CACHED_TOKENS
    assert usage.output_tokens == N_OUTPUT_TOKENS


def _text(answer: Message) -> str:
    assert [block.type for block in answer.content] == ["text"]
    return "".join(block.text for block in answer.content if block.type == "text")


def _calls(answer: Message) -> list[tuple[str, str, object]]:
    assert answer.stop_reason == "tool_use"
    return [(block.id, block.name, block.input) for block in answer.content if block.type == "tool_use"]


def test_plain(anthropic_client: anthropic.Anthropic, upstream: Upstream, model: str, marker: str) -> None:
    """A whole answer: text, reason to stop and usage; the upstream sees its own model name and the system prompt."""
    _check_whole(anthropic_client.messages.create(
        model=model, max_tokens=MAX_TOKENS, system="Be brief.", messages=_ask(marker)))
    seen = upstream.wait_for(marker)
    assert seen.body["model"] == UPSTREAM_MODEL
    assert "Be brief." in seen.text


def test_stream(anthropic_client: anthropic.Anthropic, model: str, marker: str) -> None:
    """The full sequence of events, text in pieces, usage at the end."""
    events = list(anthropic_client.messages.create(
        model=model, max_tokens=MAX_TOKENS, messages=_ask(marker), stream=True))
    kinds = [event.type for event in events if event.type != "content_block_delta"]
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    pieces = [event.delta.text for event in events
              if event.type == "content_block_delta" and event.delta.type == "text_delta"]
    assert len(pieces) > 1
    assert "".join(pieces) == WHOLE_TEXT


def test_stream_accumulated(anthropic_client: anthropic.Anthropic, model: str, marker: str) -> None:
    """The SDK's own accumulator makes a whole answer of the stream, usage included."""
    with anthropic_client.messages.stream(model=model, max_tokens=MAX_TOKENS, messages=_ask(marker)) as stream:
        _check_whole(stream.get_final_message())


def test_length(anthropic_client: anthropic.Anthropic, model: str, marker: str) -> None:
    """An answer cut by the limit on tokens says so, whole and streamed."""
    ask = _ask(marker, "length")
    whole = anthropic_client.messages.create(model=model, max_tokens=7, messages=ask)
    with anthropic_client.messages.stream(model=model, max_tokens=7, messages=ask) as stream:
        streamed = stream.get_final_message()
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"


def test_tool_call(anthropic_client: anthropic.Anthropic, model: str, marker: str) -> None:
    """A tool call comes with its id, its name and its input as an object, and no text."""
    answer = anthropic_client.messages.create(
        model=model, max_tokens=MAX_TOKENS, messages=_ask(marker), tools=[MESSAGES_TOOL])
    assert [block.type for block in answer.content] == ["tool_use"]
    assert _calls(answer) == [("call_paris", TOOL_NAME, PARIS)]


def test_text_before_a_tool_call(anthropic_client: anthropic.Anthropic, model: str, marker: str) -> None:
    """A model that says something before it calls a tool is heard, whole and streamed; the tool may be named."""
    ask = _ask(marker, "text_and_tool")
    choice: ToolChoiceToolParam = {"type": "tool", "name": TOOL_NAME}
    whole = anthropic_client.messages.create(
        model=model, max_tokens=MAX_TOKENS, messages=ask, tools=[MESSAGES_TOOL], tool_choice=choice)
    with anthropic_client.messages.stream(
            model=model, max_tokens=MAX_TOKENS, messages=ask, tools=[MESSAGES_TOOL], tool_choice=choice) as stream:
        streamed = stream.get_final_message()
    for answer in (whole, streamed):
        assert [block.type for block in answer.content] == ["text", "tool_use"]
        assert "".join(block.text for block in answer.content if block.type == "text") == "".join(THOUGHT)
        assert _calls(answer) == [("call_paris", TOOL_NAME, PARIS)]


def test_streamed_tool_calls(anthropic_client: anthropic.Anthropic, model: str, marker: str) -> None:
    """Two calls, their input in fragments, come apart again in the SDK's accumulator."""
    with anthropic_client.messages.stream(
            model=model, max_tokens=MAX_TOKENS, messages=_ask(marker, "two_tools"), tools=[MESSAGES_TOOL]) as stream:
        final = stream.get_final_message()
    assert _calls(final) == [("call_paris", TOOL_NAME, PARIS), ("call_oslo", TOOL_NAME, OSLO)]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_tool_round_trip(anthropic_client: anthropic.Anthropic, model: str, marker: str, streams: bool) -> None:
    """The results of two calls, sent back with the calls themselves, reach the model and are answered in text."""
    asked = anthropic_client.messages.create(
        model=model, max_tokens=MAX_TOKENS, messages=_ask(marker, "two_tools"), tools=[MESSAGES_TOOL])
    results: list[ToolResultBlockParam] = [
        {"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": answer}]}
        for (call_id, _, _), answer in zip(_calls(asked), TOOL_ANSWERS, strict=True)]
    messages: list[MessageParam] = [
        *_ask(marker, "two_tools"), {"role": "assistant", "content": asked.content}, {"role": "user", "content": results}]
    if streams:
        with anthropic_client.messages.stream(
                model=model, max_tokens=MAX_TOKENS, messages=messages, tools=[MESSAGES_TOOL]) as stream:
            answer: Message = stream.get_final_message()
    else:
        answer = anthropic_client.messages.create(
            model=model, max_tokens=MAX_TOKENS, messages=messages, tools=[MESSAGES_TOOL])
    assert _text(answer) == f"The tools said: {TOOL_ANSWERS[0]} and {TOOL_ANSWERS[1]}."


def test_json_output(anthropic_client: anthropic.Anthropic, model: str, marker: str) -> None:
    """A JSON schema, given as a class, is answered by an object of it, whole and streamed."""
    whole = anthropic_client.messages.parse(
        model=model, max_tokens=MAX_TOKENS, messages=_ask(marker), output_format=Weather)
    with anthropic_client.messages.stream(
            model=model, max_tokens=MAX_TOKENS, messages=_ask(marker), output_format=Weather) as stream:
        streamed = stream.get_final_message()
    assert whole.parsed_output == streamed.parsed_output == Weather(city="Paris", degrees=21)


def test_count_tokens(anthropic_client: anthropic.Anthropic, dialect: str, model: str, marker: str) -> None:
    """Tokens are counted by an upstream that can, and estimated for one that cannot."""
    counted = anthropic_client.messages.count_tokens(model=model, messages=_ask(marker)).input_tokens
    n_characters = len(prompt(marker))
    if dialect == "messages":
        assert counted == n_characters  # as its upstream counts: one a character
    else:
        assert n_characters / 8 < counted < n_characters
