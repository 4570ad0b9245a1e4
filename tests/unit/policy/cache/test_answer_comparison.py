"""When the words of two answers show that they are the same, or that they differ."""

import pytest

from stayfast.policy.cache.answer_comparison import NO, UNSURE, YES, compare_answers, parse_answer
from tests.unit.policy.cache.answer_pairs import DIFFERENT, SAME

LEAST_SAME = 0.7  # of the paraphrases
LEAST_DIFFERENT = 0.6
LONG = " ".join(["The fee is for all who send a parcel from any of the shops to any door of the country."] * 3)


def test_answer_comparison_of_different_answers_is_never_yes() -> None:
    """In either order; most of the differences are found, the others are left to a model."""
    found = [compare_answers(*pair).verdict for one, other in DIFFERENT for pair in ((one, other), (other, one))]
    assert len(DIFFERENT) >= 80
    assert found.count(YES) == 0
    assert found.count(NO) >= LEAST_DIFFERENT * len(found)


def test_answer_comparison_of_paraphrases_is_mostly_yes() -> None:
    """At most one in thirty is called different; the others are left to a model."""
    found = [compare_answers(*pair).verdict for one, other in SAME for pair in ((one, other), (other, one))]
    assert len(SAME) >= 60
    assert found.count(YES) >= LEAST_SAME * len(found)
    assert found.count(NO) <= len(found) / 30


@pytest.mark.parametrize(("one", "other", "why"), [
    ("It takes 5 days.", "It takes 7 days.", "numbers"),
    ("Calls are free in Germany.", "Calls are free in Germany and in Austria.", "names"),
    ("The plan includes roaming.", "The plan lacks roaming.", "negation"),
    ("Yes, you can.", "No, you can.", "opposites"),
    ("The fee is low.", "The fee is high.", "opposites"),
    ("It is refundable.", "It is refundable if you cancel early.", "condition"),
    ("We open daily.", "We open daily except on holidays.", "exception"),
    ("It is for members.", "It is only for members.", "restriction"),
    ("It lasts 10 hours.", "It lasts up to 10 hours.", "limits"),
    ("Pay before delivery.", "Pay on delivery.", "time"),
    ("It is open.", "It was open.", "time"),
    ("It is usually free.", "It is free.", "hedge"),
    ("You must call us.", "You can call us.", "duty"),
    ("From Berlin to Paris.", "From Paris to Berlin.", "direction"),
])
def test_answer_comparison_names_the_difference(one: str, other: str, why: str) -> None:
    for pair in ((one, other), (other, one)):
        assert compare_answers(*pair) == (NO, why)


@pytest.mark.parametrize(("one", "other", "why"), [
    ("Send it.", "Send it by van.", "added"),
    ("The dog bites the man.", "The man bites the dog.", "order"),
    ("Press the red button.", "Press the green button.", "words"),
])
def test_answer_comparison_leaves_other_words_open(one: str, other: str, why: str) -> None:
    assert compare_answers(one, other) == (UNSURE, why)


def test_answer_comparison_of_long_answers_counts_numbers_names_and_negation() -> None:
    """Clauses of all kinds occur in long texts."""
    assert compare_answers(f"Pay now. {LONG}", f"Pay if you like. {LONG}").verdict is UNSURE
    for one, other in (("It is 5.", "It is 6."), ("Go to Rome.", "Go to Bonn."), ("It is so.", "It is not so.")):
        assert compare_answers(f"{one} {LONG}", f"{LONG} {other}").verdict is NO


@pytest.mark.parametrize("text", ["", "...", "1.", "Yes.", "\u65e5\u672c", "a" * 5000, "\x00 \ud83d\ude00"])
def test_answer_comparison_takes_any_text(text: str) -> None:
    assert compare_answers(text, text).verdict is YES
    compare_answers(text, "Yes, 5 of them.")
    compare_answers("No.", text)


def test_answer_comparison_numbers_have_one_form() -> None:
    for text in ("1,000 dollars", "$1000", "1000.00 USD", "one thousand and 1000 dollars"):
        assert parse_answer(text).numbers == {"1000"}
    assert parse_answer("twenty-three").numbers == parse_answer("23").numbers == {"23"}
