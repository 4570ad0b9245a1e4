"""Requests of each dialect as generateContent requests."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.wire.gemini.request import MADE_ID
from stayfast.wire.request_body import encode
from stayfast.wire.signatures import NO_SIGNATURE
from tests.unit.wire.full_requests import FULL, sent
from tests.unit.wire.recorded import request

GOLDEN = Path(__file__).parent / "golden" / "gemini"
CLIENTS = (Api.CHAT, Api.RESPONSES, Api.MESSAGES)


def encoded(client: Api, model: str, **fields: Any) -> dict[str, Any]:
    """The body for this model."""
    body: dict[str, Any] = json.loads(encode(request(client, **fields), Api.GEMINI, model, stream=True))
    return body


@pytest.mark.parametrize("client", CLIENTS)
def test_encode_body_full_request_equals_the_golden_file(client: Api) -> None:
    """Every field that can be translated, from each dialect; Gemini 2.5 needs no signatures."""
    golden = json.loads((GOLDEN / f"request-{client.value}.json").read_text())
    assert encoded(client, "gemini-2.5-flash", **FULL[client]) == golden


def test_encode_body_completions_prompt_is_a_user_message() -> None:
    """Thoughts are not requested: the protocol has no place for them."""
    body = encoded(Api.COMPLETIONS, "gemini-3-flash", prompt="Once", max_tokens=5, seed=7, stop=["."], presence_penalty=0.5)
    assert body == {"contents": [{"role": "user", "parts": [{"text": "Once"}]}], "generationConfig": {
        "maxOutputTokens": 5, "seed": 7, "stopSequences": ["."], "presencePenalty": 0.5}}


@pytest.mark.parametrize(("model", "effort", "thinking"), [
    ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
    ("gemini-2.5-pro", "low", {"thinkingBudget": 1024, "includeThoughts": True}),
    ("publishers/google/models/gemini-2.5-pro", "high", {"thinkingBudget": 24_576, "includeThoughts": True}),
    ("gemini-3-flash", "none", {"thinkingLevel": "MINIMAL"}),
    ("gemini-3.1-pro-preview", "minimal", {"thinkingLevel": "LOW", "includeThoughts": True}),
    ("gemini-3.1-pro-preview", "max", {"thinkingLevel": "HIGH", "includeThoughts": True}),
    ("gemini-12-flash", "medium", {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
])
def test_encode_body_effort_is_a_budget_or_a_level(model: str, effort: str, thinking: dict[str, Any]) -> None:
    """By the model's generation."""
    assert encoded(Api.CHAT, model, reasoning_effort=effort)["generationConfig"] == {"thinkingConfig": thinking}


@pytest.mark.parametrize(("choice", "config"), [
    ("auto", {"mode": "AUTO"}), ("none", {"mode": "NONE"}), ("required", {"mode": "ANY"}),
    ({"type": "function", "function": {"name": "f"}}, {"mode": "ANY", "allowedFunctionNames": ["f"]})])
def test_encode_body_tool_choice_is_a_mode(choice: object, config: dict[str, Any]) -> None:
    """A named function is ANY with one allowed name."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = sent(Api.CHAT, Api.GEMINI, tools=tools, tool_choice=choice)
    assert body["toolConfig"] == {"functionCallingConfig": config}
    assert body["tools"] == [{"functionDeclarations": [{"name": "f"}]}]


def call(call_id: str, signature: str | None = None) -> dict[str, Any]:
    """A chat tool call."""
    extra = {"extra_content": {"google": {"thought_signature": signature}}} if signature is not None else {}
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}, **extra}


def chat_turn(*calls: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """A chat with one turn of calls, and their results."""
    return [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": list(calls), **fields},
            *({"role": "tool", "tool_call_id": made["id"], "content": "done"} for made in calls)]


def parts_of(body: dict[str, Any], at: int) -> list[dict[str, Any]]:
    """The parts of one content."""
    parts: list[dict[str, Any]] = body["contents"][at]["parts"]
    return parts


def test_encode_body_signatures_of_chat_calls_are_sent_back() -> None:
    """The first call of a turn is signed, as Gemini sends it."""
    body = encoded(Api.CHAT, "gemini-3-pro", messages=chat_turn(call("a", "c2ln"), call("b")))
    assert parts_of(body, 1) == [{"functionCall": {"id": "a", "name": "f", "args": {}}, "thoughtSignature": "c2ln"},
                                 {"functionCall": {"id": "b", "name": "f", "args": {}}}]


def test_encode_body_signature_of_a_text_is_a_part_of_its_own() -> None:
    """As Gemini streams it."""
    messages = [{"role": "user", "content": "q"}, {"role": "user", "content": "r"},
                {"role": "assistant", "content": "A", "extra_content": {"google": {"thought_signature": "c2ln"}}},
                {"role": "user", "content": "s"}]
    assert parts_of(encoded(Api.CHAT, "gemini-3-pro", messages=messages), 1) == [
        {"text": "A"}, {"text": "", "thoughtSignature": "c2ln"}]


def test_encode_body_foreign_calls_get_the_documented_value() -> None:
    """Gemini 3 rejects a call without a signature; earlier models do not look at it."""
    messages = chat_turn(call("a"), call("b"))
    first, second = parts_of(encoded(Api.CHAT, "gemini-3-pro", messages=messages), 1)
    assert first["thoughtSignature"] == NO_SIGNATURE
    assert "thoughtSignature" not in second
    assert "thoughtSignature" not in parts_of(encoded(Api.CHAT, "gemini-2.5-pro", messages=messages), 1)[0]


@pytest.mark.parametrize(("signature", "kept"), [("gemini:c2ln", "c2ln"), ("EuYBCkQ=", NO_SIGNATURE)])
def test_encode_body_thinking_block_signs_the_call_after_it(signature: str, kept: str) -> None:
    """Only with Gemini's own signature: Anthropic's would be rejected."""
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": signature},
        {"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x", "is_error": True}]}]
    body = encoded(Api.MESSAGES, "gemini-3-pro", messages=messages)
    assert parts_of(body, 1) == [{"functionCall": {"id": "a", "name": "f", "args": {}}, "thoughtSignature": kept}]
    assert parts_of(body, 2) == [{"functionResponse": {"id": "a", "name": "f", "response": {"error": "x"}}}]


def test_encode_body_reasoning_item_signs_the_call_after_it() -> None:
    """The encrypted content of other providers is dropped."""
    items = [{"role": "user", "content": "go"}, {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
             {"type": "reasoning", "summary": [], "encrypted_content": "gemini:c2ln"},
             {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "a", "output": '{"degrees": 21}'}]
    body = encoded(Api.RESPONSES, "gemini-3-pro", input=items)
    assert parts_of(body, 1)[0]["thoughtSignature"] == "c2ln"
    assert parts_of(body, 2) == [{"functionResponse": {"id": "a", "name": "f", "response": {"degrees": 21}}}]


def test_encode_body_geminis_signature_is_not_sent_to_anthropic() -> None:
    """A route may fall back to another provider within a conversation."""
    items = [{"role": "user", "content": "go"}, {"type": "reasoning", "summary": [], "encrypted_content": "gemini:c2ln"},
             {"type": "message", "role": "assistant", "content": "A"}, {"role": "user", "content": "q"}]
    assert "c2ln" not in json.dumps(sent(Api.RESPONSES, Api.MESSAGES, input=items))


def test_encode_body_made_ids_are_not_sent_back() -> None:
    """Gemini sent none; it matches by order and name."""
    body = encoded(Api.CHAT, "gemini-2.5-pro", messages=chat_turn(call(f"{MADE_ID}1")))
    assert parts_of(body, 1) == [{"functionCall": {"name": "f", "args": {}}}]
    assert parts_of(body, 2) == [{"functionResponse": {"name": "f", "response": {"output": "done"}}}]


def test_encode_body_result_without_its_call_is_rejected() -> None:
    """Gemini requires the function's name, which only the call has."""
    with pytest.raises(Rejected, match="no earlier message") as rejected:
        sent(Api.CHAT, Api.GEMINI, messages=[{"role": "tool", "tool_call_id": "x", "content": "y"}])
    assert rejected.value.param == "tool_call_id"


@pytest.mark.parametrize(("url", "file"), [
    ("https://h/a.PNG?x=1", {"fileUri": "https://h/a.PNG?x=1", "mimeType": "image/png"}),
    ("gs://bucket/a.jpeg", {"fileUri": "gs://bucket/a.jpeg", "mimeType": "image/jpeg"}),
    ("https://generativelanguage.googleapis.com/v1beta/files/a1", {
        "fileUri": "https://generativelanguage.googleapis.com/v1beta/files/a1"})])
def test_encode_body_image_by_url_is_file_data(url: str, file: dict[str, str]) -> None:
    """With the media type, if the name shows it."""
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    assert parts_of(sent(Api.CHAT, Api.GEMINI, messages=messages), 0) == [{"fileData": file}]


@pytest.mark.parametrize(("tier", "to"), [("flex", "flex"), ("priority", "priority"), ("default", "standard"),
                                          ("auto", None)])
def test_encode_body_service_tier(tier: str, to: str | None) -> None:
    """auto is Gemini's default."""
    assert sent(Api.CHAT, Api.GEMINI, service_tier=tier).get("serviceTier") == to


def test_encode_body_several_choices_are_rejected() -> None:
    """As in each translation."""
    with pytest.raises(Rejected, match="n cannot be translated to gemini"):
        sent(Api.CHAT, Api.GEMINI, n=2)


def test_encode_body_json_object_has_no_schema() -> None:
    """Any JSON."""
    assert sent(Api.CHAT, Api.GEMINI, response_format={"type": "json_object"})["generationConfig"] == {
        "responseMimeType": "application/json"}


TEXTS = st.text(max_size=20)
ROLES = st.sampled_from(["user", "assistant", "system"])


@given(st.lists(st.tuples(ROLES, TEXTS), min_size=1, max_size=8))
def test_encode_body_any_texts_alternate_and_are_all_sent(turns: list[tuple[str, str]]) -> None:
    """No content is empty, no role comes twice in a row, and no text is lost."""
    try:
        body = sent(Api.CHAT, Api.GEMINI, messages=[{"role": role, "content": text} for role, text in turns])
    except Rejected:
        assert not any(text for role, text in turns if role != "system")
        return
    roles = [content["role"] for content in body["contents"]]
    assert all(one != other for one, other in pairwise(roles))
    texts = [part["text"] for content in body["contents"] for part in content["parts"]]
    assert all(texts)
    assert "".join(texts) == "".join(text for role, text in turns if role != "system")
