"""Models and tools for the tests of agents, in virtual time."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stayfast.turns.model import Json, ModelReply, OnPiece
from stayfast.turns.tools import ToolCallRequest, ToolError, tool


@dataclass
class Scripted:
    """A model that takes its time and says what it was told to, the last thing again and again.

    Text is heard word by word. `asked`: what it was asked.
    """

    says: list[ModelReply | Exception]
    takes_s: float = 0.2
    tells_early: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                  max_tokens: int) -> ModelReply:
        """See `Model`."""
        said = self.says[min(len(self.asked), len(self.says) - 1)]
        self.asked.append({"messages": messages, "tools": tools, "may_call": may_call, "max_tokens": max_tokens})
        if isinstance(said, Exception):
            await asyncio.sleep(self.takes_s)
            raise said
        if self.tells_early:
            for call in said.calls:
                on_piece(call)
        words = said.text.split(" ") if said.text else [""]
        for number, word in enumerate(words):
            await asyncio.sleep(self.takes_s / len(words))
            if word:
                on_piece(word if number == 0 else f" {word}")
        return said


def calls(*names: str, **arguments: str) -> ModelReply:
    """An answer that asks for these tools."""
    return ModelReply(calls=tuple(ToolCallRequest(f"call_{number}", name, arguments.get(name, "{}")) for number,
                                  name in enumerate(names)))


@tool(timeout=0.5)
async def quick() -> str:
    """Answers soon."""
    await asyncio.sleep(0.1)
    return "quick"


@tool(timeout=0.8)
async def hangs() -> str:
    """Does not answer."""
    await asyncio.sleep(1000)
    return "never"


@tool(timeout=0.5)
async def fails() -> str:
    """Says why it cannot."""
    await asyncio.sleep(0.05)
    raise ToolError("there is no such city")


@tool(timeout=0.5)
async def breaks() -> str:
    """Breaks, with a secret."""
    raise LookupError("sk-secret")
