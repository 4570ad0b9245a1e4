"""A program of somebody else that uses all of `stayfast.turns`: test_pyright.py has pyright read it; nothing runs it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, assert_type

from stayfast.turns import (
    Agent,
    Answer,
    Asked,
    Breaker,
    BreakerConfig,
    Budget,
    Cached,
    Hedge,
    Missing,
    Outcome,
    OutOfTime,
    Partial,
    Refused,
    Step,
    StepCancelled,
    StepFailed,
    StepSkipped,
    StepTimeout,
    ToolError,
    budget,
    charge,
    current,
    remaining,
    step,
    tool,
)
from stayfast.turns.agui import AgUi
from stayfast.turns.asgi import within
from stayfast.turns.events import (
    Citation,
    Degraded,
    Delta,
    Event,
    Final,
    Patch,
    Prefix,
    Progress,
    Snapshot,
    last_event_id,
    text_of,
)
from stayfast.turns.http import deadline_headers, sdk_options
from stayfast.turns.model import Hear, Json, Said
from stayfast.turns.pace import Pace, choose
from stayfast.turns.step_run import StepRun
from stayfast.turns.tools import Call, Tool

crm = Breaker(BreakerConfig())
searching = Hedge(share=0.05)


async def find(question: str, top_k: int = 3) -> list[str]:
    """An async step."""
    return [question] * top_k


def look_up(customer: str) -> int:
    """A plain one."""
    charge(0.001)
    return len(customer)


pages = Cached(find, ttl_s=60)


async def answer(asked: Asked, a: Answer) -> None:
    """A turn that is served, with every kind of step."""
    if not asked.text:
        raise Refused("ask something")
    a.prefix("Let me see. ")
    async with budget(total=2.5, reserve={"answer": 1.6}) as b:
        assert_type(await b.run(find, asked.text, name="kb", cap=0.4, hedge=searching), list[str])
        assert_type(await b.run(pages, asked.text, fallback=None), list[str] | None)
        assert_type(await b.run(look_up, "Ann", breaker=crm, fallback=""), int | str)
        one: Step = step(find, asked.text, cap=0.3)
        found = await b.gather(kb=one, web=find(asked.text), own=lambda: 1, need=1, by=0.6, late=asked.late)
        assert_type(found, Partial)
        assert_type(found.late, Mapping[str, StepRun])
        for name, straggler in found.late.items():
            a.later(name, straggler)
        why: Missing | None = found.missing.get("web")
        if why is not None:
            a.degraded("web", why.why)
        assert_type(current(), Budget)
        assert_type(b.remaining() + remaining(), float)
        a.put("report", b.report())
        try:
            await b.run(find, asked.text)
        except (StepTimeout, StepSkipped, StepCancelled) as error:
            a.delta(error.why)
        except (StepFailed, OutOfTime):
            a.delta("Too late.")


async def pieces(asked: Asked) -> AsyncIterator[str]:
    """Another shape of it."""
    for message in asked.messages:
        yield message.text


@tool(timeout=0.8, idempotent=True, speculative=True, kept_s=60, cost=0.001)
async def weather(city: str, day: str = "today") -> str:
    """The weather in a city."""
    if not city:
        raise ToolError("which city?")
    return f"{city} {day}"


class Scripted:
    """A model."""

    async def ask(self, messages: Sequence[Json], tools: Sequence[Json], hear: Hear, *, may_call: bool,
                  max_tokens: int) -> Said:
        """See `Model`."""
        if may_call:
            return Said(calls=(Call("1", "weather", '{"city": "Bonn"}'),))
        hear("It rains.")
        return Said("It rains.", n_tokens=3)


async def agent_turn() -> Outcome:
    """An agent, and who reads its answer."""
    large = Pace("large")
    agent = Agent(Scripted(), [weather], pace=choose([large], 100, remaining(), 0.0))
    async with budget(total=4.0), Answer() as a:
        outcome = await agent.run([{"role": "user", "content": "Why?"}], a)
        assert_type(await weather("Bonn"), str)
        assert_type(await weather("Bonn", day="today"), str)
    async for event in a.read(after=last_event_id("3"), late=True):
        seen(event)
    return outcome


def seen(event: Event) -> str:
    """Every kind of event."""
    match event.told:
        case Prefix(text) | Delta(text):
            return text
        case Progress(stage, status):
            return stage + status
        case Citation(source, start, end):
            return source if start is None or end is None else f"{source} {end - start}"
        case Degraded(part, reason):
            return part + reason
        case Patch(operations):
            return str(len(operations))
        case Snapshot(text):
            return text
        case Final(how):
            return how + text_of(event)


def said(event: Event) -> list[dict[str, Any]]:
    """In another protocol's words."""
    return AgUi("t", "r").of(event)


@within(total=4.0)
async def endpoint(question: str) -> str:
    """An endpoint of FastAPI."""
    options: dict[str, Any] = sdk_options()
    return question + str(len(options) + len(deadline_headers()))


tools: list[Tool[..., Any]] = [weather]
asyncio.run(agent_turn())
