"""Whether a summary may replace the turns it covers, decided without a model.

Problem: what summaries lose is what matters: negations, exact numbers, identifiers, and whether a step failed. Rule: a
summary is adopted if it breaks none of these rules; `summary_checks_atoms` and `summary_checks_claims` have the formulas.

pin           each sentence of a user with a negation, or with a number and a limit, is pinned verbatim
number, id    what is referenced is in the summary or pinned
invented, unit, swapped, misplaced, negation, limit, status, error, unsupported
length        5 to 40 % of the characters of the source, pins not counted in the 40 %, since no model can shorten them; at
              least 2,000 characters are long enough for any source
order         the turns of facts and of steps do not go back, and are among the covered turns

When wrong: a paraphrase that changes the meaning without a number, name, negation or state passes; so does a fact that is
named once and dropped. Sentences of users in a language without a list of negations are not pinned. Tool results are never
pinned: their text is data, and may be an attack.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from stayfast.core.context import Summary, SummaryItem, TurnText, Violation
from stayfast.policy.context.summary_checks_atoms import find_invented, find_missing, find_required, find_swapped
from stayfast.policy.context.summary_checks_claims import (
    find_denied,
    find_lost_errors,
    find_turned_limits,
    find_unsupported,
    find_wrong_states,
)
from stayfast.policy.context.summary_clauses import split_clauses
from stayfast.policy.context.summary_index import SourceIndex, read_statements
from stayfast.policy.context.summary_words import LIMITS, count_negations

LEAST, MOST = 0.05, 0.4  # of the source's characters
LONG_ENOUGH: Final = 2000  # characters
MAX_PIN: Final = 400  # characters: a longer sentence is pasted text
MIN_WORDS: Final = 3
_FENCED: Final = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_SENTENCES: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_MARK: Final = re.compile(r"\s*(?:[-*+>]+\s+|\d{1,2}[.)]\s+|#+\s+)")
_CODE: Final = re.compile(r"[{}<>]|==|!=|\w\(|^\s*(?:if|for|while|def|class|return|import)\b.*:?$")
_WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_NUMERIC: Final = re.compile(r"\d")


def check_summary(source: Sequence[TurnText], summary: Summary) -> tuple[Violation, ...]:
    """The rules that the summary of `source` breaks; empty: adopt it. Both hold content of clients: log rules alone."""
    index, statements = SourceIndex(source), read_statements(summary)
    pinned = [atom for pin in summary.pinned for clause in split_clauses(pin) for atom in clause.atoms]
    found = [Violation("pin", pin) for pin in find_pins(source) if pin not in summary.pinned]
    for violations in (
        _check_length(source, summary),
        _check_order(summary),
        find_missing(index, statements, pinned),
        find_invented(index, statements),
        find_swapped(index, statements),
        find_denied(index, statements),
        find_turned_limits(index, statements),
        find_wrong_states(index, statements),
        find_lost_errors(index, statements),
        find_unsupported(index, statements),
    ):
        found += violations
    return tuple(dict.fromkeys(found))


def find_pins(source: Sequence[TurnText]) -> tuple[str, ...]:
    """The sentences of users that a summary keeps verbatim, in their order: negations, and limits with a number."""
    found: dict[str, None] = {}
    for text in source:
        if text.role != "user" or text.is_tool_result:
            continue
        for sentence in _SENTENCES.split(_FENCED.sub("\n", text.text)):
            mark = _MARK.match(sentence)
            bare = (sentence[mark.end() :] if mark is not None else sentence).strip()
            if _is_pin(bare):
                found[bare] = None
    return tuple(found)


def find_required_texts(source: Sequence[TurnText]) -> tuple[str, ...]:
    """The numbers and ids that a summary of `source` must have, as written there, for the small model's prompt."""
    return tuple(dict.fromkeys(atom.text for atom in find_required(SourceIndex(source))))


def _is_pin(sentence: str) -> bool:
    if len(sentence) > MAX_PIN or sentence.endswith("?") or _CODE.search(sentence):
        return False
    words = [word.replace("'", "").replace("\u2019", "").lower() for word in _WORD.findall(sentence)]
    if len(words) < MIN_WORDS:
        return False
    return count_negations(sentence, words) > 0 or bool(_NUMERIC.search(sentence) and LIMITS.search(sentence))


def _check_length(source: Sequence[TurnText], summary: Summary) -> Iterator[Violation]:
    whole = sum(len(text.text) for text in source)
    parts = [*summary.ids, *(item.text for item in (*summary.facts, *summary.status)), summary.narrative]
    written = sum(map(len, parts))
    if written + sum(map(len, summary.pinned)) < min(LEAST * whole, LONG_ENOUGH) or written > MOST * whole:
        yield Violation("length", f"{written} of {whole} characters")


def _check_order(summary: Summary) -> Iterator[Violation]:
    first, last = summary.covers
    for items in (summary.facts, summary.status):
        tagged = [item for item in items if item.turn is not None]
        for item in tagged:
            if item.turn is not None and not first <= item.turn <= last:
                yield Violation("order", item.text)
        for before, after in pairwise(tagged):
            if _turn_of(after) < _turn_of(before):
                yield Violation("order", after.text)


def _turn_of(item: SummaryItem) -> int:
    return item.turn or 0
