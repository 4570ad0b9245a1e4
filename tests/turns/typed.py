"""How the public API is typed, seen from outside: `make check` and test_typing.py have mypy read it; nothing runs it."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, assert_type

from stayfast.turns import (
    Agent,
    AgentResult,
    Answer,
    BreakerPolicy,
    Budget,
    CachedFunction,
    GatherResult,
    HedgePolicy,
    MissingResult,
    TurnRequest,
    budget,
    charge,
    current_budget,
    remaining,
    step,
    tool,
)
from stayfast.turns.asgi import with_budget
from stayfast.turns.chat import ChatModel
from stayfast.turns.events import AnswerEvent
from stayfast.turns.model_speed import ModelSpeed


async def find(question: str, top_k: int = 3) -> list[str]:
    """An async step."""
    return [question] * top_k


def look_up(customer: str) -> int:
    """A plain one."""
    return len(customer)


async def turn() -> str:
    """Every call with every kind of step."""
    search, crm = HedgePolicy(share=0.05), BreakerPolicy()
    async with budget(total=2.5, reserve={"answer": 1.6}) as b:
        assert_type(b, Budget)
        assert_type(await b.run(find, "Why?", name="kb", cap=0.4, hedge=search), list[str])
        assert_type(await b.run(find, "Why?", fallback=None), list[str] | None)
        assert_type(await b.run(find("Why?"), name="kb"), list[str])
        assert_type(await b.run(partial(find, top_k=5), "Why?"), list[str])
        assert_type(await b.run(look_up, "Ann", breaker=crm), int)
        assert_type(await b.run(look_up, "Ann", fallback=""), int | str)
        assert_type(await b.run(CachedFunction(find, ttl_s=60), "Why?"), list[str])
        found = await b.gather(kb=step(find, "Why?", cap=0.3), web=find("Why?"), own=lambda: 1, need=1, by=0.6, late=b)
        assert_type(found, GatherResult)
        assert_type(found.missing["kb"], MissingResult)
        assert_type(found.timed_out, tuple[str, ...])
        assert_type(b.remaining() + remaining(), float)
        assert_type(current_budget(), Budget)
        charge(0.001)
    return b.report()


@tool(timeout=0.8, idempotent=True, cache_ttl_s=60)
async def weather(city: str) -> str:
    """A tool."""
    return city


async def agent_turn(model: ChatModel) -> str:
    """An agent, its answer and what reads it."""
    agent = Agent(model, [weather], speed=ModelSpeed("large"))
    async with budget(total=4.0), Answer() as a:
        a.write_prefix("Let me see.")
        outcome = await agent.run([{"role": "user", "content": "Why?"}], a)
        assert_type(outcome, AgentResult)
        assert_type(await weather("Bonn"), str)
        assert_type(a.state, dict[str, Any])
    assert_type([event async for event in a.read(late=True)], list[AnswerEvent])
    return outcome.text


async def served(asked: TurnRequest, a: Answer) -> None:
    """A turn that the gateway serves."""
    assert_type(asked.text, str)
    assert_type(asked.late, Budget)
    assert_type(asked.chat_messages(), list[dict[str, Any]])
    a.write(await current_budget().run(weather, asked.text))


async def ask(question: str) -> str:
    """An endpoint."""
    return question


endpoint: Callable[..., Coroutine[Any, Any, str]] = with_budget(total=4.0)(ask)
