"""Repeated paragraphs of instructions."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.context.repeats import MIN_WORDS, find_repeats, is_long_enough, normalise, split_paragraphs

RULE = "Answer in the language of the customer, and never promise a date that the warehouse has not confirmed in writing."


def paragraph(seed: int, n_words: int = 40) -> str:
    rng = Random(seed)
    return " ".join(f"w{rng.randrange(1000)}" for _ in range(n_words))


def texts_of(text: str) -> list[str]:
    return [part.text for part in split_paragraphs(text)]


def test_split_fenced_block_is_one_paragraph() -> None:
    text = "Intro.\n\n```json\n{\n\n}\n```\nAfter.\n\n  ~~~\n  a\n\n  b\n  ~~~\n"
    assert texts_of(text) == ["Intro.", "```json\n{\n\n}\n```", "After.", "  ~~~\n  a\n\n  b\n  ~~~"]


@given(st.text(alphabet="ab \n`~.", max_size=200))
def test_split_any_text_loses_only_white_space(text: str) -> None:
    parts = list(split_paragraphs(text))
    assert all(text[part.start:part.end] == part.text for part in parts)
    assert "".join("".join(part.text.split()) for part in parts) == "".join(text.split())
    assert all(one.end <= other.start for one, other in pairwise(parts))


def test_find_equal_paragraph_is_a_repeat_of_the_first() -> None:
    found = find_repeats([paragraph(1), paragraph(2), f"  {paragraph(1)}\n", paragraph(1)])
    assert [(one.later, one.first, one.overlap) for one in found] == [(2, 0, 1.0), (3, 0, 1.0)]


@pytest.mark.parametrize(("n_other_words", "is_found"), [(1, True), (12, False)])
def test_find_similar_paragraph_needs_nine_tenths_of_the_shingles(n_other_words: int, *, is_found: bool) -> None:
    words = paragraph(3, 100).split()
    other = [*words[:50], *[f"new{n}" for n in range(n_other_words)], *words[50 + n_other_words:]]
    assert bool(find_repeats([" ".join(words), " ".join(other)])) is is_found


def test_find_short_headings_are_no_repeats() -> None:
    assert find_repeats(["# Rules", "# Rules"]) == []
    assert is_long_enough(RULE)
    assert not is_long_enough("word " * (MIN_WORDS - 1))


def test_normalise_white_space_is_one_space() -> None:
    assert normalise(" a\n  b\t c ") == "a b c"
