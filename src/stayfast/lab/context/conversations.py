"""Conversations with planted facts, constraints and steps, and a good summary of each.

A good summary is one that a careful model writes: other words and another order within a line, other formats of numbers,
two facts in one line, facts and constraints repeated in the narrative, steps that failed and succeeded later as done. It
keeps all values that the conversation refers to again. Everything depends on the seed alone.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from stayfast.core.context import State, Summary, SummaryItem, TurnText
from stayfast.lab.context.forms import Domain, FactForm, RuleForm, StepForm
from stayfast.lab.context.more_forms import DOMAINS, FOREIGN
from stayfast.lab.context.values import IDS, Value, make_value, write_value
from stayfast.policy.context.summary_checks import find_pins

SIZES: Final = (6, 9, 14, 22, 36)  # turns
_BRIDGES: Final = ("", "", "By the way, ", "Also: ", "One more thing. ")
_NOISE: Final = (
    "It took me {n} minutes to find the time for this.",
    "I have {n} other things to do today.",
    "My colleague is away for {n} days.",
    "We talked about it {n} weeks ago.",
)


@dataclass(frozen=True)
class PlantedFact:
    """`turn`: where it is named, or changed last. `old`: the value before the change."""

    form: FactForm
    detail: str
    value: Value
    turn: int
    old: Value | None = None


@dataclass(frozen=True)
class PlantedRule:
    """A constraint of the user. `turn`: where it is stated."""

    form: RuleForm
    detail: str
    turn: int


@dataclass(frozen=True)
class PlantedStep:
    """A step of the task. `turn`: where it came to its last state."""

    form: StepForm
    detail: str
    turn: int
    state: State


@dataclass(frozen=True)
class Line:
    """A line of a summary, and what it is about. `text` has {v} for the value."""

    section: str  # facts, ids, status, narrative
    text: str
    turn: int | None = None
    state: State | None = None
    about: PlantedFact | PlantedRule | PlantedStep | None = None
    value: str = ""

    @property
    def written(self) -> str:
        return self.text.replace("{v}", self.value)


@dataclass(frozen=True)
class LabConversation:
    """A conversation with a good summary of it, in lines."""

    source: tuple[TurnText, ...]
    facts: tuple[PlantedFact, ...]
    rules: tuple[PlantedRule, ...]
    steps: tuple[PlantedStep, ...]
    lines: tuple[Line, ...]
    n_turns: int

    @property
    def n_chars(self) -> int:
        return sum(len(text.text) for text in self.source)


class _Writer:
    """The texts of a conversation that is being written, by turn and role."""

    def __init__(self, domain: Domain, n_turns: int, rng: Random) -> None:
        self.domain = domain
        self.n_turns = n_turns
        self.rng = rng
        self.users: list[list[str]] = [[] for _ in range(n_turns + 1)]
        self.assistants: list[list[str]] = [[] for _ in range(n_turns + 1)]
        self.calls: list[list[tuple[str, str, bool]]] = [[] for _ in range(n_turns + 1)]

    def pick_turn(self, first: int = 1) -> int:
        return self.rng.randint(first, self.n_turns)

    def texts(self) -> tuple[TurnText, ...]:
        rng, found = self.rng, list[TurnText]()
        for turn in range(1, self.n_turns + 1):
            talk = [rng.choice(self.domain.opening)] if turn == 1 else rng.sample(self.domain.talk, rng.randint(1, 2))
            if rng.random() < 0.2:
                talk.append(rng.choice(_NOISE).format(n=rng.randint(2, 90)))
            sentences = talk[:1] + [rng.choice(_BRIDGES) + sentence for sentence in self.users[turn]] + talk[1:]
            found.append(TurnText("user", rng.choice((" ", "\n")).join(sentences), turn))
            for call, result, is_error in self.calls[turn]:
                found.append(TurnText("assistant", call, turn))
                found.append(TurnText("tool", result, turn, is_tool_result=True, is_error=is_error))
            replies = rng.sample(self.domain.replies, rng.randint(1, 3))
            found.append(TurnText("assistant", " ".join(replies[:1] + self.assistants[turn] + replies[1:]), turn))
        return tuple(found)


def make_conversation(seed: int) -> LabConversation:
    """A conversation and its good summary."""
    rng = Random(seed)
    domain = rng.choice(DOMAINS)
    writer = _Writer(domain, rng.choice(SIZES), rng)
    facts = _plant_facts(writer)
    rules = _plant_rules(writer)
    steps = _plant_steps(writer)
    opens = _plant_open(writer)
    foreign = _plant_foreign(writer) if rng.random() < 0.2 else []
    source = writer.texts()
    lines = _write_lines(writer, facts + foreign, rules, steps) + opens
    return LabConversation(source, tuple(facts + foreign), tuple(rules), tuple(steps), tuple(lines), writer.n_turns)


def _plant_facts(writer: _Writer) -> list[PlantedFact]:
    rng = writer.rng
    places = [(form, detail) for form in writer.domain.facts for detail in form.details]
    rng.shuffle(places)
    facts, texts = [], set[str]()
    for form, detail in places[: max(4, round(writer.n_turns * 0.7))]:
        value = make_value(form.kind, rng)
        if value.text in texts:
            continue
        texts.add(value.text or f"{value.number}")
        turn = writer.pick_turn()
        fact = PlantedFact(form, detail, value, turn)
        writer.users[turn].append(_fill(rng.choice(form.sources), detail, value, rng))
        if form.kind not in IDS and form.kind != "name" and rng.random() < 0.1 and turn < writer.n_turns:
            fact = _change(writer, fact)
            texts.add(f"{fact.value.number}")
        for _ in range(rng.randint(1, 2)):
            later = writer.pick_turn(fact.turn)
            (writer.assistants if rng.random() < 0.7 or later == fact.turn else writer.users)[later].append(
                _fill(rng.choice(form.echoes), detail, fact.value, rng)
            )
        facts.append(fact)
    return facts


def _change(writer: _Writer, fact: PlantedFact) -> PlantedFact:
    """A later turn replaces the value."""
    rng = writer.rng
    value = make_value(fact.form.kind, rng)._replace(unit=fact.value.unit)
    turn = writer.pick_turn(fact.turn + 1)
    writer.users[turn].append(
        f"Correction for {fact.detail}: {write_value(value, rng)} instead of {write_value(fact.value, rng)}."
    )
    return replace(fact, value=value, turn=turn, old=fact.value)


def _plant_rules(writer: _Writer) -> list[PlantedRule]:
    rng = writer.rng
    places = [(form, detail) for form in writer.domain.rules for detail in form.details]
    rng.shuffle(places)
    rules = []
    for form, detail in places[: max(2, round(writer.n_turns * 0.2))]:
        turn = writer.pick_turn()
        writer.users[turn].append(rng.choice(form.sources).format(x=detail))
        rules.append(PlantedRule(form, detail, turn))
    return rules


def _plant_steps(writer: _Writer) -> list[PlantedStep]:
    rng = writer.rng
    places = [(form, detail) for form in writer.domain.steps for detail in form.details]
    rng.shuffle(places)
    steps = []
    for form, detail in places[: max(3, round(writer.n_turns * 0.35))]:
        turn = writer.pick_turn()
        is_failed = rng.random() < 0.45
        writer.calls[turn].append(
            (form.call.format(x=detail), rng.choice(form.failed if is_failed else form.done).format(), is_failed)
        )
        if is_failed and rng.random() < 0.3 and turn < writer.n_turns:
            turn, is_failed = writer.pick_turn(turn + 1), False
            writer.calls[turn].append((form.call.format(x=detail), rng.choice(form.done).format(), False))
        steps.append(PlantedStep(form, detail, turn, "failed" if is_failed else "done"))
    return steps


def _plant_open(writer: _Writer) -> list[Line]:
    turn = writer.n_turns  # the last line of STATUS
    sentence, note = writer.rng.choice(writer.domain.opens)
    (writer.users if sentence.startswith("I ") else writer.assistants)[turn].append(sentence)
    return [Line("status", note, turn, "open")]


def _plant_foreign(writer: _Writer) -> list[PlantedFact]:
    rng = writer.rng
    sources, echo, note = rng.choice(FOREIGN)
    is_money = "{v}" in sources
    value = make_value("money" if is_money else "order", rng)
    turn = writer.pick_turn()
    text = write_value(value, rng)
    writer.users[turn].append(sources.format(v=text, o=text))
    writer.users[writer.pick_turn(turn)].append(echo.format(v=text, o=text))
    form = FactForm(value.kind, (sources,), (echo,), (note.replace("{o}", "{v}"),))
    return [PlantedFact(form, "", value, turn)]


def _fill(sentence: str, detail: str, value: Value, rng: Random) -> str:
    return sentence.format(x=detail, v=write_value(value, rng))


def _write_lines(
    writer: _Writer, facts: list[PlantedFact], rules: list[PlantedRule], steps: list[PlantedStep]
) -> list[Line]:
    rng = writer.rng
    lines = []
    for fact in sorted(facts, key=lambda fact: fact.turn):
        note = rng.choice(fact.form.notes).replace("{x}", fact.detail)
        value = write_value(fact.value, rng)
        if fact.value.unit and " = " in note and rng.random() < 0.1:  # the unit in the key
            note, value = note.replace(" = ", f" ({fact.value.unit}) = "), f"{fact.value.number:.12g}"
        lines.append(Line("facts", note, fact.turn, about=fact, value=value))
        if fact.form.kind in IDS and rng.random() < 0.7:
            lines.append(
                Line("ids", rng.choice(("{v}", f"{fact.form.kind} {{v}}")), about=fact, value=write_value(fact.value, rng))
            )
    if rng.random() < 0.4:
        lines = _merge_some(lines, rng)
    for rule in rules:
        if rng.random() < 0.4:
            lines.append(Line("facts", rng.choice(rule.form.notes)[0].format(x=rule.detail), rule.turn, about=rule))
    lines.sort(key=lambda line: line.turn or 0)
    for step in sorted(steps, key=lambda step: step.turn):
        notes = step.form.notes_done if step.state == "done" else step.form.notes_failed
        lines.append(Line("status", rng.choice(notes).format(x=step.detail), step.turn, step.state, step))
    return lines + _write_story(writer, facts, rules, steps)


def _merge_some(lines: list[Line], rng: Random) -> list[Line]:
    """Two facts of one turn in one line, sometimes."""
    merged: list[Line] = []
    for line in lines:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.section == line.section == "facts"
            and last.turn == line.turn
            and last.about is not None
            and rng.random() < 0.7
        ):
            merged[-1] = replace(
                last, text=last.written + rng.choice(("; ", ", and ")) + line.text, about=line.about, value=line.value
            )
        else:
            merged.append(line)
    return merged


def _write_story(
    writer: _Writer, facts: list[PlantedFact], rules: list[PlantedRule], steps: list[PlantedStep]
) -> list[Line]:
    rng = writer.rng
    lines = [Line("narrative", rng.choice(writer.domain.stories))]
    for fact in rng.sample(facts, min(len(facts), rng.randint(0, 2))):
        note = rng.choice(fact.form.notes).replace("{x}", fact.detail)
        lines.append(Line("narrative", _as_sentence(note), about=fact, value=write_value(fact.value, rng)))
    lines += [
        Line("narrative", _as_sentence(rng.choice(rule.form.notes)[0].format(x=rule.detail)), about=rule)
        for rule in rng.sample(rules, min(len(rules), rng.randint(1, 3)))
    ]
    for step in rng.sample(steps, min(len(steps), rng.randint(0, 1))):
        lines.append(Line("narrative", write_step(step, step.state, rng), about=step))
    return lines


def write_step(step: PlantedStep, state: State, rng: Random) -> str:
    """A sentence of a narrative about a step."""
    if state == "done":
        return _as_sentence(rng.choice(step.form.notes_done).format(x=step.detail))
    name, _, rest = step.form.call.format(x=step.detail).partition("(")
    target = rest.split('"')[3]
    return _as_sentence(f"{name.replace('_', ' ')} for {target} failed")


def _as_sentence(note: str) -> str:
    text = note.replace(" = ", " is ")
    return (text if text.startswith("{") else text[:1].upper() + text[1:]) + "."


def make_summary(conversation: LabConversation, lines: tuple[Line, ...]) -> Summary:
    """The summary with these lines, as the gateway completes it."""

    def items(section: str) -> tuple[SummaryItem, ...]:
        return tuple(SummaryItem(line.written, line.turn, line.state) for line in lines if line.section == section)

    return Summary(
        pinned=find_pins(conversation.source),
        facts=items("facts"),
        ids=tuple(dict.fromkeys(line.written for line in lines if line.section == "ids")),
        status=items("status"),
        narrative=" ".join(line.written for line in lines if line.section == "narrative"),
        covers=(1, conversation.n_turns),
        digest="0" * 64,
        made_by="lab",
    )
