"""A PydanticAI agent whose tools share one deadline with the model.

PydanticAI has a timeout per tool, and turns it into a retry. In a budget a tool may use its cap or the time left in the
turn, whichever is less. The model gets the status of a tool that timed out, and answers without its result.
"""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from stayfast.turns import budget, current_budget


async def fetch_order(number: str) -> str:
    """Stands for a shop's system that hangs."""
    await asyncio.sleep(30)
    return f"order {number} has left"


async def order(number: str) -> dict[str, str]:
    """Where an order is. A slow read: the model gets a result in any case."""
    return await current_budget().run(_order, number, name="order", cap=0.2, fallback={"status": "timeout"})


async def _order(number: str) -> dict[str, str]:
    return {"status": "ok", "order": await fetch_order(number)}


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stands for a model: it calls the tool once, and answers with its result."""
    for part in messages[-1].parts:
        if isinstance(part, ToolReturnPart):
            return ModelResponse(parts=[TextPart(f"The shop says: {part.content}")])
    return ModelResponse(parts=[ToolCallPart("order", {"number": "17"})])


async def main() -> str:
    """One turn: its answer, and where the time went."""
    agent = Agent(FunctionModel(scripted), tools=[order])
    async with budget(total=2.5) as b:
        done = await b.run(agent.run, "Where is order 17?", name="agent")
    return f"{done.output}\n{b.report()}\n"


if __name__ == "__main__":
    sys.stdout.write(asyncio.run(main()))
