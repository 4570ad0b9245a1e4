"""Two questions that a sentence model takes for one, and that a few words tell apart.

Problem: "Markdown to HTML" and "HTML to Markdown" are .994 alike to the model, "10 USD to EUR" and "10 EUR to USD" .979,
"2.12 wheels" and "2.13 wheels" .979. Rule: whatever the model says, one text's answer is not the other's, if

    numbers     the two do not have the same set of numbers, in digits or in words
    negation    one has a negator, the other has none
    opposites   one has a word, the other has its opposite instead
    entities    both have names (capitals inside a sentence), and none of them is the same
    order       the same words that say something, as often, in another order; words between them may differ

It is necessary, and far from enough: of Redis' adversarial pairs it turns back a fifth of those that differ, and a tenth of
those that do not. Everything else is `policy.similarity`'s.
When wrong: it reads words, not sense. "Not bad" is a negation here, and "twenty-four" is 20 and 4.
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from stayfast.policy.lexicon import ENGLISH, Lexicon

MOST_CHARS: Final = 10_000
_APOSTROPHES: Final = str.maketrans("", "", "'\u2019`")
_WORD: Final = re.compile(r"\d[\d.,]*|[^\W\d_][\w+#]*")
_NUMBER: Final = re.compile(r"\d[\d.,]*")
_NAME: Final = re.compile(r"(?<=\s)[A-Z][A-Za-z0-9+#]+")


class Wording(Struct, frozen=True, gc=False):
    """What is remembered of a text to tell it from others. `words` in their order, lower case."""

    words: tuple[str, ...]
    numbers: frozenset[str]
    names: frozenset[str]
    is_negated: bool


def wording(text: str, lexicon: Lexicon = ENGLISH) -> Wording:
    """Read a text, as far as MOST_CHARS: a longer one is on its own. About 10 us for a short one, 1 ms at most."""
    plain = text[:MOST_CHARS].translate(_APOSTROPHES)
    words = tuple(_WORD.findall(plain.lower()))
    spelled = lexicon.numbers
    numbers = {number.rstrip(".,") for number in _NUMBER.findall(plain)} | {
        spelled[word] for word in words if word in spelled}
    return Wording(words, frozenset(numbers), frozenset(_NAME.findall(plain)), not lexicon.negators.isdisjoint(words))


def why_apart(one: Wording, other: Wording, lexicon: Lexicon = ENGLISH) -> str:
    """The rule by which the answer to one is not an answer to the other; empty: none."""
    if one.numbers != other.numbers:
        return "numbers"
    if one.is_negated != other.is_negated:
        return "negation"
    if one.names and other.names and one.names.isdisjoint(other.names):
        return "entities"
    if one.words != other.words and _is_reordered(one.words, other.words, lexicon.fillers):
        return "order"
    ones, others = set(one.words), set(other.words)
    return "opposites" if _is_exchanged(ones - others, others - ones, lexicon.opposites) else ""


def _is_reordered(one: tuple[str, ...], other: tuple[str, ...], fillers: frozenset[str]) -> bool:
    """Whether the words that say something are the same in another order; where their order is the same, all words."""
    say = [word for word in one if word not in fillers]
    says = [word for word in other if word not in fillers]
    if say == says:
        return sorted(one) == sorted(other)
    return sorted(say) == sorted(says)


def _is_exchanged(only: set[str], only_other: set[str], opposites: Mapping[str, frozenset[str]]) -> bool:
    """Whether a word of the one side stands opposite one of the other."""
    return any(not found.isdisjoint(only_other) for word in only if (found := opposites.get(word)) is not None)
