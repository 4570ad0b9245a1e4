"""Steps, a retrieval and a reader for the tests of turns."""

import asyncio

from stayfast.turns.answer import Answer
from stayfast.turns.events import AnswerEvent


async def takes(seconds: float, result: object = "done") -> object:
    """A step that takes this long."""
    await asyncio.sleep(seconds)
    return result


async def fails(seconds: float) -> object:
    """A step that fails after this time."""
    await asyncio.sleep(seconds)
    raise LookupError("no such page")


async def stubborn() -> object:
    """A step that suppresses its cancellation."""
    ends_at = asyncio.get_running_loop().time() + 60
    while asyncio.get_running_loop().time() < ends_at:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue
    return None


async def read_all(a: Answer, after: int = 0, *, late: bool = False) -> list[AnswerEvent]:
    """All events of one reader."""
    return [event async for event in a.read(after, late=late)]


class Index:
    """A retrieval that takes 0.2 s and returns the number of the call; it fails while `is_down`."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.n_ended = 0
        self.is_down = False

    async def find(self, question: str, k: int = 3) -> list[str]:
        self.n_calls += 1
        try:
            await asyncio.sleep(0.2)
            if self.is_down:
                raise ConnectionError("the index is down")
            return [f"{question}-{k}-{self.n_calls}"]
        finally:
            self.n_ended += 1
