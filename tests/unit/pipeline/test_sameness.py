"""When two answers say the same."""

import asyncio

import pytest

from stayfast.pipeline.sameness import MAX_CHARS, ByMeaning
from stayfast.stores.embed import Embedding
from tests.flow.semantic_rig import Words

SHORT = "Restore the passphrase by the link in the e-mail."


def is_same(one: str, other: str, words: Words | None = None) -> bool | None:
    """By an embedder of a few synonyms."""
    return asyncio.run(ByMeaning(Embedding(behind=words), 0.9).is_same(one, other))


@pytest.mark.parametrize(("one", "other", "expected"), [
    (SHORT, SHORT, True),
    (SHORT, "restore the PASSPHRASE, by the link in the e-mail", True),
    (SHORT, "Reset the password by the link in the e-mail.", True),
    (SHORT, "Opening hours are on the door.", False),
    ("It costs 5 euros a month.", "It costs 6 euros a month.", False),
    ("You can reset the password here.", "You cannot reset the password here.", False),
    ("", "", True),
])
def test_short_answers(one: str, other: str, expected: bool) -> None:
    """The same words in any dress, or the same meaning and nothing that turns it."""
    assert is_same(one, other, Words()) is expected
    assert is_same(other, one, Words()) is expected


LONG = " ".join(["The fee holds for all who send a parcel from any of the shops to any door of the country."] * 5)


@pytest.mark.parametrize(("one", "other", "expected"), [
    ("It costs 12 euros.", "It costs 120 euros.", False),
    ("It costs twelve euros.", "It costs nine euros.", False),
    ("It costs 12 euros.", "It is twelve euros.", True),
    ("Yes, you can.", "No, you can not.", False),
    ("Prices are lower.", "Prices are raised.", True),
    ("Lower it.", "Raise it.", True),
    ("1. Open it.", "Open it.", True),
])
def test_in_long_answers_figures_and_negation_count(one: str, other: str, expected: bool) -> None:
    """However much is the same around them; opposites and the numbers of a list do not."""
    assert is_same(f"{one}\n{LONG}", f"{other}\n{LONG}", Words()) is expected
    assert is_same(f"{LONG} {other}", f"{LONG} {one}", Words()) is (expected if not one.startswith("1.") else False)


def test_what_cannot_be_told_is_no_label() -> None:
    """Without an embedder, or where it fails; the very same text needs none."""
    assert is_same(SHORT, "Something else altogether.") is None
    broken = Words()
    broken.is_broken = True
    assert is_same(SHORT, "Something else altogether.", broken) is None
    assert is_same(SHORT, SHORT)


def test_endless_answers_are_the_same_to_the_letter_or_not_at_all() -> None:
    """Nobody reads their end: the same beginning says nothing."""
    long = "a " * MAX_CHARS
    assert is_same(f"{long}b", f"{long}c", Words()) is False
    assert is_same(long, long)
