"""What a summary claims: nothing is denied that the source affirms, no failure is called a success, nothing is made up.

Problem: a summary may have all figures right, and still report a failed step as done, or lose a "not".
Rules, each over a clause of the summary and the clauses of the source that share the most words with it:

negation      clauses with 40 % of the weight of its words, the best ones within 15 % and with few other words, of the same
              turn if there are any, and with a common number or id if it has any: one has a negation if and only if the
              clause has, or it has the antonym of a word; nearly equal words (85 %), or a common condition after `without`,
              need an equal parity of negations
limit         a number that is an upper bound in the source (at most, until, under) is not a lower bound, and the reverse
status        done is not what failed or is open, and the reverse: the best evidence by words, the same turn first; evidence
              is a tool's result with its call and, for STATUS, clauses that report a success, a failure, or an open step
error         a tool's error without a later success of the same call is what a failed or open step reports; a step reports
              the errors that share the most words with it
unsupported   at least 34 % of the content words of a clause occur in the source, or at most 5 do not; a step that is done
              shares a third of its words with one clause

Source: polarity and status are what summaries of conversations lose first, by all reports. When wrong: a paraphrase without
common words is not compared at all, so that its errors are not seen; irony.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from stayfast.core.context import Violation
from stayfast.policy.context.summary_clauses import NAME, Clause
from stayfast.policy.context.summary_index import IDENTIFIER, STATUS, STORY, Event, SourceIndex, Statement
from stayfast.policy.context.summary_words import (
    ANTONYMS,
    LOWER,
    UPPER,
    is_content,
    is_narrated_as_done,
    state_stems,
    stem_of,
)

ALIKE: Final = 0.6
SAME_WORDS: Final = 0.4
SAME_CONTENT: Final = 0.85
SAME_TURN: Final = 0.5
NEAR_BEST: Final = 0.15
EVIDENCE: Final = 0.5
SUPPORT: Final = 0.34
REPORTED: Final = 0.6
MAX_UNKNOWN: Final = 5
_CONFLICTS: Final = {("done", "failed"), ("failed", "done"), ("done", "open"), ("open", "done")}


def find_denied(index: SourceIndex, statements: Sequence[Statement]) -> Iterator[Violation]:
    """Clauses with the opposite meaning of the source's."""
    for statement in statements:
        clause = statement.clause
        if not clause.stems or statement.section in (IDENTIFIER, STATUS):
            continue
        near = _find_near(index, clause)
        if near and all(_agrees(index, clause, other) == _is_antonym(clause, other) for other in near):
            yield Violation("negation", statement.item)


def _find_near(index: SourceIndex, clause: Clause) -> list[Clause]:
    """The clauses of the source with the same meaning, or the opposite one."""
    values = any(atom.kind != NAME for atom in clause.atoms)
    found = [
        (share, other)
        for share, other in index.overlaps(clause.stems)
        if share >= SAME_WORDS
        and not other.is_question
        and len(other.stems) <= 4 * len(clause.stems)
        and (not values or _share_a_value(clause, other))
    ]
    in_turn = [pair for pair in found if pair[1].turn == clause.turn]
    found = in_turn or found
    best = max((share for share, _ in found), default=0.0)
    near = [other for share, other in found if share >= best - NEAR_BEST]
    alike = [len(clause.stems & other.stems) / len(clause.stems | other.stems) for other in near]
    return [other for other, share in zip(near, alike, strict=True) if share >= ALIKE * max(alike)]


def _share_a_value(clause: Clause, other: Clause) -> bool:
    """Whether two clauses are about one number or id, and share a word besides it."""
    return len(clause.stems & other.stems) > 1 and any(
        atom.kind != NAME and atom.matches(one) for atom in clause.atoms for one in other.atoms
    )


def _agrees(index: SourceIndex, clause: Clause, other: Clause) -> bool:
    """Whether a clause of the source, or the rest of its sentence, has the polarity of a clause of the summary."""
    n = clause.n_negations
    if len(clause.stems & other.stems) >= SAME_CONTENT * len(clause.stems | other.stems) or _has_condition(clause, other):
        return n % 2 == other.n_negations % 2
    if (n > 0) == (other.n_negations > 0):
        return True
    return any(
        (n > 0) == (part.n_negations > 0) and not part.stems.isdisjoint(clause.stems)
        for part in index.sentence_of(other)
        if part is not other
    )


def _has_condition(clause: Clause, other: Clause) -> bool:
    """Whether a clause has the condition of another one: its words after `without`, of a clause with two negations."""
    if other.n_negations < 2 or "without" not in other.words:
        return False
    after = other.words[other.words.index("without") + 1 :]
    return not clause.stems.isdisjoint(stem_of(word) for word in after if is_content(word))


def _is_antonym(clause: Clause, other: Clause) -> bool:
    mine, others = {stem_of(word) for word in clause.words}, {stem_of(word) for word in other.words}
    return any(stem in ANTONYMS and ANTONYMS[stem] in others - mine for stem in mine - others)


def find_turned_limits(index: SourceIndex, statements: Sequence[Statement]) -> Iterator[Violation]:
    """Upper bounds that became lower ones, and the reverse."""
    for statement in statements:
        for atom, before in zip(statement.clause.atoms, statement.clause.befores, strict=True):
            mine = _bound_of(before) if atom.quantity is not None else ""
            if not mine or atom.quantity is None:
                continue
            bounds = {
                _bound_of(other_before)
                for value in atom.quantity.values
                for one in index.numbers.get(value, ())
                for other, other_before in zip(one.clause.atoms, one.clause.befores, strict=True)
                if other is one.atom
            }
            if bounds and bounds <= {"upper", "lower"} - {mine}:
                yield Violation("limit", statement.item)


def _bound_of(before: str) -> str:
    if LOWER.search(before) and not re.search(r"(?:no|not|n't|never|cannot) (?:\w+ )?\w+(?: than)?\s*\Z", before):
        return "lower"
    return "upper" if UPPER.search(before) else ""


def find_wrong_states(index: SourceIndex, statements: Sequence[Statement]) -> Iterator[Violation]:
    """Steps with another state than the source's."""
    for statement in statements:
        clause = statement.clause
        state = statement.state or (_narrated_state(clause) if statement.section == STORY else "")
        stems = clause.stems - state_stems(clause.words)
        if not state or not stems:
            continue
        evidence = _find_evidence(index, clause, stems, is_step=statement.section == STATUS)
        if evidence and statement.section == STORY and not clause.state and _is_reported(index, clause, stems):
            continue
        if evidence and all((state, other) in _CONFLICTS for other in evidence):
            yield Violation("status", statement.item)
        elif (
            not evidence
            and statement.section == STATUS
            and state == "done"
            and max((share for share, _ in index.overlaps(stems)), default=0.0) < 1 / 3
        ):
            yield Violation("unsupported", statement.item)


def _narrated_state(clause: Clause) -> str:
    if not clause.state and not clause.n_negations and is_narrated_as_done(clause.words):
        return "done"
    return clause.state


def _is_reported(index: SourceIndex, clause: Clause, stems: frozenset[str]) -> bool:
    """Whether a message reports in the past tense most of what a clause reports, and with fewer of its words a tool's call:
    what a customer was charged is not what a later call about the same thing did.
    """
    in_events = max((len(stems & event.about) for event in index.events), default=0)
    return any(
        share >= REPORTED and len(stems & other.stems) > in_events
        and other.role != "tool" and not (other.is_question or other.state or other.n_negations)
        and is_narrated_as_done(other.words)
        for share, other in index.overlaps(stems)
    )


def _find_evidence(index: SourceIndex, clause: Clause, stems: frozenset[str], *, is_step: bool) -> list[str]:
    """The states that the best evidence shows; of equally good evidence the last. For the narrative, results of tools count
    alone.
    """
    found = [
        (share, other.turn or 0, other.state)
        for share, other in index.overlaps(stems)
        if is_step and other.state and share >= EVIDENCE and not other.is_question and other.role != "tool"
    ]
    for event in index.events:
        shared = stems & event.about
        share = sum(map(index.weigh, shared)) / sum(map(index.weigh, stems))
        if share >= EVIDENCE and (is_step or len(clause.stems & event.about) > 1):
            found.append((share, event.turn, event.state))
    in_turn = [one for one in found if one[1] == clause.turn]
    found = in_turn or found
    best = max((share for share, _, _ in found), default=0.0)
    near = [(turn, state) for share, turn, state in found if share >= best - NEAR_BEST]
    last = max((turn for turn, _ in near), default=0)
    return [state for turn, state in near if turn == last]


def find_lost_errors(index: SourceIndex, statements: Sequence[Statement]) -> Iterator[Violation]:
    """Errors of tools, not mended later, that the summary does not report. Each bad step of the summary reports the errors
    that share the most words with it; words of few calls count more.
    """
    errors = [
        event
        for at, event in enumerate(index.events)
        if event.state == "failed" and not _is_mended(event, index.events[at + 1 :])
    ]
    calls = Counter(stem for event in index.events for stem in event.called)
    reported = set[int]()
    for statement in statements:
        state = statement.state or statement.clause.state
        if statement.section not in (STATUS, STORY) or state not in ("failed", "open"):
            continue
        scores = [_score_report(event, statement.clause, calls, state) for event in errors]
        best = max(scores, default=0.0)
        reported |= {at for at, score in enumerate(scores) if score and score >= 0.8 * best}
    for at, event in enumerate(errors):
        if at not in reported:
            yield Violation("error", event.text[:120])


def _score_report(event: Event, clause: Clause, calls: Mapping[str, int], state: str) -> float:
    shared = event.called & clause.stems
    if state == "open" and len(shared) < min(2, len(event.called)):
        return 0.0
    score = sum(1 / calls[stem] for stem in shared)
    is_same_turn = event.turn == clause.turn and (score > 0 or state == "failed")
    return score + SAME_TURN * is_same_turn


def _is_mended(event: Event, later: Sequence[Event]) -> bool:
    return any(
        other.state == "done"
        and other.name == event.name
        and 2 * len(other.called & event.called) > len(event.called)
        and event.called >= other.called
        for other in later
    )


def find_unsupported(index: SourceIndex, statements: Sequence[Statement]) -> Iterator[Violation]:
    """Clauses with words that the source does not have."""
    for statement in statements:
        stems = statement.clause.stems
        n_unknown = len(stems - index.stems)
        if n_unknown > MAX_UNKNOWN and n_unknown > (1 - SUPPORT) * len(stems):
            yield Violation("unsupported", statement.item)
