"""Agents: the calls, the order of their results, steps that hang, and that every run ends with an answer."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from stayfast.testing import SimLoop, run
from stayfast.turns import BreakerConfig, BreakerPolicy, budget
from stayfast.turns.agent import APOLOGY, Agent, AgentResult
from stayfast.turns.answer import Answer
from stayfast.turns.model import Json, ModelReply, OnPiece
from stayfast.turns.model_speed import ModelSpeed
from stayfast.turns.tools import ToolCallRequest, ToolError, tool
from tests.turns.agents import Scripted, breaks, calls, fails, hangs, quick

ASK = [{"role": "user", "content": "What is the weather?"}]


def turn(agent: Agent, total_s: float = 10.0, a: Answer | None = None) -> tuple[AgentResult, float, str]:
    """One turn: what came of it, when, and its waterfall."""
    async def main(loop: SimLoop) -> tuple[AgentResult, float, str]:
        async with budget(total_s) as b, a or Answer() as writing:
            outcome = await agent.run(ASK, writing)
        return outcome, loop.now(), b.report()

    return run(main)


def results(outcome: AgentResult) -> list[dict[str, Any]]:
    """What the model was told of its calls."""
    return [json.loads(message["content"]) for message in outcome.messages if message["role"] == "tool"]


def test_agent_tools_run_concurrently_with_results_in_call_order() -> None:
    """Each has its own timeout. Of an exception the model gets the class, of a ToolError the message."""
    small = Scripted([calls("hangs", "quick", "fails", "breaks", "none"), ModelReply("enough")])
    large = Scripted([ModelReply("It rains today.")])
    outcome, ended_at, report = turn(Agent(large, [quick, hangs, fails, breaks], plan=small))
    assert (outcome.text, outcome.outcome, outcome.stopped_by) == ("It rains today.", "ok", "answer")
    assert ended_at == pytest.approx(0.2 + 0.8 + 0.2 + 0.2)
    assert results(outcome) == [
        {"status": "timeout", "elapsed_ms": 800}, {"status": "ok", "elapsed_ms": 100, "result": "quick"},
        {"status": "error", "elapsed_ms": 50, "error": "there is no such city"},
        {"status": "error", "elapsed_ms": 0, "error": "LookupError"},
        {"status": "error", "error": "there is no such tool; there are quick, hangs, fails, breaks"}]
    assert [message.get("tool_call_id") for message in outcome.messages][2:7] == [f"call_{n}" for n in range(5)]
    assert outcome.missing == {"hangs": "timeout", "fails": "error", "breaks": "error", "none": "error"}
    assert (outcome.n_steps, outcome.n_calls) == (2, 4)
    assert [one["may_call"] for one in (*small.asked, *large.asked)] == [True, True, False]
    assert outcome.messages[-1] == {"role": "assistant", "content": "It rains today."}
    assert "plan 1" in report


def test_agent_model_that_never_stops_calling_is_bounded() -> None:
    """After two rounds it must answer; calls above the limit are cancelled."""
    endless = Scripted([calls("quick", "quick", "quick")])
    outcome, _, _ = turn(Agent(Scripted([ModelReply("Done.")]), [quick], plan=endless, max_calls=5))
    assert (outcome.text, outcome.stopped_by, outcome.n_steps, outcome.n_calls) == ("Done.", "steps", 2, 5)
    assert [result["status"] for result in results(outcome)] == ["ok"] * 5 + ["cancelled"]
    assert "no more calls" in results(outcome)[-1]["error"]


def test_agent_planning_step_that_does_not_fit_is_not_started() -> None:
    """By the 95th percentile of recent steps, before the reserve of the answer."""
    slow = Scripted([calls("quick")], takes_s=0.9)
    agent = Agent(Scripted([ModelReply("Done.")]), [quick], plan=slow, answer_s=1.0, step_s=0.05, max_steps=50)

    async def main(_: SimLoop) -> list[AgentResult]:
        outcomes: list[AgentResult] = []
        while len(outcomes) < 4:
            async with budget(4.1):
                outcomes.append(await agent.run(ASK))
        return outcomes

    first, *_, last = run(main)
    assert (first.stopped_by, first.n_steps) == ("failed", 4)  # the fourth was begun, and cut off
    assert (last.stopped_by, last.n_steps) == ("time", 3)
    assert agent.step_s(20.0) == pytest.approx(0.9, rel=0.1)
    assert last.outcome == "ok"


@pytest.mark.parametrize(("plan", "large", "text", "how", "ended_at"), [
    (Scripted([LookupError()]), Scripted([ModelReply("Well.")]), "Well.", "ok", 0.4),
    (Scripted([ModelReply()], takes_s=1000), Scripted([ModelReply("Well.")]), "Well.", "ok", 2.7),
    (Scripted([ModelReply()]), Scripted([LookupError("sk-secret")]), APOLOGY, "apology", 0.4),
    (Scripted([ModelReply()]), Scripted([ModelReply()], takes_s=1000), APOLOGY, "apology", 4.0),
    (Scripted([ModelReply()]), Scripted([calls("quick")]), APOLOGY, "apology", 0.4),
    (Scripted([ModelReply()]), Scripted([ModelReply("a b c d e f g h")], takes_s=8.0), "a b c", "cut", 4.0)])
def test_agent_failing_models_still_gives_an_answer(plan: Scripted, large: Scripted, text: str, how: str,
                                                   ended_at: float) -> None:
    """Models that fail, hang, are silent, call without permission, or are too slow."""
    plan.asked.clear()
    a = Answer()
    outcome, at, _ = turn(Agent(large, [quick], plan=plan), 4.0, a)
    assert (outcome.text, outcome.outcome) == (text, how)
    assert at == pytest.approx(ended_at, abs=0.006)
    assert a.text == text
    assert "secret" not in repr(outcome)


def test_agent_failing_planner_is_skipped_by_its_breaker() -> None:
    """After five failures in a row the answer comes at once."""
    agent = Agent(Scripted([ModelReply("Well.")]), [quick], plan=Scripted([], takes_s=0.5))

    async def main(loop: SimLoop) -> list[tuple[str, float]]:
        came = []
        for number in range(7):
            agent.plan = Scripted([ConnectionError() if number % 2 else ModelReply()], takes_s=0.5 if number % 2 else 1000)
            began_at = loop.now()
            async with budget(4.0):
                outcome = await agent.run(ASK)
            came.append((outcome.missing["plan"], round(loop.now() - began_at, 1)))
        return came

    assert run(main) == [("timeout", 2.7), ("failed", 0.7)] * 2 + [("timeout", 2.7)] + [("unavailable", 0.2)] * 2


def test_agent_single_model_answers_without_a_second_call() -> None:
    """Its text without calls is the answer, streamed."""
    model = Scripted([calls("quick"), ModelReply("It is quick.")])
    a = Answer()
    outcome, ended_at, _ = turn(Agent(model, [quick]), a=a)
    assert (outcome.text, outcome.stopped_by, len(model.asked)) == ("It is quick.", "answer", 2)
    assert ended_at == pytest.approx(0.5)

    async def names() -> list[str]:
        return [f"{event.payload.name} {getattr(event.payload, 'status', '')}".strip() async for event in a.read()]

    assert asyncio.run(names()) == ["progress begun", "progress ok", "delta", "delta", "delta", "final"]
    assert turn(Agent(Scripted([ModelReply("Hi.")])))[0].stopped_by == "none"


def test_agent_speculative_tool_starts_while_the_model_writes() -> None:
    """Once, when its arguments are complete; calls that were not requested in the end are cancelled and counted."""
    began_at: list[tuple[str, float]] = []

    @tool(timeout=1.0, idempotent=True, speculative=True, cost=0.5)
    async def look(what: str) -> str:
        """Looks something up."""
        began_at.append((what, asyncio.get_running_loop().time()))
        await asyncio.sleep(0.3)
        return what

    @tool(timeout=1.0)
    async def change(what: str) -> str:
        """Changes something."""
        began_at.append((what, asyncio.get_running_loop().time()))
        return what

    wanted = calls("look", "change", look='{"what":"a"}', change='{"what":"b"}')
    planning = Scripted([wanted, ModelReply()], takes_s=1.0, tells_early=True)
    outcome, ended_at, report = turn(Agent(Scripted([ModelReply("Done.")]), [look, change], plan=planning))
    assert began_at == [("a", 0.0), ("b", 1.0)]
    assert ended_at == pytest.approx(2.2)
    assert (outcome.n_calls, outcome.n_wasted) == (2, 0)
    assert [result["result"] for result in results(outcome)] == ["a", "b"]
    assert "$0.5" in report

    class Fickle(Scripted):
        async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                      max_tokens: int) -> ModelReply:
            on_piece(ToolCallRequest("x", "look", '{"what":"c"}'))
            await asyncio.sleep(0.1)
            return ModelReply("never mind")

    outcome, _, _ = turn(Agent(Scripted([ModelReply("Done.")]), [look], plan=Fickle([])))
    assert (outcome.n_wasted, outcome.n_calls, began_at[-1]) == (1, 1, ("c", 0.0))


def test_agent_failing_tool_returns_its_cached_result() -> None:
    """The model gets the status stale."""
    is_down = False
    n_calls = 0

    @tool(timeout=0.5, idempotent=True, cache_ttl_s=60.0, breaker=BreakerPolicy(BreakerConfig(open_s=86_400)))
    async def rate(currency: str) -> float:
        """The rate of a currency."""
        nonlocal n_calls
        n_calls += 1
        await asyncio.sleep(0.1)
        if is_down:
            raise ConnectionError
        return 1.1

    async def main(_: SimLoop) -> list[list[dict[str, Any]]]:
        nonlocal is_down
        said = []
        for number in range(9):
            arguments = ' {"currency": "EUR"}' if number % 2 else '{"currency":"EUR"}'
            agent = Agent(Scripted([ModelReply("Done.")]), [rate],
                          plan=Scripted([calls("rate", rate=arguments), ModelReply()]))
            async with budget(10.0):
                said.append(results(await agent.run(ASK)))
            if number:
                is_down = True
                await asyncio.sleep(100)
        return said

    said = run(main)
    ok = {"status": "ok", "elapsed_ms": 100, "result": 1.1}
    assert said[:2] == [[ok], [ok | {"elapsed_ms": 0}]]
    assert said[2] == [{"status": "stale", "elapsed_ms": 100, "why": "error", "result": 1.1}]
    assert said[-1] == [{"status": "stale", "elapsed_ms": 0, "why": "unavailable", "result": 1.1}]
    assert n_calls == 6


def test_agent_max_tokens_fit_the_time_left() -> None:
    """By the learned speed of the model."""
    large, pace = Scripted([ModelReply("a b c d", n_tokens=4)], takes_s=0.4), ModelSpeed("large", ttft_s=0.5,
                                                                                         tokens_per_s=100)
    agent = Agent(large, speed=pace, max_tokens=800)
    assert turn(agent, 2.5)[0].outcome == "ok"
    assert large.asked[0]["max_tokens"] == pytest.approx(200, abs=1)
    for _ in range(6):
        turn(agent, 2.5)
    assert large.asked[-1]["max_tokens"] == pytest.approx((2.5 - 0.1) / 0.1, abs=2)


def test_agent_cancelled_turn_cancels_models_and_tools() -> None:
    """No task is left."""
    async def main(loop: SimLoop) -> None:
        agent = Agent(Scripted([ModelReply("Done.")]), [hangs], plan=Scripted([calls("hangs")]))

        async def ask() -> None:
            async with budget(10.0):
                await agent.run(ASK)

        for after_s in (0.1, 0.5):
            task = loop.create_task(ask())
            await asyncio.sleep(after_s)
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_agent_tool_named_answer_does_not_get_the_reserve() -> None:
    @tool(timeout=10)
    async def answer() -> str:
        """Hangs."""
        await asyncio.sleep(1000)
        return "never"

    outcome, ended_at, report = turn(Agent(Scripted([ModelReply("Well.")]), [answer], plan=Scripted([calls("answer")])), 4.0)
    assert (outcome.text, outcome.outcome, outcome.missing["answer"]) == ("Well.", "ok", "timeout")
    assert ended_at == pytest.approx(2.7)
    assert "answer (tool)" in report


def test_agent_lone_surrogates_are_replaced() -> None:
    """In texts and names from tools and models, so that messages can be encoded."""
    @tool(timeout=1)
    async def cut() -> str:
        """Says why not."""
        raise ToolError("no \ud83d")

    a = Answer()
    odd = ModelReply("so \ud83d", (ToolCallRequest("1\ud83d", "cut", ""), ToolCallRequest("2", "no\ud83d", "{"),
                                   ToolCallRequest("3", "cut", '{"\ud83d": 1}')))
    outcome, _, _ = turn(Agent(Scripted([ModelReply("Well \ud83d")]), [cut], plan=Scripted([odd, ModelReply()])), a=a)
    assert (outcome.text, outcome.outcome, a.text) == ("Well ?", "ok", "Well ?")
    assert json.dumps(outcome.messages, ensure_ascii=False).encode()
    assert results(outcome)[0]["error"] == "no ?"
    assert outcome.missing == {"cut": "error", "no?": "error"}

    async def told() -> bytes:
        return b"".join([event.sse() async for event in a.read()])

    assert b"no?" in asyncio.run(told())


NAME: Any = "large"


class Nothing:
    """A model that forgot to return."""

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        """See `Model`."""


@pytest.mark.parametrize(("wrong", "why"), [
    (lambda: Agent(Scripted([]), [quick, quick]), "two tools have the same name"),
    (lambda: Agent(Scripted([]), answer_s=0), "answer_s=0"),
    (lambda: Agent(NAME), r"'large' is not a model: .* ChatModel\(client, \"large\"\)"),
    (lambda: Agent(Scripted([]), plan=NAME), "'large' is not a model"),
    (lambda: Agent(Scripted([]), max_steps=-1), "max_steps=-1: an integer, 0 or more"),
    (lambda: asyncio.run(Agent(Scripted([])).run(ASK)), r"write budget\(total=2.5\)"),
    (lambda: turn(Agent(Nothing())), r"Nothing.generate returned a NoneType: return ModelReply\(text, calls\)")])
def test_agent_wrong_use_raises_with_the_correction(wrong: Callable[[], Awaitable[object]], why: str) -> None:
    with pytest.raises((ValueError, RuntimeError, TypeError), match=why):
        wrong()
