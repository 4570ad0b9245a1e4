"""Changes of a request's body that a provider needs."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Api
from stayfast.wire.quirks import VERTEX_VERSION, BodyQuirks, Quirk, shorten_tool_id


def changed(body: object, *quirks: Quirk, spoken: Api = Api.CHAT) -> object:
    encoded = msgspec.json.encode(body)
    return msgspec.json.decode(BodyQuirks(quirks).apply(encoded, spoken))


@pytest.mark.parametrize(("quirk", "before", "after"), [
    (Quirk.MAX_TOKENS, {"max_completion_tokens": 9, "max_tokens": 7}, {"max_tokens": 9}),
    (Quirk.MAX_TOKENS, {"max_completion_tokens": None, "max_tokens": 7}, {"max_tokens": 7}),
    (Quirk.MAX_COMPLETION_TOKENS, {"max_tokens": 7}, {"max_completion_tokens": 7}),
    (Quirk.MAX_COMPLETION_TOKENS, {"max_completion_tokens": 9, "max_tokens": 7}, {"max_completion_tokens": 9}),
    (Quirk.NO_STREAM_OPTIONS, {"stream": True, "stream_options": {"include_usage": True}}, {"stream": True}),
    (Quirk.NO_PARALLEL_TOOL_CALLS, {"parallel_tool_calls": False, "n": 1}, {"n": 1}),
    (Quirk.NO_SEED, {"seed": 5, "n": 1}, {"n": 1}),
    (Quirk.RANDOM_SEED, {"seed": 5}, {"random_seed": 5}),
    (Quirk.NO_DEVELOPER_ROLE, {"messages": [{"role": "developer", "content": "developer"}]},
     {"messages": [{"role": "system", "content": "developer"}]}),
    (Quirk.NO_MESSAGE_NAMES, {"messages": [{"role": "user", "name": "ann", "content": "a"}], "tools": [{"name": "f"}]},
     {"messages": [{"role": "user", "content": "a"}], "tools": [{"name": "f"}]}),
    (Quirk.SYSTEM_FIRST, {"messages": [
        {"role": "user", "content": "a"}, {"role": "system", "content": "one"},
        {"role": "developer", "content": [{"type": "text", "text": "two"}]}]},
     {"messages": [{"role": "system", "content": "one\n\ntwo"}, {"role": "user", "content": "a"}]}),
    (Quirk.SYSTEM_FIRST, {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]},
     {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]}),
    (Quirk.JSON_WORD, {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}},
     {"messages": [{"role": "system", "content": "Answer in JSON."}, {"role": "user", "content": "a"}],
      "response_format": {"type": "json_object"}}),
    (Quirk.JSON_WORD, {"messages": [{"role": "user", "content": "as Json"}], "response_format": {"type": "json_object"}},
     {"messages": [{"role": "user", "content": "as Json"}], "response_format": {"type": "json_object"}}),
    (Quirk.JSON_WORD, {"messages": [{"role": "user", "content": '"json_object"'}]},
     {"messages": [{"role": "user", "content": '"json_object"'}]}),
])
def test_quirk_changes_the_body(quirk: Quirk, before: object, after: object) -> None:
    assert changed(before, quirk) == after


def test_quirk_tool_id_9_is_the_same_in_call_and_result() -> None:
    body = {"messages": [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_0fypS1hVX", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "D681PevKs", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_0fypS1hVX", "content": "1"},
        {"role": "tool", "tool_call_id": "D681PevKs", "content": "2"}]}
    found = changed(body, Quirk.TOOL_ID_9)
    assert isinstance(found, dict)
    call, *results = found["messages"]
    assert [each["id"] for each in call["tool_calls"]] == [each["tool_call_id"] for each in results]
    assert results[1]["tool_call_id"] == "D681PevKs"
    assert len(results[0]["tool_call_id"]) == 9
    assert results[0]["tool_call_id"].isalnum()


def test_quirk_vertex_anthropic_moves_the_model_to_the_path() -> None:
    body = {"model": "claude-x", "max_tokens": 1, "messages": []}
    assert changed(body, Quirk.VERTEX_ANTHROPIC, spoken=Api.MESSAGES) == {
        "max_tokens": 1, "messages": [], "anthropic_version": VERTEX_VERSION}
    assert changed(body, Quirk.VERTEX_ANTHROPIC) == body


@given(st.text())
def test_shorten_tool_id_any_text_is_nine_letters(tool_id: str) -> None:
    short = shorten_tool_id(tool_id)
    assert len(short) == 9
    assert short.isascii()
    assert short.isalnum()
    assert shorten_tool_id(short) == short


def test_shorten_tool_id_different_ids_stay_different() -> None:
    assert len({shorten_tool_id(f"call_{n}") for n in range(10_000)}) == 10_000


_TEXTS = st.text(max_size=8)
_BODIES = st.fixed_dictionaries({"model": _TEXTS, "messages": st.lists(st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
     "content": _TEXTS | st.none() | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _TEXTS}), max_size=2)},
    optional={"name": _TEXTS, "tool_call_id": _TEXTS | st.none(), "tool_calls": st.none() | st.lists(
        st.fixed_dictionaries({"id": _TEXTS}), max_size=2)}), max_size=4)},
    optional={"seed": st.integers(0, 9) | st.none(), "max_tokens": st.integers(0, 9), "stream_options": st.none(),
              "max_completion_tokens": st.integers(0, 9) | st.none(), "parallel_tool_calls": st.booleans(),
              "response_format": st.sampled_from([{"type": "json_object"}, {"type": "text"}])})


@given(_BODIES, st.sets(st.sampled_from(list(Quirk))))
def test_quirks_of_any_body_hold_and_are_stable(body: dict[str, object], quirks: set[Quirk]) -> None:
    """What is refused is gone, and a second application changes nothing."""
    if {Quirk.MAX_TOKENS, Quirk.MAX_COMPLETION_TOKENS} <= quirks:
        quirks = quirks - {Quirk.MAX_TOKENS}
    once = changed(body, *quirks)
    assert changed(once, *quirks) == once
    assert isinstance(once, dict)
    for quirk, name in ((Quirk.MAX_TOKENS, "max_completion_tokens"), (Quirk.MAX_COMPLETION_TOKENS, "max_tokens"),
                        (Quirk.NO_SEED, "seed"), (Quirk.RANDOM_SEED, "seed"), (Quirk.NO_STREAM_OPTIONS, "stream_options"),
                        (Quirk.NO_PARALLEL_TOOL_CALLS, "parallel_tool_calls")):
        assert quirk not in quirks or name not in once
    roles = [message["role"] for message in once["messages"]]
    assert Quirk.NO_DEVELOPER_ROLE not in quirks or "developer" not in roles
    assert Quirk.SYSTEM_FIRST not in quirks or "system" not in roles[1:]


def test_quirks_without_effect_leave_the_bytes() -> None:
    body = b'{ "model":"m",  "messages":[] }'
    assert BodyQuirks(set(Quirk) - {Quirk.VERTEX_ANTHROPIC, Quirk.SYSTEM_FIRST}).apply(body, Api.CHAT) is body
    assert BodyQuirks(Quirk).apply(body, Api.EMBEDDINGS) is body
    assert BodyQuirks([Quirk.DAILY_REQUESTS]).are_none
    assert not BodyQuirks([Quirk.ODD_USAGE]).are_none
