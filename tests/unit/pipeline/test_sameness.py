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


def test_long_answers_go_by_their_meaning() -> None:
    """Numbers and negations somewhere in sixty words decide nothing."""
    words = " ".join(f"word{n}" for n in range(60))
    assert is_same(f"{words} not", words, Words())


def test_what_cannot_be_told_is_no_label() -> None:
    """Without an embedder, or where it fails; the very same text needs none."""
    assert is_same(SHORT, "Something else altogether.") is None
    broken = Words()
    broken.is_broken = True
    assert is_same(SHORT, "Something else altogether.", broken) is None
    assert is_same(SHORT, SHORT)


def test_of_endless_answers_the_beginning_is_read() -> None:
    """The same beginning is not the same answer by its words alone."""
    long = "a " * MAX_CHARS
    assert is_same(f"{long}b", f"{long}c") is None
    assert is_same(long, long)
