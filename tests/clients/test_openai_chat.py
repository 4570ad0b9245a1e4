"""OpenAI's SDK for Python, chat completions, through the gateway to each upstream dialect."""

import json
from typing import cast

import openai
import pytest
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam, ChatCompletionNamedToolChoiceParam

from tests.clients.asks import CHAT_TOOL, OSLO, PARIS, TOOL_ANSWERS, TOOL_NAME, WHOLE_TEXT, Weather, prompt
from tests.clients.gateway import UPSTREAM_MODEL
from tests.clients.script import N_CACHED_TOKENS, N_INPUT_TOKENS, N_OUTPUT_TOKENS, THOUGHT
from tests.clients.upstream import Upstream

pytestmark = pytest.mark.sockets


def _ask(marker: str, scenario: str = "good") -> list[ChatCompletionMessageParam]:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt(marker, scenario)}]


def _check_usage(usage: CompletionUsage | None) -> None:
    assert usage is not None
    assert usage.prompt_tokens == N_INPUT_TOKENS
    assert usage.completion_tokens == N_OUTPUT_TOKENS
    assert usage.total_tokens == N_INPUT_TOKENS + N_OUTPUT_TOKENS
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == N_CACHED_TOKENS


def _calls(answer: ChatCompletion) -> list[tuple[str, str, object]]:
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    return [(call.id, call.function.name, json.loads(call.function.arguments))
            for call in calls if call.type == "function"]


def test_plain(openai_client: openai.OpenAI, upstream: Upstream, model: str, marker: str) -> None:
    """A whole answer: text, reason to stop and usage; the upstream sees its own model name and the system prompt."""
    answer = openai_client.chat.completions.create(model=model, messages=_ask(marker))
    assert (answer.object, answer.choices[0].message.role) == ("chat.completion", "assistant")
    assert answer.choices[0].message.content == WHOLE_TEXT
    assert answer.choices[0].finish_reason == "stop"
    _check_usage(answer.usage)
    seen = upstream.wait_for(marker)
    assert seen.body["model"] == UPSTREAM_MODEL
    assert "Be brief." in seen.text


def test_stream(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """Text comes in pieces, after a chunk with the role, before one with the reason to stop; no usage unasked."""
    chunks = list(openai_client.chat.completions.create(model=model, messages=_ask(marker), stream=True))
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices[0].delta.content]
    assert len(pieces) > 1
    assert "".join(pieces) == WHOLE_TEXT
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_with_usage(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """include_usage gives one last chunk without choices; the SDK's accumulator makes a whole answer of the stream."""
    asked = openai_client.chat.completions.stream(model=model, messages=_ask(marker),
                                                  stream_options={"include_usage": True})
    with asked as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        final = stream.get_final_completion()
    assert [bool(chunk.choices) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert final.choices[0].message.content == WHOLE_TEXT
    _check_usage(final.usage)


def test_length(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """An answer cut by the limit on tokens says so, whole and streamed."""
    ask = _ask(marker, "length")
    whole = openai_client.chat.completions.create(model=model, messages=ask, max_completion_tokens=7)
    chunks = list(openai_client.chat.completions.create(model=model, messages=ask, max_completion_tokens=7, stream=True))
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "length"


def test_tool_call(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """A tool call comes with its id, its name and arguments that are JSON, and no text."""
    answer = openai_client.chat.completions.create(model=model, messages=_ask(marker), tools=[CHAT_TOOL])
    assert answer.choices[0].message.content is None
    assert _calls(answer) == [("call_paris", TOOL_NAME, PARIS)]


def test_text_before_a_tool_call(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """A model that says something before it calls a tool is heard, whole and streamed; the tool may be named."""
    ask = _ask(marker, "text_and_tool")
    choice: ChatCompletionNamedToolChoiceParam = {"type": "function", "function": {"name": TOOL_NAME}}
    whole = openai_client.chat.completions.create(model=model, messages=ask, tools=[CHAT_TOOL], tool_choice=choice)
    with openai_client.chat.completions.stream(model=model, messages=ask, tools=[CHAT_TOOL], tool_choice=choice) as stream:
        streamed = stream.get_final_completion()
    for answer in (whole, streamed):
        assert answer.choices[0].message.content == "".join(THOUGHT)
        assert _calls(answer) == [("call_paris", TOOL_NAME, PARIS)]


def test_streamed_tool_calls(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """Two calls, their arguments in fragments, come apart again in the SDK's accumulator."""
    with openai_client.chat.completions.stream(model=model, messages=_ask(marker, "two_tools"), tools=[CHAT_TOOL]) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content is None
    assert _calls(final) == [("call_paris", TOOL_NAME, PARIS), ("call_oslo", TOOL_NAME, OSLO)]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_tool_round_trip(openai_client: openai.OpenAI, model: str, marker: str, streams: bool) -> None:
    """The results of two calls, sent back with the calls themselves, reach the model and are answered in text."""
    asked = openai_client.chat.completions.create(model=model, messages=_ask(marker, "two_tools"), tools=[CHAT_TOOL])
    messages = _ask(marker, "two_tools")
    messages.append(cast("ChatCompletionMessageParam", asked.choices[0].message.to_dict()))
    for (call_id, _, _), answer in zip(_calls(asked), TOOL_ANSWERS, strict=True):
        messages.append({"role": "tool", "tool_call_id": call_id, "content": answer})
    if streams:
        with openai_client.chat.completions.stream(model=model, messages=messages, tools=[CHAT_TOOL]) as stream:
            text = stream.get_final_completion().choices[0].message.content
    else:
        final = openai_client.chat.completions.create(model=model, messages=messages, tools=[CHAT_TOOL])
        text = final.choices[0].message.content
    assert text == f"The tools said: {TOOL_ANSWERS[0]} and {TOOL_ANSWERS[1]}."


def test_json_output(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """A JSON schema, given as a class, is answered by an object of it, whole and streamed."""
    whole = openai_client.chat.completions.parse(model=model, messages=_ask(marker), response_format=Weather)
    with openai_client.chat.completions.stream(model=model, messages=_ask(marker), response_format=Weather) as stream:
        streamed = stream.get_final_completion()
    assert whole.choices[0].message.parsed == Weather(city="Paris", degrees=21)
    assert streamed.choices[0].message.parsed == Weather(city="Paris", degrees=21)
