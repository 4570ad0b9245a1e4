"""When two answers say the same."""

import asyncio
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from stayfast.pipeline.cache.answer_judge import MAX_CHARS, N_SHORT_WORDS, ByMeaning
from stayfast.stores.embedder import Embedders
from tests.flow.semantic_rig import WordEmbedder

SHORT = "Restore the passphrase by the link in the e-mail."


class Alike(WordEmbedder):
    """An embedder that tells no texts apart."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row for all."""
        return np.tile(np.array([1, 0], dtype=np.float32), (len(texts), 1))


def is_same(one: str, other: str, words: WordEmbedder | None = None) -> bool | None:
    """By an embedder of a few synonyms."""
    return asyncio.run(ByMeaning(Embedders(background=words), 0.9).is_same(one, other))


@pytest.mark.parametrize(("one", "other", "expected"), [
    (SHORT, SHORT, True),
    (SHORT, "restore the PASSPHRASE, by the link in the e-mail", True),
    (SHORT, "Please restore the passphrase by the link in the e-mail.", True),
    (SHORT, "Restore the passphrase by the letter in the e-mail.", False),
    (SHORT, "Opening hours are on the door.", False),
    ("It costs 5 euros a month.", "It costs 6 euros a month.", False),
    ("You can reset the password here.", "You cannot reset the password here.", False),
    ("", "", True),
])
def test_answer_similarity_of_short_answers(one: str, other: str, expected: bool) -> None:
    """The same words in any form, or the same meaning without a word that reverses it."""
    assert is_same(one, other, WordEmbedder()) is expected
    assert is_same(other, one, WordEmbedder()) is expected


LONG = " ".join(["The fee holds for all who send a parcel from any of the shops to any door of the country."] * 5)


@pytest.mark.parametrize(("one", "other", "expected"), [
    ("It costs 12 euros.", "It costs 120 euros.", False),
    ("It costs twelve euros.", "It costs nine euros.", False),
    ("It costs 12 euros.", "It is twelve euros.", True),
    ("Yes, you can.", "No, you can not.", False),
    ("Prices are lower.", "Prices are raised.", False),
    ("Lower it.", "Raise it.", False),
    ("Send it by van.", "Send it by boat.", False),
    ("Send it.", "Send it at once, by the van.", True),
    ("1. Open it.", "Open it.", True),
])
def test_answer_similarity_of_long_answers_counts_figures_and_negation(one: str, other: str, expected: bool) -> None:
    """And any other differing word, however much is equal around it; the numbers of a list do not count, inside a line
    either.
    """
    assert is_same(f"{one}\n{LONG}", f"{other}\n{LONG}", WordEmbedder()) is expected
    assert is_same(f"{LONG} {other}", f"{LONG} {one}", WordEmbedder()) is expected


FABRICS = {"cotton": "hot", "linen": "warm", "silk": "ice", "wool": "cold", "velvet": "dry"}
FORM = (
    "Thank you for asking. A {} shirt of ours should be given the {} programme of the machine, whatever its colour and cut. "
    "Turn it inside out before that, close its buttons, and do not put more than a handful of other things in beside it. "
    "Let it dry on a hanger in the shade, and iron it from the inside while it is a little damp; then it keeps its shape.")
SLOWLY = (
    "Once you have sent us the form we look at it within a week, most often after some days. More than that it takes "
    "where papers are lacking, and then somebody of ours calls you up. What you have paid so far stays where it is, "
    "and nobody asks you for any of it again.")
SOON = (
    "Your application is dealt with by our office inside of a week, and by far the greater part of it sooner. If anything "
    "is missing that we need, a colleague rings, and it can be a little longer; there are less of those each year. What "
    "money came before then is kept for you, and nobody wants another payment.")


def test_answer_similarity_of_one_form_with_different_words_is_none() -> None:
    """The vectors are equal; one small word is the difference."""
    assert len(FORM.split()) > N_SHORT_WORDS
    for one, other in combinations(FABRICS.items(), 2):
        assert is_same(FORM.format(*one), FORM.format(*other), Alike()) is False


def test_answer_similarity_of_long_paraphrases_ignores_opposites() -> None:
    """Long texts have words of both kinds; in short ones they matter."""
    assert min(len(SLOWLY.split()), len(SOON.split())) > N_SHORT_WORDS
    assert is_same(SLOWLY, SOON, Alike()) is True
    assert is_same("More of it, at once.", "Now you get less of that.", Alike()) is False


def test_answer_similarity_without_an_embedder_is_unknown() -> None:
    """Also where the embedder fails; equal texts need none."""
    assert is_same(SHORT, "Something else altogether.") is None
    broken = WordEmbedder()
    broken.is_broken = True
    assert is_same(SHORT, "Something else altogether.", broken) is None
    assert is_same(SHORT, SHORT)


def test_answer_similarity_of_very_long_answers_needs_equal_text() -> None:
    long = "a " * MAX_CHARS
    assert is_same(f"{long}b", f"{long}c", WordEmbedder()) is False
    assert is_same(long, long)
