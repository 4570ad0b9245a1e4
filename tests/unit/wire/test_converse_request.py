"""Requests in all clients' protocols become Converse; botocore's service model is the judge of their shape."""

import json
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire.request_body import decode, encode
from tests.unit.wire.altered_json import JSON, paths, replaced
from tests.unit.wire.converse_reference import botocore_body
from tests.unit.wire.full_requests import FULL, PARAMETERS, sent, user
from tests.unit.wire.recorded import request

CLIENTS = (Api.CHAT, Api.RESPONSES, Api.MESSAGES)
ASKED = [{"role": "user", "content": "Hi"}]
CHAT_TOOLS = FULL[Api.CHAT]["tools"]


def _full(client: Api) -> dict[str, Any]:
    """The full request without the one field that Converse lacks."""
    body = {name: value for name, value in FULL[client].items() if name != "parallel_tool_calls"}
    if client is Api.MESSAGES:
        body["tool_choice"] = {"type": "tool", "name": "weather"}
    return body


@pytest.mark.parametrize("client", CLIENTS)
def test_encode_full_request_golden(client: Api) -> None:
    """Every field has its place, and botocore sends the same for it."""
    said = sent(client, Api.CONVERSE, **_full(client))
    schema = said["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
    assert json.loads(schema.pop("schema")) == PARAMETERS
    assert schema == ({} if client is Api.MESSAGES else {"name": "n"})
    schema["schema"] = "{}"
    assert said == {
        "system": [{"text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"text": "Look:"}, {"image": {"format": "png", "source": {"bytes": "aGk="}}}]},
            {"role": "assistant", "content": [
                {"text": "Well."},
                {"toolUse": {"toolUseId": "c1", "name": "weather", "input": {"city": "K"}}},
                {"toolUse": {"toolUseId": "c2", "name": "weather", "input": {"city": "B"}}}]},
            {"role": "user", "content": [
                {"toolResult": {"toolUseId": "c1", "content": [{"text": "sun"}]}},
                {"toolResult": {"toolUseId": "c2", "content": [{"text": "rain"}]}},
                {"text": "And?"}]}],
        "toolConfig": {"tools": [{"toolSpec": {"name": "weather", "description": "d", "inputSchema": {"json": PARAMETERS}}}],
                       "toolChoice": {"tool": {"name": "weather"}}},
        "inferenceConfig": {"maxTokens": 50, "temperature": 0.5, "topP": 0.9},
        "outputConfig": {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}, "effort": "high"}}
    assert botocore_body(said) == said


@settings(max_examples=200, deadline=None)
@given(client=st.sampled_from(CLIENTS), stream=st.booleans(), data=st.data())
def test_encode_any_decoded_request_translated_or_rejected(client: Api, stream: bool, data: st.DataObject) -> None:
    """One value of a full request replaced by anything: JSON or a refusal, nothing else."""
    said = {"model": "m", **_full(client)}
    path = data.draw(st.sampled_from(paths(said)[1:]))
    with suppress(Rejected):
        asked = decode(client, json.dumps(replaced(said, path, data.draw(JSON))).encode())
        json.loads(encode(asked, Api.CONVERSE, "up", stream=stream, want_usage=True))


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text(min_size=1, max_size=5)),
                      min_size=1),
       temperature=st.none() | st.floats(0, 2), stream=st.booleans())
def test_encode_any_texts_botocore_sends_the_same(texts: list[tuple[str, str]], temperature: float | None,
                                                  stream: bool) -> None:
    """Roles alternate, and the service model allows the request."""
    messages = [{"role": role, "content": text} for role, text in texts]
    try:
        said = sent(Api.CHAT, Api.CONVERSE, messages=messages, temperature=temperature)
    except Rejected:
        assert all(role == "system" for role, _ in texts)
        return
    assert botocore_body(said, stream=stream) == said
    roles = [message["role"] for message in said["messages"]]
    assert all(one != other for one, other in pairwise(roles))


def test_encode_completions_prompt_is_one_message() -> None:
    said = sent(Api.COMPLETIONS, Api.CONVERSE, prompt="Once", stop=["."])
    assert said == {"messages": [{"role": "user", "content": [{"text": "Once"}]}],
                    "inferenceConfig": {"maxTokens": 16, "stopSequences": ["."]},
                    "additionalModelResponseFieldPaths": ["/stop_sequence"]}
    assert botocore_body(said) == said


@pytest.mark.parametrize(("choice", "encoded"), [
    ("auto", {"auto": {}}), ("required", {"any": {}}),
    ({"type": "function", "function": {"name": "weather"}}, {"tool": {"name": "weather"}})])
def test_encode_tool_choice_has_its_form(choice: object, encoded: object) -> None:
    said = sent(Api.CHAT, Api.CONVERSE, messages=ASKED, tools=CHAT_TOOLS, tool_choice=choice)
    assert said["toolConfig"]["toolChoice"] == encoded
    assert botocore_body(said) == said


def test_encode_tool_choice_none_sends_no_tools() -> None:
    assert "toolConfig" not in sent(Api.CHAT, Api.CONVERSE, messages=ASKED, tools=CHAT_TOOLS, tool_choice="none")


def test_encode_tool_choice_none_after_calls_rejected() -> None:
    with pytest.raises(Rejected, match="tool_choice cannot be translated to converse"):
        sent(Api.CHAT, Api.CONVERSE, messages=FULL[Api.CHAT]["messages"], tools=CHAT_TOOLS, tool_choice="none")


def test_encode_parallel_tool_calls_false_rejected() -> None:
    with pytest.raises(Rejected) as rejected:
        sent(Api.CHAT, Api.CONVERSE, messages=ASKED, tools=CHAT_TOOLS, parallel_tool_calls=False)
    assert (rejected.value.status, rejected.value.param) == (400, "parallel_tool_calls")
    assert sent(Api.CHAT, Api.CONVERSE, messages=ASKED, parallel_tool_calls=False) == {
        "messages": [{"role": "user", "content": [{"text": "Hi"}]}]}


@pytest.mark.parametrize(("url", "why"), [("https://x/y.png", "send the image as base64"),
                                          ("data:image/tiff;base64,aGk=", "its type must be image/png")])
def test_encode_image_converse_cannot_carry_rejected(url: str, why: str) -> None:
    with pytest.raises(Rejected, match=why) as rejected:
        sent(Api.CHAT, Api.CONVERSE, messages=user({"type": "image_url", "image_url": {"url": url}}))
    assert rejected.value.status == 400


def test_encode_failed_tool_result_has_status() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "aGk="}}
    content = [{"type": "text", "text": "no"}, image]
    result = {"type": "tool_result", "tool_use_id": "i", "is_error": True, "content": content}
    said = sent(Api.MESSAGES, Api.CONVERSE, messages=user(result), max_tokens=9)
    assert said["messages"][0]["content"] == [{"toolResult": {"toolUseId": "i", "status": "error", "content": [
        {"text": "no"}, {"image": {"format": "webp", "source": {"bytes": "aGk="}}}]}}]
    assert botocore_body(said) == said


def test_encode_reasoning_of_earlier_turns_keeps_signature_and_redacted() -> None:
    """Reasoning without a signature is dropped: its provider would reject it."""
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "thinking", "thinking": "no"},
              {"type": "redacted_thinking", "data": "aGk="}, {"type": "text", "text": "Yes"}]
    said = sent(Api.MESSAGES, Api.CONVERSE, max_tokens=9, messages=[{"role": "assistant", "content": blocks}, *ASKED])
    assert said["messages"][0]["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
        {"reasoningContent": {"redactedContent": "aGk="}}, {"text": "Yes"}]
    assert botocore_body(said) == said


def test_encode_json_object_becomes_an_instruction() -> None:
    said = sent(Api.CHAT, Api.CONVERSE, messages=ASKED, response_format={"type": "json_object"})
    assert said["system"] == [{"text": "Respond with one JSON object and nothing else."}]
    assert "outputConfig" not in said


@pytest.mark.parametrize(("effort", "encoded"), [("minimal", "low"), ("low", "low"), ("xhigh", "xhigh"), ("none", None)])
def test_encode_effort_has_its_name(effort: str, encoded: str | None) -> None:
    said = sent(Api.CHAT, Api.CONVERSE, messages=ASKED, reasoning_effort=effort)
    assert said.get("outputConfig", {}).get("effort") == encoded


@pytest.mark.parametrize(("tier", "encoded"), [("priority", {"type": "priority"}), ("auto", None), ("scale", None)])
def test_encode_service_tier_known_names_only(tier: str, encoded: object) -> None:
    assert sent(Api.CHAT, Api.CONVERSE, messages=ASKED, service_tier=tier).get("serviceTier") == encoded


def test_encode_top_k_for_anthropics_models_only() -> None:
    asked = request(Api.CHAT, messages=ASKED, top_k=5)
    bodies = [json.loads(encode(asked, Api.CONVERSE, model, stream=False))
              for model in ("eu.anthropic.claude-sonnet-4-5", "amazon.nova-pro-v1:0")]
    assert [body.get("additionalModelRequestFields") for body in bodies] == [{"top_k": 5}, None]


def test_encode_own_members_of_converse_are_sent() -> None:
    """They win over what other fields become, and are valid by the service model."""
    own: dict[str, Any] = {"guardrailConfig": {"guardrailIdentifier": "g1", "guardrailVersion": "1", "trace": "enabled"},
           "performanceConfig": {"latency": "optimized"}, "serviceTier": {"type": "reserved"},
           "requestMetadata": {"team": "a"}, "additionalModelRequestFields": {"thinking": {"type": "adaptive"}}}
    asked = request(Api.CHAT, messages=ASKED, service_tier="flex", top_k=5, **own)
    said = json.loads(encode(asked, Api.CONVERSE, "anthropic.claude-sonnet-4-5", stream=False))
    assert {name: said[name] for name in own} == own | {
        "additionalModelRequestFields": {"top_k": 5, "thinking": {"type": "adaptive"}}}
    assert botocore_body(said) == said


def test_encode_own_member_of_wrong_type_rejected() -> None:
    with pytest.raises(Rejected) as rejected:
        sent(Api.CHAT, Api.CONVERSE, messages=ASKED, guardrailConfig="g1")
    assert rejected.value.param == "guardrailConfig"


@pytest.mark.parametrize("arguments", ["{", "[]", "1"])
def test_encode_arguments_that_are_no_object_rejected(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    with pytest.raises(Rejected, match="must be the text of a JSON object"):
        sent(Api.CHAT, Api.CONVERSE, messages=[{"role": "assistant", "tool_calls": [call]}, *ASKED])


def test_encode_without_content_rejected() -> None:
    with pytest.raises(Rejected, match="at least one message"):
        sent(Api.CHAT, Api.CONVERSE, messages=[{"role": "user", "content": ""}])
