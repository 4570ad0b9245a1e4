"""Paragraphs that a prompt holds twice.

Problem: instructions grow by copying, and each copy is paid for on every call. Rule: split a text at blank lines; a fenced
block of code stays whole. A paragraph of at least MIN_WORDS words repeats an earlier one if their shingles overlap:

    overlap = |a & b| / |a | b|      a, b: sets of the SHINGLE successive words of each, in lower case

Source: shingles and their resemblance are those of A. Broder, "On the resemblance and containment of documents" (1997); 0.9
is our limit. When wrong: two paragraphs that differ only by a "not" resemble each other, so
only equal paragraphs are ever removed (`policy.context.diet`); the others are for a reader to judge.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

MIN_WORDS: Final = 12  # shorter paragraphs are headings and labels
SHINGLE: Final = 3  # words
OVERLAP: Final = 0.9
MAX_PARAGRAPHS: Final = 2000  # of one prompt; the rest is not compared
_WORD: Final = re.compile(r"\w+")
_PARTS: Final = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n.*?(?:^[ \t]*\1[^\n]*$|\Z)|"
                           r"\S(?:.*?)(?=\n[ \t]*\n|^[ \t]*(?:```|~~~)|\Z)", re.DOTALL | re.MULTILINE)


class Paragraph(NamedTuple):
    """A paragraph or a fenced block, without blank lines around it. Characters of its text."""

    start: int
    end: int
    text: str


class Repeat(NamedTuple):
    """Paragraph number `later` repeats the earlier one, number `first`."""

    later: int
    first: int
    overlap: float


def split_paragraphs(text: str) -> Iterator[Paragraph]:
    """The paragraphs of a text, in order."""
    for found in _PARTS.finditer(text):
        part = found.group().rstrip()
        if part:
            yield Paragraph(found.start(), found.start() + len(part), part)


def normalise(text: str) -> str:
    """A paragraph with single spaces, by which equal ones are found."""
    return " ".join(text.split())


def is_long_enough(text: str) -> bool:
    """Whether a paragraph has MIN_WORDS words, so that a repetition of it counts."""
    return len(_WORD.findall(text)) >= MIN_WORDS


def find_repeats(texts: Sequence[str]) -> list[Repeat]:
    """The paragraphs that repeat an earlier one, each once, with the earlier one that resembles it most."""
    found: list[Repeat] = []
    holders: dict[tuple[str, ...], list[int]] = {}  # paragraphs by shingle
    sizes: list[int] = []
    for index, text in enumerate(texts[:MAX_PARAGRAPHS]):
        words = _WORD.findall(text.lower())
        shingles = {tuple(words[at:at + SHINGLE]) for at in range(len(words) - SHINGLE + 1)}
        sizes.append(len(shingles))
        if len(words) < MIN_WORDS:
            continue
        common = Counter(holder for shingle in shingles for holder in holders.get(shingle, ()))
        rows = [(n / (len(shingles) + sizes[holder] - n), -holder) for holder, n in common.items()]
        overlap, first = max(rows, default=(0.0, 0))
        if overlap >= OVERLAP:
            found.append(Repeat(index, -first, overlap))
            continue  # a third one is compared with the first
        for shingle in shingles:
            holders.setdefault(shingle, []).append(index)
    return found
