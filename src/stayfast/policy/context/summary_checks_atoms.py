"""Numbers, ids and names of a summary: none is missing, invented, changed, or given to another thing.

Problem: a summary that reads well may have a wrong figure, or the figure of another thing. Rules:

number, id    a number or id that two texts name, not tools alone and not the assistant alone, is in the summary or in a pin
invented      each number, date and id is in the source; each word of a name; each code span and each longer quotation
unit          a number has its unit, in its clause at least, and none that the source lacks
swapped       fit(a, b) = sum of the products of nearness of each word around a in the summary and around all mentions of b
              in the source, each / sqrt(values with the word), + 0.8 if a turn is the same. Two values of one kind are
              swapped if fit(a, b) + fit(b, a) > fit(a, a) + fit(b, b) + 0.6
misplaced     fit(a, a) < 0.35, and another value of the source fits by 1.6 more

Not missing: whole numbers below 10 without a unit; numbers below 100 whose mentions share no word; a number whose last
mention names another one that replaces it. Source: what summaries lose is reported alike by all who measured it; the
thresholds are from `lab.context`, seeds 1 to 3. When wrong: two values in the same words, as "shelf 4 holds 12, shelf 5
holds 14", are distinguished by the nearest number alone; a number that a careful model computes (a sum) is invented.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from stayfast.core.context import Violation
from stayfast.policy.context.summary_clauses import DATE, ID, NAME, NUMBER, Atom
from stayfast.policy.context.summary_index import IDENTIFIER, SourceAtom, SourceIndex, Statement
from stayfast.policy.context.summary_units import read_unit
from stayfast.policy.context.summary_words import stem_of

SAME_TURN: Final = 0.8
SWAP_MARGIN: Final = 0.6
MISPLACED_OWN: Final = 0.35
MISPLACED_MARGIN: Final = 1.6
MAX_WEIGHT: Final = 2.0  # of a word around a value
MAX_COMPARED: Final = 60  # values of one kind in one summary
COMMON: Final = 100
_TRIVIAL: Final = 10
_REPLACED: Final = re.compile(
    r"\b(?:instead|rather than|changed?|no longer|correction|actually|replaces?d?|not|raised?|lowered?|moved|updated?"
    r"|increased?"
    r"|reduced|postponed|was|previously|old|former|statt|au lieu|en lugar)\b",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile(r"`([^`\n]{2,200})`|[\"\u201c\u201e]([^\"\u201c\u201d\n]{8,200})[\"\u201d]")


def find_missing(index: SourceIndex, statements: Sequence[Statement], pinned: Sequence[Atom]) -> Iterator[Violation]:
    """Numbers and ids of the source that the summary must have and has not."""
    present = [(atom, statement.clause.units) for statement in statements for atom in statement.clause.atoms]
    present += [(atom, frozenset[str]()) for atom in pinned]
    for atom in find_required(index):
        if not any(atom.matches(one) and _has_unit(one, units, atom) for one, units in present):
            yield Violation("number" if atom.kind != ID else "id", atom.text)


def _has_unit(atom: Atom, units: frozenset[str], required: Atom) -> bool:
    """Whether a number has the unit of a required one, itself or in its clause: a bare 95 may be another 95."""
    if atom.quantity is None or required.quantity is None or not atom.quantity.lacks_unit_of(required.quantity):
        return True
    return required.quantity.dimension in units


def find_required(index: SourceIndex) -> list[Atom]:
    """The numbers, dates and ids that a summary must have, each once."""
    groups: list[list[SourceAtom]] = []
    by_key: dict[object, list[list[SourceAtom]]] = {}
    for one in index.atoms:
        atom = one.atom
        if atom.kind == NAME or (atom.quantity is not None and _is_trivial(atom)):
            continue
        alike = by_key.setdefault(_key_of(atom), [])
        group = next((group for group in alike if group[0].atom.matches(atom)), None)
        if group is None:
            group = []
            alike.append(group)
            groups.append(group)
        group.append(one)
    return [group[0].atom for group in groups if _is_required(group)]


def _key_of(atom: Atom) -> object:
    """Equal for all ways of writing a value in one unit, or without."""
    if atom.quantity is not None:
        return max(atom.quantity.values)
    return frozenset(date[-5:] for date in atom.dates) or atom.key


def _is_trivial(atom: Atom) -> bool:
    assert atom.quantity is not None
    return not atom.quantity.dimension and all(
        value == int(value) and 0 <= value < _TRIVIAL for value in atom.quantity.values
    )


def _is_required(group: Sequence[SourceAtom]) -> bool:
    roles = {one.clause.role for one in group}
    if len({one.n_text for one in group}) < 2 or roles <= {"tool"} or roles <= {"assistant"}:
        return False
    last = group[-1]
    if _is_common(last.atom) and not _share_words(group):
        return False
    if last.atom.kind == ID or not _REPLACED.search(last.clause.text):
        return True
    return not any(_kind_of(atom) == _kind_of(last.atom) and not atom.matches(last.atom) for atom in last.clause.atoms)


def _is_common(atom: Atom) -> bool:
    """Whether a number may stand in two texts by chance."""
    return atom.quantity is not None and all(abs(value) < COMMON for value in atom.quantity.values)


def _share_words(group: Sequence[SourceAtom]) -> bool:
    """Whether two texts use a number with the same word next to it."""
    return any(
        one.n_text != other.n_text
        and one.clause.text != other.clause.text
        and not one.around.keys().isdisjoint(other.around)
        for at, one in enumerate(group)
        for other in group[at + 1 :]
    )


def find_invented(index: SourceIndex, statements: Sequence[Statement]) -> Iterator[Violation]:
    """Numbers, ids, names and quotations that the source lacks, and numbers with another unit."""
    words = frozenset(re.findall(r"[^\W\d_]+", index.text))
    dates = [one.atom for one in index.atoms if one.atom.kind == DATE]
    spelled = frozenset(value for clause in index.clauses for value in clause.spelled)
    for statement in statements:
        for found in _QUOTED.finditer(statement.clause.text):
            quoted = (found[1] or found[2]).lower().strip(" .,;:!?")
            if quoted not in index.text:
                yield Violation("invented", found[0])
        for atom in statement.clause.atoms:
            if atom.kind == NUMBER:
                yield from _check_number(index, statement, atom, dates, spelled)
            elif (
                (atom.kind == DATE and not any(atom.matches(date) for date in dates))
                or (atom.kind == ID and not index.has_id(atom.key))
                or (atom.kind == NAME and not all(_is_known(word, index, words) for word in atom.text.lower().split())
                    and not _is_unit(atom.text, index))
            ):
                yield Violation("invented", atom.text)


def _is_known(word: str, index: SourceIndex, words: frozenset[str]) -> bool:
    return word in words or stem_of(word) in index.stems or (len(word) > 3 and word in index.text)


def _is_unit(text: str, index: SourceIndex) -> bool:
    """Whether a name is a unit that numbers of the source have in another form: GBP for £."""
    unit = read_unit(text)
    return unit is not None and any(
        one.atom.quantity is not None and one.atom.quantity.dimension == unit[0] for one in index.atoms
    )


def _check_number(
    index: SourceIndex, statement: Statement, atom: Atom, dates: Sequence[Atom], spelled: frozenset[float]
) -> Iterator[Violation]:
    quantity = atom.quantity
    assert quantity is not None
    same = [one for value in quantity.values for one in index.numbers.get(value, ())]
    equal = [one for one in same if one.atom.quantity is not None and quantity.equals(one.atom.quantity)]
    if not equal and quantity.dimension:  # in another unit of the same dimension
        equal = [
            one
            for one in index.atoms
            if one.atom.quantity is not None and one.atom.quantity.dimension and quantity.equals(one.atom.quantity)
        ]
    if not equal:
        is_in_date = not quantity.dimension and any(
            f"{value:02g}" in date.split("-") for value in quantity.values for one in dates for date in one.dates
        )
        if not is_in_date and quantity.values.isdisjoint(spelled):
            yield Violation("invented", atom.text)
        return
    equal = [one for one in equal if one.clause.turn == statement.clause.turn] or equal
    others = [one.atom.quantity for one in equal if one.atom.quantity is not None]
    if all(quantity.lacks_unit_of(other) for other in others):
        if statement.clause.units.isdisjoint(other.dimension for other in others):
            yield Violation("unit", atom.text)
    elif all(other.lacks_unit_of(quantity) for other in others) and not any(
        quantity.dimension in one.clause.units for one in equal
    ):
        yield Violation("unit", atom.text)


def find_swapped(index: SourceIndex, statements: Sequence[Statement]) -> Iterator[Violation]:
    """Values that stand with the words of another value."""
    kinds: dict[str, list[tuple[Statement, Atom, dict[str, float]]]] = {}
    for statement in statements:
        for atom, around in zip(statement.clause.atoms, statement.clause.arounds, strict=True):
            if around:
                kinds.setdefault(_kind_of(atom), []).append((statement, atom, around))
    places: dict[str, list[_Place]] = {}
    for one in index.atoms:
        _add_place(places.setdefault(_kind_of(one.atom), []), one)
    for kind, found in kinds.items():
        _weigh_rare_words(places.get(kind, ()))
        yield from _compare(found[:MAX_COMPARED], places.get(kind, ()))


class _Place(NamedTuple):
    """All mentions of a value in the source: the words around it, the more often the heavier, and its turns."""

    atom: Atom
    around: dict[str, float]
    turns: set[int | None]


def _add_place(places: list[_Place], one: SourceAtom) -> None:
    place = next((place for place in places if place.atom.matches(one.atom)), None)
    if place is None:
        places.append(_Place(one.atom, dict(one.around), {one.clause.turn}))
        return
    place.turns.add(one.clause.turn)
    for stem, weight in one.around.items():
        place.around[stem] = min(MAX_WEIGHT, place.around.get(stem, 0.0) + weight)


def _weigh_rare_words(places: Sequence[_Place]) -> None:
    """Divide the weight of each word by the root of the number of values that have it."""
    counts = Counter(stem for place in places for stem in place.around)
    for place in places:
        for stem, weight in place.around.items():
            place.around[stem] = weight / counts[stem] ** 0.5


def _compare(found: Sequence[tuple[Statement, Atom, dict[str, float]]], places: Sequence[_Place]) -> Iterator[Violation]:
    fits = [_Fits(around, statement.clause.turn, places) for statement, _, around in found]
    n = len(found)
    own = [fits[at].of(found[at][1]) for at in range(n)]
    for at in range(n):
        one = found[at][1]
        for other in range(at + 1, n):
            two = found[other][1]
            if one.matches(two) or IDENTIFIER in (found[at][0].section, found[other][0].section):
                continue
            crossed = fits[at].of(two) + fits[other].of(one)
            if crossed > own[at] + own[other] + SWAP_MARGIN:
                yield Violation("swapped", f"{one.text} and {two.text}")
        best, text = fits[at].best if one.kind != NAME else (0.0, "")
        if own[at] < MISPLACED_OWN and best > own[at] + MISPLACED_MARGIN:
            yield Violation("misplaced", f"{found[at][1].text} instead of {text}")


class _Fits:
    """How well each value of the source fits into one place of the summary."""

    __slots__ = ("_scored", "best")

    def __init__(self, around: dict[str, float], turn: int | None, places: Sequence[_Place]) -> None:
        self._scored: list[tuple[float, Atom]] = []
        for place in places:
            score = sum(weight * place.around[stem] for stem, weight in around.items() if stem in place.around)
            if turn is not None and turn in place.turns:
                score += SAME_TURN
            if score:
                self._scored.append((score, place.atom))
        best = max(self._scored, key=lambda scored: scored[0], default=None)
        self.best = (best[0], best[1].text) if best is not None else (0.0, "")

    def of(self, atom: Atom) -> float:
        return max((score for score, other in self._scored if atom.matches(other)), default=0.0)


def _kind_of(atom: Atom) -> str:
    """Values of one kind can be mistaken for each other."""
    return f"{atom.kind} {atom.quantity.dimension}" if atom.quantity is not None else atom.kind
