"""A LangGraph graph whose nodes share one deadline.

LangGraph has a timeout per node; a budget around the run of the graph is one deadline for all nodes. A node gets the
budget from `current_budget()`, so no node needs an extra argument.
"""

import asyncio
import sys
from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from stayfast.turns import budget, current_budget, remaining, step


class State(TypedDict, total=False):
    """The state of the graph."""

    question: str
    found: list[str]
    missing: list[str]
    answer: str


async def search(question: str) -> list[str]:
    """Stands for a vector search."""
    await asyncio.sleep(0.02)
    return [f"a page about {question}"]


async def look_up_account(question: str) -> list[str]:
    """Stands for a slow external system."""
    await asyncio.sleep(30)
    return [f"the account behind {question}"]


async def retrieve(state: State) -> State:
    """A node: two concurrent sources; late ones are listed as missing."""
    question = state["question"]
    found = await current_budget().gather(pages=step(search, question, cap=0.4),
                                          account=step(look_up_account, question, cap=0.2))
    return {"found": [page for pages in found.done.values() for page in pages], "missing": list(found.missing)}


async def model(state: State) -> str:
    """Stands for a model's client."""
    without = f", without {', '.join(state['missing'])}" if state["missing"] else ""
    return f"From {len(state['found'])} page(s){without}, with {remaining():.1f} s to write it."


async def answer(state: State) -> State:
    """A node: the step with reserved time."""
    return {"answer": await current_budget().run(model, state, name="answer", fallback="I do not know yet.")}


def graph() -> "CompiledStateGraph[State, None, State, State]":
    """Compiled once, run many times."""
    made = StateGraph(State)
    made.add_node("retrieve", retrieve)
    made.add_node("answer", answer)
    made.add_edge(START, "retrieve")
    made.add_edge("retrieve", "answer")
    made.add_edge("answer", END)
    return made.compile()


async def main() -> str:
    """One turn: its answer, and where the time went."""
    async with budget(total=2.5, reserve={"answer": 1.6}) as b:
        state = await graph().ainvoke({"question": "deadlines"})
    return f"{state['answer']}\n{b.report()}\n"


if __name__ == "__main__":
    sys.stdout.write(asyncio.run(main()))
