"""Word rules that distinguish two questions which an embedding model finds equal.

Problem: "Markdown to HTML" and "HTML to Markdown" have cosine .994, "2.12 wheels" and "2.13 wheels" .979. Rule: at any
cosine, the answer to one question is not used for the other if

    numbers     their sets of numbers differ, in digits or in words
    negation    one has a negator, the other has none
    opposites   one has a word, and the other has its opposite instead
    entities    both have names (capitals inside a sentence), and share none
    order       their content words are the same in another order

These rules find only some differences, and reject some equal questions: of Redis' adversarial pairs they reject a fifth of
the different ones and a tenth of the equal ones. Two answers are compared by one more rule, since answers often share a
template:

    template    at least MOST_SAME of their word pairs are equal, and each answer has a content word (or a number, or a
                word with an opposite) that the other lacks, or has less often

When wrong: the rules compare words, not meanings. "Not bad" counts as a negation, and "press the button" and "hold the
button" share a template. The word lists are English. Questions in other languages get no semantic hits, because no rule
would distinguish "on" from "off" there.
"""

import re
from collections import Counter
from itertools import pairwise
from typing import Final

from msgspec import Struct

from stayfast.policy.cache.english import ENGLISH, Lexicon

MOST_CHARS: Final = 10_000
MOST_SAME: Final = 0.5  # of the word pairs of the longer text; from this share on, two answers share a template
LEAST_STEM: Final = 4  # letters that a word needs for an opposite by the reverser: "unit" is not the opposite of "it"
_APOSTROPHES: Final = str.maketrans("", "", "'\u2019`")
_WORD: Final = re.compile(r"\d[\d.,]*|[^\W\d_][\w+#]*")
_NUMBER: Final = re.compile(r"\d[\d.,]*")
_NAME: Final = re.compile(r"(?<=\s)[A-Z][A-Za-z0-9+#]+")


class Wording(Struct, frozen=True, gc=False):
    words: tuple[str, ...]
    numbers: frozenset[str]
    names: frozenset[str]
    is_negated: bool


def parse_wording(text: str, lexicon: Lexicon = ENGLISH) -> Wording:
    """Parse the first MOST_CHARS of a text. Takes about 10 us for a short text, 1 ms at most."""
    plain = text[:MOST_CHARS].translate(_APOSTROPHES)
    words = tuple(_WORD.findall(plain.lower()))
    spelled = lexicon.numbers
    numbers = {number.rstrip(".,") for number in _NUMBER.findall(plain)} | {
        spelled[word] for word in words if word in spelled}
    return Wording(words, frozenset(numbers), frozenset(_NAME.findall(plain)), not lexicon.negators.isdisjoint(words))


def find_difference(one: Wording, other: Wording, lexicon: Lexicon = ENGLISH) -> str:
    """The name of the rule that two questions break, so that they have different answers; empty: none."""
    if one.numbers != other.numbers:
        return "numbers"
    if one.is_negated != other.is_negated:
        return "negation"
    if one.names and other.names and one.names.isdisjoint(other.names):
        return "entities"
    if one.words != other.words and _is_reordered(one.words, other.words, lexicon.fillers):
        return "order"
    ones, others = set(one.words), set(other.words)
    return "opposites" if _is_exchanged(ones - others, others - ones, lexicon) else ""


def shares_template(one: Wording, other: Wording, lexicon: Lexicon = ENGLISH) -> bool:
    """Whether two answers are one template with different words. Takes about 0.2 ms for two answers of a hundred words."""
    pairs, other_pairs = Counter(pairwise(one.words)), Counter(pairwise(other.words))
    if (pairs & other_pairs).total() < MOST_SAME * max(pairs.total(), other_pairs.total()):
        return False
    own_values, other_values = _values_in(one.words, lexicon), _values_in(other.words, lexicon)
    return bool(own_values - other_values) and bool(other_values - own_values)


def _values_in(words: tuple[str, ...], lexicon: Lexicon) -> Counter[str]:
    """How often each content word occurs; number words are counted as digits."""
    fillers, opposites, numbers = lexicon.fillers, lexicon.opposites, lexicon.numbers
    return Counter([numbers.get(word) or word.rstrip(".,") for word in words if word not in fillers or word in opposites])


def _is_reordered(one: tuple[str, ...], other: tuple[str, ...], fillers: frozenset[str]) -> bool:
    """Whether two texts have the same content words in another order; or the content words in the same order, and all words
    in another.
    """
    own_words = [word for word in one if word not in fillers]
    other_words = [word for word in other if word not in fillers]
    return sorted(one) == sorted(other) if own_words == other_words else sorted(own_words) == sorted(other_words)


def _is_exchanged(only: set[str], only_other: set[str], lexicon: Lexicon) -> bool:
    """Whether a word that only one text has is the opposite of a word that only the other has."""
    opposites, before = lexicon.opposites, lexicon.reverser
    if any(not found.isdisjoint(only_other) for word in only if (found := opposites.get(word)) is not None):
        return True
    if f" {before}" not in " ".join(("", *only, *only_other)):  # the usual case; takes 1 us
        return False
    return any(len(stem := word[len(before):]) >= LEAST_STEM and stem in (only_other if word in only else only)
               for word in only | only_other if word.startswith(before) and word not in lexicon.fillers)
