"""Damage to a good summary, of each kind that small models are known for. None: the summary has nothing to damage so."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Final

from stayfast.core.context import Summary
from stayfast.lab.context.conversations import (
    LabConversation,
    Line,
    PlantedFact,
    PlantedRule,
    PlantedStep,
    make_summary,
    write_step,
)
from stayfast.lab.context.values import IDS, NUMERIC, Value, change_unit, make_value, round_value, write_value

Lines = tuple[Line, ...]
_HEDGES: Final = ("", "", "about ", "approximately ", "roughly ")


def damage_summary(kind: str, conversation: LabConversation, rng: Random) -> Summary | None:
    """A summary with one damage of this kind."""
    if kind == "pin dropped":
        summary = make_summary(conversation, conversation.lines)
        lost = rng.randrange(len(summary.pinned)) if summary.pinned else 0
        pinned = summary.pinned[:lost] + summary.pinned[lost + 1 :]
        return (
            Summary(
                pinned,
                summary.facts,
                summary.ids,
                summary.status,
                summary.narrative,
                summary.covers,
                summary.digest,
                summary.made_by,
            )
            if summary.pinned
            else None
        )
    lines = KINDS[kind](conversation, rng)
    return make_summary(conversation, lines) if lines is not None else None


def _facts(conversation: LabConversation, kinds: frozenset[str]) -> list[PlantedFact]:
    """The facts of these kinds with a line of their own."""
    own = {id(line.about) for line in conversation.lines if line.section == "facts"}
    return [fact for fact in conversation.facts if fact.form.kind in kinds and id(fact) in own]


def _with_value(lines: Lines, fact: PlantedFact, text: str) -> Lines:
    return tuple(replace(line, value=text) if line.about is fact else line for line in lines)


def _drop_value(kinds: frozenset[str], conversation: LabConversation, rng: Random) -> Lines | None:
    pins = "\n".join(make_summary(conversation, ()).pinned)
    found = [
        fact
        for fact in _facts(conversation, kinds)
        if fact.old is None
        and not any(line.about is fact and line.value in pins for line in conversation.lines)
        and not _is_pinned(fact, conversation)
    ]
    if not found:
        return None
    lost = rng.choice(found)
    return tuple(line for line in conversation.lines if line.about is not lost)


def _is_pinned(fact: PlantedFact, conversation: LabConversation) -> bool:
    """Whether a sentence with the value is pinned: then the summary has it, whatever the model writes."""
    rng = Random(0)
    forms = {write_value(fact.value, rng) for _ in range(60)}
    return any(form in pin for pin in make_summary(conversation, ()).pinned for form in forms)


def _flip(conversation: LabConversation, rng: Random) -> Lines | None:
    found = [at for at, line in enumerate(conversation.lines) if isinstance(line.about, PlantedRule)]
    if not found:
        return None
    at = rng.choice(found)
    line = conversation.lines[at]
    assert isinstance(line.about, PlantedRule)
    flips = {good.format(x=line.about.detail): bad.format(x=line.about.detail) for good, bad in line.about.form.notes}
    bare = line.text.rstrip(".")
    bad = next(bad for good, bad in flips.items() if good.lower() == bare.lower())
    text = bad if line.section == "facts" else bad[:1].upper() + bad[1:] + "."
    return (*conversation.lines[:at], replace(line, text=text), *conversation.lines[at + 1 :])


def _round(conversation: LabConversation, rng: Random) -> Lines | None:
    found = [(fact, rounded) for fact in _facts(conversation, NUMERIC) if (rounded := round_value(fact.value)) is not None]
    if not found:
        return None
    fact, rounded = rng.choice(found)
    return _with_value(conversation.lines, fact, rng.choice(_HEDGES) + write_value(rounded, rng))


def _swap(kinds: frozenset[str], conversation: LabConversation, rng: Random) -> Lines | None:
    facts = _facts(conversation, kinds)
    pairs = [
        (one, other)
        for at, one in enumerate(facts)
        for other in facts[at + 1 :]
        if one.form.kind == other.form.kind and one.value.unit == other.value.unit and one.value != other.value
    ]
    if not pairs:
        return None
    one, other = rng.choice(pairs)
    lines = _with_value(conversation.lines, one, write_value(other.value, rng))
    return _with_value(lines, other, write_value(one.value, rng))


def _change_state(conversation: LabConversation, rng: Random) -> Lines | None:
    found = [
        at for at, line in enumerate(conversation.lines) if isinstance(line.about, PlantedStep) and line.section == "status"
    ]
    if not found:
        return None
    at = rng.choice(found)
    line = conversation.lines[at]
    assert isinstance(line.about, PlantedStep)
    state, form = line.about.state, line.about.form
    notes = form.notes_failed if state == "done" else form.notes_done
    text = rng.choice((line.text, rng.choice(notes).format(x=line.about.detail)))
    changed = replace(line, text=text, state="failed" if state == "done" else "done")
    return (*conversation.lines[:at], changed, *conversation.lines[at + 1 :])


def _change_narrated_state(conversation: LabConversation, rng: Random) -> Lines | None:
    found = [
        at
        for at, line in enumerate(conversation.lines)
        if isinstance(line.about, PlantedStep) and line.section == "narrative"
    ]
    if not found:
        return None
    at = rng.choice(found)
    line = conversation.lines[at]
    assert isinstance(line.about, PlantedStep)
    changed = replace(line, text=write_step(line.about, "failed" if line.about.state == "done" else "done", rng))
    return (*conversation.lines[:at], changed, *conversation.lines[at + 1 :])


def _change_id(conversation: LabConversation, rng: Random) -> Lines | None:
    """Two neighbouring characters of an id change places, or its last one is lost."""
    facts = [fact for fact in _facts(conversation, IDS) if fact.form.kind not in ("symbol", "version")]
    if not facts:
        return None
    fact = rng.choice(facts)
    text = fact.value.text
    swaps = [at for at in range(len(text) - 1) if text[at] != text[at + 1] and text[at].isalnum() and text[at + 1].isalnum()]
    at = rng.choice(swaps)
    changed = rng.choice((text[:at] + text[at + 1] + text[at] + text[at + 2 :], text[:-1].rstrip("-#")))
    return _with_value(conversation.lines, fact, changed)


def _drop_error(conversation: LabConversation, rng: Random) -> Lines | None:
    found = [step for step in conversation.steps if step.state == "failed"]
    if not found:
        return None
    lost = rng.choice(found)
    return tuple(line for line in conversation.lines if line.about is not lost)


def _invent(conversation: LabConversation, rng: Random) -> Lines | None:
    """A number, an id, a name, or a step that is not in the conversation, in a form of its own."""
    text = "\n".join(part.text for part in conversation.source)
    fact = rng.choice(conversation.facts)
    value = make_value(rng.choice(("money", "count", "large", "order", "path", "name", "version", "email")), rng)
    written = write_value(value, rng)
    if written.replace(",", "") in text.replace(",", "") or f"{value.number:g}" in text.replace(",", ""):
        return None
    if value.kind == "name":
        text = rng.choice(("contact = ", "approved by ", "talked to ")) + written
    else:
        text = f"{fact.detail or 'case'} {rng.choice(('reference', 'total', 'estimate', 'limit'))} = {written}"
    line = Line("facts", text, conversation.n_turns)
    at = max(at for at, other in enumerate(conversation.lines) if other.section == "facts") + 1
    return (*conversation.lines[:at], line, *conversation.lines[at:])


def _reorder(conversation: LabConversation, rng: Random) -> Lines | None:
    lines = list(conversation.lines)
    pairs = [
        (one, other)
        for section in ("facts", "status")
        for one, first in enumerate(lines)
        for other in range(one + 1, len(lines))
        if first.section == lines[other].section == section and (first.turn or 0) < (lines[other].turn or 0)
    ]
    if not pairs:
        return None
    one, other = rng.choice(pairs)
    lines[one], lines[other] = lines[other], lines[one]
    return tuple(lines)


def _change_unit(conversation: LabConversation, rng: Random) -> Lines | None:
    found: list[tuple[PlantedFact, Value]] = []
    for fact in _facts(conversation, NUMERIC):
        changed = change_unit(fact.value, rng)
        if changed is not None:
            found.append((fact, changed))
    if not found:
        return None
    fact, changed = rng.choice(found)
    return _with_value(conversation.lines, fact, write_value(changed, rng))


def _drop_unit(conversation: LabConversation, rng: Random) -> Lines | None:
    found = [fact for fact in _facts(conversation, NUMERIC) if fact.value.unit]
    if not found:
        return None
    fact = rng.choice(found)
    return _with_value(
        conversation.lines, fact, f"{fact.value.number:g}" if fact.value.number < 1e5 else f"{fact.value.number}"
    )


KINDS: Final[Mapping[str, Callable[[LabConversation, Random], Lines | None]]] = {
    "number dropped": lambda conversation, rng: _drop_value(NUMERIC, conversation, rng),
    "id dropped": lambda conversation, rng: _drop_value(IDS, conversation, rng),
    "negation flipped": _flip,
    "number rounded": _round,
    "numbers swapped": lambda conversation, rng: _swap(NUMERIC, conversation, rng),
    "ids swapped": lambda conversation, rng: _swap(IDS, conversation, rng),
    "names swapped": lambda conversation, rng: _swap(frozenset(("name",)), conversation, rng),
    "done and failed exchanged": _change_state,
    "state changed in the narrative": _change_narrated_state,
    "id changed": _change_id,
    "error dropped": _drop_error,
    "invented": _invent,
    "order changed": _reorder,
    "unit changed": _change_unit,
    "unit dropped": _drop_unit,
}
ALL_KINDS: Final = (*KINDS, "pin dropped")
