"""Google's SDK against the simulated Gemini API, and its requests next to those that the gateway makes of the same chat."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from stayfast.core.types import Api
from stayfast.lab.simulated.vendors.gemini import N_PROMPT, N_THOUGHTS, PIECES, RETRY_S, THOUGHT, spell_names
from stayfast.wire.request_body import decode, encode
from tests.clients.asks import CHAT_TOOL, TOOL_NAME, WEATHER_SCHEMA
from tests.clients.gemini_rig import GeminiRig, running_gemini

pytestmark = pytest.mark.sockets

TOOL = types.Tool(function_declarations=[types.FunctionDeclaration(
    name=TOOL_NAME, description="The weather of a city.", parameters_json_schema=WEATHER_SCHEMA)])
NO_AUTO = types.AutomaticFunctionCallingConfig(disable=True)
THREE, TWO = "gemini-3-flash-preview", "gemini-2.5-flash"


@pytest.fixture(scope="module")
def gemini() -> Iterator[GeminiRig]:
    """The simulated API."""
    with running_gemini() as rig:
        yield rig


@pytest.fixture(scope="module")
def sdk(gemini: GeminiRig) -> genai.Client:
    """Google's SDK, pointed at it."""
    return genai.Client(api_key="sk-upstream-key", vertexai=False, http_options=types.HttpOptions(base_url=gemini.origin))


def test_sdk_reads_whole_answer_with_thoughts_and_usage(sdk: genai.Client) -> None:
    """Text, thought, signature, reason and counts."""
    answer = sdk.models.generate_content(model=THREE, contents="Hi", config=types.GenerateContentConfig(
        thinking_config=types.ThinkingConfig(include_thoughts=True)))
    assert answer.text == "".join(PIECES)
    assert answer.candidates is not None
    assert answer.candidates[0].finish_reason is types.FinishReason.STOP
    assert answer.candidates[0].content is not None
    parts = answer.candidates[0].content.parts or []
    assert (parts[0].text, parts[0].thought) == (THOUGHT, True)
    assert parts[-1].thought_signature is not None
    usage = answer.usage_metadata
    assert usage is not None
    assert (usage.prompt_token_count, usage.thoughts_token_count) == (N_PROMPT, N_THOUGHTS)
    assert usage.total_token_count == N_PROMPT + N_THOUGHTS + (usage.candidates_token_count or 0)


def test_sdk_reads_stream_and_its_last_event(sdk: genai.Client) -> None:
    """Pieces, then the reason and the counts; no end marker."""
    chunks = list(sdk.models.generate_content_stream(model=TWO, contents="Hi"))
    assert [chunk.text for chunk in chunks] == list(PIECES)
    assert chunks[-1].candidates is not None
    assert chunks[-1].candidates[0].finish_reason is types.FinishReason.STOP


def test_sdk_chat_sends_calls_back_with_their_signatures(sdk: genai.Client, gemini: GeminiRig) -> None:
    """The simulator rejects another signature, and results that do not match the calls."""
    chat = sdk.chats.create(model=THREE, config=types.GenerateContentConfig(
        tools=[TOOL], automatic_function_calling=NO_AUTO))
    calls = chat.send_message("[tools] sdk-round-trip").function_calls or []
    assert [(call.name, (call.args or {})["city"]) for call in calls] == [(TOOL_NAME, "Oslo"), (TOOL_NAME, "Köln")]
    results = [types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response={"degrees": 21}))
               for call in calls]
    assert "degrees" in (chat.send_message(results).text or "")


@pytest.mark.parametrize(("word", "code", "status"), [("429", 429, "RESOURCE_EXHAUSTED"), ("503", 503, "UNAVAILABLE")])
def test_sdk_reads_error_with_retry_info(sdk: genai.Client, word: str, code: int, status: str) -> None:
    """The wait is in the details."""
    with pytest.raises(errors.APIError) as failed:
        sdk.models.generate_content(model=TWO, contents=f"[{word}]")
    assert (failed.value.code, failed.value.status) == (code, status)
    assert failed.value.details["error"]["details"][-1]["retryDelay"] == f"{RETRY_S}s"


def test_sdk_reads_blocked_prompt(sdk: genai.Client) -> None:
    """No candidate, but a reason."""
    answer = sdk.models.generate_content(model=TWO, contents="[blocked]")
    assert answer.candidates is None
    assert answer.prompt_feedback is not None
    assert answer.prompt_feedback.block_reason is types.BlockedReason.PROHIBITED_CONTENT


def of_gateway(model: str, **fields: Any) -> dict[str, Any]:
    """The body that the gateway makes of a chat request."""
    request = decode(Api.CHAT, json.dumps({"model": "m", **fields}).encode())
    body: dict[str, Any] = json.loads(encode(request, Api.GEMINI, model, stream=False))
    return body


def sent(gemini: GeminiRig, marker: str) -> dict[str, Any]:
    """The body that the SDK sent, spelled in one way; it sends an empty configuration as well."""
    body: dict[str, Any] = spell_names(gemini.body(marker))
    return {name: value for name, value in body.items() if value != {}}


def test_sdk_request_with_text_and_sampling_equals_the_gateways(sdk: genai.Client, gemini: GeminiRig) -> None:
    """System prompt, turns, and every parameter of sampling."""
    config = types.GenerateContentConfig(
        system_instruction="Be brief.", temperature=0.5, top_p=0.9, top_k=5, seed=7, max_output_tokens=50,
        stop_sequences=["END"], presence_penalty=0.1, frequency_penalty=0.2, service_tier=types.ServiceTier.FLEX,
        safety_settings=[types.SafetySetting(category=types.HarmCategory.HARM_CATEGORY_HARASSMENT,
                                             threshold=types.HarmBlockThreshold.BLOCK_NONE)])
    sdk.models.generate_content(model=TWO, config=config, contents=[
        types.Content(role="user", parts=[types.Part(text="q")]), types.Content(role="model", parts=[types.Part(text="a")]),
        types.Content(role="user", parts=[types.Part(text="equal-text")])])
    assert sent(gemini, "equal-text") == of_gateway(
        TWO, temperature=0.5, top_p=0.9, top_k=5, seed=7, max_completion_tokens=50, stop="END", presence_penalty=0.1,
        frequency_penalty=0.2, service_tier="flex",
        google={"safety_settings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]},
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"},
                  {"role": "assistant", "content": "a"}, {"role": "user", "content": "equal-text"}])


@pytest.mark.parametrize(("choice", "mode", "names"), [
    ("auto", "AUTO", None), ("required", "ANY", None), ("none", "NONE", None),
    ({"type": "function", "function": {"name": TOOL_NAME}}, "ANY", [TOOL_NAME])])
def test_sdk_request_with_tools_equals_the_gateways(sdk: genai.Client, gemini: GeminiRig, choice: object, mode: str,
                                                    names: list[str] | None) -> None:
    """Declaration, mode, a call of an earlier turn and its result."""
    word = f"equal-tools-{mode}-{len(names or ())}"
    config = types.GenerateContentConfig(
        tools=[TOOL], automatic_function_calling=NO_AUTO, tool_config=types.ToolConfig(
            function_calling_config=types.FunctionCallingConfig(
                mode=types.FunctionCallingConfigMode(mode), allowed_function_names=names)))
    sdk.models.generate_content(model=TWO, config=config, contents=[
        types.Content(role="user", parts=[types.Part(text=word)]),
        types.Content(role="model", parts=[types.Part(function_call=types.FunctionCall(
            id="c1", name=TOOL_NAME, args={"city": "Oslo"}))]),
        types.Content(role="user", parts=[types.Part(function_response=types.FunctionResponse(
            id="c1", name=TOOL_NAME, response={"output": "4 °C"}))])])
    call = {"id": "c1", "type": "function", "function": {"name": TOOL_NAME, "arguments": '{"city": "Oslo"}'}}
    assert sent(gemini, f'"{word}"') == of_gateway(TWO, tools=[CHAT_TOOL], tool_choice=choice, messages=[
        {"role": "user", "content": word}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "4 °C"}])


def test_sdk_request_with_json_output_equals_the_gateways(sdk: genai.Client, gemini: GeminiRig) -> None:
    """Media type and schema."""
    config = types.GenerateContentConfig(response_mime_type="application/json", response_json_schema=WEATHER_SCHEMA)
    answer = sdk.models.generate_content(model=TWO, contents="equal-json", config=config)
    assert json.loads(answer.text or "") == {"city": "Oslo"}
    output = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER_SCHEMA, "strict": True}}
    assert sent(gemini, "equal-json") == of_gateway(TWO, response_format=output,
                                                   messages=[{"role": "user", "content": "equal-json"}])


@pytest.mark.parametrize(("model", "thinking"), [
    (TWO, types.ThinkingConfig(include_thoughts=True, thinking_budget=8192)),
    (THREE, types.ThinkingConfig(include_thoughts=True, thinking_level=types.ThinkingLevel.MEDIUM))])
def test_sdk_request_with_thinking_equals_the_gateways(sdk: genai.Client, gemini: GeminiRig, model: str,
                                                       thinking: types.ThinkingConfig) -> None:
    """A budget before Gemini 3, a level since."""
    word = f"equal-thinking-{model}"
    sdk.models.generate_content(model=model, contents=word, config=types.GenerateContentConfig(thinking_config=thinking))
    assert sent(gemini, word) == of_gateway(model, reasoning_effort="medium", messages=[{"role": "user", "content": word}])


def test_sdk_request_with_images_equals_the_gateways(sdk: genai.Client, gemini: GeminiRig) -> None:
    """Inline and by URI."""
    sdk.models.generate_content(model=TWO, contents=[types.Content(role="user", parts=[
        types.Part(text="equal-images"), types.Part.from_bytes(data=b"hi", mime_type="image/png"),
        types.Part.from_uri(file_uri="gs://bucket/a.jpg", mime_type="image/jpeg")])])
    assert sent(gemini, "equal-images") == of_gateway(TWO, messages=[{"role": "user", "content": [
        {"type": "text", "text": "equal-images"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "image_url", "image_url": {"url": "gs://bucket/a.jpg"}}]}])


def test_sdk_embeddings_equal_the_gateways(sdk: genai.Client, gemini: GeminiRig) -> None:
    """Two texts in one request."""
    answer = sdk.models.embed_content(model="gemini-embedding-001", contents=["equal-embedding", "b"],
                                      config=types.EmbedContentConfig(output_dimensionality=3))
    assert [len(one.values or ()) for one in answer.embeddings or ()] == [3, 3]
    request = decode(Api.EMBEDDINGS, b'{"model":"m","input":["equal-embedding","b"],"dimensions":3}')
    made = json.loads(encode(request, Api.GEMINI, "gemini-embedding-001", stream=False))
    theirs = sent(gemini, "equal-embedding")
    for one in theirs["requests"]:
        one["content"].pop("role", None)
    assert theirs == made


def test_sdk_request_with_cached_content_equals_the_gateways(sdk: genai.Client, gemini: GeminiRig) -> None:
    """By the name of the cached prompt; its tokens are part of the prompt's."""
    answer = sdk.models.generate_content(model=TWO, contents="equal-cached", config=types.GenerateContentConfig(
        cached_content="cachedContents/abc"))
    assert answer.usage_metadata is not None
    assert 0 < (answer.usage_metadata.cached_content_token_count or 0) < (answer.usage_metadata.prompt_token_count or 0)
    assert sent(gemini, "equal-cached") == of_gateway(
        TWO, extra_body={"google": {"cached_content": "cachedContents/abc"}},
        messages=[{"role": "user", "content": "equal-cached"}])
