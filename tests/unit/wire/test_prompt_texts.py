"""Other texts in place of instructions and of tools' results; all else keeps its bytes."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Api
from stayfast.policy.context.diet import make_repeat_dropper, minify_json
from stayfast.wire.prompt_texts import edit_texts
from stayfast.wire.request_body import decode

RULE = "Never promise a date that the warehouse has not confirmed in writing to the customer before noon."
TWICE = f"{RULE}\n\nBe kind.\n\n{RULE}"
ONCE = f"{RULE}\n\nBe kind."
PRETTY = '{\n  "a": [1.50, 2]\n}'
MARK = {"cache_control": {"type": "ephemeral"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT: dict[str, Any] = {"model": "m", "x": 1e2, "messages": [
    {"role": "system", "content": TWICE}, {"role": "developer", "name": "n", "content": [{"type": "text", "text": TWICE}]},
    {"role": "user", "content": f"{TWICE} {PRETTY}"}, {"role": "user", "content": PRETTY},
    {"role": "assistant", "content": PRETTY, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": PRETTY}]}
MESSAGES: dict[str, Any] = {"model": "m", "max_tokens": 5, "system": [{"type": "text", "text": TWICE, **MARK}], "messages": [
    {"role": "user", "content": TWICE},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": PRETTY}]},
                                 {"type": "tool_result", "tool_use_id": "u", "content": PRETTY},
                                 {"type": "text", "text": PRETTY}]}]}
RESPONSES: dict[str, Any] = {"model": "m", "instructions": TWICE, "input": [
    {"role": "developer", "content": [{"type": "input_text", "text": "Other."}]}, {"role": "user", "content": TWICE},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": PRETTY},
    {"type": "function_call_output", "call_id": "c", "output": PRETTY}]}
BODIES = {Api.CHAT: CHAT, Api.MESSAGES: MESSAGES, Api.RESPONSES: RESPONSES}
WORDS = st.lists(st.sampled_from([RULE, "Be kind.", PRETTY, "```\nx\n\ny\n```", "ä\u2028\"\\"]), max_size=5).map("\n\n".join)


def edit(body: dict[str, Any], api: Api) -> bytes:
    return edit_texts(msgspec.json.encode(body), api, instructions=make_repeat_dropper(), results=minify_json)


def replaced(value: Any, changes: dict[str, str]) -> Any:
    """The same tree with other texts where they are asked for by path."""
    text = json.dumps(value)
    for old, new in changes.items():
        text = text.replace(old, new)
    return json.loads(text)


def test_chat_instructions_and_results_change_alone() -> None:
    body = json.loads(edit(CHAT, Api.CHAT))
    assert [one["content"] for one in body["messages"]] == [
        ONCE, [{"type": "text", "text": "Be kind."}], f"{TWICE} {PRETTY}", PRETTY, PRETTY, '{"a":[1.50,2]}']
    assert list(body) == ["model", "x", "messages"]
    assert body["messages"][4]["tool_calls"] == [CALL]


def test_messages_results_change_and_marks_stay() -> None:
    body = json.loads(edit(MESSAGES, Api.MESSAGES))
    assert body["system"] == [{"type": "text", "text": ONCE, **MARK}]
    first, second, third = body["messages"][2]["content"]
    assert (first["content"][0]["text"], second["content"], third["text"]) == ('{"a":[1.50,2]}', '{"a":[1.50,2]}', PRETTY)
    assert body["messages"][0] == MESSAGES["messages"][0]


def test_responses_instructions_and_outputs_change() -> None:
    body = json.loads(edit(RESPONSES, Api.RESPONSES))
    assert body["instructions"] == ONCE
    assert body["input"][:3] == RESPONSES["input"][:3]
    assert body["input"][3]["output"] == '{"a":[1.50,2]}'


def test_nothing_to_change_is_the_same_object() -> None:
    body = b'{ "model" : "m", "messages":[{"role":"user","content":"hi"}, {"role":"system","content":null}]}'
    assert edit_texts(body, Api.CHAT, instructions=make_repeat_dropper(), results=minify_json) is body


def test_text_that_would_be_blank_stays() -> None:
    body = {"model": "m", "messages": [{"role": "system", "content": RULE}, {"role": "system", "content": RULE}]}
    assert json.loads(edit(body, Api.CHAT)) == body


@pytest.mark.parametrize("body", [b"[]", b'{"messages":[{"role":"system","content":"\\ud800"}]}', b"{"])
def test_unknown_form_is_an_error_that_the_caller_can_catch(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        edit_texts(body, Api.CHAT, instructions=str, results=str)


@given(st.sampled_from(sorted(BODIES)), WORDS, WORDS)
def test_any_body_stays_valid_and_a_longer_conversation_begins_alike(api: Api, system: str, result: str) -> None:
    """The dialect's own decoder takes the edited body; what comes later changes nothing of what stands before."""
    texts = {json.dumps(TWICE)[1:-1]: json.dumps(system or "-")[1:-1], json.dumps(PRETTY)[1:-1]: json.dumps(result)[1:-1]}
    body = replaced(BODIES[api], texts)
    edited = edit(body, api)
    decode(api, edited)
    name = "input" if api is Api.RESPONSES else "messages"
    longer = {**body, name: [*body[name], {"role": "user", "content": "more"}]}
    assert json.loads(edit(longer, api))[name][:-1] == json.loads(edited)[name]
    assert edit(json.loads(edited), api) == msgspec.json.encode(json.loads(edited))
