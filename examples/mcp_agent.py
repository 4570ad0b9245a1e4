"""An agent with the tools of an MCP server, which runs as a child process over stdio.

Each call has a timeout, and ends with the turn at the latest. The model gets the status of a failed call, and answers
without its result.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from stayfast.turns import Agent, budget
from stayfast.turns.mcp import mcp_tools
from stayfast.turns.model import Json, ModelReply, OnPiece
from stayfast.turns.tools import ToolCallRequest

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_shop.py"))]


class Scripted:
    """Stands for a model: it calls both tools at once, and answers with their results."""

    async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                       max_tokens: int) -> ModelReply:
        results = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
        if may_call and not results:
            return ModelReply(calls=(ToolCallRequest("1", "stock", '{"item": "tea"}'),
                                     ToolCallRequest("2", "delivery", '{"order": "17"}')))
        stock, delivery = results
        return ModelReply(f"There are {stock['result']['n']} in stock; when it comes I could not find out "
                          f"({delivery['status']}).")


async def main() -> str:
    """One turn: its answer, and where the time went."""
    async with mcp_tools(SERVER, timeout=0.3) as tools, budget(total=5.0) as b:
        done = await Agent(Scripted(), tools).run([{"role": "user", "content": "Is there tea? When does order 17 come?"}])
    return f"{done.text}\n{b.report()}\n"


if __name__ == "__main__":
    sys.stdout.write(asyncio.run(main()))
