"""Two halves of a text, put together: nothing said twice, nothing lost."""

from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stayfast.wire.seam import MIN_REPEAT, Seam, repeated

PASSAGE = "What users feel is the tail: one slow answer in a hundred is the one that they remember. "
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200) | st.text("ab \n", max_size=200)


def joined(said: str, pieces: Sequence[str]) -> str:
    """What a reader has in the end."""
    seam = Seam(said)
    return said + "".join([*(seam.take(piece) for piece in pieces), seam.take("", is_last=True)])


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    """A text in pieces."""
    ends = sorted({cut % (len(text) + 1) for cut in cuts} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(TEXTS, st.integers(0, 200), st.lists(st.integers(0, 200), max_size=12))
def test_an_exact_continuation_is_the_text(text: str, split: int, cuts: list[int]) -> None:
    """Asked to go on after the blanks are off, an upstream that goes on exactly gives the very text, cut anywhere."""
    said = text[: split % (len(text) + 1)]
    rest = text[len(said.rstrip()):]
    assume(not repeated(said.rstrip(), rest.lstrip()))  # the one loss that is declared
    assert joined(said, pieces_of(rest, cuts)) == text


@given(st.text("abcdefgh .", min_size=MIN_REPEAT, max_size=120), TEXTS, st.integers(MIN_REPEAT, 120),
       st.lists(st.integers(0, 400), max_size=12), st.sampled_from(["", " ", "\n\n"]))
def test_a_repeated_end_is_left_out(prefix: str, after: str, n: int, cuts: list[int], blanks: str) -> None:
    """An upstream that says the end of what was said once more, or all of it, is heard once."""
    prefix = prefix.strip()
    again = prefix[-n:].lstrip()
    assume(len(again) >= MIN_REPEAT and repeated(prefix, again + after) == len(again))
    assert joined(prefix, pieces_of(blanks + again + after, cuts)) == prefix + after


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
    (PASSAGE, PASSAGE + "Yes.", PASSAGE + "Yes."),
    (PASSAGE, PASSAGE[-50:] + "Yes.", PASSAGE + "Yes."),
    (PASSAGE.rstrip(), " " + PASSAGE + "Yes.", PASSAGE + "Yes."),
    ("-" * 40, "-" * 40, "-" * 80),
    ("| 0 | 0 | 0 |\n" * 4, "| 0 | 0 | 0 |\n" * 4, "| 0 | 0 | 0 |\n" * 8),
])
def test_seams(said: str, rest: str, whole: str) -> None:
    """Blanks are said once, repeats that are long enough are left out, patterns go on."""
    assert joined(said, [rest]) == whole
    assert joined(said, list(rest)) == whole


def test_running_text_is_hardly_held_back() -> None:
    """What does not stand in the first half is given on at once, a common word with the one after it."""
    seam = Seam(PASSAGE)
    assert seam.take(" Nobody") == "Nobody"
    assert seam.take(" waits") == " waits"
    seam = Seam(PASSAGE)
    assert seam.take(" the") == ""
    assert seam.take(" sky") == "the sky"
