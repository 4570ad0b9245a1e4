"""Whether two answers say the same, so that either could be given to both questions: the judge that all labels come from."""

from typing import Protocol

from stayfast.policy.lexical import why_apart, wording
from stayfast.stores.embed import Embedding, NoEmbedder

N_SHORT_WORDS = 40  # of an answer whose every number and every "not" counts
MAX_CHARS = 4000  # of longer ones only the beginning is read: on the loop, and no embedder reads more


class Sameness(Protocol):
    """Compares answers in the background."""

    async def is_same(self, one: str, other: str) -> bool | None:
        """Whether two answers say the same; None: it cannot tell, and nothing is learned."""
        ...


class ByMeaning:
    """The same words; or a cosine of at least `least`, and between short answers nothing that tells them apart.

    Of a long answer it reads the beginning, as far as the embedder does.
    """

    __slots__ = ("_embedding", "_least")

    def __init__(self, embedding: Embedding, least: float) -> None:
        self._embedding = embedding
        self._least = least

    async def is_same(self, one: str, other: str) -> bool | None:
        """See `Sameness`."""
        if one == other:
            return True
        ones, others = wording(one[:MAX_CHARS]), wording(other[:MAX_CHARS])
        if ones.words == others.words and max(len(one), len(other)) <= MAX_CHARS:
            return True
        if max(len(ones.words), len(others.words)) <= N_SHORT_WORDS and why_apart(ones, others):
            return False
        if self._embedding.behind is None:
            return None
        try:
            rows = await self._embedding.behind.embed([one, other])
        except NoEmbedder:
            return None
        return float(rows[0] @ rows[1]) >= self._least


class Verifier(Protocol):
    """Looks once more at a hit that is about to be given; whatever goes wrong is a no."""

    async def agrees(self, question: str, answer: str) -> bool:
        """Whether an answer that was made for another question is one to this."""
        ...


class TakesAll:
    """The null object: the threshold's word is enough."""

    __slots__ = ()

    async def agrees(self, question: str, answer: str) -> bool:
        """Always."""
        return True

