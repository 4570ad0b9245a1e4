"""Which questions may share answers.

Problem: "Where is my order?" has the same vector from every client, and another answer. "How do I reset my password?" has
one answer for all. Rule: a question is neither looked up nor stored for others if it is

    short       fewer than `min_content_words` words with content, or with an ellipsis
    pointing    it begins with a word that refers to earlier text (it, they, and), or has a pronoun and fewer than
                MIN_WORDS_FOR_PRONOUN words with content ("Is it free?")
    private     it contains an e-mail address, a long number, a card or an account number
    instruction it instructs the form or content of its answer (policy/cache/instructions.py)
    personal    it is about the client's own data or state ("where is my order", "why was I charged"), unless the route sets
                `allow_personal: true`. A question with "my" that asks how something is done is not personal
    volatile    its answer changes soon (today, latest, the price of gold), and answers are stored longer than
                `volatile_ttl_s`
    language    there is no word list for its language (policy/cache/english.py)

Tenant, system prompt, tools, format and earlier turns must be exactly equal; they are the scope (`wire.canonical`). So a
reference to an earlier turn is a reference to the same text.

Source: ours; the shares of refused questions are in docs/concepts/semantic-cache.md.
When wrong: word lists miss cases. "Which of the two is better?" refers to earlier text, and passes. "What does the plan that
I have include?" is personal, and passes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.cache.english import LEXICONS, Lexicon
from stayfast.policy.cache.instructions import is_instruction
from stayfast.policy.cache.lexical import MOST_CHARS, Wording

MIN_WORDS_FOR_LANGUAGE = 5  # words; a shorter question may well have no filler
MIN_WORDS_FOR_PRONOUN = 3  # content words; with fewer, "it" is what the question is about
_PRIVATE: Final = re.compile(r"[^\s@]@[^\s@]+\.\w|\d[\d -]{7,}\d|\b[A-Z]{2}\d{2}[A-Z0-9]{10,}\b")
_ELLIPSIS: Final = re.compile(r"\.\.\.|\u2026")


@dataclass(frozen=True, slots=True)
class EligibleConfig:
    """Which questions of a route may share answers. `volatile_ttl_s`: how long an answer about today or a rate is valid."""

    language: Annotated[str, SettingDoc("Language of the word lists; only en. Other languages get no semantic hits.")] = "en"
    allow_personal: Annotated[bool, SettingDoc(
        "Questions about the client's own data or state may share answers: only if none are looked up.")] = False
    min_content_words: Annotated[int, SettingDoc(
        "Fewest words with content; 3 refuses most short questions of a help desk.", minimum=1, maximum=20)] = 1
    volatile_ttl_s: Annotated[float, SettingDoc(
        "Lifetime of answers about today, now or a rate; a longer `semantic_ttl_s` excludes such questions.",
        minimum=0, maximum=31_536_000)] = 0.0
    max_chars: Annotated[int, SettingDoc("Longest question.", minimum=1, maximum=MOST_CHARS)] = 2000

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.language not in LEXICONS:
            raise ValueError(f"language must be one of {', '.join(LEXICONS)}, not {self.language!r}: it needs a word list")


def exclusion_reason(text: str, read: Wording, config: EligibleConfig, ttl_s: float) -> str:
    """The rule that excludes a question; empty: none. `ttl_s`: how long its route stores semantic answers. About 10 us."""
    if len(text) > config.max_chars:
        return "long"
    lexicon, words = LEXICONS[config.language], read.words
    n_fillers = sum([word in lexicon.fillers for word in words])
    is_western = text.isascii() or all(word.isascii() or max(word) < "\u0250" for word in words)  # by its letters
    if not is_western or (not n_fillers and len(words) >= MIN_WORDS_FOR_LANGUAGE):
        return "language"
    n_contents = len(words) - n_fillers
    if n_contents < config.min_content_words or not words or _ELLIPSIS.search(text):
        return "short"
    if _is_pointing(words, n_contents, lexicon):
        return "pointing"
    if _PRIVATE.search(text):
        return "private"
    if is_instruction(text, words):
        return "instruction"
    if not config.allow_personal and is_personal(words, lexicon):
        return "personal"
    return "volatile" if ttl_s > config.volatile_ttl_s and _is_volatile(read, lexicon) else ""


def _is_pointing(words: Sequence[str], n_contents: int, lexicon: Lexicon) -> bool:
    """Whether a question begins with a reference to earlier text, or is short and has a pronoun instead of a subject."""
    if words[0] in lexicon.pointing:
        return True
    return n_contents < MIN_WORDS_FOR_PRONOUN and "to" not in words and not lexicon.pronouns.isdisjoint(words)


def is_personal(words: Sequence[str], lexicon: Lexicon) -> bool:
    """Whether a question is about the client's own data or state. A question of how to do something is not."""
    if lexicon.personal.isdisjoint(words):
        return False
    plain = " ".join(words)
    return lexicon.state.search(plain) is not None or (
        not lexicon.possessive.isdisjoint(words) and lexicon.generic.search(plain) is None)


def _is_volatile(read: Wording, lexicon: Lexicon) -> bool:
    """Whether the answer changes soon: by a word, or as the price of something with a market."""
    if not lexicon.volatile.isdisjoint(read.words):
        return True
    return not lexicon.rates.isdisjoint(read.words) and (
        not lexicon.markets.isdisjoint(read.words) or any(mark.startswith("currency:") for mark in read.marks))
