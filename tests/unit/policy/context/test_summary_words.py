"""Negations, states and stems."""

import pytest

from stayfast.policy.context.summary_words import (
    count_negations,
    is_content,
    is_narrated_as_done,
    state_of,
    state_stems,
    stem_of,
)


def words(text: str) -> list[str]:
    return text.lower().replace("'", "").replace(",", "").split()


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("do not deploy", 1),
        ("don't deploy", 1),
        ("never without review", 2),
        ("no more than 5", 0),
        ("must not exceed 5", 0),
        ("no problem", 0),
        ("Friday is ruled out", 1),
        ("leave the module alone", 1),
        ("liefern Sie niemals ohne", 2),
        ("je ne veux", 1),
        ("nunca antes", 1),
        ("a notable north", 0),
        ("no, that is fine", 0),
    ],
)
def test_count_negations_of_clauses(text: str, n: int) -> None:
    """Limits and idioms are none; phrases and other languages are."""
    assert count_negations(text, words(text)) == n


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("the tests failed", "failed"),
        ("could not be loaded", "failed"),
        ("it timed out", "failed"),
        ("the patch was applied", "done"),
        ("all tests pass with no errors", "done"),
        ("not deployed", "failed"),
        ("still to do", "open"),
        ("not yet sent", "open"),
        ("it did not fail", "done"),
        ("a blue room", ""),
        ("the weather of next week", ""),
        ("two days later the same week", ""),
        ("next is the review", "open"),
        ("to be done next", "open"),
    ],
)
def test_state_of_clauses(text: str, state: str) -> None:
    """A negated success is a failure, and the reverse."""
    assert state_of(text, words(text)) == state


def test_stem_of_forms_of_one_word_are_equal() -> None:
    """Plural, past and gerund; the stem of a state word is known."""
    assert len({stem_of(word) for word in ("deploy", "deployed", "deploys", "deployment", "deploying")}) == 1
    assert stem_of("queries") == stem_of("query")
    assert stem_of("planned") == stem_of("plan")
    assert state_stems(["room", "booked"]) == {stem_of("booked")}


def test_is_narrated_as_done_past_tense_without_a_wish() -> None:
    """What was wanted was not done."""
    assert is_narrated_as_done(words("the image was built"))
    assert is_narrated_as_done(words("patched the router"))
    assert not is_narrated_as_done(words("the user wanted it patched"))


def test_is_content_excludes_function_words() -> None:
    """Negations and permissions are no content."""
    assert [word for word in ("deploy", "the", "not", "may", "und") if is_content(word)] == ["deploy"]
