"""Seconds, dollars and counts: what is none is refused wherever one is given, by name, with what to write instead."""

import asyncio
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from stayfast.testing import SimLoop, run
from stayfast.turns import Agent, Answer, BreakerPolicy, CachedFunction, HedgePolicy, budget, charge, step, tool
from stayfast.turns.asgi import with_budget
from stayfast.turns.http import sdk_options
from stayfast.turns.mcp import mcp_tools
from stayfast.turns.model import ModelReply
from stayfast.turns.model_speed import ModelSpeed
from stayfast.turns.shared_store import open_shared_store
from tests.turns.rig import takes


class Silent:
    """A model."""

    async def generate(self, *_: Any, **__: Any) -> ModelReply:
        """Says nothing."""
        return ModelReply()


async def find(question: str) -> str:
    """A tool."""
    return question


def agent(**options: Any) -> Agent:
    """One of that model."""
    return Agent(Silent(), **options)


def opened(**options: Any) -> None:
    """A server that is never reached."""
    async def main() -> None:
        async with mcp_tools("http://127.0.0.1:9/mcp", **options):
            pytest.fail("it was opened")

    asyncio.run(main())


def cached(**options: Any) -> object:
    """A cache."""
    return CachedFunction(find, **{"ttl_s": 60, **options})


Takes = Callable[[Any], object]
SECONDS: list[tuple[str, Takes]] = [  # finite, above 0
    ("total=", budget), ("total=", with_budget), ("reserve=", lambda s: budget(5, {"answer": s})),
    ("cap=", lambda s: step(takes, 1, cap=s)), ("answer_s=", lambda s: agent(answer_s=s)),
    ("step_s=", lambda s: agent(step_s=s)), ("timeout=", lambda s: tool(timeout=s)(find)),
    ("ttft_s=", lambda s: ModelSpeed("large", ttft_s=s)), ("tokens_per_s=", lambda s: ModelSpeed("large", tokens_per_s=s)),
    ("timeout=", lambda s: sdk_options(timeout=s)), ("timeout=", lambda s: opened(timeout=s)),
    ("open_timeout=", lambda s: opened(open_timeout=s)),
    ("timeout_s=", lambda s: open_shared_store("found.db", timeout_s=s)),
    ("refresh_timeout_s=", lambda s: cached(refresh_timeout_s=s)), ("share=", HedgePolicy)]
AMOUNTS: list[tuple[str, Takes]] = [  # finite, 0 or more
    ("caller_timeout=", lambda s: budget(5, caller_timeout=s)), ("charge", charge),
    ("after_s=", lambda s: HedgePolicy(after_s=s)),
    ("cost=", lambda usd: tool(timeout=1, cost=usd)(find)), ("cache_ttl_s=", lambda s: tool(timeout=1, cache_ttl_s=s)(find)),
    ("ttl_s=", lambda s: cached(ttl_s=s)), ("stale_if_error_s=", lambda s: cached(stale_if_error_s=s)),
    ("stale_while_revalidate_s=", lambda s: cached(stale_while_revalidate_s=s))]
COUNTS: list[tuple[str, Takes]] = [
    ("max_steps=", lambda n: agent(max_steps=n)), ("max_calls=", lambda n: agent(max_calls=n)),
    ("max_tokens=", lambda n: agent(max_tokens=n)), ("max_events=", Answer),
    ("max_entries=", lambda n: cached(max_entries=n)),
    ("max_bytes=", lambda n: open_shared_store("found.db", max_bytes=n)),
    ("at_most=", lambda n: ModelSpeed("large").max_tokens(2.0, n, 0.0))]


@pytest.mark.parametrize("value", [True, nan, inf, -inf, -1, "1", "", [1], 1j])
@pytest.mark.parametrize(("says", "take"), [*SECONDS, *AMOUNTS])
def test_seconds_of_a_wrong_value_raise(says: str, take: Takes, value: Any) -> None:
    if says == "caller_timeout=" and value == inf:  # nobody says how long they wait
        take(value)
        return
    with pytest.raises(ValueError if type(value) in (int, float) else TypeError, match=says):
        take(value)


@pytest.mark.parametrize(("says", "take"), SECONDS)
def test_seconds_of_zero_raise(says: str, take: Takes) -> None:
    with pytest.raises(ValueError, match=says):
        take(0)


@pytest.mark.parametrize("value", [True, nan, 1.5, -1, "1", None])
@pytest.mark.parametrize(("says", "take"), COUNTS)
def test_count_of_a_wrong_value_raises(says: str, take: Takes, value: Any) -> None:
    with pytest.raises(ValueError if type(value) in (int, float) else TypeError, match=says):
        take(value)


WRONG: list[tuple[Takes, object, str]] = [
    (with_budget, None, r"as in @with_budget\(total=4\.0\)"), (with_budget, find, r"as in @with_budget\(total=4\.0\)"),
    (lambda n: budget(5, threads=n), 4, r"threads=4: .* threads=VirtualThreads\(\)"),
    (BreakerPolicy, 5, r"BreakerPolicy\(BreakerConfig\(consecutive_failures=3\)\)"),
    (lambda name: CachedFunction(name, ttl_s=5), "find", r"CachedFunction\(find, ttl_s=300\)"),
    (lambda key: cached(key=key), "question", "key='question'"), (lambda function: cached(should_cache=function), True,
                                                                  "should_cache=True"),
    (lambda function: tool(function, timeout=1), find, r"write @tool\(timeout=0\.8\) above the function"),
    (lambda one: agent(tools=[one]), find, r"is not a tool: write @tool\(timeout=0\.8\)"),
    (lambda one: agent(tools=one), 5, r"as in Agent\(model, \[weather, orders\]\)"),
    (lambda name: agent(speed=name), "large", r"speed=ModelSpeed\(\"large\""),
    (lambda breaker: tool(timeout=1, breaker=breaker)(find), True, "breaker=True"),
    (Answer().read, "3", r"a\.read\(after=parse_last_event_id\(header\)\)")]


@pytest.mark.parametrize(("take", "value", "says"), WRONG)
def test_argument_of_a_wrong_type_raises(take: Takes, value: object, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        take(value)


@pytest.mark.parametrize("messages", ["Why?", ["Why?"], {"role": "user"}])
def test_agent_messages_as_text_raise(messages: Any) -> None:
    async def main(_: SimLoop) -> None:
        async with budget(5):
            with pytest.raises(TypeError, match=r'agent\.run\(\[{"role": "user"'):
                await agent().run(messages)

    run(main)


def test_max_tokens_of_infinite_and_zero_time() -> None:
    assert ModelSpeed("large").max_tokens(inf, 800, 0.0) == 800
    assert ModelSpeed("large").max_tokens(-5.0, 800, 0.0) == 1
    with pytest.raises(ValueError, match=r"seconds=nan: .* max_tokens\(b\.remaining\(\), 800"):
        ModelSpeed("large").max_tokens(nan, 800, 0.0)
    quick = ModelSpeed("small")
    for _ in range(9):
        quick.record_answer(0.2, 0.2, 50, 0.0)  # all of it in one piece
    assert quick.max_tokens(1.0, 800, 0.0) == 800
