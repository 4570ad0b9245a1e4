"""Clusters of questions with the same answer, which vote on the answer to a new question.

Problem: a question's nearest neighbour has its answer or a different one at nearly the same cosine. Rule: every question
whose answer was generated (a miss, or an audited hit) is stored as a further phrasing of an existing answer, if a judge
found the two answers equal, or else of a new answer. The phrasings around a new question then vote
(policy/cache/similarity.py).

    phrasing -> answer       many to one; an answer keeps its last `n_per_answer` phrasings
    confirmation             an answer is not served before a second, independent call made an equal answer: one call may
                             have been wrong, or manipulated
    a confirmed error        puts the answer on probation: it is not served until it would have been right PROBATION times
                             in a row, each time judged against a newly generated answer
    wrong share              of each answer's last judgements, each weighing DECAY of the next; PRIOR_N judgements with
                             PRIOR_WRONG wrong ones precede them
    spread                   the mean cosine of an answer's phrasings to the nearest phrasing that it had before; a question
                             farther away than that is new to the answer
    new words                the share of a question's content words that no phrasing of the answer has; a word weighs
                             ln(1 + phrasings of the scope / phrasings with the word)

One instance covers one scope. The owner of the vectors deletes those that `add` and `forget` return.
Source: the vote of nearest neighbours is Fix and Hodges' (1951); the weights of words are Sparck Jones' (1972); the spread
is half of Breunig and others' local outlier factor (2000); many-to-one, confirmation and probation are ours.
When wrong: two answers wrongly found equal stay merged until they are forgotten.
"""

from collections import Counter
from collections.abc import Iterable
from math import log, log1p
from typing import NamedTuple

from msgspec import Struct

from stayfast.policy.cache.lexical import Wording

PROBATION = 5
DECAY = 0.98
PRIOR_N, PRIOR_WRONG = 0.5, 0.05
USUAL_SPREAD = 0.6  # of an answer's first phrasing


class Neighbour(NamedTuple):
    """A stored phrasing near a question. `key` identifies the phrasing. `spread`: its cosine to the nearest phrasing that
    its answer had before it.
    """

    cosine: float
    answer: int
    key: int
    wording: Wording
    spread: float = USUAL_SPREAD


class _Phrasing(NamedTuple):
    answer: int
    wording: Wording
    words: frozenset[str]  # with content
    spread: float


class _Answer(Struct, gc=False):
    """n_left: how many more times it must be right before its probation ends; 0: it is on none."""

    keys: dict[int, None]  # of its phrasings, oldest first
    words: Counter[str]  # how many of its phrasings have a word
    is_confirmed: bool = False
    n_left: int = 0
    n: float = PRIOR_N
    n_wrong: float = PRIOR_WRONG


class AnswerVotes:
    """The phrasings and answers of one scope. Keys and answers are numbers chosen by the caller. fillers: words without
    content.
    """

    __slots__ = ("_answers", "_fillers", "_n_with", "_phrasings", "n_per_answer")

    def __init__(self, n_per_answer: int = 256, fillers: frozenset[str] = frozenset()) -> None:
        self.n_per_answer = n_per_answer
        self._fillers = fillers
        self._phrasings: dict[int, _Phrasing] = {}
        self._answers: dict[int, _Answer] = {}
        self._n_with = Counter[str]()  # how many phrasings of the scope have a word

    def __len__(self) -> int:
        return len(self._phrasings)

    @property
    def n_answers(self) -> int:
        return len(self._answers)

    def add(self, key: int, answer: int, wording: Wording, spread: float = USUAL_SPREAD) -> int | None:
        """Store a phrasing of an answer; a second one confirms the answer. Returns the key of the phrasing that was dropped
        for it, if any.
        """
        phrasing = _Phrasing(answer, wording, self._content(wording), spread)
        stored = self._answers.get(answer)
        if stored is None:
            stored = self._answers[answer] = _Answer({}, Counter())
        else:
            stored.is_confirmed = True
        stored.keys[key] = None
        self._phrasings[key] = phrasing
        for word in phrasing.words:
            stored.words[word] += 1
            self._n_with[word] += 1
        if len(stored.keys) <= self.n_per_answer:
            return None
        gone = next(iter(stored.keys))
        self.remove(gone)
        return gone

    def remove(self, key: int) -> bool:
        """Forget one phrasing; returns whether it was the last of its answer, which is then forgotten, too."""
        phrasing = self._phrasings.pop(key, None)
        if phrasing is None:
            return False
        stored = self._answers[phrasing.answer]
        del stored.keys[key]
        for word in phrasing.words:
            _count_down(stored.words, word)
            _count_down(self._n_with, word)
        if stored.keys:
            return False
        del self._answers[phrasing.answer]
        return True

    def forget(self, answer: int) -> list[int]:
        """Forget an answer; returns the keys of its phrasings."""
        stored = self._answers.get(answer)
        keys = list(stored.keys) if stored is not None else []
        for key in keys:
            self.remove(key)
        return keys

    def find_neighbours(self, near: Iterable[tuple[int, float]]) -> list[Neighbour]:
        """The pairs of (key, cosine) whose phrasing still exists, in the same order."""
        found = ((key, cosine, self._phrasings.get(key)) for key, cosine in near)
        return [Neighbour(cosine, stored.answer, key, stored.wording, stored.spread) for key, cosine, stored in found
                if stored is not None]

    def new_word_share(self, answer: int, wording: Wording) -> float:
        """The weighted share of a question's content words that no phrasing of this answer has, ignoring a final s: 0 to 1;
        0 without content words. 10 us for a short question.
        """
        stored = self._answers.get(answer)
        known = stored.words if stored is not None else Counter[str]()
        n = len(self._phrasings) + 1
        total = new = 0.0
        for word in self._content(wording):
            weight = log1p(n / (1 + self._n_with[word]))
            total += weight
            if not (known[word] or known[f"{word}s"] or known[word.removesuffix("s")]):
                new += weight
        return new / total if total else 0.0

    def log_size(self, answer: int) -> float:
        """ln(1 + its phrasings), at most that of n_per_answer."""
        stored = self._answers.get(answer)
        return log(1 + len(stored.keys)) if stored is not None else 0.0

    def wrong_share(self, answer: int) -> float:
        """The share of an answer's recent judgements that found it wrong, 0 to 1."""
        stored = self._answers.get(answer)
        return PRIOR_WRONG / PRIOR_N if stored is None else stored.n_wrong / stored.n

    def is_confirmed(self, answer: int) -> bool:
        """Whether a second call made an equal answer."""
        stored = self._answers.get(answer)
        return stored is not None and stored.is_confirmed

    def confirm(self, answer: int) -> None:
        """A second call for the same question made an equal answer."""
        stored = self._answers.get(answer)
        if stored is not None:
            stored.is_confirmed = True

    def record_judgement(self, answer: int, *, is_right: bool, was_given: bool) -> None:
        """Record whether this answer was, or would have been, right for a question. `was_given`: it was served."""
        stored = self._answers.get(answer)
        if stored is None:
            return
        stored.n = stored.n * DECAY + 1.0
        stored.n_wrong = stored.n_wrong * DECAY + (not is_right)
        if was_given and not is_right:
            stored.n_left = PROBATION
        elif stored.n_left:
            stored.n_left = stored.n_left - 1 if is_right else PROBATION

    def is_on_probation(self, answer: int) -> bool:
        stored = self._answers.get(answer)
        return stored is not None and stored.n_left > 0

    def _content(self, wording: Wording) -> frozenset[str]:
        return frozenset(wording.words) - self._fillers


def _count_down(counts: Counter[str], word: str) -> None:
    counts[word] -= 1
    if not counts[word]:
        del counts[word]
