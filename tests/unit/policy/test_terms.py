"""Words without their inflection."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.cache.terms import is_related, make_term, stem_word


@pytest.mark.parametrize(("one", "other"), [
    ("cancelled", "cancel"), ("orders", "order"), ("policies", "policy"), ("verified", "verify"), ("changing", "change"),
    ("buses", "bus"), ("stopped", "stop"), ("children", "child"), ("paid", "pay"), ("kilometers", "kilometer"),
])
def test_stem_word_inflections_have_one_stem(one: str, other: str) -> None:
    assert stem_word(one) == stem_word(other)


@pytest.mark.parametrize(("one", "other"), [("bus", "bu"), ("news", "new"), ("red", "r"), ("this", "thi")])
def test_stem_word_similar_words_have_two_stems(one: str, other: str) -> None:
    assert stem_word(one) != stem_word(other)


def test_make_term_synonyms_are_one_term_of_one_kind() -> None:
    assert make_term("delivered") == make_term("shipping")
    assert make_term("kilometres") == make_term("km") == make_term("km")._replace(mark="unit:km")
    assert make_term("germany").mark.startswith("place:")
    assert make_term("question").mark == ""


@pytest.mark.parametrize(("one", "other", "expected"), [
    ("activat", "activation", True), ("germani", "german", True), ("slovenia", "slovakia", False),
    ("austria", "australia", False),
    ("pay", "payment", False), ("", "", True), ("", "card", False),
])
def test_is_related_long_common_beginning(one: str, other: str, expected: bool) -> None:
    assert is_related(one, other) is expected
    assert is_related(other, one) is expected


@given(st.text(max_size=60))
def test_make_term_any_word_has_a_term(word: str) -> None:
    assert make_term(word) == make_term(word)
