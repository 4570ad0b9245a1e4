"""Which questions may share answers.

Problem: "and how much is it?" has cosine .97 to the same words about something else. Rule: a question must be
self-contained. It is neither looked up nor stored for others if it is

    short       fewer than `min_content_words` words with content, or with an ellipsis
    pointing    it begins with a word that refers to earlier text (it, they, and, why)
    volatile    its answer changes soon (today, latest, price), and answers are stored longer than `volatile_ttl_s`
    personal    it contains "my", unless the route sets `allow_personal: true`
    private     it contains an e-mail address, a long number, a card or an account number
    language    there is no word list for its language (policy/cache/english.py)

Tenant, system prompt, tools, format and earlier turns must be exactly equal; they are the scope (`wire.canonical`).

When wrong: word lists miss cases ("Which of the two is better?" refers to earlier text, and passes).
"""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.cache.english import LEXICONS
from stayfast.policy.cache.lexical import MOST_CHARS, Wording

MIN_WORDS_FOR_LANGUAGE = 5  # words; a shorter question may well have no filler
_PRIVATE: Final = re.compile(r"[^\s@]@[^\s@]+\.\w|\d[\d -]{7,}\d|\b[A-Z]{2}\d{2}[A-Z0-9]{10,}\b")
_ELLIPSIS: Final = re.compile(r"\.\.\.|\u2026")


@dataclass(frozen=True, slots=True)
class EligibleConfig:
    """Which questions of a route may share answers. `volatile_ttl_s`: how long an answer about today or a price is valid."""

    language: Annotated[str, SettingDoc("Language of the word lists; only en. Other languages get no semantic hits.")] = "en"
    allow_personal: Annotated[bool, SettingDoc(
        'Questions with "my" may share answers: only if no personal data are looked up.')] = False
    min_content_words: Annotated[int, SettingDoc(
        "Fewest content words; shorter questions depend on the conversation.", minimum=1, maximum=20)] = 3
    volatile_ttl_s: Annotated[float, SettingDoc(
        "Lifetime of answers about today, now or a price; a longer `semantic_ttl_s` excludes such questions.",
        minimum=0, maximum=31_536_000)] = 0.0
    max_chars: Annotated[int, SettingDoc("Longest question.", minimum=1, maximum=MOST_CHARS)] = 2000

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.language not in LEXICONS:
            raise ValueError(f"language must be one of {', '.join(LEXICONS)}, not {self.language!r}: it needs a word list")


def exclusion_reason(text: str, read: Wording, config: EligibleConfig, ttl_s: float) -> str:
    """The rule that excludes a question; empty: none. `ttl_s`: how long its route stores semantic answers."""
    if len(text) > config.max_chars:
        return "long"
    lexicon, words = LEXICONS[config.language], read.words
    n_fillers = sum(word in lexicon.fillers for word in words)
    is_western = all(word.isascii() or max(word) < "\u0250" for word in words)  # by its letters
    if not is_western or (not n_fillers and len(words) >= MIN_WORDS_FOR_LANGUAGE):
        return "language"
    if len(words) - n_fillers < config.min_content_words or _ELLIPSIS.search(text):
        return "short"
    if words[0] in lexicon.pointing:
        return "pointing"
    if _PRIVATE.search(text):
        return "private"
    if not config.allow_personal and not lexicon.personal.isdisjoint(words):
        return "personal"
    return "volatile" if ttl_s > config.volatile_ttl_s and not lexicon.volatile.isdisjoint(words) else ""
