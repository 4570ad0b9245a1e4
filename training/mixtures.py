"""Made-up questions, labelled by the lexical judge.

Whole phrasings alone teach a small model to recognise sentences. Loose words in foreign sentences
teach it which words belong to which topic, and that carries over to sentences nobody wrote down.
"""

from random import Random

from training.augment import Augmenter
from training.lexical import LexicalJudge
from training.topics import Topic

CLUE_OPENINGS = (
    "", "", "what ", "what ", "which ", "which ", "how do ", "how can ", "how does ", "how to ", "can ", "could ",
    "why ", "why does ", "is it ", "is ", "are ", "do ", "does ", "should ", "when ", "when do ", "who ", "where ",
    "what if ", "what happens if ", "my ", "the ", "will ", "what is the ", "how many ", "how much ", "is there ",
)  # fmt: skip
MARGIN = 1.15
TRIES = 6


class Mixer:
    """Draws sentences around a topic and says which topic they really belong to."""

    def __init__(self, topics: list[Topic], augmenter: Augmenter, rng: Random) -> None:
        self._topics = topics
        self._augmenter = augmenter
        self._rng = rng
        self._judge = LexicalJudge(topics)
        self._words = {topic.name: _content_words(topic) for topic in topics}

    def question(self, topic: Topic) -> tuple[str, Topic]:
        """A question and its topic, usually the one asked for; an unclear mixture is drawn again."""
        for _ in range(TRIES):
            text = self._augmenter.surface(self._draw(topic))
            owner = self._judge.best(text, MARGIN)
            if owner and self._augmenter.is_allowed(text, owner):
                return text, owner
        return self._augmenter.question(topic), topic

    def _draw(self, topic: Topic) -> str:
        roll = self._rng.random()
        if roll < 0.4:
            return self._worn(topic)
        return self._grafted(topic) if roll < 0.75 or not topic.clues else self._clue(topic)

    def _worn(self, topic: Topic) -> str:
        """A phrasing with words lost and replaced by words from anywhere."""
        words = []
        for word in self._rng.choice(topic.ask).split():
            roll = self._rng.random()
            if roll < 0.15:
                words.append(self._rng.choice(self._words[self._rng.choice(self._topics).name]))
            elif roll < 0.8:
                words.append(word)
        return " ".join(words)

    def _grafted(self, topic: Topic) -> str:
        """The sentence of another topic, with content words of this one."""
        words = self._rng.choice(self._rng.choice(self._topics).ask).split()
        places = [at for at, word in enumerate(words) if len(word.strip("?,.!")) > 3] or [len(words) - 1]
        for at in self._rng.sample(places, min(len(places), self._rng.choice((1, 2, 2, 3)))):
            words[at] = self._rng.choice(self._words[topic.name])
        return " ".join(words)

    def _clue(self, topic: Topic) -> str:
        """A stretch of the answer, phrased as a question."""
        answer = [word.strip(",.:;?!") for word in topic.answer.split()]
        size = self._rng.randrange(3, 9)
        at = self._rng.randrange(max(1, len(answer) - size))
        words = [word for word in answer[at : at + size] if self._rng.random() > 0.12]
        return self._rng.choice(CLUE_OPENINGS) + " ".join(words).lower()


def _content_words(topic: Topic) -> list[str]:
    """Words that may carry the topic; those of phrasings and terms weigh more than the answer's."""
    texts = [*topic.ask, *topic.ask, *topic.terms, *topic.terms, *([topic.answer] if topic.clues else [])]
    words = [word.strip("?,.!:;") for text in texts for word in text.split()]
    return [word for word in words if len(word) > 3 or word.isupper() or word.isdigit()] or words
