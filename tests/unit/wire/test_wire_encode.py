"""Requests out: bytes of one's own dialect are kept, other dialects say the same, and what cannot be said is refused."""

import json
from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from stayfast.core.conversation import Image, Text, Thinking, ToolResult, ToolUse
from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire.json_input import conversation, decode, encode
from stayfast.wire.messages.request import DEFAULT_MAX_TOKENS
from tests.unit.wire.recorded import body, request

TALKERS = (Api.CHAT, Api.RESPONSES, Api.MESSAGES)
SDK_PARAMS: dict[Api, TypeAdapter[Any]] = {
    Api.CHAT: TypeAdapter(CompletionCreateParamsNonStreaming),
    Api.RESPONSES: TypeAdapter(ResponseCreateParamsNonStreaming),
    Api.MESSAGES: TypeAdapter(MessageCreateParamsNonStreaming)}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FULL: dict[Api, dict[str, Any]] = {
    Api.CHAT: {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Look:"},
                                         {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]},
            {"role": "assistant", "content": "Well.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"K"}'}},
                {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": '{"city":"B"}'}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "sun"},
            {"role": "tool", "tool_call_id": "c2", "content": "rain"},
            {"role": "user", "content": "And?"}],
        "tools": [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS}}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}}, "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": PARAMETERS, "strict": True}},
        "temperature": 0.5, "top_p": 0.9, "max_completion_tokens": 50, "reasoning_effort": "high", "user": "u1"},
    Api.RESPONSES: {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Look:"},
                                         {"type": "input_image", "image_url": "data:image/png;base64,aGk="}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"K"}'},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": '{"city":"B"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "sun"},
            {"type": "function_call_output", "call_id": "c2", "output": "rain"},
            {"role": "user", "content": "And?"}],
        "tools": [{"type": "function", "name": "weather", "description": "d", "parameters": PARAMETERS, "strict": None}],
        "tool_choice": {"type": "function", "name": "weather"}, "parallel_tool_calls": False,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": PARAMETERS, "strict": True}},
        "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 50, "reasoning": {"effort": "high"}, "user": "u1"},
    Api.MESSAGES: {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look:"}, {"type": "image", "source": {
                "type": "base64", "media_type": "image/png", "data": "aGk="}}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "Well."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "K"}},
                {"type": "tool_use", "id": "c2", "name": "weather", "input": {"city": "B"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "sun"},
                {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "And?"}]}],
        "tools": [{"name": "weather", "description": "d", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": PARAMETERS}},
        "temperature": 0.5, "top_p": 0.9, "max_tokens": 50, "metadata": {"user_id": "u1"}},
}


def sent(client: Api, to: Api, **fields: Any) -> dict[str, Any]:
    """The body for the upstream, parsed."""
    said = json.loads(encode(request(client, **fields), to, "up", stream=False))
    assert isinstance(said, dict)
    return said


@pytest.mark.parametrize("api", list(Api))
def test_an_unchanged_request_keeps_its_bytes(api: Api) -> None:
    """Same dialect, same model, same mode: the very bytes of the client."""
    raw = b"  " + body(api, unknown=1.50)
    assert encode(decode(api, raw), api, "route", stream=False) is raw or encode(
        decode(api, raw), api, "route", stream=False) == raw


def test_a_splice_changes_the_model_and_nothing_else() -> None:
    """Unknown fields and the spelling of every value survive a new model name."""
    raw = (b'{"model":"route","seed":9223372036854775807,"temperature":1.0e-3,"x":{"a" :[1.50, null, 12345678901234567890]},'
           b'"messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude00"}]}')
    assert encode(decode(Api.CHAT, raw), Api.CHAT, "up", stream=False) == raw.replace(b'"route"', b'"up"')


def test_streaming_and_usage_are_spliced() -> None:
    """Stream is set as wanted; usage is asked for only when wanted, and other options stay."""
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
def test_each_translation_is_valid_and_says_the_same(client: Api, to: Api) -> None:
    """A full request of each dialect, said in each other one, is what the SDK would send and has the same meaning."""
    if client is to:
        return
    asked = request(client, **FULL[client])
    out = encode(asked, to, "up", stream=False)
    said = json.loads(out)
    SDK_PARAMS[to].validate_python({name: value for name, value in said.items()
                                    if to is not Api.MESSAGES or name not in ("temperature", "top_p")}, strict=False)
    before, after = conversation(asked), conversation(decode(to, out))
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


def test_chat_to_messages_and_back_keeps_text_and_tools() -> None:
    """The round trip is the identity on what both can say."""
    asked = request(Api.CHAT, **FULL[Api.CHAT])
    there = encode(asked, Api.MESSAGES, "up", stream=False)
    back = encode(decode(Api.MESSAGES, there), Api.CHAT, "route", stream=False)
    assert conversation(decode(Api.CHAT, back)).messages == conversation(asked).messages
    assert json.loads(back)["messages"] == json.loads(asked.body)["messages"]


def test_the_normal_form_of_messages() -> None:
    """Every kind of block has its part; redacted thinking has none."""
    blocks: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "t"}, {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        {"type": "tool_use", "id": "i", "name": "f", "input": {"a": 1}}]
    result = {"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text", "text": "no"}], "is_error": True}
    asked = conversation(request(Api.MESSAGES, messages=[{"role": "assistant", "content": blocks},
                                                         {"role": "user", "content": [result]}]))
    assert asked.messages[0].parts == (
        Thinking("hm", "s"), Text("t"), Image(url="https://x/y.png"), ToolUse("i", "f", '{"a":1}'))
    assert asked.messages[1].parts == (ToolResult("i", (Text("no"),), True),)


def test_messages_always_have_a_limit() -> None:
    """The protocol demands max_tokens: the client's, or the documented default."""
    assert sent(Api.CHAT, Api.MESSAGES)["max_tokens"] == DEFAULT_MAX_TOKENS
    assert sent(Api.CHAT, Api.MESSAGES, max_tokens=9)["max_tokens"] == 9


def test_efforts_and_thinking() -> None:
    """Efforts are said as adaptive thinking, none as disabled; budgets become efforts; silence stays silence."""
    said = sent(Api.CHAT, Api.MESSAGES, reasoning_effort="minimal")
    assert (said["thinking"], said["output_config"]) == ({"type": "adaptive"}, {"effort": "low"})
    assert sent(Api.CHAT, Api.MESSAGES, reasoning_effort="none")["thinking"] == {"type": "disabled"}
    assert "thinking" not in sent(Api.CHAT, Api.MESSAGES)
    for budget, effort in ((2048, "low"), (8000, "medium"), (32000, "high")):
        said = sent(Api.MESSAGES, Api.CHAT, max_tokens=64000, thinking={"type": "enabled", "budget_tokens": budget})
        assert said["reasoning_effort"] == effort


def test_a_translated_chat_stream_asks_for_usage_and_responses_are_not_stored() -> None:
    """The client's dialect tells usage, so chat must; and what is translated is kept nowhere."""
    said = json.loads(encode(request(Api.MESSAGES, stream=True), Api.CHAT, "up", stream=True))
    assert said["stream_options"] == {"include_usage": True}
    assert sent(Api.CHAT, Api.RESPONSES)["store"] is False


def test_late_system_messages() -> None:
    """Chat and responses keep them in their place; messages takes them to the front."""
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "s"}, {"role": "user", "content": "b"}]
    assert [item["role"] for item in sent(Api.CHAT, Api.RESPONSES, messages=messages)["input"]] == [
        "user", "system", "user"]
    said = sent(Api.CHAT, Api.MESSAGES, messages=[{"role": "developer", "content": "d"}, *messages])
    assert said["system"] == "d\n\ns"
    assert [message["role"] for message in said["messages"]] == ["user", "user"]


def test_completions_become_one_user_message() -> None:
    """A prompt of text is asked as chat; what chat has no words for is refused."""
    said = sent(Api.COMPLETIONS, Api.CHAT, prompt=["hi"], stop="x", max_tokens=3)
    assert said == {"model": "up", "messages": [{"role": "user", "content": "hi"}], "stop": ["x"],
                    "max_completion_tokens": 3}
    for fields, param in (({"prompt": [1, 2]}, "prompt"), ({"echo": True}, "echo"), ({"suffix": "s"}, "suffix")):
        with pytest.raises(Rejected) as caught:
            sent(Api.COMPLETIONS, Api.CHAT, **fields)
        assert caught.value.param == param


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Messages with one user message of parts."""
    return [{"role": "user", "content": list(parts)}]


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
def test_what_cannot_be_said_is_refused_by_name(client: Api, to: Api, fields: dict[str, Any], param: str) -> None:
    """A field that would change the answer and has no words over there gives a 400, never a silent loss."""
    with pytest.raises(Rejected) as caught:
        sent(client, to, **fields)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(("asked", "said"), [(0.0, 0.0), (1.0, 1.0), (1.5, 1.0), (None, None)])
def test_a_temperature_is_held_to_what_messages_knows(asked: float | None, said: float | None) -> None:
    """Chat goes to 2, messages to 1: the wish for more is met as far as it goes."""
    assert sent(Api.CHAT, Api.MESSAGES, temperature=asked).get("temperature") == said


@pytest.mark.parametrize(("client", "fields"), [
    (Api.CHAT, {"response_format": {"type": "json_object"}}),
    (Api.RESPONSES, {"text": {"format": {"type": "json_object"}}})])
def test_any_json_object_becomes_an_instruction(client: Api, fields: dict[str, Any]) -> None:
    """Messages has no field for it: it stands behind the client's own instructions, and no schema is invented."""
    said = sent(client, Api.MESSAGES, **fields)
    assert said["system"] == "Respond with one JSON object and nothing else."
    assert "output_config" not in said
    if client is Api.CHAT:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        assert sent(client, Api.MESSAGES, messages=messages, **fields)["system"] == (
            "Be brief.\n\nRespond with one JSON object and nothing else.")


def test_hints_are_dropped_silently() -> None:
    """Fields that change no meaning do not stand in the way."""
    said = sent(Api.CHAT, Api.MESSAGES, seed=1, verbosity="low", store=True, prompt_cache_key="k", service_tier="flex",
                metadata={"a": "b"}, presence_penalty=0.5, frequency_penalty=-1, logprobs=False, n=1,
                prediction={"type": "content"})
    assert set(said) == {"model", "max_tokens", "messages"}
