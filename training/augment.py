"""Many ways to ask one question.

A model of a few million parameters has no general English to lean on, so variety has to come from
the data: synonyms, frames around a term, politeness, case, lost words and small typos. All choices
come from the `Random` that is handed in, so a seed fixes the whole training set.
"""

import re
from collections.abc import Iterable
from random import Random

from training.topics import Topic, normalise

TERM_FRAMES = (
    "what is {}", "what's {}", "what are {}", "explain {}", "define {}", "describe {}", "{}", "{}?",
    "tell me about {}", "what does {} mean", "meaning of {}", "{} meaning", "{} explained",
    "can you explain {}", "could you explain {} to me", "give me a definition of {}", "what about {}",
    "what do you know about {}", "I want to know what {} is", "how would you explain {}",
    "what is meant by {}", "what does the term {} mean", "I would like to learn about {}",
    "help me understand {}", "what exactly is {}", "someone mentioned {}, what is it",
    "I read about {}", "the idea of {}", "introduce {}", "what do people mean by {}",
    "can you describe {}", "say something about {}", "how do you define {}", "what is {} about",
)  # fmt: skip
NOUN_FRAMES = (
    "what is {}", "what is a {}", "tell me about {}", "how do I make {}", "how do I buy a {}",
    "what is the best {}", "explain {}", "why is {} expensive", "where can I find {}", "I like {}",
    "who invented {}", "how does {} work", "should I get a {}", "write a story about {}", "{}",
    "what is the history of {}", "how much does a {} cost", "how can I repair my {}", "do you like {}",
    "how big is a {}", "recommend a {}", "what is the difference between {} and {}", "how do I learn {}",
    "what is the capital of {}", "how many {} are in {}", "who is the most famous {}", "how old is {}",
    "give me a recipe with {} and {}", "translate {} into {}", "write code for a {} website",
    "can you help me with {}", "when was {} discovered", "my {} is broken", "is {} healthy", "{} or {}",
)  # fmt: skip
SYNONYMS = (
    ("how do i", "how can i", "how should i", "how to", "how would i", "how do we", "how could i",
     "what is the best way to", "what is a good way to", "ways to", "tips to", "help me"),
    ("what is", "what's", "what exactly is", "tell me what is", "whats"),
    ("explain", "describe", "tell me about", "could you explain", "could you describe", "talk about"),
    ("should i", "do i have to", "is it good to", "do i need to", "would you", "is it smart to"),
    ("why is", "why's", "how come", "what is the reason that", "what makes"),
    ("why are", "how come", "what makes"),
    ("what happens when", "what happens if", "what if", "what follows when", "what becomes of it when"),
    ("what causes", "what leads to", "what is behind", "where comes", "reasons for"),
    ("when should i", "when do i", "when is it right to", "at what point should i", "when would you"),
    ("which", "what"),
    ("reduce", "lower", "cut", "decrease", "bring down", "shrink", "get down"),
    ("improve", "better", "raise", "optimise", "increase"),
    ("speed up", "make faster", "accelerate", "make quicker"),
    ("choose", "pick", "select", "decide on", "find"),
    ("good", "decent", "sensible", "reasonable", "right", "suitable", "acceptable"),
    ("bad", "harmful", "wrong", "poor", "a problem"),
    ("avoid", "prevent", "stop", "get rid of"),
    ("handle", "deal with", "treat", "manage", "react to"),
    ("use", "apply", "work with", "try"),
    ("need", "want", "require"),
    ("requests", "calls", "queries"), ("request", "call", "query"),
    ("answers", "responses", "replies"), ("answer", "response", "reply"),
    ("users", "people", "customers", "clients"),
    ("server", "machine", "service", "system"), ("servers", "machines", "services"),
    ("slow", "sluggish", "too slow", "lagging"), ("fast", "quick", "speedy"),
    ("faster", "quicker"), ("slower", "laggier"),
    ("llm", "language model", "model", "LLM"), ("llms", "language models", "models"),
    ("provider", "vendor", "model API"), ("gpu", "graphics card", "GPU"),
    ("big", "large", "huge"), ("long", "large"), ("small", "tiny", "little"),
    ("how many", "what number of"), ("how long", "how much time"), ("how big", "how large", "what size"),
    ("difference between", "distinction between", "contrast between"),
    ("vs", "versus", "or", "compared to", "against"), ("my", "our", "the"), ("a", "the"),
    ("start", "begin"), ("works", "functions"), ("affect", "influence", "change"),
    ("protect", "guard"), ("measure", "determine", "compute"), ("limit", "cap", "bound"),
    ("wait", "pause"), ("keep", "hold"), ("split", "divide", "share"), ("much", "a lot of"),
)  # fmt: skip
PREFIXES = (
    "please ", "hey, ", "hi, ", "hello, ", "hello! ", "so ", "ok, ", "quick question: ", "can you tell me ",
    "could you tell me ", "please tell me ", "I wonder ", "I would like to know ", "tell me, ",
    "question: ", "one more thing: ", "and ", "sorry, ", "I have a question: ", "do you know ",
    "could you say ", "just curious, ", "in short, ", "I need to know ", "my boss asks: ", "well, ",
)  # fmt: skip
SUFFIXES = (
    " please", ", please", " thanks", " in short", " briefly", " in simple words", " for a beginner",
    " for LLMs", " in practice", " exactly", " again", " really", ", help", " in general", " and why",
    " for my app", " here", " in one sentence", " when serving models", " then", " now", " today",
)  # fmt: skip
LOST_WORDS = frozenset((
    "a", "an", "the", "is", "are", "do", "does", "to", "of", "for", "my", "i", "in", "on", "it", "me", "and",
    "that", "with", "should", "can", "what", "about",
))  # fmt: skip


class Augmenter:
    """Draws phrasings of a topic, and never one that is held out or that belongs to another topic."""

    def __init__(self, topics: Iterable[Topic], forbidden: Iterable[str], rng: Random) -> None:
        self._rng = rng
        self._forbidden = {normalise(question) for question in forbidden}
        self._owner = {normalise(q): topic.name for topic in topics for q in topic.ask}
        self._swaps = {
            phrase.lower(): [other for other in group if other != phrase] for group in SYNONYMS for phrase in group
        }
        longest_first = sorted(self._swaps, key=len, reverse=True)
        self._swap_pattern = re.compile(
            r"\b(" + "|".join(re.escape(phrase) for phrase in longest_first) + r")\b", re.IGNORECASE
        )

    def question(self, topic: Topic) -> str:
        """One phrasing; falls back to a trained one when chance keeps producing forbidden ones."""
        for _ in range(8):
            candidate = self.surface(self._reword(self._base(topic)))
            if self.is_allowed(candidate, topic):
                return candidate
        return self._rng.choice(topic.ask)

    def is_allowed(self, candidate: str, topic: Topic) -> bool:
        """Neither held out nor, word for word, a phrasing of another topic."""
        key = normalise(candidate)
        return bool(key) and key not in self._forbidden and self._owner.get(key, topic.name) == topic.name

    def _base(self, topic: Topic) -> str:
        roll = self._rng.random()
        if topic.terms and roll < 0.35:
            return self._rng.choice(TERM_FRAMES).format(self._rng.choice(topic.terms))
        if topic.nouns and roll < 0.6:
            frame = self._rng.choice(NOUN_FRAMES)
            return frame.format(*self._rng.sample(topic.nouns, 2))
        return self._rng.choice(topic.ask)

    def _reword(self, text: str) -> str:
        """Swaps some phrases for synonyms."""
        chance = self._rng.choice((0.0, 0.3, 0.6))

        def swap(match: re.Match[str]) -> str:
            if self._rng.random() >= chance:
                return match[0]
            return self._rng.choice(self._swaps[match[0].lower()] or [match[0]])

        return self._swap_pattern.sub(swap, text) if chance else text

    def surface(self, text: str) -> str:
        """Case, punctuation, politeness, lost words, typos: what hurried people type."""
        rng = self._rng
        for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
            text = self._drop_word(text)
        if rng.random() < 0.1:
            text = self._typo(text)
        if rng.random() < 0.22:
            text = rng.choice(PREFIXES) + (text if text[:2].isupper() else text[:1].lower() + text[1:])
        if rng.random() < 0.12:
            text = text.rstrip("?.!") + rng.choice(SUFFIXES)
        if rng.random() < 0.35:
            text = text.rstrip("?.!")
        elif not text.endswith(("?", ".", "!")):
            text += "?"
        roll = rng.random()
        if roll < 0.35:
            return text.lower()
        if roll < 0.37:
            return text.upper()
        return text[:1].upper() + text[1:] if roll < 0.85 else text

    def _drop_word(self, text: str) -> str:
        words = text.split()
        droppable = [i for i, word in enumerate(words) if word.lower().strip("?,.!") in LOST_WORDS]
        if len(words) < 4 or not droppable:
            return text
        del words[self._rng.choice(droppable)]
        return " ".join(words)

    def _typo(self, text: str) -> str:
        words = text.split()
        long_words = [i for i, word in enumerate(words) if len(word) >= 5]
        if not long_words:
            return text
        at = self._rng.choice(long_words)
        word, cut = words[at], self._rng.randrange(1, len(words[at]) - 2)
        words[at] = self._rng.choice((
            word[:cut] + word[cut + 1 :],
            word[:cut] + word[cut + 1] + word[cut] + word[cut + 2 :],
            word[:cut] + word[cut] + word[cut:],
        ))  # fmt: skip
        return " ".join(words)
