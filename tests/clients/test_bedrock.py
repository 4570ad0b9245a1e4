"""OpenAI's and Anthropic's SDKs through the gateway, as a user starts it, to the simulated Bedrock."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from stayfast.lab.simulated.vendors.bedrock import SIGNATURE
from tests.clients.asks import CHAT_TOOL, MESSAGES_TOOL, RESPONSES_TOOL, TOOL_NAME, Weather
from tests.clients.bedrock_server import KEY, MODEL, MODELS, PROFILE, BedrockServer, running_bedrock
from tests.clients.callers import CLIENT_TIMEOUT_S
from tests.clients.gateway import Gateway, started
from tests.unit.wire.converse_reference import botocore_body

pytestmark = pytest.mark.sockets

SETTINGS = """
server: {{host: 127.0.0.1}}
upstreams:
  bed: {{provider: bedrock, base_url: "{origin}", region: eu-west-1, key: "{key}", probe: false}}
  wrong: {{provider: bedrock, base_url: "{origin}", region: eu-west-1, key: "not-the-key-0123456789", probe: false}}
routes:
{routes}
  wrong-key: {{upstreams: [wrong], model: "{model}"}}
defaults: {{retry: {{max_attempts: 1}}}}
jobs: {{path: "{folder}/jobs"}}
"""


@pytest.fixture(scope="module")
def bedrock() -> Iterator[BedrockServer]:
    with running_bedrock() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(bedrock: BedrockServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Each model of the simulation has a route; those of Bedrock's own names are claude and profile."""
    folder = tmp_path_factory.mktemp("bedrock")
    names = {MODEL: "claude", PROFILE: "profile"}
    routes = "\n".join(f'  "{names.get(model, model)}": {{upstreams: [bed], model: "{model}"}}' for model in MODELS)
    settings = folder / "stayfast.yaml"
    settings.write_text(SETTINGS.format(origin=bedrock.origin, key=KEY, routes=routes, model=MODEL, folder=folder))
    with started(settings, folder) as running:
        yield running


@pytest.fixture(scope="module")
def chat(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.openai_url, api_key="sk-client", max_retries=0, timeout=CLIENT_TIMEOUT_S) as client:
        yield client


@pytest.fixture(scope="module")
def claude(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.origin, api_key="sk-client", max_retries=0,
                             timeout=CLIENT_TIMEOUT_S) as client:
        yield client


@pytest.fixture
def marker() -> str:
    return f"marker-{uuid.uuid4().hex}"


def _user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize("route", ["claude", "profile"])
def test_chat_whole_text_and_usage(chat: openai.OpenAI, bedrock: BedrockServer, marker: str, route: str) -> None:
    answer = chat.chat.completions.create(model=route, messages=_user(marker), max_tokens=100)
    assert answer.choices[0].message.content == f"You wrote: {marker}"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 0
    (record,) = bedrock.requests_with(marker)
    assert record.headers["accept"] == "application/json"
    model = MODEL if route == "claude" else PROFILE
    assert record.target == f"/model/{model.replace(':', '%3A').replace('/', '%2F')}/converse"
    assert botocore_body(record.json) == record.json


def test_chat_stream_text_and_usage(chat: openai.OpenAI, bedrock: BedrockServer, marker: str) -> None:
    chunks = list(chat.chat.completions.create(model="claude", messages=_user(marker), stream=True,
                                               stream_options={"include_usage": True}))
    texts = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert "".join(texts) == f"You wrote: {marker}"
    assert len(texts) > 3
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0
    (record,) = bedrock.requests_with(marker)
    assert (record.headers["accept"], record.target.endswith("/converse-stream")) == ("application/vnd.amazon.eventstream",
                                                                                    True)


def test_completions_text(chat: openai.OpenAI, marker: str) -> None:
    answer = chat.completions.create(model="claude", prompt=marker, max_tokens=100)
    assert answer.choices[0].text == f"You wrote: {marker}"


@pytest.mark.parametrize("stream", [False, True])
def test_chat_tools_round_trip(chat: openai.OpenAI, bedrock: BedrockServer, marker: str, stream: bool) -> None:
    messages = _user(marker)
    if stream:
        with chat.chat.completions.stream(model="claude", messages=messages, tools=[CHAT_TOOL]) as running:
            calls: Any = running.get_final_completion().choices[0].message.tool_calls
    else:
        answer = chat.chat.completions.create(model="claude", messages=messages, tools=[CHAT_TOOL])
        calls = answer.choices[0].message.tool_calls
    (call,) = calls
    assert (call.function.name, "city" in json.loads(call.function.arguments)) == (TOOL_NAME, True)
    assert call.id == "tooluse_0"
    messages += [{"role": "assistant", "tool_calls": [call.model_dump(include={"id", "type", "function"})]},
                 {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    again = chat.chat.completions.create(model="claude", tools=[CHAT_TOOL], messages=messages)
    assert again.choices[0].message.content == "You wrote: sunny"
    assert bedrock.requests_with(marker)[-1].json["messages"][-1]["content"][0]["toolResult"]["toolUseId"] == "tooluse_0"


def test_messages_tools_and_thinking_round_trip(claude: anthropic.Anthropic, bedrock: BedrockServer, marker: str) -> None:
    """Reasoning comes with its signature, and goes back with it; so does encrypted reasoning."""
    with claude.messages.stream(model="claude", max_tokens=100, messages=_user(marker), tools=[MESSAGES_TOOL],
                                output_config={"effort": "high"}) as running:
        message = running.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "redacted_thinking", "tool_use"]
    assert message.stop_reason == "tool_use"
    call = message.content[-1]
    assert call.type == "tool_use"
    messages = [*_user(marker),
                {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}]
    again = claude.messages.create(model="claude", max_tokens=100, tools=[MESSAGES_TOOL], messages=messages)
    assert again.content[0].type == "text"
    sent = bedrock.requests_with(marker)[-1].json["messages"][1]["content"]
    assert sent[:2] == [{"reasoningContent": {"reasoningText": {"text": "Let me see.", "signature": SIGNATURE}}},
                        {"reasoningContent": {"redactedContent": "ZW5jcnlwdGVk"}}]


def test_messages_whole_text_and_usage(claude: anthropic.Anthropic, marker: str) -> None:
    answer = claude.messages.create(model="claude", max_tokens=100, messages=_user(marker))
    assert [block.text for block in answer.content if block.type == "text"] == [f"You wrote: {marker}"]
    assert (answer.stop_reason, answer.id.startswith("msg_"), answer.usage.input_tokens > 0) == ("end_turn", True, True)


def test_responses_stream_tools(chat: openai.OpenAI, marker: str) -> None:
    with chat.responses.stream(model="claude", input=marker, tools=[RESPONSES_TOOL], store=False) as running:
        answer = running.get_final_response()
    assert [item.type for item in answer.output] == ["function_call"]
    assert answer.id.startswith("resp_")


def test_chat_json_output_by_schema(chat: openai.OpenAI, bedrock: BedrockServer, marker: str) -> None:
    answer = chat.chat.completions.parse(model="claude", messages=_user(marker), response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)
    sent = bedrock.requests_with(marker)[0].json["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
    assert set(json.loads(sent["schema"])["required"]) == {"city", "degrees"}


def test_chat_own_members_arrive(chat: openai.OpenAI, bedrock: BedrockServer, marker: str) -> None:
    own = {"performanceConfig": {"latency": "optimized"},
           "guardrailConfig": {"guardrailIdentifier": "g1", "guardrailVersion": "1"}}
    chat.chat.completions.create(model="claude", messages=_user(marker), extra_body=own)
    sent = bedrock.requests_with(marker)[0].json
    assert {name: sent[name] for name in own} == own


@pytest.mark.parametrize(("route", "status", "stream"), [
    ("sim.throttled", 429, False), ("sim.throttled", 429, True), ("sim.loading", 503, False), ("sim.loading", 503, True),
    ("sim.invalid", 400, False), ("sim.invalid", 400, True), ("sim.broken", 502, False), ("sim.broken", 502, True),
    ("sim.failed-at-once", 502, True), ("sim.malformed", 502, False)])
def test_chat_error_before_the_first_token_has_its_status(chat: openai.OpenAI, marker: str, route: str, status: int,
                                                          stream: bool) -> None:
    with pytest.raises(openai.APIStatusError) as failed:
        list(chat.chat.completions.create(model=route, messages=_user(marker), stream=stream))
    assert failed.value.status_code == status
    if route == "sim.invalid":
        assert "Input is too long" in failed.value.message


@pytest.mark.parametrize("route", ["sim.throttled-inside", "sim.cut", "sim.malformed"])
def test_stream_failing_after_text_is_an_error_for_both_sdks(chat: openai.OpenAI, claude: anthropic.Anthropic, marker: str,
                                                             route: str) -> None:
    """A stream without its last event never looks complete."""
    with pytest.raises(openai.APIError):
        list(chat.chat.completions.create(model=route, messages=_user(marker), stream=True))
    with pytest.raises(anthropic.APIError):
        list(claude.messages.create(model=route, max_tokens=9, messages=_user(marker), stream=True))


def test_stream_without_metadata_is_complete(chat: openai.OpenAI, marker: str) -> None:
    chunks = list(chat.chat.completions.create(model="sim.no-usage", messages=_user(marker), stream=True))
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_guardrail_is_a_content_filter(chat: openai.OpenAI, marker: str) -> None:
    answer = chat.chat.completions.create(model="sim.filtered", messages=_user(marker))
    assert answer.choices[0].finish_reason == "content_filter"


def test_client_that_leaves_closes_the_call(chat: openai.OpenAI, bedrock: BedrockServer, marker: str) -> None:
    with chat.chat.completions.create(model="sim.silent", messages=_user(marker), stream=True) as stream:
        next(iter(stream))
    (record,) = bedrock.requests_with(marker)
    assert record.has_left.wait(20)


def test_wrong_key_is_the_operators_error(chat: openai.OpenAI, marker: str) -> None:
    with pytest.raises(openai.InternalServerError) as failed:
        chat.chat.completions.create(model="wrong-key", messages=_user(marker))
    assert (failed.value.status_code, failed.value.code) == (502, "upstream_credentials")
    assert "not-the-key" not in failed.value.message


def test_image_by_url_refused_before_any_call(chat: openai.OpenAI, bedrock: BedrockServer, marker: str) -> None:
    parts: Any = [{"type": "text", "text": marker},
                  {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    with pytest.raises(openai.BadRequestError, match="send the image as base64"):
        chat.chat.completions.create(model="claude", messages=_user(parts))
    assert bedrock.requests_with(marker) == []
