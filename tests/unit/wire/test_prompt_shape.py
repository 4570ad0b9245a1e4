"""Shapes of prompts: sizes, counts and digests."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.types import Api, Request
from stayfast.wire.prompt_shape import PIECE_BYTES, PromptOutline, measure_prompt
from stayfast.wire.request_body import decode

TEXT = "word " * 100


def shape_of(api: Api = Api.CHAT, **fields: Any) -> PromptOutline:
    shape = measure_prompt(decode(api, json.dumps({"model": "m", **fields}).encode()))
    assert shape is not None
    return shape


def say(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_measure_prompt_conversation_is_divided_into_its_parts() -> None:
    shape = shape_of(messages=[say("system", TEXT), say("user", TEXT), say("assistant", TEXT), say("user", "and now?")],
                     tools=[{"type": "function", "function": {"name": "f", "description": TEXT}}])
    assert (shape.n_messages, shape.n_images, shape.bias_digest) == (3, 0, None)
    assert shape.n_system == pytest.approx(500, abs=30)
    assert shape.n_tools == pytest.approx(570, abs=30)
    assert shape.n_history == pytest.approx(1000, abs=60)
    assert 8 < shape.n_last < 40
    assert shape.n_bytes == shape.n_system + shape.n_tools + shape.n_history + shape.n_last


def test_measure_prompt_tool_results_after_the_last_turn_are_results() -> None:
    result = {**say("tool", TEXT), "tool_call_id": "a"}
    shape = shape_of(messages=[say("user", "weather?"), say("assistant", "calls"), result, say("user", "go on")])
    assert shape.n_results == pytest.approx(540, abs=40)
    assert shape.n_last > shape.n_results


def test_measure_prompt_output_items_of_responses_are_results() -> None:
    shape = shape_of(Api.RESPONSES, input=[say("user", "weather?"), {"type": "function_call", "call_id": "a", "name": "f",
                                                                     "arguments": "{}"},
                                           {"type": "function_call_output", "call_id": "a", "output": TEXT}])
    assert shape.n_results == pytest.approx(560, abs=40)


def test_measure_prompt_anthropic_system_is_the_system_prompt() -> None:
    shape = shape_of(Api.MESSAGES, system=TEXT, max_tokens=5, messages=[say("user", "hi")])
    assert shape.n_system == pytest.approx(500, abs=10)
    assert shape.n_messages == 1


def test_measure_prompt_images_are_counted_without_their_bytes() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}
    shape = shape_of(messages=[say("user", [{"type": "text", "text": "what is this?"}, image, image])])
    assert shape.n_images == 2
    assert shape.n_bytes < 200


def test_measure_prompt_equal_logit_biases_have_equal_digests() -> None:
    prompt = [say("user", "hi")]
    one, other = (shape_of(messages=prompt, logit_bias={"50256": bias}) for bias in (1, 2))
    assert one.bias_digest is not None
    assert one.bias_digest == shape_of(messages=prompt, logit_bias={"50256": 1}).bias_digest != other.bias_digest
    assert shape_of(messages=prompt, logit_bias={}).bias_digest is None


@pytest.mark.parametrize(("fields", "has_digest"), [
    ({"temperature": 0}, True), ({"temperature": 0.3}, True), ({"temperature": 1, "seed": 7}, True), ({}, False),
    ({"temperature": 1}, False)])
def test_measure_prompt_digest_of_the_body_needs_a_repeatable_answer(fields: dict[str, Any], has_digest: bool) -> None:
    one, other = (shape_of(messages=[say("user", "a" * 400)], **fields) for _ in range(2))
    assert (one.body_digest is not None, one.body_digest == other.body_digest) == (has_digest, True)


def test_measure_prompt_large_body_is_not_measured() -> None:
    body = json.dumps({"model": "m", "messages": [say("user", "x" * (1 << 19))]}).encode()
    assert measure_prompt(decode(Api.CHAT, body)) is None


def test_measure_prompt_completion_has_a_size_only() -> None:
    shape = shape_of(Api.COMPLETIONS, prompt=TEXT)
    assert shape.n_bytes == pytest.approx(502)
    assert shape.n_system == shape.n_history == shape.n_messages == 0


def test_shared_ratio_same_beginning_is_its_share_of_the_prompt() -> None:
    base = "a fixed rule. " * 200
    one = shape_of(messages=[say("system", base), say("user", "first " * 200)])
    other = shape_of(messages=[say("system", base), say("user", "other " * 200)])
    assert other.shared_ratio(one.pieces) == pytest.approx(2800 / 4000, abs=2 * PIECE_BYTES / 4000)
    assert other.shared_ratio(other.pieces) == 1.0
    assert other.shared_ratio(()) == 0.0


def test_shared_ratio_short_prompt_is_unknown() -> None:
    assert shape_of(messages=[say("user", "hi")]).shared_ratio(()) is None


@given(st.lists(st.tuples(st.sampled_from(("system", "user", "assistant")), st.text(max_size=60)), min_size=1, max_size=8))
def test_measure_prompt_any_conversation_parts_add_up(turns: list[tuple[str, str]]) -> None:
    shape = shape_of(messages=[say(role, text) for role, text in turns])
    assert shape.n_bytes == shape.n_system + shape.n_tools + shape.n_history + shape.n_last
    assert min(shape.n_system, shape.n_history, shape.n_last, shape.n_messages) >= 0


@given(st.binary(max_size=200))
def test_measure_prompt_unknown_form_is_not_measured(body: bytes) -> None:
    shape = measure_prompt(Request(Api.CHAT, "m", False, body))
    assert shape is None or shape.n_bytes >= 0
