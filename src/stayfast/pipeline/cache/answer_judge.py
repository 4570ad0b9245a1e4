"""Judges of answers: whether two generated answers are equivalent."""

import re
from typing import Final, Protocol

from stayfast.policy.cache.answer_comparison import NO, SHORT, YES, compare_answers
from stayfast.policy.cache.lexical import parse_wording, shares_template
from stayfast.stores.embedder import Embedders, NoEmbedder

N_SHORT_WORDS = SHORT  # up to this length all rules about words count; in longer answers only numbers, names and negation
MAX_CHARS = 4000  # longer answers are equivalent only if they are identical: the embedder does not read their end
_MARKER: Final = re.compile(r"(?m)^\s*\d{1,2}[.)]\s")  # the number of a list item, which is no figure


class Sameness(Protocol):
    """Compares answers, in the background."""

    @property
    def miss_share(self) -> float:
        """The upper 95 % bound of the share of different answers that this judge calls the same; 0.0: it is not measured."""

    def note_call(self) -> None:
        """The route made a call, whose answer may be compared."""

    async def is_same(self, one: str, other: str, question: str = "", model: str = "") -> bool | None:
        """Whether two answers are equivalent; None: unknown, and nothing is learned. question: that of `one`. model: of the
        request for `one`.
        """


def has_same_words(one: str, other: str) -> bool:
    """Whether two answers are the same words in the same order, apart from capitals, punctuation and list numbers."""
    return one == other or (max(len(one), len(other)) <= MAX_CHARS and _words_of(one) == _words_of(other))


def _words_of(answer: str) -> tuple[str, ...]:
    return parse_wording(_MARKER.sub("", answer)).words


class ByMeaning:
    """Two answers are equivalent by their words (`policy.cache.answer_comparison`), or if the words leave it open and their
    vectors have a cosine of at least `least`.

    Different words in the same template count as different, because the vectors of two filled-in forms are nearly equal.
    So do, up to N_SHORT_WORDS words, further content and another order. In doubt, answers count as different: this error
    costs hits, the opposite error would falsify the error figure. A hard case is never "unknown", because the hard cases are
    those that are wrong. The embedder reads only the beginning of a long answer. Its own error is not measured.
    """

    __slots__ = ("_embedding", "_least")

    miss_share = 0.0  # not measured

    def __init__(self, embedding: Embedders, least: float) -> None:
        self._embedding = embedding
        self._least = least

    def note_call(self) -> None:
        """It has no costs to limit."""

    async def is_same(self, one: str, other: str, question: str = "", model: str = "") -> bool | None:
        if has_same_words(one, other):
            return True
        if max(len(one), len(other)) > MAX_CHARS:
            return False
        found = compare_answers(one, other)
        if found.verdict in (YES, NO):
            return found.verdict is YES
        first, second = parse_wording(_MARKER.sub("", one)), parse_wording(_MARKER.sub("", other))
        is_short = max(len(first.words), len(second.words)) <= N_SHORT_WORDS
        if (is_short and found.why != "words") or shares_template(first, second):
            return False
        if self._embedding.background is None:
            return None
        try:
            rows = await self._embedding.background.embed([one, other])
        except NoEmbedder:
            return None
        return float(rows[0] @ rows[1]) >= self._least
