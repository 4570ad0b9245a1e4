"""Encoding a request: the same dialect preserves the bytes, others the meaning; untranslatable fields are rejected."""

import json
from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from stayfast.core.errors import Rejected
from stayfast.core.types import CLIENT_APIS, Api
from stayfast.wire.request_body import decode, encode, parse_conversation
from tests.unit.wire.full_requests import FULL, PARAMETERS, sent, user
from tests.unit.wire.recorded import body, request

TALKERS = (Api.CHAT, Api.RESPONSES, Api.MESSAGES)


SDK_PARAMS: dict[Api, TypeAdapter[Any]] = {
    Api.CHAT: TypeAdapter(CompletionCreateParamsNonStreaming),
    Api.RESPONSES: TypeAdapter(ResponseCreateParamsNonStreaming),
    Api.MESSAGES: TypeAdapter(MessageCreateParamsNonStreaming)}


@pytest.mark.parametrize("api", sorted(CLIENT_APIS))
def test_encode_unchanged_request_keeps_its_bytes(api: Api) -> None:
    """Same dialect, same model, same mode: the very bytes of the client."""
    raw = b"  " + body(api, unknown=1.50)
    assert encode(decode(api, raw), api, "route", stream=False) is raw or encode(
        decode(api, raw), api, "route", stream=False) == raw


def test_encode_new_model_changes_nothing_else() -> None:
    """Unknown fields and the spelling of every value survive a new model name."""
    raw = (b'{"model":"route","seed":9223372036854775807,"temperature":1.0e-3,"x":{"a" :[1.50, null, 12345678901234567890]},'
           b'"messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude00"}]}')
    assert encode(decode(Api.CHAT, raw), Api.CHAT, "up", stream=False) == raw.replace(b'"route"', b'"up"')


def test_encode_sets_stream_and_usage_options() -> None:
    """Usage is requested only if wanted, and other options stay."""
    asked = request(Api.CHAT, stream_options={"include_obfuscation": False})
    assert json.loads(encode(asked, Api.CHAT, "route", stream=True, want_usage=True)) == json.loads(asked.body) | {
        "stream": True, "stream_options": {"include_obfuscation": False, "include_usage": True}}
    streaming = request(Api.CHAT, stream=True)
    assert encode(streaming, Api.CHAT, "route", stream=True) == streaming.body
    assert json.loads(encode(streaming, Api.CHAT, "route", stream=True, want_usage=True))["stream_options"] == {
        "include_usage": True}
    whole = json.loads(encode(request(Api.CHAT, stream=True, stream_options={"include_usage": True}), Api.CHAT, "route",
                              stream=False))
    assert whole["stream"] is False
    assert "stream_options" not in whole
    responses = request(Api.RESPONSES, stream=True)
    assert encode(responses, Api.RESPONSES, "route", stream=True, want_usage=True) == responses.body


@pytest.mark.parametrize("client", TALKERS)
@pytest.mark.parametrize("to", TALKERS)
def test_encode_each_translation_is_valid_and_equal_in_meaning(client: Api, to: Api) -> None:
    """A full request of each dialect, translated to each other one, validates with the SDK."""
    if client is to:
        return
    asked = request(client, **FULL[client])
    out = encode(asked, to, "up", stream=False)
    said = json.loads(out)
    SDK_PARAMS[to].validate_python({name: value for name, value in said.items()
                                    if to is not Api.MESSAGES or name not in ("temperature", "top_p")}, strict=False)
    before, after = parse_conversation(asked), parse_conversation(decode(to, out))
    assert after.messages == before.messages
    assert after.system == before.system
    assert after.sampling == before.sampling
    assert (after.tools[0].name, after.tools[0].description) == ("weather", "d")
    assert after.tools[0].parameters is not None
    assert json.loads(bytes(after.tools[0].parameters["properties"])) == PARAMETERS["properties"]
    assert (after.tool_choice, after.parallel_tool_calls) == (before.tool_choice, False)
    assert after.output_format is not None
    assert after.output_format.schema is not None
    assert (after.max_output_tokens, after.effort, after.user) == (50, "high", "u1")


def test_encode_chat_to_messages_and_back_is_the_identity() -> None:
    """For all fields that both dialects have."""
    asked = request(Api.CHAT, **FULL[Api.CHAT])
    there = encode(asked, Api.MESSAGES, "up", stream=False)
    back = encode(decode(Api.MESSAGES, there), Api.CHAT, "route", stream=False)
    assert parse_conversation(decode(Api.CHAT, back)).messages == parse_conversation(asked).messages
    assert json.loads(back)["messages"] == json.loads(asked.body)["messages"]


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{oops"}}


UNSAYABLE: list[tuple[Api, Api, dict[str, Any], str]] = [
    (Api.CHAT, Api.MESSAGES, {"n": 2}, "n"),
    (Api.CHAT, Api.MESSAGES, {"logprobs": True}, "logprobs"),
    (Api.CHAT, Api.MESSAGES, {"logit_bias": {"1": 2}}, "logit_bias"),
    (Api.CHAT, Api.MESSAGES, {"functions": [{"name": "f"}]}, "functions"),
    (Api.CHAT, Api.MESSAGES, {"modalities": ["text", "audio"]}, "modalities"),
    (Api.CHAT, Api.MESSAGES, {"messages": user({"type": "input_audio"})}, "messages[0].content[0].type"),
    (Api.CHAT, Api.MESSAGES, {"messages": [{"role": "system", "content": "only"}]}, "messages"),
    (Api.CHAT, Api.MESSAGES, {"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, "arguments"),
    (Api.CHAT, Api.MESSAGES, {"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
    (Api.CHAT, Api.RESPONSES, {"stop": "x"}, "stop"),
    (Api.CHAT, Api.RESPONSES, {"frequency_penalty": 1}, "frequency_penalty"),
    (Api.CHAT, Api.RESPONSES, {"tools": [{"type": "custom"}]}, "tools[0].type"),
    (Api.CHAT, Api.RESPONSES, {"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    (Api.MESSAGES, Api.RESPONSES, {"stop_sequences": ["x"]}, "stop_sequences"),
    (Api.MESSAGES, Api.CHAT, {"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
    (Api.MESSAGES, Api.CHAT, {"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
    (Api.MESSAGES, Api.CHAT, {"messages": user({"type": "document", "source": {"type": "text", "data": "x"}})},
     "messages[0].content[0].type"),
    (Api.MESSAGES, Api.CHAT, {"messages": user({"type": "image", "source": {"type": "file", "file_id": "f"}})},
     "messages[0].content[0].source"),
    (Api.RESPONSES, Api.CHAT, {"previous_response_id": "r"}, "previous_response_id"),
    (Api.RESPONSES, Api.CHAT, {"background": True}, "background"),
    (Api.RESPONSES, Api.CHAT, {"truncation": "auto"}, "truncation"),
    (Api.RESPONSES, Api.CHAT, {"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    (Api.EMBEDDINGS, Api.CHAT, {}, "model"),
]


@pytest.mark.parametrize(("client", "to", "fields", "param"), UNSAYABLE)
def test_encode_untranslatable_field_is_rejected_by_name(client: Api, to: Api, fields: dict[str, Any], param: str) -> None:
    """A field that would change the answer is never dropped silently."""
    with pytest.raises(Rejected) as caught:
        sent(client, to, **fields)
    assert (caught.value.status, caught.value.param) == (400, param)
