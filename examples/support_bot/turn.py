"""The turn: what the bot does with one question, in the time that it has.

    words      the docs by their words                                    at most 0.25 s, in a thread
    meaning    the docs by their meaning, beside it                       at most 0.6 s
    changes    what has changed about it, in a system that takes 3 s      not waited for: it follows as a patch
    answer     the model, for which 1.2 s of the 2.5 s are reserved       without it the quotes are the answer

Whatever of this hangs, fails or is not installed: the answer is out in time, and says what it is without.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Protocol

from examples.support_bot.passages import Passage, stems
from examples.support_bot.words import Words
from stayfast.turns import Answer, Budget, budget, step
from stayfast.turns.model import Json, Model
from stayfast.turns.tools import ToolCallRequest

STAGES = ("words", "meaning", "changes", "answer")
TOTAL_S, ANSWER_S, GOODBYE_S = 2.5, 1.2, 0.05  # the last: to say what is missing, on a busy machine as well
WORDS_S, MEANING_S, CHANGES_S = 0.25, 0.6, 8.0
LATE_S = 15.0  # how long what is late may take
SLOW_S = {"changes": 3.0}  # today
N_QUOTED, N_READ, MAX_TOKENS = 2, 4, 160
_RANK = 60  # of two lists: the sum of 1 / (60 + rank), so that what both have comes first
_SYSTEM = ("You answer questions about Stayfast, an LLM gateway, in at most three sentences and by these passages of its "
           "docs alone, with their numbers, like [1]. Where they do not say it, say so.\n\n")


class Finds(Protocol):
    """The search by meaning, where there is one."""

    async def find(self, question: str) -> list[Passage]:
        """The nearest first."""
        ...

    def close(self) -> None:
        """No more questions."""
        ...


@dataclass(frozen=True, slots=True)
class Writer:
    """The model. `reads`: whether passages help it; the embedded one is so small that it knows only what it has learned."""

    model: Model
    name: str
    reads: bool = True


@dataclass(frozen=True, slots=True)
class Desk:
    """What all turns share. `without`: what this machine does not have, and what to do about it. `slow_s`: seconds that a
    stage takes longer than it has to, by its name; they stand for a bad day.
    """

    docs: Words
    changes: Words
    meaning: Finds | None = None
    writer: Writer | None = None
    without: Mapping[str, str] = field(default_factory=dict)
    slow_s: Mapping[str, float] = field(default_factory=lambda: SLOW_S)


async def support(question: str, a: Answer, desk: Desk, late: Budget, total_s: float = TOTAL_S) -> None:
    """Answer a question. `a` is open; `late` is the budget around this one, that what is late goes on under."""
    a.write_prefix(f"I am looking through {desk.docs.n_pages} pages of the docs.\n\n")
    reserve = {"answer": min(ANSWER_S, total_s / 2), "goodbye": min(GOODBYE_S, total_s / 10)}
    async with budget(total_s, reserve) as b:
        await _ask_for_changes(question, a, desk, b, late)
        found = await _found(question, a, desk, b)
        _quote(question, found, a)
        await _answer(question, found, a, desk, b)
        a.put("turn", waterfall(b))


async def _ask_for_changes(question: str, a: Answer, desk: Desk, b: Budget, late: Budget) -> None:
    """Begin it, and go on: what it brings goes into the state, whenever that is."""
    a.report_progress("changes", "asked")
    look_up = step(_today(desk, "changes", _changes), question, desk, cap=CHANGES_S)
    asked = await b.gather(changes=look_up, by=0.002, late=late)
    for name, straggler in asked.late.items():
        a.put_later(name, straggler)
    for name, value in asked.done.items():
        a.put(name, {"status": "ok", "value": value})
    for name in asked.missing.keys() - asked.late.keys():
        a.mark_degraded(name, asked.missing[name].reason)


async def _found(question: str, a: Answer, desk: Desk, b: Budget) -> list[Passage] | None:
    """The best passages, by words and by meaning side by side; None where neither came to an end."""
    searches: dict[str, Any] = {"words": step(_today(desk, "words", desk.docs.find), question, cap=WORDS_S)}
    if desk.meaning is None:
        a.mark_degraded("meaning", desk.without.get("meaning", "not here"))
    else:
        searches["meaning"] = step(_today(desk, "meaning", desk.meaning.find), question, cap=MEANING_S)
    for name in searches:
        a.report_progress(name, "searching")
    found = await b.gather(**searches)
    for name, passages in found.done.items():
        a.report_progress(name, f"found {len(passages)}")
    for name, missing in found.missing.items():
        a.report_progress(name, missing.reason)
        a.mark_degraded(name, missing.reason)
    a.put("turn", waterfall(b))
    return fused(list(found.done.values())) if found.done else None


def fused(lists: Sequence[Sequence[Passage]]) -> list[Passage]:
    """Several rankings as one, each passage once."""
    scores: dict[Passage, float] = {}
    for ranking in lists:
        for rank, passage in enumerate(ranking):
            scores[passage] = scores.get(passage, 0.0) + 1 / (_RANK + rank)
    return sorted(scores, key=lambda passage: -scores[passage])


def _quote(question: str, found: Sequence[Passage] | None, a: Answer) -> None:
    """What the docs say, in their words: there before any model has said anything."""
    if not found:
        a.write("They could not be searched in time." if found is None else "They do not say anything about this.")
    for passage in (found or ())[:N_QUOTED]:
        if not a.text.endswith("\n\n"):
            a.write("\n\n")
        begin = len(a.text)
        a.write(passage.quote(question))
        a.cite(passage.source, begin, len(a.text))


async def _answer(question: str, found: Sequence[Passage] | None, a: Answer, desk: Desk, b: Budget) -> None:
    """What the model makes of it, as it writes it."""
    writer = desk.writer
    if writer is None:
        a.mark_degraded("answer", desk.without.get("answer", "not here"))
        return
    messages: list[Json] = [{"role": "user", "content": question}]
    if writer.reads:
        passages = "\n\n".join(f"[{n}] {one.heading}\n{one.text}" for n, one in enumerate((found or ())[:N_READ], 1))
        messages.insert(0, {"role": "system", "content": _SYSTEM + passages})
    voice = _Voice(question, writer, a)
    a.report_progress("answer", "asking")
    ask = partial(writer.model.generate, messages, (), voice.write, may_call=False, max_tokens=MAX_TOKENS)
    await b.run(_today(desk, "answer", ask), name="answer", fallback=None)
    how = b.step_runs[-1].outcome
    a.report_progress("answer", how)
    if how != "ok" or not voice.has_started:
        a.mark_degraded("answer", how if how != "ok" else "it spoke of something else")


class _Voice:
    """What the model says, as it says it; of one that reads nothing from its first sentence about the question on."""

    def __init__(self, question: str, writer: Writer, a: Answer) -> None:
        self._a = a
        self._wanted = None if writer.reads else stems(question)
        self._name = writer.name if writer.reads else f"{writer.name}, from memory"
        self._said = ""
        self.has_started = False

    def write(self, piece: str | ToolCallRequest) -> None:
        """A piece of it."""
        if isinstance(piece, ToolCallRequest):
            return  # it has no tools to call
        if self.has_started:
            self._a.write(piece)
            return
        self._said += piece
        if self._wanted is None or ("." in piece and self._wanted & stems(self._said)):
            self.has_started = True
            self._a.write(f"\n\n{self._name}: {self._said}")


async def _changes(question: str, desk: Desk) -> dict[str, str]:
    """What has changed about it lately: stands for a system of somebody else, which is slow."""
    found = desk.changes.find(question, least_share=0.0)
    return {"source": found[0].source, "text": found[0].quote(question)} if found else {"text": "Nothing has changed."}


def _today(desk: Desk, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or what it is on a bad day."""
    wait_s = desk.slow_s.get(stage, 0.0)
    return partial(_slowly, wait_s, function) if wait_s else function


async def _slowly(wait_s: float, function: Callable[..., Any], *args: Any) -> Any:
    await asyncio.sleep(wait_s)
    return await (function(*args) if iscoroutinefunction(function) else asyncio.to_thread(function, *args))


def waterfall(b: Budget) -> dict[str, Any]:
    """Where the time went so far, in ms from the turn's beginning; `to_ms` is None of what still runs."""
    def ms(at: float) -> int:
        return round((at - b.began_at) * 1e3)

    stages = {row.name: {"from_ms": ms(row.began_at), "limit_ms": ms(row.ends_at),
                         "to_ms": ms(row.ended_at) if row.is_done else None, "how": row.outcome, "detail": row.detail}
              for row in b.step_runs}
    return {"total_ms": ms(b.deadline_at), "at_ms": ms(b.now()), "stages": stages, "broken_by": b.broken_by}
