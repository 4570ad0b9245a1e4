"""Tools: the description of a function for the model, wrong arguments, long results, and wrong use."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.testing import SimLoop, VirtualThreads, run
from stayfast.turns import budget, tool
from stayfast.turns.step import Step
from stayfast.turns.tools import MAX_RESULT_CHARS, AgentTool, ToolError


@tool(timeout=1.0, cost=0.25)
async def weather(city: str, *, day: Literal["today", "tomorrow"] = "today", n_hours: int | None = None) -> dict[str, Any]:
    """The weather in a city."""
    return {"city": city, "day": day, "n_hours": n_hours}


def called(one: AgentTool[..., Any], arguments: str) -> dict[str, Any]:
    """What the model is told of one call."""
    async def main(_: SimLoop) -> dict[str, Any]:
        async with budget(5.0, threads=VirtualThreads()) as b:
            running = b.start_step(one.build_step(arguments), one.name)
            if not running.is_done:
                await running.done_future()
            return one.describe_result(arguments, running) | {"cost": b.cost_usd}

    return run(main)


def test_tool_description_is_name_docstring_and_schema() -> None:
    assert weather.as_function() == {"type": "function", "function": {
        "name": "weather", "description": "The weather in a city.", "parameters": {
            "type": "object", "required": ["city"], "additionalProperties": False, "properties": {
                "city": {"type": "string"}, "day": {"enum": ["today", "tomorrow"], "default": "today"},
                "n_hours": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}}}}}

    async def main(_: SimLoop) -> dict[str, Any]:
        return await weather("Bonn", n_hours=3)

    assert run(main) == {"city": "Bonn", "day": "today", "n_hours": 3}


def test_tool_call_with_defaults_and_cost() -> None:
    assert called(weather, ' {"city": "Bonn"} ') == {
        "status": "ok", "elapsed_ms": 0, "result": {"city": "Bonn", "day": "today", "n_hours": None}, "cost": 0.25}


@pytest.mark.parametrize(("arguments", "why"), [
    ('{"city": 1}', r"Expected `str`, got `int` - at `\$.city`"), ("{}", "missing required field `city`"),
    ('{"city": "a", "when": 1}', "unknown field `when`"), ('{"city": ', "truncated"), ("[]", "Expected `object`"),
    ('{"city": "a", "day": "once"}', "Invalid enum value"), ('"\ud83d"', "surrogates"), ("[" * 9000, "wrong arguments")])
def test_tool_wrong_arguments_raise_tool_error(arguments: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        weather.build_step(arguments)


@given(st.text(max_size=30))
def test_tool_any_arguments_give_a_step_or_tool_error(arguments: str) -> None:
    made: object = None
    with suppress(ToolError):
        made = weather.build_step(arguments)
    assert made is None or isinstance(made, Step)


def test_tool_plain_function_runs_in_a_thread() -> None:
    @tool(timeout=1.0, cost=0.5)
    def blocking() -> str:
        """Blocks."""
        return threading.current_thread().name

    async def main() -> dict[str, Any]:
        async with budget(5.0) as b:
            running = b.start_step(blocking.build_step(""), "blocking")
            await running.done_future()
            return blocking.describe_result("", running) | {"cost": b.cost_usd}

    result = asyncio.run(main())
    assert (result["status"], result["result"], result["cost"]) == ("ok", "stayfast-step-blocking", 0.5)


def test_tool_long_result_is_cut_and_non_json_is_an_error() -> None:
    @tool(timeout=1.0)
    async def reads(n: int) -> Any:
        """Reads."""
        return "x" * n if n >= 0 else object()

    assert len(called(reads, f'{{"n": {MAX_RESULT_CHARS}}}')["result"]) == MAX_RESULT_CHARS
    long = called(reads, '{"n": 1000000}')
    assert (len(long["result"]), long["cut"]) == (MAX_RESULT_CHARS, "the first 20000 of 1000000 characters")
    assert called(reads, '{"n": -1}')["error"] == "its result cannot be encoded as JSON"


async def silent(city: str) -> None:
    pass


async def untyped(city: str) -> None:
    """Has a parameter without a type."""


untyped.__annotations__.clear()


async def many(*cities: str) -> None:
    """Takes any number."""


def plain(city: str) -> None:
    """Is no async function."""


@pytest.mark.parametrize(("wrong", "why"), [
    (lambda: tool(timeout=1)(silent), "has no docstring"),
    (lambda: tool(timeout=1)(untyped), "annotate the type of city, as in city: str"),
    (lambda: tool(timeout=1)(many), "cities must be a keyword parameter"),
    (lambda: tool(timeout=0)(plain), "timeout=0"),
    (lambda: tool(timeout=1, cost=-1)(plain), "cost"),
    (lambda: tool(timeout=1, speculative=True)(plain), "set idempotent=True"),
    (lambda: tool(timeout=1, idempotent=True, cache_ttl_s=9)(plain), "cache_ttl_s needs an async function")])
def test_tool_wrong_use_raises_with_the_correction(wrong: Callable[[], object], why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        wrong()
