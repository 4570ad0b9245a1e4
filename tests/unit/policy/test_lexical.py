"""Texts that a sentence model takes for one, and their words do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.lexical import why_apart, wording


@pytest.mark.parametrize(("one", "other", "why"), [
    ("python 2.12 wheels", "python 2.13 wheels", "numbers"),
    ("flights on 3 May", "flights in May", "numbers"),
    ("how do I enable it", "how do I not enable it", "negation"),
    ("show files with errors", "show files without errors", "negation"),
    ("it doesn\u2019t start", "it starts", "negation"),
    ("sort ascending by date", "sort descending by date", "opposites"),
    ("upload a file", "download a file", "opposites"),
    ("opening hours today", "opening hours tomorrow", "opposites"),
    ("the weather in Paris", "the weather in London", "entities"),
    ("convert markdown to html", "convert html to markdown", "order"),
    ("dog bites man", "man bites dog", "order"),
    ("10 USD to EUR", "10 EUR to USD", "order"),
    ("How can the manager fire the employee", "How can an employee fire the manager", "order"),
    ("cancel within two weeks", "cancel within three weeks", "numbers"),
    ("a one kilogram parcel", "a two kilogram parcel", "numbers"),
    ("the second step", "the third step", "numbers"),
])
def test_each_rule(one: str, other: str, why: str) -> None:
    """Both ways round."""
    assert why_apart(wording(one), wording(other)) == why
    assert why_apart(wording(other), wording(one)) == why


@pytest.mark.parametrize(("one", "other"), [
    ("Where is my card?", "where is my card"),
    ("How old must I be?", "What age do I have to be?"),
    ("Does it cost 10?", "Is the price 10."),
    ("upload and download a file", "download a file"),  # the opposite is on both sides
    ("the weather in Paris", "weather in Paris, France"),
    ("I can't log in", "I cannot log in"),
    ("cancel within 2 weeks", "cancel within two weeks"),
    ("how could one log in", "how can I log in"),
])
def test_what_no_rule_tells_apart(one: str, other: str) -> None:
    """The rest is left to the score."""
    assert why_apart(wording(one), wording(other)) == ""


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_can_be_read(one: str, other: str) -> None:
    """Nothing is raised, a text is never apart from itself, and the rules know no direction."""
    read, other_read = wording(one), wording(other)
    assert why_apart(read, read) == ""
    assert why_apart(read, other_read) == why_apart(other_read, read)
