"""One turn in a terminal: the text as it is written, then the metadata, then late patches."""

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


async def run_turn(question: str, a: Answer, desk: Desk, total_s: float) -> Budget:
    """Run a turn including its late steps. Returns the outer budget."""
    async with budget(total_s + LATE_S) as late:
        async with a:
            await support(question, a, desk, late, total_s)
        await a.wait_settled()
    return late


async def print_answer(question: str, desk: Desk, total_s: float) -> None:
    """Run a turn and write its events to standard output."""
    a, output = Answer(), TerminalOutput()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(run_turn(question, a, desk, total_s))
        async for event in a.read(late=True):
            _write(output.render(event))
    _write(f"\n{running.result().report()}\n")


class TerminalOutput:
    """Renders the events of one answer, in order."""

    def __init__(self) -> None:
        self._n_written = 0  # characters of the text
        self._notes: list[str] = []
        self._is_final = False

    def render(self, event: AnswerEvent) -> str:
        """The text to write now: content at once, metadata with the final event, then late patches."""
        match event.payload:
            case ProgressEvent(stage, status):
                self._notes.append(f"{stage}: {status}")
            case CitationEvent() | DegradedEvent():
                self._notes.append(_format_note(event.payload))
            case SnapshotEvent() as snapshot:  # if the terminal is slower than the events
                notes = [*map(_format_note, snapshot.citations), *map(_format_note, snapshot.degraded)]
                self._notes += [note for note in notes if note not in self._notes]
            case PatchEvent(operations) if self._is_final:
                return "".join(f"  patch: {one['op']} {one['path']} {one.get('value', '')}\n" for one in operations)
            case FinalEvent(outcome, detail, _, pending):
                self._is_final = True
                waits = f"; pending: {', '.join(pending)}" if pending else ""
                self._notes.append(f"final: {outcome}{detail and f', {detail}'}{waits}")
                return "\n\n" + "".join(f"  {note}\n" for note in self._notes)
        text = event_text(event, self._n_written)
        self._n_written += len(text)
        return text


def _format_note(event: CitationEvent | DegradedEvent) -> str:
    if isinstance(event, DegradedEvent):
        return f"without {event.part}: {event.reason}"
    return f"source: {event.source}, characters {event.start} to {event.end}"


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
