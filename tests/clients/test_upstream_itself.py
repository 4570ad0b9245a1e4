"""The fake provider, called by each SDK in its own protocol without a gateway. The other tests depend on it."""

import json
import time
from collections.abc import Iterator

import anthropic
import openai
import pytest

from tests.clients.asks import (
    CHAT_TOOL,
    MESSAGES_TOOL,
    PARIS,
    RESPONSES_TOOL,
    WHOLE_TEXT,
    Weather,
    prompt,
)
from tests.clients.leaving import within_limit
from tests.clients.upstream import Upstream

pytestmark = pytest.mark.sockets


@pytest.fixture(scope="module")
def direct(upstream: Upstream) -> Iterator[openai.OpenAI]:
    """OpenAI's SDK on the upstream."""
    with openai.OpenAI(base_url=f"{upstream.origin}/v1", api_key="sk-x", max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture(scope="module")
def direct_anthropic(upstream: Upstream) -> Iterator[anthropic.Anthropic]:
    """Anthropic's SDK on the upstream."""
    with anthropic.Anthropic(base_url=upstream.origin, api_key="sk-x", max_retries=0, timeout=10) as client:
        yield client


def test_speaks_chat(direct: openai.OpenAI, marker: str) -> None:
    """Text, a stream with usage, a tool call in fragments and JSON come out of the SDK's own accumulator."""
    ask: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": prompt(marker)}]
    whole = direct.chat.completions.create(model="m", messages=ask)
    assert whole.choices[0].message.content == WHOLE_TEXT
    with direct.chat.completions.stream(model="m", messages=ask, stream_options={"include_usage": True}) as stream:
        final = stream.get_final_completion()
    assert (final.choices[0].message.content, final.usage) == (WHOLE_TEXT, whole.usage)
    with direct.chat.completions.stream(model="m", messages=ask, tools=[CHAT_TOOL]) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert calls is not None
    assert json.loads(calls[0].function.arguments) == PARIS
    parsed = direct.chat.completions.parse(model="m", messages=ask, response_format=Weather)
    assert parsed.choices[0].message.parsed == Weather(city="Paris", degrees=21)


def test_speaks_responses(direct: openai.OpenAI, marker: str) -> None:
    """Text, a stream, a tool call in fragments and JSON come out of the SDK's own accumulator."""
    whole = direct.responses.create(model="m", input=prompt(marker))
    assert whole.output_text == WHOLE_TEXT
    with direct.responses.stream(model="m", input=prompt(marker)) as stream:
        final = stream.get_final_response()
    assert (final.output_text, final.usage) == (WHOLE_TEXT, whole.usage)
    with direct.responses.stream(model="m", input=prompt(marker), tools=[RESPONSES_TOOL]) as stream:
        call = stream.get_final_response().output[0]
    assert call.type == "function_call"
    assert json.loads(call.arguments) == PARIS
    parsed = direct.responses.parse(model="m", input=prompt(marker), text_format=Weather)
    assert parsed.output_parsed == Weather(city="Paris", degrees=21)


def test_speaks_messages(direct_anthropic: anthropic.Anthropic, marker: str) -> None:
    """Text, a stream, a tool call in fragments, JSON and token counts come out of the SDK's own accumulator."""
    messages = direct_anthropic.messages
    ask: list[anthropic.types.MessageParam] = [{"role": "user", "content": prompt(marker)}]
    whole = messages.create(model="m", max_tokens=64, messages=ask)
    assert [block.text for block in whole.content if block.type == "text"] == [WHOLE_TEXT]
    with messages.stream(model="m", max_tokens=64, messages=ask) as stream:
        final = stream.get_final_message()
    assert [block.text for block in final.content if block.type == "text"] == [WHOLE_TEXT]
    assert final.usage == whole.usage
    with messages.stream(model="m", max_tokens=64, messages=ask, tools=[MESSAGES_TOOL]) as stream:
        block = stream.get_final_message().content[0]
    assert block.type == "tool_use"
    assert block.input == PARIS
    assert messages.parse(model="m", max_tokens=64, messages=ask, output_format=Weather).parsed_output == Weather(
        city="Paris", degrees=21)
    assert messages.count_tokens(model="m", messages=ask).input_tokens == len(prompt(marker))


def test_refuses_what_the_real_endpoints_refuse(direct: openai.OpenAI, direct_anthropic: anthropic.Anthropic) -> None:
    """A field of another protocol is a 400 in each of the three, so that a wrong translation cannot pass unseen."""
    with pytest.raises(openai.BadRequestError, match="max_output_tokens"):
        direct.chat.completions.create(model="m", messages=[], extra_body={"max_output_tokens": 1})
    with pytest.raises(openai.BadRequestError, match="messages"):
        direct.responses.create(model="m", input="x", extra_body={"messages": []})
    with pytest.raises(anthropic.BadRequestError, match="max_completion_tokens"):
        direct_anthropic.messages.create(model="m", max_tokens=1, messages=[], extra_body={"max_completion_tokens": 1})


def test_truncated_stream_looks_whole_without_gateway(
        direct: openai.OpenAI, direct_anthropic: anthropic.Anthropic, marker: str) -> None:
    """The SDKs alone do not notice a stream that just ends: what the gateway's tests show is the gateway's doing."""
    ask = prompt(marker, "truncated")
    chunks = list(direct.chat.completions.create(model="m", messages=[{"role": "user", "content": ask}], stream=True))
    assert chunks[-1].choices[0].finish_reason is None
    events = list(direct.responses.create(model="m", input=ask, stream=True))
    assert events[-1].type == "response.output_text.delta"
    with direct_anthropic.messages.stream(model="m", max_tokens=64, messages=[{"role": "user", "content": ask}]) as stream:
        assert stream.get_final_message().stop_reason is None


@pytest.mark.serial
def test_fake_upstream_records_disconnects(direct: openai.OpenAI, upstream: Upstream, marker: str) -> None:
    """The instant at which a client closes its connection amid a stream is known to within milliseconds."""
    def leave(word: str) -> float:
        ask = prompt(word, "hang_midway")
        stream = direct.chat.completions.create(model="m", messages=[{"role": "user", "content": ask}], stream=True)
        next(stream)
        closed_at = time.monotonic()
        stream.close()
        return upstream.wait_for(word).wait_left() - closed_at

    within_limit(leave, marker)
