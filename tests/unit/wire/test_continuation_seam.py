"""The seam between two halves of a text: no text is repeated and none is lost."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.wire.continuation import SeamTrimmer
from tests.unit.wire.recorded import pieces_of

PASSAGE = "What users feel is the tail: one slow answer in a hundred is the one that they remember. "
SAME_AGAIN = ("def test():\n" + "        self.assertEqual(response.status_code, 200)\n" * 3 + "done\n",
              '{"rows": [' + ", ".join(['{"state": "unknown", "reason": "no data"}'] * 6) + '], "n": 6}',
              str([[0] * 16] * 8), "-" * 200, PASSAGE * 3)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200) | st.text("ab \n", max_size=200)


def joined(said: str, pieces: Sequence[str]) -> str:
    """The text that the client has at the end."""
    seam = SeamTrimmer(said)
    return said + "".join([*(seam.trim(piece) for piece in pieces), seam.trim("", is_last=True)])


@given(TEXTS, st.integers(0, 200), st.lists(st.integers(0, 200), max_size=12))
def test_seam_exact_continuation_restores_the_text(text: str, split: int, cuts: list[int]) -> None:
    """An upstream that continues the trimmed prefix exactly gives the same text, split anywhere."""
    said = text[: split % (len(text) + 1)]
    rest = text[len(said.rstrip()):]
    assert joined(said, pieces_of(rest, cuts)) == text


@given(st.integers(0, 400), st.lists(st.integers(0, 400), max_size=12), st.sampled_from(SAME_AGAIN))
def test_seam_repeated_lines_stay(split: int, cuts: list[int], text: str) -> None:
    """Lines of code, rows of a table, a matrix: wherever the first half ends, the text is whole."""
    said = text[: split % (len(text) + 1)]
    assert joined(said, pieces_of(text[len(said.rstrip()):], cuts)) == text


@pytest.mark.parametrize(("said", "rest", "whole"), [
    ("Hello", " world", "Hello world"),
    ("Hel", "lo", "Hello"),
    ("Hello ", "world", "Hello world"),
    ("Hello ", " world", "Hello world"),
    ("Hello\n\n", "\n\nworld", "Hello\n\nworld"),
    ("Hello\n\n", "\nworld", "Hello\n\nworld"),
    ("Hello\n", "\n\nworld", "Hello\n\nworld"),
    ("Hello\n", "  world", "Hello\nworld"),
    ("  \n", "Hello", "  \nHello"),
    ("", " Hello", " Hello"),
    ("Hello ", "", "Hello "),
    ("Hello", "\n", "Hello\n"),
    ("ha ha ", " ha ha", "ha ha ha ha"),
    ("the cat and the", " the dog", "the cat and the the dog"),
    (PASSAGE, PASSAGE + "Yes.", PASSAGE + PASSAGE + "Yes."),
    ("-" * 40, "-" * 40, "-" * 80),
    ("| 0 | 0 | 0 |\n" * 4, "| 0 | 0 | 0 |\n" * 4, "| 0 | 0 | 0 |\n" * 8),
])
def test_seam_blanks_are_trimmed_once(said: str, rest: str, whole: str) -> None:
    """Blanks appear once; all other text passes unchanged."""
    assert joined(said, [rest]) == whole
    assert joined(said, list(rest)) == whole


def test_seam_later_text_is_not_held_back() -> None:
    """Only blanks at the beginning wait for the text after them."""
    seam = SeamTrimmer(PASSAGE)
    assert seam.trim(" Nobody") == "Nobody"
    assert seam.trim(" waits") == " waits"
    seam = SeamTrimmer(PASSAGE)
    assert seam.trim(" ") == ""
    assert seam.trim("\n") == ""
    assert seam.trim("the") == "\nthe"
    assert SeamTrimmer(PASSAGE.rstrip()).trim(" ") == " "
