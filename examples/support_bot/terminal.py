"""One turn in a terminal: the content as it comes, then what the metadata said, then what was late."""

import asyncio
import sys

from examples.support_bot.turn import LATE_S, Desk, support
from stayfast.turns import Answer, Budget, budget
from stayfast.turns.events import (
    AnswerEvent,
    CitationEvent,
    DegradedEvent,
    FinalEvent,
    PatchEvent,
    ProgressEvent,
    SnapshotEvent,
    event_text,
)


async def turn(question: str, a: Answer, desk: Desk, total_s: float) -> Budget:
    """A whole turn, what is late included; the budget around all of it."""
    async with budget(total_s + LATE_S) as late:
        async with a:
            await support(question, a, desk, late, total_s)
        await a.wait_settled()
    return late


async def ask(question: str, desk: Desk, total_s: float) -> None:
    """Ask, and write what is said to standard output."""
    a, seen = Answer(), Seen()
    async with asyncio.TaskGroup() as running:
        asked = running.create_task(turn(question, a, desk, total_s))
        async for event in a.read(late=True):
            _write(seen.of(event))
    _write(f"\n{asked.result().report()}\n")


class Seen:
    """What a terminal has shown of one answer. Give it each event in turn."""

    def __init__(self) -> None:
        self._n_given = 0  # characters of the text
        self._notes: list[str] = []
        self._is_final = False

    def of(self, event: AnswerEvent) -> str:
        """What is to be written now: text as it comes, with the final event all notes, then what the late patches say."""
        match event.payload:
            case ProgressEvent(stage, status):
                self._notes.append(f"{stage}: {status}")
            case CitationEvent() | DegradedEvent():
                self._notes.append(_noted(event.payload))
            case SnapshotEvent() as snapshot:  # of all up to here, for whoever fell behind
                self._notes += [note for note in (*map(_noted, snapshot.citations), *map(_noted, snapshot.degraded))
                                if note not in self._notes]
            case PatchEvent(operations) if self._is_final:
                return "".join(f"  patch: {one['op']} {one['path']} {one.get('value', '')}\n" for one in operations)
            case FinalEvent(how, detail, _, pending):
                self._is_final = True
                waits = f"; still to come: {', '.join(pending)}" if pending else ""
                self._notes.append(f"final: {how}{detail and f', {detail}'}{waits}")
                return "\n\n" + "".join(f"  {note}\n" for note in self._notes)
        text = event_text(event, self._n_given)
        self._n_given += len(text)
        return text


def _noted(told: CitationEvent | DegradedEvent) -> str:
    if isinstance(told, DegradedEvent):
        return f"without {told.part}: {told.reason}"
    return f"source: {told.source}, characters {told.start} to {told.end}"


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
