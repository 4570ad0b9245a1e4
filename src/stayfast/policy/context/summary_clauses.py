"""Clauses of a text, with the numbers, ids and names in them.

Problem: a summary is compared with its source clause by clause, and in other words. Rule: one expression finds, in this
order, a URL, an e-mail address, a date, a time, a path, a version, a file, an identifier (letters with digits, snake_case,
CamelCase), an amount of money, a number with its unit, a word. Sentences end at line ends, at full stops and semicolons;
clauses also at conjunctions of contrast and at dashes. A name is a run of capitalised words, not the first of a sentence.

`around`: the content words of a sentence by their nearness to a number, id or name, 1 / (1 + distance / 2): the thing that a
number belongs to. Each comma on the way adds 2 to the distance, a conjunction 1.5. When wrong: a sentence that begins with a
name of one word; a language that capitalises nouns has more names.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from stayfast.policy.context.summary_units import (
    CURRENCIES,
    MONTHS,
    WORD_NUMBERS,
    Quantity,
    is_same_date,
    read_dates,
    read_quantity,
    read_unit,
)
from stayfast.policy.context.summary_words import count_negations, is_content, state_of, stem_of

N_AROUND: Final = 6  # content words on either side
MAX_AROUND: Final = 40  # tokens on either side
MAX_SENTENCE: Final = 1000  # characters
NUMBER, DATE, ID, NAME = "number", "date", "id", "name"

_MONTH: Final = "(?i:" + "|".join(sorted(MONTHS, key=len, reverse=True)) + r")\b\.?"
_NUM: Final = r"(?:\d{1,3}(?:[,.'\u2019\u00a0\u202f ]\d{3})+(?!\d)(?:[.,]\d+)?|\d+(?:[.,]\d+)?)"
_SCALE: Final = r"(?:[kKM]\b|\s?(?:thousand|million|billion|mn|bn|mio|tausend|Millionen|mille|mil)\b\.?)"
_UNIT: Final = (
    r"(?:%|\u00b0[CF]\b|m\u00b2|req/s\b|per cent\b|pour cent\b|por ciento\b|[$\u20ac\u00a3\u00a5\u20b9]"
    r"|[^\W\d_]{1,12}(?![\w/]))"
)
_SCAN: Final = re.compile(
    r"(?P<url>\b[a-z][a-z0-9+.-]{1,15}://[^\s<>\"'`)\]}]+)"
    r"|(?P<email>\b[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+)"
    rf"|(?P<date>\b\d{{4}}-\d\d-\d\d(?!\d)|(?<![\d./])\d{{1,2}}(?:/\d{{1,2}}/(?:20)?|\.\d{{1,2}}\.20)\d\d(?![\d./]\d)"
    rf"|\b\d{{1,2}}(?:st|nd|rd|th|\.)?\s(?:of\s|de\s)?{_MONTH}(?:(?:,|\sde)?\s\d{{4}}\b)?"
    rf"|\b{_MONTH}\s\d{{1,2}}(?:st|nd|rd|th)?\b(?![:.]\d)(?:,?\s\d{{4}}\b)?)"
    r"|(?P<time>\b\d{1,2}:\d\d(?::\d\d)?(?:\s?[ap]\.?m\b\.?)?|\b\d{1,2}\s?[ap]m\b)"
    r"|(?P<path>(?<![\w/])(?:[A-Za-z]:|~|\.{1,2})?(?:[/\\][\w.@+-]+){2,}[/\\]?|(?<![\w/])(?:~|\.{1,2})?/[\w.@+-]{2,}"
    r"|\b[\w.@+-]{1,100}(?:/[\w.@+-]+)+\.\w{1,5}\b|\b[A-Za-z_][\w.@+-]{0,100}(?:/[\w.@+-]+){2,}\b)"
    r"|(?P<version>\bv\d+(?:\.\d+)*(?:-\w+)?\b|\b\d+\.\d+\.\d+(?:\.\d+)*(?:[-+]\w+)?\b(?!,\d))"
    r"|(?P<file>\b[\w-]{1,100}(?:\.[\w-]{1,100}){0,8}\.(?:py|js|ts|tsx|ya?ml|json|toml|md|txt|csv|sql|sh|go|rs|java|html|css|log|conf|cfg"
    r"|ini|xml|pdf|xlsx?|parquet|png|jpe?g|zip|lock|env|docx?)\b)"
    rf"|(?P<money>(?:{CURRENCIES})\s?(?P<m_sign>[-\u2212])?(?P<m_num>{_NUM})(?P<m_scale>{_SCALE})?)"
    r"|(?P<ident>#\d+\b|\b(?=[\w.:#-]{0,100}\d)(?=[\w.:#-]{0,100}[A-Za-z])\w+(?:[-.:#]\w+)*\b|\b\d+(?:-\d+){2,}\b|\b\d+-0\d+\b"
    r"|\b[A-Za-z]\w*_\w+\b|\b[a-z]+[A-Z]\w*\b|\b[A-Z][a-z]+(?:[A-Z][a-z]*)+\w*\b|\b[a-z_]\w*(?:\.[a-z_]\w+)+\b)"
    rf"|(?P<number>(?<![\w.#])(?P<sign>[-\u2212](?=\d))?(?P<num>{_NUM})(?P<scale>{_SCALE})?"
    rf"(?:[\s\u00a0\u202f-]?(?P<unit>{_UNIT}))?)"
    r"|(?P<word>[^\W\d_]+(?:['\u2019][^\W\d_]+)*)|(?P<digits>\d+)|(?P<comma>[,;|()\[\]{}])"
)
_ATTACHED: Final = re.compile(r"(?P<num>\d+(?:[.,]\d+)?)(?P<scale>[kK](?=$|-))?-?(?P<unit>[^\W\d_]+)?")
_SENTENCE: Final = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[^\Wa-z_]|[\d/#~`]|\w*[A-Z_\d])|\n+|;\s+|\s*\u2022\s*")
_CLAUSE: Final = re.compile(
    r",?\s+(?=(?:but|however|although|though|while|whereas|because|aber|mais|pero)\b)|,\s+(?=(?:and|so|then|not|never"
    r"|don't|do not|without|except|und|et|y)\b)|\s+(?=and (?:nobody|no one|nothing|it|they|we|you|he|she|I|that"
    r"|this)\b)|\s+(?:\u2014|\u2013|--?|\u2192|->|=>)\s+",
    re.IGNORECASE,
)
_BLANKS: Final = re.compile(r"\s{8,}")
_LIST_MARK: Final = re.compile(r"\s*(?:[-*+>]+\s+|\d{1,2}[.)]\s+|#+\s+)")
_RANGE: Final = re.compile(r"\s*(?:-|\u2013|to|and|or|bis|und|\u00e0|et|y|a)\s*\Z")
_PARTS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_CONJUNCTIONS: Final = frozenset(("and", "or", "und", "oder", "et", "ou", "y", "o", "e"))
_DIRECTIONS: Final = frozenset(("from", "to", "until", "by", "before", "after", "per", "von", "nach", "bis"))
_GENERIC: Final = frozenset(
    (
        "OK",
        "API",
        "URL",
        "ID",
        "IDS",
        "JSON",
        "HTTP",
        "HTTPS",
        "UI",
        "CI",
        "FAQ",
        "TODO",
        "NOT",
        "NEVER",
        "ONLY",
        "MUST",
        "User",
        "Assistant",
        "Customer",
        "Agent",
        "Client",
        "I",
        "AM",
        "PM",
    )
)
_UNIT_SIGNS: Final = re.compile("\u00b0[CF]|[%$\u20ac\u00a3\u00a5]")
_APOSTROPHES: Final = str.maketrans("", "", "'\u2019")


class Atom(NamedTuple):
    """A number, a date, an id or a name. `key`: the same for all ways of writing an id or a name."""

    kind: str
    key: str
    text: str
    start: int
    quantity: Quantity | None = None
    dates: frozenset[str] = frozenset()

    def matches(self, other: "Atom") -> bool:
        """Whether both are the same thing."""
        if self.quantity is not None and other.quantity is not None:
            return self.quantity.equals(other.quantity)
        if self.dates and other.dates:
            return is_same_date(self.dates, other.dates)
        return self.kind == other.kind and self.key == other.key


class Clause(NamedTuple):
    """A clause. `n`: the number of its sentence. `stems`: of its content words, of parts of ids, and its numbers."""

    text: str
    turn: int | None
    role: str
    n: int
    stems: frozenset[str]
    words: tuple[str, ...]  # in lower case
    atoms: tuple[Atom, ...]
    arounds: tuple[dict[str, float], ...]  # of each atom
    befores: tuple[str, ...]  # the text before each atom
    units: frozenset[str]  # dimensions that its words name
    spelled: frozenset[float]  # numbers written as words
    n_negations: int
    state: str  # done, failed, open or empty
    is_question: bool
    is_error: bool


class _Token(NamedTuple):
    start: int
    end: int
    kind: str  # word, comma, or the kind of an atom
    text: str
    atom: Atom | None = None


def split_clauses(
    text: str, turn: int | None = None, role: str = "", *, is_error: bool = False, n: int = 0
) -> Iterator[Clause]:
    """The clauses of a text. `n`: the number of its first sentence."""
    for at, sentence in enumerate(_split_sentences(text)):
        if not sentence or sentence.isspace():
            continue
        mark = _LIST_MARK.match(sentence)
        bare = sentence[mark.end() :] if mark is not None else sentence
        tokens = _join_names(_scan(bare))
        _share_units(bare, tokens)
        is_question = bare.rstrip().endswith("?")
        start = 0
        for end in [*(found.end() for found in _CLAUSE.finditer(bare)), len(bare)]:
            if bare[start:end].strip():
                yield _read_clause(bare, start, end, tokens, (turn, role, n + at, is_question, is_error))
            start = end


def _split_sentences(text: str) -> Iterator[str]:
    """Bounded pieces: what follows takes longer than a client's text grows, and blocks all other requests meanwhile."""
    for sentence in _SENTENCE.split(_BLANKS.sub(lambda found: "\n" if "\n" in found[0] else " ", text)):
        start = 0
        while len(sentence) - start > MAX_SENTENCE:
            end = sentence.rfind(" ", start + MAX_SENTENCE // 2, start + MAX_SENTENCE) + 1 or start + MAX_SENTENCE
            yield sentence[start:end]
            start = end
        yield sentence[start:]


def _scan(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while (found := _SCAN.search(text, at)) is not None:
        kind = found.lastgroup or ""
        if kind in ("word", "comma"):
            at = found.end()
            tokens.append(_Token(found.start(), at, kind, found[0]))
        else:
            atom, at = _read_atom(found)
            tokens.append(_Token(found.start(), at, atom.kind, atom.text, atom))
    return tokens


def _read_atom(found: re.Match[str]) -> tuple[Atom, int]:
    """The atom of a match, and where it ends: a word that is no unit is not a part of its number."""
    text, start, end = found[0], found.start(), found.end()
    if found["date"]:
        dates = read_dates(text)
        return Atom(DATE, text, text, start, dates=dates), end
    if found["time"]:
        return Atom(NUMBER, text, text, start, Quantity(frozenset((_read_minutes(text),)), "clock")), end
    if found["money"]:
        currency = text[: text.index(found["m_num"])].strip(" -\u2212")
        digits = (found["m_sign"] or "") + found["m_num"]
        return Atom(NUMBER, text, text, start, read_quantity(digits, found["m_scale"] or "", currency)), end
    if found["number"]:
        return _read_number(found)
    if found["digits"]:
        return Atom(NUMBER, text, text, start, read_quantity(text)), end
    attached = _ATTACHED.fullmatch(text) if found["ident"] else None
    if attached is not None and (attached["scale"] or read_unit(attached["unit"] or "") is not None):
        quantity = read_quantity(attached["num"], attached["scale"] or "", attached["unit"] or "")
        return Atom(NUMBER, text, text, start, quantity), end
    bare = text.rstrip(".,;:!?")
    key = bare.lower().rstrip("/").removeprefix("#")
    if found["version"]:
        key = key.removeprefix("v")
    return Atom(ID, key, bare, start), start + len(bare)


def _read_number(found: re.Match[str]) -> tuple[Atom, int]:
    digits, scale, unit = (found["sign"] or "") + found["num"], found["scale"] or "", found["unit"] or ""
    quantity = read_quantity(digits, scale, unit)
    end = found.end() if quantity.dimension else found.end("scale" if scale else "num")
    text = found.string[found.start() : end]
    return Atom(NUMBER, text, text, found.start(), quantity), end


def _read_minutes(text: str) -> float:
    """Minutes after midnight."""
    parts = [int(part) for part in re.findall(r"\d+", text)]
    hour = parts[0] % 12 + 12 if "p" in text.lower() else parts[0] % 12 if "a" in text.lower() else parts[0]
    return hour * 60.0 + (parts[1] if len(parts) > 1 else 0)


def _join_names(tokens: list[_Token]) -> list[_Token]:
    """Runs of capitalised words as names. The first word of a sentence is one if the second is capitalised, too."""
    joined: list[_Token] = []
    at = 0
    while at < len(tokens):
        after = at
        while (
            after < len(tokens)
            and _is_capitalised(tokens[after])
            and (after == at or tokens[after].start == tokens[after - 1].end + 1)
        ):
            after += 1
        if after - at > 1 or (after > at > 0):
            text = " ".join(token.text for token in tokens[at:after])
            atom = Atom(NAME, " ".join(stem_of(word) for word in text.lower().split()), text, tokens[at].start)
            joined.append(_Token(tokens[at].start, tokens[after - 1].end, NAME, text, atom))
            at = after
        else:
            joined.append(tokens[at])
            at += 1
    return joined


def _is_capitalised(token: _Token) -> bool:
    return token.kind == "word" and token.text[0].isupper() and token.text not in _GENERIC and is_content(token.text.lower())


def _share_units(text: str, tokens: list[_Token]) -> None:
    """Give the first number of a range the unit of the second: 10 to 20 ms."""
    for at in range(len(tokens) - 1, 0, -1):
        second = tokens[at].atom
        if second is None or second.quantity is None or not second.quantity.dimension:
            continue
        before = at - 1 if tokens[at - 1].kind != "word" or at < 2 else at - 2
        first = tokens[before].atom
        if (
            first is not None
            and first.quantity is not None
            and not first.quantity.dimension
            and _RANGE.match(text[tokens[before].end : tokens[at].start])
        ):
            quantity = first.quantity._replace(dimension=second.quantity.dimension, factor=second.quantity.factor)
            tokens[before] = tokens[before]._replace(atom=first._replace(quantity=quantity))


def _read_clause(
    text: str, start: int, end: int, tokens: Sequence[_Token], place: tuple[int | None, str, int, bool, bool]
) -> Clause:
    turn, role, n, is_question, is_error = place
    words: list[str] = []
    stems: set[str] = set()
    units: set[str] = set()
    atoms, arounds, befores = [], [], []
    spelled = set[float]()
    for at, token in enumerate(tokens):
        if not start <= token.start < end or token.kind == "comma":
            continue
        if token.atom is not None:
            atoms.append(token.atom)
            arounds.append(_find_around(tokens, at))
            befores.append(text[max(0, token.start - 30) : token.start])
        for word in _words_of(token):
            words.append(word)
            if is_content(word):
                stems.add(stem_of(word))
            unit = read_unit(word)
            if unit is not None:
                units.add(unit[0])
            if word in WORD_NUMBERS:
                spelled.add(WORD_NUMBERS[word])
        if token.atom is not None and token.atom.quantity is not None:
            stems.add(f"#{min(token.atom.quantity.values):g}")
    part = text[start:end]
    units.update(unit[0] for sign in _UNIT_SIGNS.findall(part) if (unit := read_unit(sign)) is not None)
    return Clause(
        part,
        turn,
        role,
        n,
        frozenset(stems),
        tuple(words),
        tuple(atoms),
        tuple(arounds),
        tuple(befores),
        frozenset(units),
        frozenset(spelled),
        count_negations(part, words),
        state_of(part, words),
        is_question,
        is_error,
    )


def _words_of(token: _Token) -> list[str]:
    """The words of a token in lower case, without apostrophes; of an id its parts of letters."""
    if token.kind in ("word", NAME):
        return token.text.translate(_APOSTROPHES).lower().split()
    if token.kind == ID:
        return [part.lower() for part in _PARTS.findall(token.text) if len(part) > 1]
    return []


def _find_around(tokens: Sequence[_Token], at: int) -> dict[str, float]:
    around: dict[str, float] = {}
    if at and tokens[at - 1].kind == "word" and tokens[at - 1].text.lower() in _DIRECTIONS:
        around[f"<{tokens[at - 1].text.lower()}"] = 0.6
    for step in (-1, 1):
        distance, place = 0.0, at + step
        while 0 <= place < len(tokens) and distance < N_AROUND and abs(place - at) <= MAX_AROUND:
            token = tokens[place]
            place += step
            if token.kind == "comma":
                distance += 2
                continue
            words = _words_of(token)
            found = [stem_of(word) for word in words if is_content(word)]
            if not found:
                distance += 1.5 if words and words[0] in _CONJUNCTIONS else 0
                continue
            for stem in found:
                around[stem] = max(around.get(stem, 0.0), 1 / (1 + distance / 2))
            distance += 1
    return around
