"""The blocks of a prompt and markers on them: which block is marked, and that nothing else changes."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Api
from stayfast.wire.prompt import LAYOUT_APIS, PromptLayout, find_first_difference, has_cache_markers, order_blocks

MARK = b'{"type":"ephemeral"}'
POINT = b'{"mode":"explicit"}'
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}


def said(body: dict[str, Any]) -> bytes:
    """The bytes of a body."""
    return msgspec.json.encode(body)


def read(body: bytes) -> Any:
    """Parse JSON."""
    return msgspec.json.decode(body)


MESSAGES = said({
    "model": "claude-sonnet-4-6", "max_tokens": 5, "tools": [TOOL], "system": "Be brief.", "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                          {"type": "tool_use", "id": "1", "name": "look", "input": {"a": 1.10}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]}]})


def test_layout_blocks_are_in_rendered_order() -> None:
    """Tools, instructions, then each message's parts; static are the first two."""
    laid = PromptLayout(MESSAGES, Api.MESSAGES)
    assert [laid.format_path(n) for n in range(6)] == [
        "tools[0]", "system", "messages[0].content", "messages[1].content[0]", "messages[1].content[1]",
        "messages[2].content[0]"]
    assert (laid.n_static, laid.n_end, laid.n_before) == (2, 6, 3)


def test_layout_anthropic_markers_on_each_kind_of_block() -> None:
    """A plain text becomes one text part; every other byte stays."""
    laid = PromptLayout(MESSAGES, Api.MESSAGES)
    marked = read(laid.write_with_markers(dict.fromkeys((1, 2, 3, 6), MARK), {}))
    mark = read(MARK)
    assert marked["tools"] == [TOOL | {"cache_control": mark}]
    assert marked["system"] == [{"type": "text", "text": "Be brief.", "cache_control": mark}]
    assert marked["messages"][0]["content"] == [{"type": "text", "text": "hi", "cache_control": mark}]
    assert marked["messages"][2]["content"][0]["cache_control"] == mark
    assert b'"input":{"a":1.1}' in laid.write_with_markers({6: MARK}, {})


@pytest.mark.parametrize(("block", "n"), [
    ({"type": "thinking", "thinking": "hm", "signature": "s"}, 1), ({"type": "text", "text": ""}, 1),
    ({"type": "text", "text": "x"}, 2)])
def test_layout_unmarkable_anthropic_blocks_are_skipped(block: dict[str, Any], n: int) -> None:
    """Thinking and empty text would be a 400."""
    body = said({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, block]}]})
    assert PromptLayout(body, Api.MESSAGES).n_markable_blocks(2) == n


def test_layout_deferred_tools_are_not_marked() -> None:
    """Anthropic refuses both on one tool."""
    body = said({"tools": [TOOL, TOOL | {"defer_loading": True}], "messages": [{"role": "user", "content": "a"}]})
    assert PromptLayout(body, Api.MESSAGES).n_markable_blocks(2) == 1


def test_layout_openai_markers_only_on_user_and_instruction_parts() -> None:
    """Not on tools, and not on messages of the model."""
    body = said({"tools": [TOOL], "messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "tool_call_id": "1", "content": "r"}]})
    laid = PromptLayout(body, Api.CHAT)
    assert [laid.n_markable_blocks(n) for n in range(1, 6)] == [0, 2, 3, 3, 3]
    assert (laid.n_static, laid.n_end, laid.n_before) == (2, 5, 3)
    part = {"type": "text", "text": "Be brief.", "prompt_cache_breakpoint": {"mode": "explicit"}}
    assert read(laid.write_with_markers({2: POINT}, {}))["messages"][0] == {"role": "system", "content": [part]}


def test_layout_responses_instructions_become_a_developer_message_if_not_stored() -> None:
    """They cannot bear a mark; where the response is stored they must stay instructions."""
    body = {"store": False, "instructions": "Be brief.", "input": [{"role": "user", "content": "hi"}]}
    laid = PromptLayout(said(body), Api.RESPONSES)
    written = read(laid.write_with_markers({laid.n_markable_blocks(1): POINT}, {"prompt_cache_key": b'"k"'}))
    part = {"type": "input_text", "text": "Be brief.", "prompt_cache_breakpoint": {"mode": "explicit"}}
    assert written == {"prompt_cache_key": "k", "store": False, "input": [
        {"role": "developer", "content": [part]}, {"role": "user", "content": "hi"}]}
    assert PromptLayout(said(body | {"store": True}), Api.RESPONSES).n_markable_blocks(1) == 0
    assert PromptLayout(said({"instructions": "x", "input": "hi"}), Api.RESPONSES).n_markable_blocks(2) == 0


def test_layout_extra_fields_do_not_replace_the_clients() -> None:
    """A member that the client sent is never overwritten."""
    body = said({"prompt_cache_key": "mine", "messages": [{"role": "user", "content": "a"}]})
    marked = PromptLayout(body, Api.CHAT).write_with_markers({}, {"prompt_cache_key": b'"ours"'})
    assert read(marked)["prompt_cache_key"] == "mine"


def test_has_marks_finds_the_clients_markers() -> None:
    """As members; not where a text speaks of them."""
    assert has_cache_markers(b'{"cache_control":{"type":"ephemeral"}}')
    assert not has_cache_markers(said({"content": 'set "cache_control" yourself'}))


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["role", "content", "type", "text", "name", "tools", "messages", "system", "input",
                                         "instructions", "function"]), inner, max_size=5), max_leaves=30)


@given(st.dictionaries(st.sampled_from(["tools", "messages", "system", "input", "instructions", "store"]), JSON),
       st.sampled_from(sorted(LAYOUT_APIS)))
def test_layout_any_body_is_read_or_rejected(body: dict[str, Any], api: Api) -> None:
    """ValueError and nothing else; without marks nothing is changed; every block that may bear a mark gets it."""
    data = said(body)
    try:
        stable = order_blocks(data, api, sort_tools=True, move_volatile=True).body
        laid = PromptLayout(stable, api)
    except ValueError:
        return
    assert read(laid.write_with_markers({}, {})) == read(stable)
    for n in range(1, len(laid.blocks) + 1):
        if laid.n_markable_blocks(n) == n:
            assert laid.write_with_markers({n: MARK}, {}).count(MARK) == data.count(MARK) + 1


def test_order_blocks_sorts_tools_by_name() -> None:
    """A body that is already in order keeps its bytes."""
    one, two = {"type": "function", "function": {"name": "a"}}, {"type": "function", "function": {"name": "b"}}
    sorted_body, other = said({"tools": [one, two]}), said({"tools": [two, one]})
    assert order_blocks(other, Api.CHAT, sort_tools=True, move_volatile=False).body == sorted_body
    assert order_blocks(sorted_body, Api.CHAT, sort_tools=True, move_volatile=False).body is sorted_body
    unsorted = order_blocks(other, Api.CHAT, sort_tools=False, move_volatile=False)
    assert unsorted.body is other
    assert unsorted.tools == ("a", "b")


def test_order_blocks_moves_dated_instructions_last() -> None:
    """Whole blocks, in chat and messages."""
    dated, kept = {"type": "text", "text": "Today is 2026-11-21."}, {"type": "text", "text": "Be brief."}
    body = said({"system": [dated, kept], "messages": []})
    assert read(order_blocks(body, Api.MESSAGES, sort_tools=False, move_volatile=True).body)["system"] == [kept, dated]
    first, second = {"role": "system", "content": "Now: 2026-11-21"}, {"role": "developer", "content": "Be brief."}
    user = {"role": "user", "content": "2026-11-21?"}
    body = said({"messages": [first, second, user]})
    moved = read(order_blocks(body, Api.CHAT, sort_tools=False, move_volatile=True).body)
    assert moved["messages"] == [second, first, user]


@pytest.mark.parametrize(("one", "other", "at", "word"), [
    ("It is 10:15 now.", "It is 10:16 now.", 10, "a time"),
    ("On 2026-11-20, we", "On 2026-11-21, we", 12, "a date"),
    ("id 0d5f6c9e-1c2b-4a3d-9e8f-001122334455.", "id 0d5f6c9e-1c2b-4a3d-9e8f-001122334456.", 38, "a UUID"),
    ("t=1795000000 ok", "t=1795000061 ok", 10, "a timestamp"),
    ("You have 12 mails", "You have 13 mails", 10, "a number"),
    ("Dear Ann", "Dear Bob", 5, "text"),
])
def test_difference_has_offset_and_kind(one: str, other: str, at: int, word: str) -> None:
    """The kind never quotes the prompt."""
    assert find_first_difference(one.encode(), other.encode()) == (at, word)


@given(st.binary(max_size=40), st.binary(max_size=8), st.binary(max_size=8))
def test_difference_is_the_first_one(same: bytes, one: bytes, other: bytes) -> None:
    """All before it is the same, and the byte itself is not."""
    at, _ = find_first_difference(same + one, same + other)
    assert (same + one)[:at] == (same + other)[:at]
    assert (same + one)[at:at + 1] != (same + other)[at:at + 1] or at == min(len(one), len(other)) + len(same)


def test_order_blocks_head_is_shared_by_similar_requests() -> None:
    """Tools and instructions, then the message that begins the conversation."""
    def head_of(body: dict[str, Any], api: Api) -> tuple[bytes, bytes]:
        ordered = order_blocks(said(body), api, sort_tools=False, move_volatile=False)
        return ordered.head, ordered.first

    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    head, first = head_of({"tools": [{"name": "f"}], "messages": messages}, Api.CHAT)
    assert head == b'[{"name":"f"}]{"role":"system","content":"s"}'
    assert first == b'{"role":"user","content":"u"}'
    assert head_of({"instructions": "s", "input": "u"}, Api.RESPONSES) == (b'"s"', b'"u"')


def test_order_blocks_head_matches_the_returned_body() -> None:
    """With tools and instructions in their new order."""
    dated, plain = {"role": "system", "content": "Now: 2026-11-21"}, {"role": "system", "content": "Be brief."}
    body = said({"tools": [{"name": "b"}, {"name": "a"}], "messages": [dated, plain, {"role": "user", "content": "u"}]})
    ordered = order_blocks(body, Api.CHAT, sort_tools=True, move_volatile=True)
    assert ordered.head == b'[{"name":"a"},{"name":"b"}]' + said(plain) + said(dated)
    again = order_blocks(ordered.body, Api.CHAT, sort_tools=True, move_volatile=True)
    assert again == ordered
    assert again.body is ordered.body
