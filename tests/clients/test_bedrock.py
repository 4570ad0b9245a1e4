"""OpenAI's and Anthropic's SDKs through the gateway, as a user starts it, to the simulated Bedrock."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from stayfast.cli import main
from stayfast.lab.simulated.vendors.bedrock import SIGNATURE
from tests.clients.asks import CHAT_TOOL, MESSAGES_TOOL, RESPONSES_TOOL, TOOL_NAME, Weather
from tests.clients.bedrock_server import (
    ACCESS_KEY,
    KEY,
    MODEL,
    MODELS,
    PROFILE,
    SECRET_KEY,
    TOKEN,
    BedrockServer,
    running_bedrock,
)
from tests.clients.callers import CLIENT_TIMEOUT_S
from tests.clients.gateway import Gateway, started
from tests.unit.wire.converse_reference import botocore_body

pytestmark = pytest.mark.sockets

SETTINGS = """
server: {{host: 127.0.0.1}}
upstreams:
  bed: {{provider: bedrock, base_url: "{origin}", region: eu-west-1, key: "{key}", probe: false}}
  cutting: {{provider: bedrock, base_url: "{origin}", region: eu-west-1, key: "{key}", probe: false,
            models: {{rescued: sim.cut}}}}
  mending: {{provider: bedrock, base_url: "{origin}", region: eu-west-1, key: "{key}", probe: false,
            models: {{rescued: "{model}"}}, supports_continuation: true}}
  signed:
    <<: &signed {{provider: bedrock, base_url: "{origin}", region: eu-west-1, probe: false}}
    credentials: {{kind: aws, access_key_id: "{access}", secret_access_key: "{secret}", session_token: "{token}"}}
  unsigned:
    <<: *signed
    credentials: {{kind: aws, access_key_id: "{access}", secret_access_key: another-secret-0123456789}}
  wrong: {{provider: bedrock, base_url: "{origin}", region: eu-west-1, key: "not-the-key-0123456789", probe: false}}
routes:
{routes}
  wrong-key: {{upstreams: [wrong], model: "{model}"}}
  rescued: {{upstreams: [cutting, mending], pick: order, on_stall: rescue}}
  laid: {{upstreams: [bed], model: "{model}", prefix: {{mode: auto}}}}
  collected: {{upstreams: [bed], model: "{model}", on_overrun: {{template: Later., partial: true}}}}
  cached: {{upstreams: [bed], model: "{model}", cache: {{mode: exact}}}}
  signed: {{upstreams: [signed], model: "{model}"}}
  signed-profile: {{upstreams: [signed], model: "{profile}"}}
  wrong-signature: {{upstreams: [unsigned], model: "{model}"}}
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
    settings.write_text(SETTINGS.format(origin=bedrock.origin, key=KEY, routes=routes, model=MODEL, profile=PROFILE,
                                        access=ACCESS_KEY, secret=SECRET_KEY, token=TOKEN, folder=folder))
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


def test_messages_cache_control_is_written_then_read(claude: anthropic.Anthropic, marker: str) -> None:
    """Anthropic's marks become cache points, and Converse's counts become Anthropic's."""
    system: Any = [{"type": "text", "text": marker, "cache_control": {"type": "ephemeral"}}]
    first, second = (claude.messages.create(model="claude", max_tokens=100, system=system, messages=_user("Hi")).usage
                     for _ in range(2))
    assert (first.cache_creation_input_tokens, first.cache_read_input_tokens) == (4, 0)
    assert (second.cache_creation_input_tokens, second.cache_read_input_tokens) == (0, 4)
    assert first.input_tokens == second.input_tokens > 0


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


@pytest.mark.parametrize("route", ["wrong-key", "wrong-signature"])
def test_refused_key_is_the_operators_error(chat: openai.OpenAI, marker: str, route: str) -> None:
    with pytest.raises(openai.InternalServerError) as failed:
        chat.chat.completions.create(model=route, messages=_user(marker))
    assert (failed.value.status_code, failed.value.code) == (502, "upstream_credentials")
    assert "not-the-key" not in failed.value.message


@pytest.mark.parametrize("route", ["signed", "signed-profile"])
@pytest.mark.parametrize("stream", [False, True])
def test_signed_requests_accepted_by_botocores_algorithm(chat: openai.OpenAI, bedrock: BedrockServer, marker: str,
                                                         route: str, stream: bool) -> None:
    answer: Any = chat.chat.completions.create(model=route, messages=_user(marker), stream=stream)
    texts = [chunk.choices[0].delta.content or "" for chunk in answer] if stream else [answer.choices[0].message.content]
    assert "".join(texts) == f"You wrote: {marker}"
    (record,) = bedrock.requests_with(marker)
    assert record.headers["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/")
    assert record.headers["x-amz-security-token"] == TOKEN


def test_image_by_url_refused_before_any_call(chat: openai.OpenAI, bedrock: BedrockServer, marker: str) -> None:
    parts: Any = [{"type": "text", "text": marker},
                  {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    with pytest.raises(openai.BadRequestError, match="send the image as base64"):
        chat.chat.completions.create(model="claude", messages=_user(parts))
    assert bedrock.requests_with(marker) == []


def test_answer_that_breaks_off_is_continued(chat: openai.OpenAI, bedrock: BedrockServer, marker: str) -> None:
    """The second upstream gets the text so far as the last message, in Converse."""
    chunks = list(chat.chat.completions.create(model="rescued", messages=_user(marker), stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    first, second = bedrock.requests_with(marker)
    assert second.json["messages"] == [*first.json["messages"], {"role": "assistant", "content": [{"text": "You wrot"}]}]
    assert text == "You wrotYou wrote: You wrot"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_prompt_layout_sends_a_valid_request_without_its_own_marks(chat: openai.OpenAI, bedrock: BedrockServer,
                                                                   marker: str) -> None:
    for _ in range(3):
        chat.chat.completions.create(model="laid", tools=[CHAT_TOOL], tool_choice="none", messages=[
            {"role": "system", "content": "Be brief. " * 1000}, {"role": "user", "content": marker}])
    sent = [record.json for record in bedrock.requests_with(marker)]
    assert all(botocore_body(request) == request for request in sent)
    assert sent[0] == sent[1] == sent[2]


def test_whole_answer_collected_from_a_stream(chat: openai.OpenAI, bedrock: BedrockServer, marker: str) -> None:
    answer = chat.chat.completions.create(model="collected", messages=_user(marker))
    assert answer.choices[0].message.content == f"You wrote: {marker}"
    assert answer.usage is not None
    assert bedrock.requests_with(marker)[0].target.endswith("/converse-stream")


def test_exact_cache_answers_the_second_request(chat: openai.OpenAI, bedrock: BedrockServer, marker: str) -> None:
    answers = [chat.chat.completions.create(model="cached", temperature=0, messages=_user(marker)) for _ in range(2)]
    assert [answer.choices[0].message.content for answer in answers] == [f"You wrote: {marker}"] * 2
    assert len(bedrock.requests_with(marker)) == 1


def test_live_check_of_keys_that_do_not_end(bedrock: BedrockServer, tmp_path: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "s.yaml"
    settings.write_text(f"""
upstreams:
  bed: {{provider: bedrock, base_url: "{bedrock.origin}", region: eu-west-1,
        credentials: {{kind: aws, access_key_id: "{ACCESS_KEY}", secret_access_key: "{SECRET_KEY}",
                      session_token: "{TOKEN}"}}}}
routes: {{m: {{upstreams: [bed], model: "{MODEL}"}}}}
""")
    assert main(["check", str(settings), "--live"]) == 0
    assert "credential: kind aws, without an end" in capsys.readouterr().out
