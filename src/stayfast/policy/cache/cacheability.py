"""Which questions may be answered by what was said to another one, before anybody compares them.

Problem: "and how much is it?" is .97 like another "and how much is it?" whose "it" was another thing. Rule: a question must
stand for itself. It is not looked up, nor kept for others, where

    short       it has fewer than `n_content_words` words that say something, or leans on dots
    pointing    it begins with a word that leans on what was said before (it, they, and, why)
    volatile    its answer is another one soon (today, latest, price), and answers are kept longer than `volatile_ttl_s`
    personal    it speaks of "my": the answer is another one for another person, unless the route says `personal: true`
                (a help desk's answers that look nobody up are the same for all)
    private     it has what only one person would write: an e-mail address, a long number, a card or account number
    language    nobody has a list of the words that would tell it from its opposite (policy/cache/lexical.py)

What must be equal to the letter, the tenant, the system prompt, the tools, the format and all earlier turns, is the scope,
and no matter of likeness (`wire.canonical.terms_of`).
When wrong: these are word lists. "Which of the two is better?" points back, and passes.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from stayfast.core.setting import About, check_bounds
from stayfast.policy.cache.lexical import LEXICONS, MOST_CHARS, Wording

N_TO_TELL_LANGUAGE = 5  # words; fewer may well be without a filler
_PRIVATE: Final = re.compile(r"[^\s@]@[^\s@]+\.\w|\d[\d -]{7,}\d|\b[A-Z]{2}\d{2}[A-Z0-9]{10,}\b")
_ASIDE: Final = re.compile(r"\.\.\.|\u2026")


@dataclass(frozen=True, slots=True)
class EligibleConfig:
    """Which questions of a route may meet others. `volatile_ttl_s`: how long an answer about today or a price holds."""

    language: Annotated[str, About("Whose word lists are used: en. Other languages have none, and no semantic hits.")] = "en"
    personal: Annotated[bool, About(
        "Whether questions that speak of \"my\" may share answers: where nobody's own data are looked up.")] = False
    n_content_words: Annotated[int, About(
        "A question with fewer words that say something leans on what was said before.", minimum=1, maximum=20)] = 3
    volatile_ttl_s: Annotated[float, About(
        "How long an answer about today, now or a price holds, in seconds: with a longer `semantic_ttl_s` such questions "
        "are on their own.", minimum=0, maximum=31_536_000)] = 0.0
    max_chars: Annotated[int, About("Longer questions are on their own.", minimum=1, maximum=MOST_CHARS)] = 2000

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.language not in LEXICONS:
            raise ValueError(f"language must be one of {', '.join(LEXICONS)}, not {self.language!r}: it needs a word list")


def why_not(text: str, read: Wording, config: EligibleConfig, ttl_s: float) -> str:
    """The rule by which a question is on its own; empty: it may be compared. `ttl_s`: how long its route keeps answers."""
    if len(text) > config.max_chars:
        return "long"
    lexicon, words = LEXICONS[config.language], read.words
    n_fillers = sum(word in lexicon.fillers for word in words)
    if not _is_latin(words) or (not n_fillers and len(words) >= N_TO_TELL_LANGUAGE):
        return "language"
    if len(words) - n_fillers < config.n_content_words or _ASIDE.search(text):
        return "short"
    if words[0] in lexicon.pointing:
        return "pointing"
    if _PRIVATE.search(text):
        return "private"
    if not config.personal and not lexicon.personal.isdisjoint(words):
        return "personal"
    return "volatile" if ttl_s > config.volatile_ttl_s and not lexicon.volatile.isdisjoint(words) else ""


def _is_latin(words: tuple[str, ...]) -> bool:
    """Whether all letters are those of western languages."""
    return all(word.isascii() or max(word) < "\u0250" for word in words)
