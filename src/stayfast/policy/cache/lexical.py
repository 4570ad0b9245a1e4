"""Word rules that distinguish two questions which an embedding model finds equal.

Problem: "Markdown to HTML" and "HTML to Markdown" have cosine .994, "2.12 wheels" and "2.13 wheels" .979. Rule: at any
cosine, the answer to one question is not used for the other if

    numbers     their sets of numbers differ, in digits or in words
    negation    one has a negator, the other has none; or nearly equal texts have a different number of them
    opposites   one has a word, and the other has its opposite instead ("safe", "unsafe", "dangerous")
    code        their operators differ (`!x`, `==`, `i++`, `-l`)
    kinds       both have a word of one kind that the other lacks (two places, two units), or one has a word of a strict
                kind that the other lacks (a month, a currency); policy/cache/english_kinds.py
    entities    both have other names (capitals inside a sentence)
    order       nearly equal texts whose terms have exchanged their places or their direction (from, to)
    exchange    their frames are equal except in one place, and there each has a term that is neither a synonym nor another
                form of the other's

Nearly equal: at most MOST_APART terms are in one text only. Texts of more than MOST_WORDS words, mostly answers, are
compared by numbers, negation, opposites and disjoint names only. Two answers are compared by one more rule, since answers
often share a template:

    template    at least MOST_SAME of their word pairs are equal, and each answer has a content word (or a number, or a
                word with an opposite) that the other lacks, or has less often

Source: ours. The shares of rejected equal pairs and of found different pairs are in docs/concepts/semantic-cache.md.
When wrong: the rules compare words, not meanings. "Not bad" counts as a negation, and "press the button" and "hold the
button" share a template. A word that is added is no difference unless it is of a strict kind. The word lists are English.
Questions in other languages get no semantic hits, because no rule would distinguish "on" from "off" there.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from stayfast.policy.cache.english import ENGLISH, Lexicon
from stayfast.policy.cache.english_kinds import (
    CASED,
    DIRECTED,
    LIGHT,
    LINKERS,
    NEAR,
    PHRASES,
    REVERSED,
    SOFT,
    STRICT,
    SYMBOLS,
)
from stayfast.policy.cache.terms import is_related, make_term, stem_word

MOST_CHARS: Final = 10_000
MOST_WORDS: Final = 40  # of a text to which all rules apply; a longer one says the same in many other words
MOST_SAME: Final = 0.5  # of the word pairs of the longer text; from this share on, two answers share a template
LEAST_STEM: Final = 3  # letters that a word needs for an opposite by its beginning: "unit" is not the opposite of "it"
MOST_EXCHANGED: Final = 4  # words of both texts together, in the one place where they differ
MOST_ALONE: Final = 2  # words of a text without anything in common with the other
MOST_APART: Final = 2  # terms that only one of two nearly equal texts has
_APOSTROPHES: Final = str.maketrans("", "", "'\u2019`")
_WORD: Final = re.compile(r"\d[\d.,]*|[^\W\d_][\w+#]*")
_NUMBER: Final = re.compile(r"\d[\d.,]*")
_THOUSANDS: Final = re.compile(r",(?=\d{3}(?!\d))")
_NAME: Final = re.compile(r"(?<=[^.?!:\s]\s)[A-Z][A-Za-z0-9+#]+")
_HALF_OF_DAY: Final = re.compile(r"\d\s?([apAP])\.?[mM]\b")
_OPERATOR: Final = re.compile(  # not the stars of *emphasis*, not the exclamation mark of a sentence, and not C++
    r"!(?=[\w(])|[=!<>+*/%&|^~:-]=+|<-|[-=]>|[<>]+|&&|\|\|?|&(?=\w)|(?<![\w*])\*(?=\w)(?![\w ]{0,40}\*)|\+\+\w"
    r"|(?<=[\w)])(?<![cCgG])\+\+|(?<!\S)--?\w[\w-]*|--\w|(?<=\w)--|=|\?\.|\?\?|::"
    r"|(?<=\w )[*+%^|]{1,2}(?= \w)|(?<=\b\w )&(?= \w\b)")
_REVERSERS: Final = ("un", "in", "im", "il", "ir", "dis", "non", "de", "mis", "anti")
_SYMMETRIC: Final = frozenset(((), ("and",), ("or",), ("vs",), ("versus",)))
_UNSPOKEN: Final = ("quantity:", "limit:", "ask:")  # marks of words that are no terms


class Wording(Struct, frozen=True, gc=False):
    """What the rules compare. Terms are words without inflection (policy/cache/terms.py).

    words: all, in lower case. numbers: in digits. names: terms of words with a capital. terms: of the words with content, in
    their order. frame: the terms, and the words between them except LIGHT ones. marks: "kind:term" of the words that are of
    a kind. links: (preposition, the term after it). operators: of code.
    """

    words: tuple[str, ...]
    numbers: frozenset[str]
    names: frozenset[str]
    n_negators: int
    terms: tuple[str, ...]
    frame: tuple[str, ...]
    marks: frozenset[str]
    links: frozenset[tuple[str, str]]
    operators: tuple[str, ...]


def parse_wording(text: str, lexicon: Lexicon = ENGLISH) -> Wording:
    """Parse the first MOST_CHARS of a text. Takes about 15 us for a short text, 3 ms at most."""
    plain = text[:MOST_CHARS].translate(_APOSTROPHES)
    tokens = _WORD.findall(plain)
    words = tuple([token.lower() for token in tokens])
    spelled = lexicon.numbers
    numbers = {_THOUSANDS.sub("", number.rstrip(".,")) for number in _NUMBER.findall(plain)}
    numbers.update([spelled[word] for word in words if word in spelled])
    names = frozenset([make_term(name.lower()).name for name in _NAME.findall(plain)
                       if name not in CASED and not make_term(name.lower()).mark and name.lower() not in spelled])
    n_negators, terms, frame, marks, links = _read_terms(tokens, words, lexicon)
    marks.update([f"daytime:{half.lower()}m" for half in _HALF_OF_DAY.findall(plain)])
    marks.update([make_term(SYMBOLS[symbol]).mark for symbol in SYMBOLS if symbol in plain])
    is_heading = 2 * len(names) > len(words)
    return Wording(words, frozenset(numbers), frozenset() if is_heading else names, n_negators, terms, frame,
                   frozenset(marks), frozenset(links), tuple(_OPERATOR.findall(plain)))


def _read_terms(tokens: Sequence[str], words: Sequence[str], lexicon: Lexicon) -> tuple[
        int, tuple[str, ...], tuple[str, ...], set[str], set[tuple[str, str]]]:
    """The number of negators, terms, frame, marks and links of a text."""
    terms, frame, marks, links, n_negators, preposition = [], [], set(), set(), 0, ""
    fillers, negators, spelled = lexicon.fillers, lexicon.negators, lexicon.numbers
    for word in _join_phrases(tokens, words):
        if word in negators:
            n_negators += 1
        name, mark = make_term(spelled.get(word, word))
        if mark:
            marks.add(mark)
        if word in fillers or word in SOFT or mark.startswith(_UNSPOKEN):
            if word not in LIGHT and word not in SOFT:
                frame.append(word)
            if word in LINKERS:
                preposition = word
            continue
        terms.append(name)
        frame.append(name)
        if preposition in DIRECTED:
            links.add((preposition, name))
        preposition = ""
    return n_negators, tuple(terms), tuple(frame), marks, links


def _join_phrases(tokens: Sequence[str], words: Sequence[str]) -> Sequence[str]:
    """The words, of which phrases and those with a meaning of their own in capitals are replaced."""
    if PHRASES.keys().isdisjoint(words) and CASED.keys().isdisjoint(tokens):
        return words
    joined: list[str] = []
    is_second = False
    for place, word in enumerate(words):
        if is_second:
            is_second = False
            continue
        seconds = PHRASES.get(word)
        term = seconds.get(words[place + 1]) if seconds is not None and place + 1 < len(words) else None
        is_second = term is not None
        joined.append(term or (CASED[tokens[place]] if tokens[place] in CASED and _is_cased(tokens, place) else word))
    return joined


def _is_cased(tokens: Sequence[str], place: int) -> bool:
    """Whether a capital is meant: not at the beginning, and not in a heading."""
    return place > 0 and not tokens[place - 1][0].isupper() and (
        tokens[place] != "A" or place + 1 == len(tokens) or not tokens[place + 1][0].isupper())


def find_difference(one: Wording, other: Wording, lexicon: Lexicon = ENGLISH) -> str:
    """The name of the rule that two questions break, so that they have different answers; empty: none. About 8 us."""
    if one.numbers != other.numbers:
        return "numbers"
    if bool(one.n_negators) != bool(other.n_negators):
        return "negation"
    ones, others = set(map(stem_word, one.words)), set(map(stem_word, other.words))
    if _has_opposite(ones - others, others - ones, lexicon):
        return "opposites"
    if max(len(one.words), len(other.words)) <= MOST_WORDS:
        return _compare_short(one, other)
    return "entities" if one.names and other.names and one.names.isdisjoint(other.names) else ""


def _compare_short(one: Wording, other: Wording) -> str:
    """The rules for questions."""
    if one.operators != other.operators:
        return "code"
    is_near = len(set(one.terms).symmetric_difference(other.terms)) <= MOST_APART
    if is_near and one.n_negators != other.n_negators:
        return "negation"
    if one.names and other.names and _has_other_names(one, other, is_near=is_near):
        return "entities"
    if one.marks != other.marks and _differs_in_kind(one.marks - other.marks, other.marks - one.marks, is_near=is_near):
        return "kinds"
    if is_near and (_has_other_roles(one, other) or _is_reordered(one, other)):
        return "order"
    return "exchange" if _is_exchanged(one, other) else ""


def _has_other_names(one: Wording, other: Wording, *, is_near: bool) -> bool:
    """Whether the names differ: in nearly equal texts, each has one that the other lacks; in others, none is in both."""
    only, only_other = one.names.difference(other.terms), other.names.difference(one.terms)
    if not is_near:
        return only == one.names and only_other == other.names
    return any(not is_related(name, other_name) for name in only for other_name in only_other)


def _differs_in_kind(only: Iterable[str], only_other: Iterable[str], *, is_near: bool) -> bool:
    """Whether a mark that only one text has is of a kind that the other has too, or of a strict kind."""
    kinds, other_kinds = {mark.partition(":")[0] for mark in only}, {mark.partition(":")[0] for mark in only_other}
    found = (kinds & other_kinds) | ((kinds | other_kinds) & STRICT)
    return bool(found if is_near else found - NEAR)


def _has_other_roles(one: Wording, other: Wording) -> bool:
    """Whether a term has the opposite direction in the other text, or two terms of both texts have changed places."""
    if one.links == other.links:
        return False
    only, only_other = one.links - other.links, other.links - one.links
    if any((REVERSED.get(preposition), term) in only_other for preposition, term in only):
        return True
    return any(preposition == other_preposition and term in other.terms and other_term in one.terms
               for preposition, term in only for other_preposition, other_term in only_other)


def _is_reordered(one: Wording, other: Wording) -> bool:
    """Whether exactly two terms have changed places, and the words between them are the same and have a direction."""
    if one.terms == other.terms or len(one.terms) != len(other.terms):
        return False
    moved = [place for place, term in enumerate(one.terms) if term != other.terms[place]]
    if [one.terms[place] for place in moved] != [other.terms[place] for place in moved[::-1]] or moved[2:]:
        return False
    between, other_between = _words_between(one, moved), _words_between(other, moved)
    if between != other_between or (between in _SYMMETRIC and between):
        return False
    return bool(between) or sorted(one.words) == sorted(other.words)


def _words_between(wording: Wording, moved: Sequence[int]) -> tuple[str, ...]:
    """The frame between two different terms, without fillers other than prepositions."""
    first, last = (wording.frame.index(wording.terms[place]) for place in moved)
    return tuple([word for word in wording.frame[first + 1:last] if word in LINKERS or word in wording.terms])


def _is_exchanged(one: Wording, other: Wording) -> bool:
    """Whether the frames are equal except in one place, where each has a term unrelated to the other's."""
    frame, other_frame = one.frame, other.frame
    least, n_begin, n_end = min(len(frame), len(other_frame)), 0, 0
    while n_begin < least and frame[n_begin] == other_frame[n_begin]:
        n_begin += 1
    while n_end < least - n_begin and frame[-1 - n_end] == other_frame[-1 - n_end]:
        n_end += 1
    only, only_other = frame[n_begin:len(frame) - n_end], other_frame[n_begin:len(other_frame) - n_end]
    if not only or not only_other or len(only) + len(only_other) > MOST_EXCHANGED:
        return False
    if not n_begin + n_end and max(len(only), len(only_other)) > MOST_ALONE:
        return False
    terms, other_terms = set(one.terms).intersection(only), set(other.terms).intersection(only_other)
    return bool(terms) and bool(other_terms) and not any(
        is_related(term, other_term) for term in terms for other_term in other_terms)


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
    return Counter([numbers.get(word) or word.rstrip(".,") for word in words
                    if word not in fillers or stem_word(word) in opposites])


def _has_opposite(only: set[str], only_other: set[str], lexicon: Lexicon) -> bool:
    """Whether a stem that only one text has is the opposite of a stem that only the other has."""
    opposites = lexicon.opposites
    if any(not found.isdisjoint(only_other) for word in only if (found := opposites.get(word)) is not None):
        return True
    return _has_reversed(only, only_other) or _has_reversed(only_other, only)


def _has_reversed(only: set[str], only_other: set[str]) -> bool:
    """Whether a stem is another one with a prefix or an ending that negates it: "unsafe", "painless"."""
    for word in only:
        if word.startswith(_REVERSERS) and any(
                stem_word(rest) in only_other for before in _REVERSERS
                if (rest := word.removeprefix(before)) != word and len(rest) >= LEAST_STEM):
            return True
        if word.endswith("less") and not only_other.isdisjoint((word[:-4], f"{word[:-4]}ful")):
            return True
    return False
