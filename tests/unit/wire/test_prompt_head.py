"""Tools and instructions of a request, their digests, and where they change."""

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Api
from stayfast.wire.prompt import SYSTEM, TOOLS
from stayfast.wire.prompt_head import (
    MAX_BYTES,
    digest_head,
    find_begin,
    first_difference,
    format_head,
    locate_change,
    n_changed_bytes,
    n_common_pieces,
    read_head,
    read_instruction_texts,
    split_pieces,
)
from stayfast.wire.request_body import decode
from tests.unit.wire.head_rig import chat, head

MOVING = {"a date": "2026-11-{:02} 14:{:02}:09", "a time": "at {:02}:{:02}",
          "a UUID": "{:04}{:04}-0000-4000-8000-000000000000", "a timestamp": "16{:04}{:04}",
          "an id": "abcdef{:05}{:05}", "a number": "{:02}{:02}"}


def test_head_all_dialects_have_instructions_and_tools() -> None:
    tool = {"name": "f", "description": "d"}
    messages = decode(Api.MESSAGES, msgspec.json.encode({
        "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "Be brief."}],
        "tools": [{**tool, "input_schema": {"type": "object"}}], "messages": [{"role": "user", "content": "hi"}]}))
    responses = decode(Api.RESPONSES, msgspec.json.encode({
        "model": "m", "instructions": "Be brief.", "input": "hi",
        "tools": [{"type": "function", **tool, "parameters": {}}]}))
    for request, path in ((messages, "system[0]"), (responses, "instructions"), (chat("Be brief.", tools=("f",)),
                                                                                 "messages[0].content")):
        found = head(request)
        assert [(block.section, block.path, block.name) for block in found.blocks] == [
            (TOOLS, "tools[0]", "f"), (SYSTEM, path, "")]
        assert read_instruction_texts(found) == [(path, "Be brief.")]
        assert found.n_bytes_of(SYSTEM) + found.n_bytes_of(TOOLS) == len(found.data) < found.n_prompt


@pytest.mark.parametrize("kind", MOVING)
def test_digest_without_what_moves_is_equal(kind: str) -> None:
    one, other = (head(chat(f"Be brief. {MOVING[kind].format(*numbers)}. Thanks.")) for numbers in ((11, 12), (22, 33)))
    assert (digest_head(one) == digest_head(other)) is (kind != "a number")


def test_digest_of_other_words_or_tools_differs_order_of_tools_does_not() -> None:
    ids = [digest_head(head(chat(*one, tools=tools))) for *one, tools in (
        ("a rule", ("f", "g")), ("a rule", ("g", "f")), ("a rule!", ("f", "g")), ("a rule", ("f",)))]
    assert ids[0] == ids[1]
    assert len({one.whole for one in ids}) == 3
    assert (ids[0].tools, ids[0].system) == (ids[2].tools, ids[3].system)
    assert digest_head(head(chat("a rule"))).tools == ""


@given(st.sampled_from(sorted(MOVING)), st.integers(0, 3000), st.integers(0, 2**32))
def test_locate_planted_place_is_named_to_the_byte(kind: str, n_before: int, seed: int) -> None:
    rng = Random(seed)
    text = "".join(rng.choice("abcdefgh ä\n\"") for _ in range(n_before))
    one, other = (head(chat(f"{text} {MOVING[kind].format(*numbers)} and a rule. " + "rule " * 200))
                  for numbers in ((11, 12), (22, 33)))
    place = locate_change(one, other)
    assert place is not None
    planted = len(msgspec.json.encode(text)) - 1 + 1 + (3 if kind == "a time" else 0)
    assert (place.path, place.at, place.kind) == ("messages[0].content", planted, kind)
    assert place.ratio == pytest.approx(planted / len(other.data))


def test_locate_other_order_of_tools_is_named() -> None:
    place = locate_change(head(chat("x", tools=("f", "g"))), head(chat("x", tools=("g", "f"))))
    assert place is not None
    assert (place.path, place.at, place.kind) == ("tools[0]", 0, "order")


def test_locate_equal_heads_have_no_change() -> None:
    assert locate_change(head(chat("x")), head(chat("x", user="other"))) is None


@given(st.binary(max_size=400), st.binary(max_size=50), st.binary(max_size=50))
def test_first_difference_any_bytes_is_the_common_prefix(common: bytes, one: bytes, other: bytes) -> None:
    a, b = common + one, common + other
    n = first_difference(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


def test_changed_bytes_are_those_between_the_equal_ends() -> None:
    assert n_changed_bytes(b"aaaXXbbb", b"aaaYbbb") == (2, 1)


def test_pieces_text_changed_in_two_places_shares_the_rest() -> None:
    rules = "".join(f"Rule {n} is short. " for n in range(50))
    pieces = split_pieces(rules.encode())
    changed = f"New. {rules.replace('Rule 25', 'Rule')}!"
    assert n_common_pieces(pieces, split_pieces(changed.encode())) > 0.75 * len(rules)
    assert n_common_pieces(pieces, split_pieces(b"Other words. And more.")) == 0


def test_begin_ends_with_the_instructions() -> None:
    request = chat("Be brief.", user="a question", tools=("f",))
    begin = find_begin(head(request), request.body)
    assert begin.endswith(b'"Be brief."')
    assert chat("Be brief.", user="other").body.startswith(begin)
    assert not chat("Be brief!", user="other").body.startswith(begin)


def test_head_calls_of_the_conversation_are_named() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    request = decode(Api.CHAT, msgspec.json.encode({"model": "m", "messages": [
        {"role": "system", "content": "x"}, {"role": "user", "content": '{"name": "g"}'},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": '{"name": "h"}'}]}))
    assert head(request).called == ("f",)


def test_head_without_instructions_or_too_large_is_none() -> None:
    assert read_head(decode(Api.CHAT, b'{"model":"m","messages":[{"role":"user","content":"x"}]}')) is None
    assert read_head(chat("x" * MAX_BYTES)) is None
    assert read_head(decode(Api.EMBEDDINGS, b'{"model":"m","input":"x"}')) is None


def test_format_lines_name_each_block() -> None:
    lines = format_head(head(chat("One.\nTwo.", tools=("f",))))
    assert lines[0] == "--- tools[0]"
    assert lines[-3:] == ["--- messages[0].content", "One.", "Two."]
