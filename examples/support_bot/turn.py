"""The turn of the bot for one question, within its deadline.

    words      full text search of the docs                               at most 0.25 s, in a thread
    meaning    semantic search of the docs, concurrently                  at most 0.6 s
    changes    look-up in a slow system, 3 s                              not awaited: it follows as a patch
    answer     the model, with 1.2 s of the 2.5 s reserved                without it the quotes are the answer

If any of these hangs, fails or is not installed, the answer is still in time, and names what it lacks.
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
TOTAL_S, ANSWER_S, GOODBYE_S = 2.5, 1.2, 0.05  # the last: to report missing parts, also on a busy machine
WORDS_S, MEANING_S, CHANGES_S = 0.25, 0.6, 8.0
LATE_S = 15.0  # time for late steps
SLOW_S = {"changes": 3.0}  # simulated delay per stage
N_QUOTED, N_READ, MAX_TOKENS = 2, 4, 160
_RANK = 60  # reciprocal rank fusion: the sum of 1 / (60 + rank) over both lists
_SYSTEM = ("You answer questions about Stayfast, an LLM gateway, in at most three sentences and by these passages of its "
           "docs alone, with their numbers, like [1]. Where they do not say it, say so.\n\n")


class MeaningSearch(Protocol):
    """The semantic search."""

    async def find(self, question: str) -> list[Passage]:
        """Passages, the nearest first."""
        ...

    def close(self) -> None:
        """Release its resources."""
        ...


@dataclass(frozen=True, slots=True)
class Writer:
    """The model. `reads`: whether it uses passages; the embedded model is too small for that."""

    model: Model
    name: str
    reads: bool = True


@dataclass(frozen=True, slots=True)
class Desk:
    """The state shared by all turns. `without`: parts missing on this machine, and how to install them. `slow_s`: simulated
    delay in seconds by stage.
    """

    docs: Words
    changes: Words
    meaning: MeaningSearch | None = None
    writer: Writer | None = None
    without: Mapping[str, str] = field(default_factory=dict)
    slow_s: Mapping[str, float] = field(default_factory=lambda: SLOW_S)


async def support(question: str, a: Answer, desk: Desk, late: Budget, total_s: float = TOTAL_S) -> None:
    """Answer a question. `a` is open; `late` is the outer budget, for late steps."""
    a.write_prefix(f"I am looking through {desk.docs.n_pages} pages of the docs.\n\n")
    reserve = {"answer": min(ANSWER_S, total_s / 2), "goodbye": min(GOODBYE_S, total_s / 10)}
    async with budget(total_s, reserve) as b:
        await _start_changes(question, a, desk, b, late)
        found = await _search(question, a, desk, b)
        _quote(question, found, a)
        await _answer(question, found, a, desk, b)
        a.put("turn", describe_turn(b))


async def _start_changes(question: str, a: Answer, desk: Desk, b: Budget, late: Budget) -> None:
    """Start the look-up without waiting; its result goes into the state when it is done."""
    a.report_progress("changes", "asking")
    look_up = step(_with_delay(desk, "changes", _look_up_changes), question, desk, cap=CHANGES_S)
    found = await b.gather(changes=look_up, by=0.002, late=late)
    for name, straggler in found.late.items():
        a.put_later(name, straggler)
    for name, value in found.done.items():
        a.put(name, {"status": "ok", "value": value})
    for name in found.missing.keys() - found.late.keys():
        a.mark_degraded(name, found.missing[name].reason)


async def _search(question: str, a: Answer, desk: Desk, b: Budget) -> list[Passage] | None:
    """The best passages of both searches; None if neither was done in time."""
    searches: dict[str, Any] = {"words": step(_with_delay(desk, "words", desk.docs.find), question, cap=WORDS_S)}
    if desk.meaning is None:
        a.mark_degraded("meaning", desk.without.get("meaning", "not here"))
    else:
        searches["meaning"] = step(_with_delay(desk, "meaning", desk.meaning.find), question, cap=MEANING_S)
    for name in searches:
        a.report_progress(name, "searching")
    found = await b.gather(**searches)
    for name, passages in found.done.items():
        a.report_progress(name, f"found {len(passages)}")
    for name, missing in found.missing.items():
        a.report_progress(name, missing.reason)
        a.mark_degraded(name, missing.reason)
    a.put("turn", describe_turn(b))
    return fuse_rankings(list(found.done.values())) if found.done else None


def fuse_rankings(lists: Sequence[Sequence[Passage]]) -> list[Passage]:
    """Several rankings merged into one."""
    scores: dict[Passage, float] = {}
    for ranking in lists:
        for rank, passage in enumerate(ranking):
            scores[passage] = scores.get(passage, 0.0) + 1 / (_RANK + rank)
    return sorted(scores, key=lambda passage: -scores[passage])


def _quote(question: str, found: Sequence[Passage] | None, a: Answer) -> None:
    """Quote the docs, before the model has answered."""
    if not found:
        a.write("The search was not done in time." if found is None else "The docs have nothing about this.")
    for passage in (found or ())[:N_QUOTED]:
        if not a.text.endswith("\n\n"):
            a.write("\n\n")
        begin = len(a.text)
        a.write(passage.quote(question))
        a.cite(passage.source, begin, len(a.text))


async def _answer(question: str, found: Sequence[Passage] | None, a: Answer, desk: Desk, b: Budget) -> None:
    """The answer of the model, as it is written."""
    writer = desk.writer
    if writer is None:
        a.mark_degraded("answer", desk.without.get("answer", "not here"))
        return
    messages: list[Json] = [{"role": "user", "content": question}]
    if writer.reads:
        passages = "\n\n".join(f"[{n}] {one.heading}\n{one.text}" for n, one in enumerate((found or ())[:N_READ], 1))
        messages.insert(0, {"role": "system", "content": _SYSTEM + passages})
    model_text = _ModelText(question, writer, a)
    a.report_progress("answer", "asking")
    generate = partial(writer.model.generate, messages, (), model_text.write, may_call=False, max_tokens=MAX_TOKENS)
    await b.run(_with_delay(desk, "answer", generate), name="answer", fallback=None)
    outcome = b.step_runs[-1].outcome
    a.report_progress("answer", outcome)
    if outcome != "ok" or not model_text.has_started:
        a.mark_degraded("answer", outcome if outcome != "ok" else "the model answered something else")


class _ModelText:
    """Writes the text of the model into the answer; without passages, from its first sentence about the question on."""

    def __init__(self, question: str, writer: Writer, a: Answer) -> None:
        self._a = a
        self._question_stems = None if writer.reads else stems(question)
        self._name = writer.name if writer.reads else f"{writer.name}, from memory"
        self._text = ""
        self.has_started = False

    def write(self, piece: str | ToolCallRequest) -> None:
        if isinstance(piece, ToolCallRequest):
            return  # it has no tools
        if self.has_started:
            self._a.write(piece)
            return
        self._text += piece
        if self._question_stems is None or ("." in piece and self._question_stems & stems(self._text)):
            self.has_started = True
            self._a.write(f"\n\n{self._name}: {self._text}")


async def _look_up_changes(question: str, desk: Desk) -> dict[str, str]:
    """The latest changes about the question. Stands for a slow external system."""
    found = desk.changes.find(question, min_share=0.0)
    return {"source": found[0].source, "text": found[0].quote(question)} if found else {"text": "Nothing has changed."}


def _with_delay(desk: Desk, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the simulated delay of its stage."""
    wait_s = desk.slow_s.get(stage, 0.0)
    return partial(_call_slowly, wait_s, function) if wait_s else function


async def _call_slowly(wait_s: float, function: Callable[..., Any], *args: Any) -> Any:
    await asyncio.sleep(wait_s)
    return await (function(*args) if iscoroutinefunction(function) else asyncio.to_thread(function, *args))


def describe_turn(b: Budget) -> dict[str, Any]:
    """The stages so far, in ms since the start of the turn; `to_ms` is None while a stage runs."""
    def ms(at: float) -> int:
        return round((at - b.began_at) * 1e3)

    stages = {row.name: {"from_ms": ms(row.began_at), "limit_ms": ms(row.ends_at),
                         "to_ms": ms(row.ended_at) if row.is_done else None, "outcome": row.outcome, "detail": row.detail}
              for row in b.step_runs}
    return {"total_ms": ms(b.deadline_at), "at_ms": ms(b.now()), "stages": stages, "broken_by": b.broken_by}
