"""Many ways to ask, one answer: who votes for what when a question comes.

Problem: a cache that keeps one question an answer knows one way to ask it, and how near the next way comes says little:
the nearest neighbour of a question has its answer or another one, at nearly the same cosine. Rule: every question whose
answer was made (a miss, or an audited hit) is kept as a further phrasing of that answer, if a judge found the two answers to
be the same, else of a new one. What tells right from wrong is then what the phrasings around a question say together
(policy/cache/similarity.py): how many of the nearest ten are of the nearest one's answer, and how far the next other
answer is.

    phrasing -> answer       many to one; an answer keeps its last `n_per_answer` phrasings
    a confirmed error        puts the answer that was given on probation: it is given to nobody until it would have been
                             right PROBATION times running, each judged on an answer that was made all the same

One scope's; whoever holds the vectors takes out what `add` and `forget` say is gone.
Source: the nearest neighbours' vote is Fix and Hodges' (1951); many-to-one and probation are ours.
When wrong: the judge errs. Two answers taken for one are then one for good, until they are forgotten.
"""

from collections.abc import Iterable
from typing import NamedTuple

from stayfast.policy.cache.lexical import Wording

PROBATION = 5


class Neighbour(NamedTuple):
    """A phrasing near a question. `key`: the phrasing's."""

    cosine: float
    answer: int
    key: int
    wording: Wording


class AnswerVotes:
    """The phrasings of one scope and their answers. Keys and answers are numbers of the caller's."""

    __slots__ = ("_answers", "_phrasings", "_probation", "n_per_answer")

    def __init__(self, n_per_answer: int = 256) -> None:
        self.n_per_answer = n_per_answer
        self._phrasings: dict[int, tuple[int, Wording]] = {}
        self._answers: dict[int, dict[int, None]] = {}  # the keys of each, oldest first
        self._probation: dict[int, int] = {}  # how often it still has to be right

    def __len__(self) -> int:
        return len(self._phrasings)

    @property
    def n_answers(self) -> int:
        return len(self._answers)

    def add(self, key: int, answer: int, wording: Wording) -> int | None:
        """A new key is a phrasing of this answer. Returns the key that had to go for it."""
        keys = self._answers.setdefault(answer, {})
        keys[key] = None
        self._phrasings[key] = (answer, wording)
        if len(keys) <= self.n_per_answer:
            return None
        gone = next(iter(keys))
        self.remove(gone)
        return gone

    def remove(self, key: int) -> bool:
        """Forget one phrasing; returns whether it was the last one of its answer, which is gone with it."""
        found = self._phrasings.pop(key, None)
        if found is None:
            return False
        keys = self._answers[found[0]]
        del keys[key]
        if keys:
            return False
        del self._answers[found[0]]
        self._probation.pop(found[0], None)
        return True

    def forget(self, answer: int) -> list[int]:
        """Forget an answer; returns the keys that were its phrasings."""
        keys = list(self._answers.pop(answer, ()))
        for key in keys:
            del self._phrasings[key]
        self._probation.pop(answer, None)
        return keys

    def neighbours(self, near: Iterable[tuple[int, float]]) -> list[Neighbour]:
        """Those of (key, cosine) that are phrasings still, in the same order."""
        found = ((key, cosine, self._phrasings.get(key)) for key, cosine in near)
        return [Neighbour(cosine, one[0], key, one[1]) for key, cosine, one in found if one is not None]

    def has_new(self, answer: int, words: Iterable[str]) -> bool:
        """Whether one of these words is in no phrasing of this answer, with or without an s at its end. 50 us at most."""
        keys = self._answers.get(answer, ())
        known_words = set[str]().union(*[self._phrasings[key][1].words for key in keys])
        return any(word not in known_words and f"{word}s" not in known_words and word.removesuffix("s") not in known_words
                   for word in words)

    def judged(self, answer: int, *, is_right: bool, was_given: bool) -> None:
        """What this answer would have been, or was (`was_given`), to a question that it was the nearest one's answer to."""
        if was_given and not is_right:
            if answer in self._answers:
                self._probation[answer] = PROBATION
        elif answer in self._probation:
            n_left = self._probation[answer] - 1 if is_right else PROBATION
            if n_left:
                self._probation[answer] = n_left
            else:
                del self._probation[answer]

    def is_on_probation(self, answer: int) -> bool:
        """Whether it is to be given to nobody yet."""
        return answer in self._probation

    def __repr__(self) -> str:
        return f"<AnswerVotes of {len(self)} phrasings for {self.n_answers} answers, {len(self._probation)} on probation>"
