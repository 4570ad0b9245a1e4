"""What the official SDKs make of it: exact shapes, streamed and not, and the right exceptions."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.sim.running import Sim

pytestmark = pytest.mark.sockets

ASK: list[Any] = [{"role": "user", "content": "What is the weather?"}]
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture
def client(sim: Sim) -> Iterator[openai.OpenAI]:
    """OpenAI's SDK at the provider `openai`."""
    with at(sim, "openai") as client:
        yield client


@pytest.fixture
def claude(sim: Sim) -> Iterator[anthropic.Anthropic]:
    """Anthropic's SDK at the provider `anthropic`."""
    with claude_at(sim, "anthropic") as client:
        yield client


def at(sim: Sim, provider: str) -> openai.OpenAI:
    """OpenAI's SDK at one provider."""
    return openai.OpenAI(base_url=f"{sim.url}/{provider}/v1", api_key="sk-any", max_retries=0, timeout=10)


def claude_at(sim: Sim, provider: str) -> anthropic.Anthropic:
    """Anthropic's SDK at one provider."""
    return anthropic.Anthropic(base_url=f"{sim.url}/{provider}", api_key="sk-any", max_retries=0, timeout=10)


def test_chat_whole(client: openai.OpenAI) -> None:
    """A chat answer has text, a finish reason and usage, and stops at its limit."""
    answer = client.chat.completions.create(model="m", messages=ASK, max_completion_tokens=5)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 5


def test_chat_streamed(client: openai.OpenAI) -> None:
    """A stream has text, one finish reason, and usage last where it is asked for."""
    chunks = list(client.chat.completions.create(model="m", messages=ASK, stream=True, max_completion_tokens=5,
                                                 stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("stop", "length")
    assert chunks[-1].usage is not None


def test_chat_tool(client: openai.OpenAI) -> None:
    """A tool that must be called is called, with arguments that are JSON."""
    answer = client.chat.completions.create(
        model="m", messages=ASK, tool_choice="required",
        tools=[{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}])
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert calls[0].function.name == "weather"
    assert "city" in calls[0].function.arguments


@pytest.mark.parametrize("stream", [False, True])
def test_completions(client: openai.OpenAI, *, stream: bool) -> None:
    """The legacy endpoint answers in its own shape."""
    if stream:
        text = "".join(chunk.choices[0].text for chunk in client.completions.create(model="m", prompt="Hi", stream=True))
    else:
        text = client.completions.create(model="m", prompt="Hi").choices[0].text
    assert text


def test_responses_whole(client: openai.OpenAI) -> None:
    """A response is completed and has text."""
    answer = client.responses.create(model="m", input="Hi")
    assert answer.output_text
    assert answer.status == "completed"


def test_responses_streamed(client: openai.OpenAI) -> None:
    """Events come from created to completed, with the same text in deltas and at the end."""
    events = list(client.responses.create(model="m", input="Hi", stream=True))
    assert events[0].type == "response.created"
    last = events[-1]
    assert last.type == "response.completed"
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == last.response.output_text != ""


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_embeddings(client: openai.OpenAI, encoding: Any) -> None:
    """One vector an input, as long as was asked, the same in each encoding."""
    more: dict[str, Any] = {} if encoding is None else {"encoding_format": encoding}
    answer = client.embeddings.create(model="m", input=["a", "b"], dimensions=8, **more)
    assert len(answer.data) == 2
    if encoding != "base64":
        assert [len(one.embedding) for one in answer.data] == [8, 8]


def test_messages_whole(claude: anthropic.Anthropic) -> None:
    """A message has text, a stop reason and usage."""
    answer = claude.messages.create(model="m", max_tokens=5, messages=ASK)
    assert answer.content[0].type == "text"
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert 0 < answer.usage.output_tokens <= 5


def test_messages_streamed(claude: anthropic.Anthropic) -> None:
    """The SDK's own accumulator takes the stream to its end."""
    with claude.messages.stream(model="m", max_tokens=50, messages=ASK) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_message().stop_reason in ("end_turn", "max_tokens")
    assert text


def test_messages_tool(claude: anthropic.Anthropic) -> None:
    """A tool that must be called is called."""
    answer = claude.messages.create(model="m", max_tokens=50, messages=ASK, tool_choice={"type": "any"},
                                    tools=[{"name": "weather", "input_schema": PARAMETERS}])
    assert answer.stop_reason == "tool_use"
    block = answer.content[-1]
    assert block.type == "tool_use"
    assert isinstance(block.input, dict)
    assert "city" in block.input


def test_count_tokens(claude: anthropic.Anthropic) -> None:
    """Tokens are counted without an answer."""
    assert claude.messages.count_tokens(model="m", messages=ASK).input_tokens > 0


def test_models(client: openai.OpenAI) -> None:
    """A provider lists itself."""
    assert [model.id for model in client.models.list()] == ["openai"]


def test_first_provider_is_also_at_the_root(sim: Sim) -> None:
    with openai.OpenAI(base_url=f"{sim.url}/v1", api_key="k", max_retries=0) as client:
        assert client.chat.completions.create(model="m", messages=ASK).choices
    assert sim.last()["provider"] == "openai"


STATUSES = [
    (400, openai.BadRequestError, anthropic.BadRequestError),
    (401, openai.AuthenticationError, anthropic.AuthenticationError),
    (404, openai.NotFoundError, anthropic.NotFoundError), (429, openai.RateLimitError, anthropic.RateLimitError),
    (500, openai.InternalServerError, anthropic.InternalServerError),
    (503, openai.InternalServerError, anthropic.APIStatusError),
    (529, openai.InternalServerError, anthropic.APIStatusError),
]


@pytest.mark.parametrize("case", STATUSES, ids=lambda case: str(case[0]))
def test_status_raises_the_sdk_exception(
        sim: Sim, client: openai.OpenAI, claude: anthropic.Anthropic,
        case: tuple[int, type[openai.APIStatusError], type[anthropic.APIStatusError]]) -> None:
    status, wanted, wanted_anthropic = case
    sim.fails(kind="status", status=status)
    with pytest.raises(wanted) as raised:
        client.chat.completions.create(model="m", messages=ASK)
    assert raised.value.status_code == status
    with pytest.raises(wanted_anthropic) as raised_anthropic:
        claude.messages.create(model="m", max_tokens=5, messages=ASK)
    assert raised_anthropic.value.status_code == status
    assert isinstance(raised_anthropic.value.body, dict)
    assert raised_anthropic.value.body["type"] == "error"


def test_quota_with_openai_headers(sim: Sim) -> None:
    with at(sim, "tight") as client:
        for n_left in ("1", "0"):
            answer = client.chat.completions.with_raw_response.create(model="m", messages=ASK, max_completion_tokens=5)
            assert answer.headers["x-ratelimit-remaining-requests"] == n_left
        with pytest.raises(openai.RateLimitError) as raised:
            client.chat.completions.create(model="m", messages=ASK)
    headers = raised.value.response.headers
    assert 0 < int(headers["retry-after-ms"]) <= 30_000
    assert raised.value.code == "rate_limit_exceeded"


def test_quota_with_anthropic_headers(sim: Sim) -> None:
    with claude_at(sim, "tight-anthropic") as client:
        for _ in range(2):
            client.messages.create(model="m", max_tokens=5, messages=ASK)
        with pytest.raises(anthropic.RateLimitError) as raised:
            client.messages.create(model="m", max_tokens=5, messages=ASK)
    headers = raised.value.response.headers
    assert 0 < int(headers["retry-after"]) <= 30
    assert headers["anthropic-ratelimit-requests-remaining"] == "0"


def test_error_event_in_a_stream_raises(sim: Sim, client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    sim.fails(kind="in_band")
    with pytest.raises(openai.APIError):
        list(client.chat.completions.create(model="m", messages=ASK, stream=True))
    with pytest.raises(openai.APIError):
        list(client.responses.create(model="m", input="Hi", stream=True))
    with pytest.raises(anthropic.APIStatusError), claude.messages.stream(model="m", max_tokens=50, messages=ASK) as stream:
        list(stream.text_stream)


def test_reset_raises_connection_error(sim: Sim, client: openai.OpenAI) -> None:
    for kind in ("reset", "reset_mid"):
        sim.control("DELETE", "faults")
        sim.fails(kind=kind)
        with pytest.raises(openai.APIConnectionError):
            list(client.chat.completions.create(model="m", messages=ASK, stream=True))
