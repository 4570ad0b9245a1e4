"""Clusters of questions with the same answer, which vote on the answer to a new question.

Problem: a question's nearest neighbour has its answer or a different one at nearly the same cosine. Rule: every question
whose answer was generated (a miss, or an audited hit) is stored as a further phrasing of an existing answer, if a judge
found the two answers equal, or else of a new answer. The phrasings around a new question then vote
(policy/cache/similarity.py).

    phrasing -> answer       many to one; an answer keeps its last `n_per_answer` phrasings
    a confirmed error        puts the answer on probation: it is not served until it would have been right PROBATION times
                             in a row, each time judged against a newly generated answer

One instance covers one scope. The owner of the vectors deletes those that `add` and `forget` return.
Source: the vote of nearest neighbours is Fix and Hodges' (1951); many-to-one and probation are ours.
When wrong: two answers wrongly found equal stay merged until they are forgotten.
"""

from collections.abc import Iterable
from typing import NamedTuple

from stayfast.policy.cache.lexical import Wording

PROBATION = 5


class Neighbour(NamedTuple):
    """A stored phrasing near a question. `key` identifies the phrasing."""

    cosine: float
    answer: int
    key: int
    wording: Wording


class AnswerVotes:
    """The phrasings and answers of one scope. Keys and answers are numbers chosen by the caller."""

    __slots__ = ("_answers", "_phrasings", "_probation", "n_per_answer")

    def __init__(self, n_per_answer: int = 256) -> None:
        self.n_per_answer = n_per_answer
        self._phrasings: dict[int, tuple[int, Wording]] = {}
        self._answers: dict[int, dict[int, None]] = {}  # the keys of each, oldest first
        self._probation: dict[int, int] = {}  # how many more times the answer must be right

    def __len__(self) -> int:
        return len(self._phrasings)

    @property
    def n_answers(self) -> int:
        return len(self._answers)

    def add(self, key: int, answer: int, wording: Wording) -> int | None:
        """Store a phrasing of an answer. Returns the key of the phrasing that was dropped for it, if any."""
        keys = self._answers.setdefault(answer, {})
        keys[key] = None
        self._phrasings[key] = (answer, wording)
        if len(keys) <= self.n_per_answer:
            return None
        gone = next(iter(keys))
        self.remove(gone)
        return gone

    def remove(self, key: int) -> bool:
        """Forget one phrasing; returns whether it was the last of its answer, which is then forgotten, too."""
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
        """Forget an answer; returns the keys of its phrasings."""
        keys = list(self._answers.pop(answer, ()))
        for key in keys:
            del self._phrasings[key]
        self._probation.pop(answer, None)
        return keys

    def find_neighbours(self, near: Iterable[tuple[int, float]]) -> list[Neighbour]:
        """The pairs of (key, cosine) whose phrasing still exists, in the same order."""
        found = ((key, cosine, self._phrasings.get(key)) for key, cosine in near)
        return [Neighbour(cosine, stored[0], key, stored[1]) for key, cosine, stored in found if stored is not None]

    def has_new(self, answer: int, words: Iterable[str]) -> bool:
        """Whether a word is in no phrasing of this answer, ignoring a final s. 50 us at most."""
        keys = self._answers.get(answer, ())
        known_words = set[str]().union(*[self._phrasings[key][1].words for key in keys])
        return any(word not in known_words and f"{word}s" not in known_words and word.removesuffix("s") not in known_words
                   for word in words)

    def record_judgement(self, answer: int, *, is_right: bool, was_given: bool) -> None:
        """Record whether this answer was, or would have been, right for a question. `was_given`: it was served."""
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
        return answer in self._probation
