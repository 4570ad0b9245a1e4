"""Whether the small tier's answer is what the large one would have given: by its text, its words, or a judging model."""

from typing import Protocol

from stayfast.pipeline.cache.answer_judge import has_same_words


class TierComparison(Protocol):
    """Compares answers to one question, off the path; `pipeline.cache.answer_judge.Sameness` is one by a model."""

    @property
    def miss_share(self) -> float:
        """Upper 95 % bound of the share of different answers that count as equal; 0.0: not measured."""

    def note_call(self) -> None:
        """The route answered a request, whose answer may be compared."""

    async def is_same(self, one: str, other: str, question: str = "", model: str = "") -> bool | None:
        """Whether they are equal; None: unknown, and nothing is learned."""


class EqualTexts:
    """Equal texts, apart from spaces and capitals; or equal words (`has_same_words`). For labels and short facts."""

    __slots__ = ("_by_words",)

    miss_share = 0.0  # equal texts are equal

    def __init__(self, *, by_words: bool) -> None:
        self._by_words = by_words

    def note_call(self) -> None:
        """It has no costs to limit."""

    async def is_same(self, one: str, other: str, question: str = "", model: str = "") -> bool | None:
        if self._by_words:
            return has_same_words(one, other)
        return " ".join(one.split()).casefold() == " ".join(other.split()).casefold()
