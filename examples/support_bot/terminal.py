"""One turn in a terminal: the content as it comes, then what the metadata said, then what was late."""

import asyncio
import sys

from examples.support_bot.turn import LATE_S, Desk, support
from stayfast.turns import Answer, Budget, budget
from stayfast.turns.events import Citation, Degraded, Event, Final, Patch, Progress, text_of


async def turn(question: str, a: Answer, desk: Desk, total_s: float) -> Budget:
    """A whole turn, what is late included; the budget around all of it."""
    async with budget(total_s + LATE_S) as late:
        async with a:
            await support(question, a, desk, late, total_s)
        await a.settled()
    return late


async def ask(question: str, desk: Desk, total_s: float) -> None:
    """Ask, and write what is said to standard output."""
    a = Answer()
    async with asyncio.TaskGroup() as running:
        asked = running.create_task(turn(question, a, desk, total_s))
        notes: list[str] = []
        async for event in a.read(late=True):
            notes += _shown(event, a)
            if isinstance(event.told, Final):
                _write("\n\n" + "\n".join(notes) + "\n")
    _write(f"\n{asked.result().report()}\n")


def _shown(event: Event, a: Answer) -> list[str]:
    """Write what is to be seen at once; returns what is to be said at the end."""
    match event.told:
        case Progress(stage, status):
            return [f"  {stage}: {status}"]
        case Citation(source, start, end):
            return [f"  source: {source}, characters {start} to {end}"]
        case Degraded(part, reason):
            return [f"  without {part}: {reason}"]
        case Final(how, detail, _, pending):
            waits = f"; still to come: {', '.join(pending)}" if pending else ""
            return [f"  final: {how}{detail and f', {detail}'}{waits}"]
        case Patch(operations) if a.final_id and event.id > a.final_id:
            _write("".join(f"  patch: {one['op']} {one['path']} {one.get('value', '')}\n" for one in operations))
        case _:
            _write(text_of(event))
    return []


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
