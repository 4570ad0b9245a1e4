"""Whether two answers say the same, so that either could be given to both questions: the judge that all labels come from."""

import re
from typing import Final, Protocol

from stayfast.policy.cache.lexical import is_filled_otherwise, why_apart, wording
from stayfast.stores.embedder import Embedding, NoEmbedder

N_SHORT_WORDS = 40  # of an answer whose every word counts that has an opposite; of longer ones numbers, names and "not" do
MAX_CHARS = 4000  # longer ones are the same to the letter or not at all: nobody here reads their end
_MARKER: Final = re.compile(r"(?m)^\s*\d{1,2}[.)]\s")  # of a list, and no figure


class Sameness(Protocol):
    """Compares answers in the background."""

    async def is_same(self, one: str, other: str) -> bool | None:
        """Whether two answers say the same; None: it cannot tell, and nothing is learned."""
        ...


class ByMeaning:
    """The same words; or a cosine of at least `least`, and nothing that tells them apart.

    Numbers, negation, names and order tell answers of any length apart, and so do other words in one and the same text: of
    a form that was filled in twice a vector has hardly more than the form. Opposites tell short ones apart. Where it errs it
    shall find answers different that are the same: that costs hits, the other way round costs the truth of the error
    figure. So there is no "cannot tell" for a hard case: what is left out because it is hard would be the wrong ones. Of the
    meaning of a long answer it reads the beginning, as far as the embedder does.
    """

    __slots__ = ("_embedding", "_least")

    def __init__(self, embedding: Embedding, least: float) -> None:
        self._embedding = embedding
        self._least = least

    async def is_same(self, one: str, other: str) -> bool | None:
        """See `Sameness`."""
        if one == other:
            return True
        if max(len(one), len(other)) > MAX_CHARS:
            return False
        ones, others = wording(_MARKER.sub("", one)), wording(_MARKER.sub("", other))
        if ones.words == others.words:
            return True
        why = why_apart(ones, others)
        if why and (why != "opposites" or max(len(ones.words), len(others.words)) <= N_SHORT_WORDS):
            return False
        if is_filled_otherwise(ones, others):
            return False
        if self._embedding.behind is None:
            return None
        try:
            rows = await self._embedding.behind.embed([one, other])
        except NoEmbedder:
            return None
        return float(rows[0] @ rows[1]) >= self._least


class Verifier(Protocol):
    """Looks once more at a hit that is about to be given; whatever goes wrong is a no. Its time is the look-up's."""

    async def agrees(self, question: str, answer: str) -> bool:
        """Whether an answer that was made for another question is one to this."""
        ...

