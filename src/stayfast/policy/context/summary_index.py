"""The source of a summary and its statements, as the checks compare them.

Problem: a summary has other words, and another order, than the conversation.
Rule: `SourceIndex` finds the clauses of the source that share words with a statement.

    overlap = weight of the shared stems / weight of the statement's stems
    weight  = 1 / sqrt(n) of a stem in n clauses; 0.5 of one that the source lacks

What a tool call did is an event: the words of the call and of the beginning of its result, and the state that the result
shows. Source: a root in place of the logarithm of the usual inverse document frequency.
When wrong: parallel calls are matched with their results by order.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from stayfast.core.context import Summary, TurnText
from stayfast.policy.context.summary_clauses import ID, Atom, Clause, split_clauses

FACT, IDENTIFIER, STATUS, STORY = "fact", "id", "status", "narrative"
UNKNOWN: Final = 0.5  # weight of a stem that the source does not have
RESULT_CHARS: Final = 300  # of a result, that describe what its call did


class Statement(NamedTuple):
    """A clause of a summary. `state`: of an item of STATUS."""

    section: str
    item: str
    clause: Clause
    state: str = ""


class SourceAtom(NamedTuple):
    """A number, date, id or name where it stands in the source. `n_text`: the number of the text."""

    atom: Atom
    clause: Clause
    around: dict[str, float]
    n_text: int


class Event(NamedTuple):
    """What a tool call did. `called`: stems of the call; `about`: of the call and its result. `text`: the call."""

    turn: int
    name: str
    called: frozenset[str]
    about: frozenset[str]
    state: str
    text: str


class SourceIndex:
    """The clauses of the covered turns."""

    __slots__ = (
        "_by_stem",
        "_ids",
        "_n_events",
        "_sentences",
        "atoms",
        "clauses",
        "events",
        "numbers",
        "stems",
        "text",
        "texts",
    )

    def __init__(self, source: Sequence[TurnText]) -> None:
        self.texts = source
        self.text = "\n".join(text.text for text in source).lower()
        self.clauses: list[Clause] = []
        self.atoms: list[SourceAtom] = []
        for n, text in enumerate(source):
            role = "tool" if text.is_tool_result else text.role
            for clause in split_clauses(text.text, text.turn, role, is_error=text.is_error, n=n * 10_000):
                self.clauses.append(clause)
                self.atoms += [
                    SourceAtom(atom, clause, around, n) for atom, around in zip(clause.atoms, clause.arounds, strict=True)
                ]
        self.numbers: dict[float, list[SourceAtom]] = {}
        for one in self.atoms:
            for value in one.atom.quantity.values if one.atom.quantity is not None else ():
                self.numbers.setdefault(value, []).append(one)
        self.stems = frozenset(stem for clause in self.clauses for stem in clause.stems)
        self.events = list(_find_events(source))
        self._ids = frozenset(one.atom.key for one in self.atoms if one.atom.kind == ID)
        self._n_events = Counter(stem for event in self.events for stem in event.about)
        self._by_stem: dict[str, list[int]] = {}
        self._sentences: dict[int, list[Clause]] = {}
        for at, clause in enumerate(self.clauses):
            self._sentences.setdefault(clause.n, []).append(clause)
            for stem in clause.stems:
                self._by_stem.setdefault(stem, []).append(at)

    def overlaps(self, stems: frozenset[str]) -> list[tuple[float, Clause]]:
        """How much of these stems each clause of the source has, from 0 to 1, if any. Rare stems count more."""
        shares: dict[int, float] = {}
        total = 0.0
        for stem in stems:
            found = self._by_stem.get(stem, ())
            weight = len(found) ** -0.5 if found else UNKNOWN
            total += weight
            for at in found:
                shares[at] = shares.get(at, 0.0) + weight
        return [(share / total, self.clauses[at]) for at, share in shares.items()]

    def has_id(self, key: str) -> bool:
        """Whether the source has an id, whole or as a part of a longer one between marks: a file's name in its path."""
        if key in self._ids:
            return True
        return key in self.text and re.search(rf"(?<!\w){re.escape(key)}(?!\w)", self.text) is not None

    def weigh(self, stem: str) -> float:
        """The weight of a word among the events: the fewer have it, the more."""
        n = self._n_events[stem]
        return n**-0.5 if n else UNKNOWN

    def sentence_of(self, clause: Clause) -> list[Clause]:
        """The clauses of a clause's sentence."""
        return self._sentences[clause.n]

    def __repr__(self) -> str:
        return f"<SourceIndex: {len(self.clauses)} clauses>"


def read_statements(summary: Summary) -> list[Statement]:
    """The clauses of what the model wrote."""
    found = []
    for item in summary.facts:
        found += [Statement(FACT, item.text, clause) for clause in split_clauses(item.text, item.turn)]
    for text in summary.ids:
        found += [Statement(IDENTIFIER, text, clause) for clause in split_clauses(text)]
    for item in summary.status:
        found += [
            Statement(STATUS, item.text, clause, item.state or "open") for clause in split_clauses(item.text, item.turn)
        ]
    found += [Statement(STORY, clause.text, clause) for clause in split_clauses(summary.narrative)]
    return found


def _find_events(source: Sequence[TurnText]) -> Iterator[Event]:
    calls: list[str] = []
    for text in source:
        if text.is_tool_result:
            call = _one_line(calls.pop(0)) if calls else ""
            called = _stems_of(call)
            about = called | _stems_of(_one_line(text.text[:RESULT_CHARS]))
            name = call.partition("(")[0]
            yield Event(
                text.turn,
                name,
                called or about,
                about,
                "failed" if text.is_error else "done",
                call or text.text[:RESULT_CHARS],
            )
        elif text.role == "assistant" and is_call(text.text):
            calls.append(text.text)
        elif text.role == "user":
            calls.clear()


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace(";", " ")


def _stems_of(text: str) -> frozenset[str]:
    return frozenset(stem for clause in split_clauses(text) for stem in clause.stems)


def is_call(text: str) -> bool:
    """Whether a text of the assistant is a call: `name(arguments)`."""
    name, bracket, _ = text.partition("(")
    return bool(bracket) and text.endswith(")") and name.replace("_", "").replace("-", "").replace(".", "").isalnum()
