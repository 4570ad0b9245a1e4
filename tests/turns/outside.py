"""A program of a user of `stayfast.turns`: test_pyright.py has pyright check it; nothing runs it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, assert_type

from stayfast.turns import (
    Agent,
    AgentResult,
    Answer,
    BreakerConfig,
    BreakerPolicy,
    Budget,
    CachedFunction,
    GatherResult,
    HedgePolicy,
    MissingResult,
    OutOfTime,
    Step,
    StepCancelled,
    StepFailed,
    StepSkipped,
    StepTimeout,
    ToolError,
    TurnRefused,
    TurnRequest,
    budget,
    charge,
    current_budget,
    remaining,
    step,
    tool,
)
from stayfast.turns.agui import AgUiEncoder
from stayfast.turns.asgi import with_budget
from stayfast.turns.events import (
    AnswerEvent,
    CitationEvent,
    DegradedEvent,
    DeltaEvent,
    FinalEvent,
    PatchEvent,
    PrefixEvent,
    ProgressEvent,
    SnapshotEvent,
    event_text,
    parse_last_event_id,
)
from stayfast.turns.http import deadline_headers, sdk_options
from stayfast.turns.model import Json, ModelReply, OnPiece
from stayfast.turns.model_speed import ModelSpeed, choose_model
from stayfast.turns.step_run import StepRun
from stayfast.turns.tools import AgentTool, ToolCallRequest

crm = BreakerPolicy(BreakerConfig())
searching = HedgePolicy(share=0.05)


async def find(question: str, top_k: int = 3) -> list[str]:
    """An async step."""
    return [question] * top_k


def look_up(customer: str) -> int:
    """A plain one."""
    charge(0.001)
    return len(customer)


pages = CachedFunction(find, ttl_s=60)


async def answer(asked: TurnRequest, a: Answer) -> None:
    """A turn that is served, with every kind of step."""
    if not asked.text:
        raise TurnRefused("ask something")
    a.write_prefix("Let me see. ")
    async with budget(total=2.5, reserve={"answer": 1.6}) as b:
        assert_type(await b.run(find, asked.text, name="kb", cap=0.4, hedge=searching), list[str])
        assert_type(await b.run(pages, asked.text, fallback=None), list[str] | None)
        assert_type(await b.run(look_up, "Ann", breaker=crm, fallback=""), int | str)
        one: Step = step(find, asked.text, cap=0.3)
        found = await b.gather(kb=one, web=find(asked.text), own=lambda: 1, need=1, by=0.6, late=asked.late)
        assert_type(found, GatherResult)
        assert_type(found.late, Mapping[str, StepRun])
        for name, straggler in found.late.items():
            a.put_later(name, straggler)
        why: MissingResult | None = found.missing.get("web")
        if why is not None:
            a.mark_degraded("web", why.reason)
        assert_type(current_budget(), Budget)
        assert_type(b.remaining() + remaining(), float)
        a.put("report", b.report())
        try:
            await b.run(find, asked.text)
        except (StepTimeout, StepSkipped, StepCancelled) as error:
            a.write(error.reason)
        except (StepFailed, OutOfTime):
            a.write("Too late.")


async def pieces(asked: TurnRequest) -> AsyncIterator[str]:
    """Another shape of it."""
    for message in asked.messages:
        yield message.text


@tool(timeout=0.8, idempotent=True, speculative=True, cache_ttl_s=60, cost=0.001)
async def weather(city: str, day: str = "today") -> str:
    """The weather in a city."""
    if not city:
        raise ToolError("which city?")
    return f"{city} {day}"


class Scripted:
    """A model."""

    async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                  max_tokens: int) -> ModelReply:
        """See `Model`."""
        if may_call:
            return ModelReply(calls=(ToolCallRequest("1", "weather", '{"city": "Bonn"}'),))
        on_piece("It rains.")
        return ModelReply("It rains.", n_tokens=3)


async def agent_turn() -> AgentResult:
    """An agent, and who reads its answer."""
    large = ModelSpeed("large")
    agent = Agent(Scripted(), [weather], speed=choose_model([large], 100, remaining(), 0.0))
    async with budget(total=4.0), Answer() as a:
        outcome = await agent.run([{"role": "user", "content": "Why?"}], a)
        assert_type(await weather("Bonn"), str)
        assert_type(await weather("Bonn", day="today"), str)
    async for event in a.read(after=parse_last_event_id("3"), late=True):
        seen(event)
    return outcome


def seen(event: AnswerEvent) -> str:
    """Every kind of event."""
    match event.payload:
        case PrefixEvent(text) | DeltaEvent(text):
            return text
        case ProgressEvent(stage, status):
            return stage + status
        case CitationEvent(source, start, end):
            return source if start is None or end is None else f"{source} {end - start}"
        case DegradedEvent(part, reason):
            return part + reason
        case PatchEvent(operations):
            return str(len(operations))
        case SnapshotEvent(text):
            return text
        case FinalEvent(how):
            return how + event_text(event)


def said(event: AnswerEvent) -> list[dict[str, Any]]:
    """In another protocol's words."""
    return AgUiEncoder("t", "r").encode(event)


@with_budget(total=4.0)
async def endpoint(question: str) -> str:
    """An endpoint of FastAPI."""
    options: dict[str, Any] = sdk_options()
    return question + str(len(options) + len(deadline_headers()))


tools: list[AgentTool[..., Any]] = [weather]
asyncio.run(agent_turn())
