"""Turns of a conversation: where they begin, and bodies with fewer of them that stay valid."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.types import Api, Request
from stayfast.wire.context.turns import NOTED, Turns, split_turns
from stayfast.wire.prompt import LAYOUT_APIS
from stayfast.wire.request_body import decode
from tests.unit.wire.altered_json import JSON, paths, replaced
from tests.unit.wire.full_requests import FULL

NAMES = {Api.CHAT: "messages", Api.MESSAGES: "messages", Api.RESPONSES: "input"}
INSTRUCTIONS = ("system", "developer")


def made(api: Api, items: list[Any], **members: Any) -> Request:
    """A request of these items."""
    required = {"max_tokens": 9} if api is Api.MESSAGES else {}
    return decode(api, json.dumps({"model": "m", **required, NAMES[api]: items, **members}).encode())


def turned(request: Request) -> Turns:
    """The turns of a request of a known form."""
    turns = split_turns(request)
    assert turns is not None
    return turns


def items_of(api: Api, body: bytes) -> list[Any]:
    """The items of a valid body."""
    items: list[Any] = json.loads(decode(api, body).body)[NAMES[api]]
    return items


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def chat_call(name: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None,
            "tool_calls": [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}]}


def chat_result(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": "r"}


def test_split_turns_chat_system_part_and_turns_with_tools() -> None:
    """Instructions lead; a call with its result is inside of its turn."""
    turns = turned(made(Api.CHAT, [{"role": "developer", "content": "Be brief."}, user("a"), chat_call("1"),
                                   chat_result("1"), answer("b"), user("c"), answer("d"), user("e")]))
    assert turns.n_system == 1
    assert [(turn.n, turn.at, len(turn.items)) for turn in turns.turns] == [(1, 1, 4), (2, 5, 2), (3, 7, 1)]
    assert [text.text for text in turns.system] == ["Be brief."]
    assert [(text.role, text.text, text.turn) for text in turns.turns[0].texts] == [
        ("user", "a", 1), ("assistant", "f({})", 1), ("tool", "r", 1), ("assistant", "b", 1)]


def test_split_turns_result_after_the_next_user_message_is_never_cut_off() -> None:
    """A result that arrives late keeps the user message before it in the turn of its call."""
    turns = turned(made(Api.CHAT, [user("a"), chat_call("1"), user("b"), chat_result("1"), answer("c"), user("d")]))
    assert [len(turn.items) for turn in turns.turns] == [5, 1]


def test_split_turns_reused_call_ids_belong_to_the_call_before_them() -> None:
    """Some engines begin their call ids anew in each turn."""
    turn = [user("a"), chat_call("1"), chat_result("1"), answer("b")]
    assert len(turned(made(Api.CHAT, turn * 3)).turns) == 3


def test_split_turns_messages_result_blocks_begin_no_turn() -> None:
    """A user message of results continues the turn, even with text."""
    call = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                             {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r", "is_error": True},
                                          {"type": "text", "text": "and?"}]}
    turns = turned(made(Api.MESSAGES, [user("a"), call, result, answer("b"), user("c")], system="Be brief."))
    assert [len(turn.items) for turn in turns.turns] == [4, 1]
    assert [text.text for text in turns.turns[0].texts] == ["a", 'f({"x":1})', "r", "and?", "b"]
    assert [text.is_error for text in turns.turns[0].texts] == [False, False, True, False, False]
    assert [text.text for text in turns.system] == ["Be brief."]


def test_split_turns_responses_items_of_an_answer_are_in_its_turn() -> None:
    """Reasoning, calls and outputs belong to the user message before them; `instructions` are the system part."""
    items = [{"role": "developer", "content": "Use tools."}, user("a"), {"type": "reasoning", "id": "rs", "summary": []},
             {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"x":1}'},
             {"type": "function_call_output", "call_id": "1", "output": "r"}, answer("b"), user("c")]
    turns = turned(made(Api.RESPONSES, items, instructions="Be brief."))
    assert [len(turn.items) for turn in turns.turns] == [5, 1]
    assert [text.text for text in turns.system] == ["Be brief.", "Use tools."]
    assert [text.text for text in turns.turns[0].texts] == ["a", 'f({"x":1})', "r", "b"]


@pytest.mark.parametrize(("item", "members"), [
    ({"type": "item_reference", "id": "msg_1"}, {}), ({"type": "compaction", "encrypted_content": "x"}, {}),
    ({"type": "hologram"}, {}), (user("b"), {"previous_response_id": "resp_1"}), (user("b"), {"conversation": "conv_1"}),
    (user("b"), {"prompt": {"id": "pmpt_1"}})])
def test_split_turns_unknown_form_is_none(item: dict[str, Any], members: dict[str, Any]) -> None:
    """What the gateway cannot see it does not cut."""
    assert split_turns(made(Api.RESPONSES, [user("a"), item], **members)) is None


def test_split_turns_other_dialects_are_none() -> None:
    """Completions and embeddings have no turns."""
    assert split_turns(decode(Api.COMPLETIONS, b'{"model":"m","prompt":"p"}')) is None


def test_split_turns_responses_text_input_is_one_turn() -> None:
    """A plain text is a user message."""
    turns = turned(decode(Api.RESPONSES, b'{"model":"m","input":"hi"}'))
    assert [(turn.n, turn.texts[0].text) for turn in turns.turns] == [(1, "hi")]


def test_replace_messages_roles_alternate_and_all_else_is_the_same() -> None:
    """The summary is a user message with an answer; the last turns keep their bytes, as do tools and the system prompt."""
    tool = b'{"name":"f",  "input_schema":{"type":"object"}}'
    kept = b'{"role":"user", "content":[{"type":"text","text":"\\u00e9","cache_control":{"type":"ephemeral"}}]}'
    body = (b'{"model":"m","max_tokens":9,"tools":[%b],"system":[{"type":"text", "text":"s"}],"messages":['
            b'{"role":"user","content":"a"},{"role":"assistant","content":"b"},%b],"temperature":1.0}' % (tool, kept))
    changed = turned(decode(Api.MESSAGES, body)).replace(0, 1, "THE SUMMARY", ["never <that>"])
    assert changed.startswith(b'{"model":"m","max_tokens":9,"tools":[%b],"system":[{"type":"text", "text":"s"}],' % tool)
    assert changed.endswith(kept + b'],"temperature":1.0}')
    assert items_of(Api.MESSAGES, changed)[:2] == [
        user("THE SUMMARY\n\nPINNED (verbatim):\n- never <that>"), answer(NOTED)]


def test_replace_all_turns_ends_with_the_summary() -> None:
    """An assistant message at the end would be the beginning of the model's answer."""
    request = made(Api.CHAT, [user("a"), answer("b")])
    assert items_of(Api.CHAT, turned(request).replace(0, 1, "s")) == [user("s")]


@pytest.mark.parametrize(("api", "roles"), [
    (Api.CHAT, ["system", "user", "assistant", "user"]), (Api.RESPONSES, ["system", "user", "assistant", "user"]),
    (Api.MESSAGES, ["user", "system", "assistant", "user"])])
def test_replace_instructions_of_a_turn_outlive_it(api: Api, roles: list[str]) -> None:
    """A message of the system inside the covered turns stays, with its bytes."""
    request = made(api, [user("a"), {"role": "system", "content": "from now on French"}, answer("b"), user("c")])
    changed = items_of(api, turned(request).replace(0, 1, "s"))
    assert [item["role"] for item in changed] == roles
    dropped = items_of(api, turned(request).drop(0, 1))
    assert sorted(item["role"] for item in dropped) == ["system", "user"]


def test_drop_everything_is_refused() -> None:
    """A body needs a turn, and a range holds one."""
    turns = turned(made(Api.CHAT, [user("a"), answer("b")]))
    for first, after in ((0, 1), (0, 0), (1, 1), (0, 2)):
        with pytest.raises(ValueError, match="turns"):
            turns.drop(first, after)


def test_digest_markers_and_white_space_do_not_count() -> None:
    """Clients move their cache markers; a changed word is another history."""
    marked = {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}
    plain, other = made(Api.MESSAGES, [user("a"), answer("b")]), made(Api.MESSAGES, [user("A"), answer("b")])
    spaced = decode(Api.MESSAGES, json.dumps(json.loads(plain.body), indent=1).encode())
    digests = [turned(request).digest_of(0, 1) for request in (plain, spaced, made(Api.MESSAGES, [marked, answer("b")]))]
    assert digests[0] == digests[1] == digests[2] != turned(other).digest_of(0, 1)


TEXT = st.sampled_from(["a", "b </summary>", "ünï", "", '"q"', "1,200"])


@st.composite
def turns_of(draw: st.DrawFn, api: Api) -> list[Any]:
    """A valid conversation with tools, images and instructions in the middle."""
    items: list[Any] = [] if api is Api.MESSAGES or draw(st.booleans()) else [{"role": "system", "content": "s"}]
    for n in range(draw(st.integers(1, 6))):
        items.append(user(draw(TEXT)) if draw(st.booleans()) else {"role": "user", "content": image_parts(api)})
        for call in range(draw(st.integers(0, 3))):
            items += tool_items(api, f"{n}-{call}" if draw(st.booleans()) else f"{call}")
        if draw(st.integers(0, 5)) == 0:
            items.append({"role": draw(st.sampled_from(INSTRUCTIONS)) if api is not Api.MESSAGES else "system",
                          "content": "now French"})
        items.append(answer(draw(TEXT)))
    return items + ([user("last")] if draw(st.booleans()) else [])


def image_parts(api: Api) -> list[Any]:
    """A text and an image."""
    match api:
        case Api.CHAT:
            return [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "https://x.example/i"}}]
        case Api.MESSAGES:
            return [{"type": "image", "source": {"type": "url", "url": "https://x.example/i"}}]
    return [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "https://x.example/i"}]


def tool_items(api: Api, name: str) -> list[Any]:
    """A call with its result."""
    match api:
        case Api.CHAT:
            return [chat_call(name), chat_result(name)]
        case Api.MESSAGES:
            return [{"role": "assistant", "content": [{"type": "tool_use", "id": name, "name": "f", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": "r"}]}]
    return [{"type": "reasoning", "id": "rs", "summary": []},
            {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": name, "output": "r"}]


def orphans(items: list[Any]) -> Iterator[str]:
    """Results without their call before them."""
    calls: set[str] = set()
    for item in items:
        calls |= {call["id"] for call in item.get("tool_calls") or ()}
        if item.get("type") == "function_call":
            calls.add(item["call_id"])
        blocks = item["content"] if isinstance(item.get("content"), list) else []
        calls |= {block["id"] for block in blocks if block["type"] == "tool_use"}
        found = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if item.get("role") == "tool":
            found.append(item["tool_call_id"])
        if item.get("type") == "function_call_output":
            found.append(item["call_id"])
        yield from (name for name in found if name not in calls)


@settings(max_examples=150, deadline=None)
@given(api=st.sampled_from(sorted(LAYOUT_APIS)), data=st.data())
def test_replace_and_drop_of_any_range_give_valid_bodies(api: Api, data: st.DataObject) -> None:
    """Kept turns are byte-equal, no result is an orphan, the prefix is the same, and roles alternate in messages."""
    tools = {"tools": [{"name": "f", "input_schema": {}}]} if api is Api.MESSAGES else {}
    request = made(api, data.draw(turns_of(api)), **tools)
    turns = turned(request)
    assert all(bytes(item) in request.body for turn in turns.turns for item in turn.items)
    after = data.draw(st.integers(1, len(turns.turns)))
    first = data.draw(st.integers(0, after - 1))
    summary = data.draw(TEXT) or "s"
    bodies = [turns.replace(first, after, summary)]
    if after - first < len(turns.turns):
        bodies.append(turns.drop(first, after))
    for body in bodies:
        items = items_of(api, body)
        assert list(orphans(items)) == []
        for turn in (*turns.turns[:first], *turns.turns[after + 1:]):
            assert turn.data in body
        assert all(bytes(item) in body for turn in turns.turns[after:after + 1] for item in turn.items)
        head = request.body.partition(b'"%b"' % NAMES[api].encode())[0]
        assert body.replace(b" ", b"").startswith(head.replace(b" ", b""))
        roles = [item["role"] for item in items if item.get("role") not in (*INSTRUCTIONS, None)]
        if api is Api.MESSAGES:
            assert roles == [("user", "assistant")[at % 2] for at in range(len(roles))]


@settings(max_examples=300, deadline=None)
@given(api=st.sampled_from(sorted(LAYOUT_APIS)), data=st.data())
def test_split_turns_any_body_gives_turns_or_none(api: Api, data: st.DataObject) -> None:
    """One value of a full request replaced by anything: nothing raises, not even for a body that `decode` rejects."""
    body = {"model": "m", **FULL[api]}
    path = data.draw(st.sampled_from(paths(body)[1:]))
    request = Request(api, "m", False, json.dumps(replaced(body, path, data.draw(JSON))).encode())
    turns = split_turns(request)
    if turns is not None:
        assert [turn.texts for turn in turns.turns]
        assert len(turns.digest_of(0, len(turns.turns))) == 64
        assert json.loads(turns.replace(0, 1, "s"))
