"""What may be left out of a prompt."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.context.diet import DietConfig, PromptsConfig, make_repeat_dropper, minify_json

LONG = "Never promise a date that the warehouse has not confirmed in writing to the customer before noon."
OTHER = "Use at most three sentences, name the order by its number, and close with the name of the shop."
FENCE = f"```\n{LONG}\n\n{LONG}\n```"
texts = st.lists(st.sampled_from([LONG, OTHER, "# Rules", FENCE, f" {LONG}", "short line"]), max_size=8).map("\n\n".join)


def test_drop_equal_paragraph_leaves_the_first() -> None:
    assert make_repeat_dropper()(f"{LONG}\n\n{OTHER}\n\n{LONG}\n\nEnd.\n") == f"{LONG}\n\n{OTHER}\n\nEnd.\n"
    assert make_repeat_dropper()(f"{LONG}\n\n{LONG}") == LONG


def test_drop_paragraph_of_an_earlier_text_is_left_out() -> None:
    drop = make_repeat_dropper()
    assert (drop(LONG), drop(f"{OTHER}\n\n{LONG}\n")) == (LONG, f"{OTHER}\n")


def test_drop_similar_or_short_paragraphs_stay() -> None:
    text = f"# Rules\n\n{LONG}\n\n# Rules\n\n{LONG.replace('Never promise', 'Promise')}"
    assert make_repeat_dropper()(text) is text


def test_drop_inside_of_a_fence_nothing_changes() -> None:
    text = f"{LONG}\n\n{FENCE}"
    assert make_repeat_dropper()(text) is text
    assert make_repeat_dropper()(f"{FENCE}\n\nand\n\n{FENCE}") == f"{FENCE}\n\nand"


@given(texts, texts)
def test_drop_any_texts_is_stable_and_idempotent(one: str, other: str) -> None:
    drop, again = make_repeat_dropper(), make_repeat_dropper()
    shorter = drop(one), drop(other)
    assert len(shorter[0]) <= len(one)
    assert again(shorter[0]) == shorter[0]  # what follows changes nothing of what is before
    assert make_repeat_dropper()(one) == shorter[0]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), lambda inner:
                    st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12), st.integers(0, 4))
def test_minify_any_json_keeps_its_value(value: Any, indent: int) -> None:
    text = json.dumps(value, indent=indent)
    assert json.loads(minify_json(text)) == value
    assert len(minify_json(text)) <= len(text)


def test_minify_spelling_of_numbers_and_repeated_names_stays() -> None:
    assert minify_json('{ "a": 1.50, "a": 1e2,\n "b": [ 12345678901234567890 ] }') == (
        '{"a":1.50,"a":1e2,"b":[12345678901234567890]}')


def test_minify_other_texts_are_unchanged() -> None:
    for text in ("", "plain { text", "{not json}", '{"a": 1} and more', " 12 "):
        assert minify_json(text) is text


def test_configs_by_default_change_and_show_nothing() -> None:
    assert DietConfig() == DietConfig(drop_repeats=False, minify_json=False)
    assert PromptsConfig() == PromptsConfig(track=True, content=False)
