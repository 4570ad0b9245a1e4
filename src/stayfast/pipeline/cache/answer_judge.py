"""Judges of answers: whether two generated answers are equivalent."""

import re
from typing import Final, Protocol

from stayfast.policy.cache.lexical import find_difference, parse_wording, shares_template
from stayfast.stores.embedder import Embedders, NoEmbedder

N_SHORT_WORDS = 40  # up to this length opposites make answers different; in longer ones only numbers, names and "not" do
MAX_CHARS = 4000  # longer answers are equivalent only if they are identical: the embedder does not read their end
_MARKER: Final = re.compile(r"(?m)^\s*\d{1,2}[.)]\s")  # the number of a list item, which is no figure


class Sameness(Protocol):
    """Compares answers, in the background."""

    @property
    def miss_share(self) -> float:
        """The upper 95 % bound of the share of different answers that this judge calls the same; 0.0: it is not measured."""

    async def is_same(self, one: str, other: str) -> bool | None:
        """Whether two answers are equivalent; None: unknown, and nothing is learned."""


class ByMeaning:
    """Two answers are equivalent if they have the same words, or a cosine of at least `least` and no difference that counts.

    Numbers, negation, names and word order make answers of any length different. So do different words in the same template,
    because the vectors of two filled-in forms are nearly equal. Opposites make short answers different. In doubt, answers
    count as different: this error costs hits, the opposite error would falsify the error figure. A hard case is never
    "unknown", because the hard cases are those that are wrong. The embedder reads only the beginning of a long answer.
    """

    __slots__ = ("_embedding", "_least")

    miss_share = 0.0  # not measured

    def __init__(self, embedding: Embedders, least: float) -> None:
        self._embedding = embedding
        self._least = least

    async def is_same(self, one: str, other: str) -> bool | None:
        if one == other:
            return True
        if max(len(one), len(other)) > MAX_CHARS:
            return False
        first, second = parse_wording(_MARKER.sub("", one)), parse_wording(_MARKER.sub("", other))
        if first.words == second.words:
            return True
        why = find_difference(first, second)
        if why and (why != "opposites" or max(len(first.words), len(second.words)) <= N_SHORT_WORDS):
            return False
        if shares_template(first, second):
            return False
        if self._embedding.background is None:
            return None
        try:
            rows = await self._embedding.background.embed([one, other])
        except NoEmbedder:
            return None
        return float(rows[0] @ rows[1]) >= self._least
