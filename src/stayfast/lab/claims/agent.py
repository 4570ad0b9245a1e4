"""An agent whose model never stops calling tools: each turn ends within its deadline, and with an answer.

The planning model requests one to four tools in every step. Now and then it hangs, fails, or ignores its cancellation. Of
ten tool calls one fails and one hangs. The answering model is erratic, too; if it hangs or fails, the words so far must be
returned. Most budgets are longer than two steps, some too short for any. In virtual time. One agent serves all turns, and
learns the duration of its steps.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from stayfast.lab.harness.claim import ClaimResult, Figure, Sense
from stayfast.lab.harness.virtual import VirtualClaim, leftover_tasks_figure, run_arrivals
from stayfast.lab.simulated import Mixture
from stayfast.testing.simloop import SimLoop
from stayfast.turns import budget
from stayfast.turns.agent import Agent
from stayfast.turns.answer import Answer
from stayfast.turns.budget import OutOfTime
from stayfast.turns.model import Json, ModelReply, OnPiece
from stayfast.turns.step import BreakerPolicy
from stayfast.turns.step_run import BODY_GRACE_S, CLEANUP_S
from stayfast.turns.tools import AgentTool, ToolCallRequest, ToolError, tool

PLAN_S, WRITE_S = Mixture(0.5, 0.5, 0.05, 3.0), Mixture(0.9, 0.4, 0.05, 3.0)  # durations of a step and of an answer
TOOL_CALL_S = Mixture(0.3, 0.8)
TOTALS_S = (1.0, 12.0)
ANSWER_S = 2.0
TOOL_TIMEOUT_S = 0.8
MAX_STEPS, MAX_CALLS = 6, 10
HANGS, FAILS, IGNORES_CANCEL = 0.05, 0.05, 0.03  # shares of the models' steps
FOREVER_S = 1e6
LINGERS_S = 1000.0  # longer than the longest step
TURNS_PER_S = 2.0
MIN_WHOLE = 0.7  # share of the answers: apologies alone would be in time, too
WORDS = ("It", " rains", " in", " the", " north,", " so", " take", " the", " bus.")


class EndlessPlanner:
    """A planning model that requests tools in every step."""

    def __init__(self, rng: Random, tool_names: Sequence[str]) -> None:
        self._rng = rng
        self._tool_names = tool_names

    async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                  max_tokens: int) -> ModelReply:
        rng = self._rng
        calls = tuple(ToolCallRequest(f"call_{len(messages)}_{n}", rng.choice(self._tool_names), "{}")
                      for n in range(rng.randint(1, 4)))
        on_piece(calls[0])
        await run_erratically(rng, PLAN_S)
        return ModelReply(calls=calls)


class WordWriter:
    """An answering model, which streams single words."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                  max_tokens: int) -> ModelReply:
        erratic_at = self._rng.randrange(len(WORDS))
        for n, word in enumerate(WORDS):
            if n == erratic_at:
                await run_erratically(self._rng, Mixture(0.01))
            on_piece(word)
            await asyncio.sleep(WRITE_S.draw(self._rng, 1.0) / len(WORDS))
        return ModelReply("".join(WORDS))


async def run_erratically(rng: Random, duration: Mixture) -> None:
    """A model's step: it finishes, hangs, fails, or continues for a while after its cancellation."""
    luck = rng.random()
    if luck < HANGS:
        await asyncio.sleep(FOREVER_S)
    if luck < HANGS + FAILS:
        raise ConnectionError
    seconds = duration.draw(rng, rng.random())
    if luck < HANGS + FAILS + IGNORES_CANCEL:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(seconds + 5.0)
        await asyncio.sleep(1.0)
    await asyncio.sleep(seconds)


def make_tool(rng: Random, n: int) -> AgentTool[..., Any]:
    """Every second tool is speculative."""
    async def find_entry() -> str:
        """Finds an entry."""
        luck = rng.random()
        await asyncio.sleep(FOREVER_S if luck < 0.1 else TOOL_CALL_S.draw(rng, 1.0))
        if luck > 0.9:
            raise ToolError("it is not there")
        return "found"

    find_entry.__name__ = f"find_entry_{n}"
    return tool(timeout=TOOL_TIMEOUT_S, idempotent=True, speculative=n % 2 == 0, breaker=BreakerPolicy(rng=rng))(find_entry)


@dataclass(slots=True)
class AgentRun:
    """latest_s, latest_word_s: the end of a turn and the last word of an answer, past the deadline."""

    n_answered: int = 0
    n_whole: int = 0
    n_apologies: int = 0
    latest_s: float = 0.0
    latest_word_s: float = 0.0
    max_steps: int = 0
    max_calls: int = 0
    n_steps: int = 0
    n_calls: int = 0


async def measure(loop: SimLoop, n: int, seed: int) -> ClaimResult:
    rng, seen = Random(seed), AgentRun()
    tools = [make_tool(rng, number) for number in range(6)]
    agent = Agent(WordWriter(rng), tools, plan=EndlessPlanner(rng, [each.name for each in tools]), answer_s=ANSWER_S,
                  max_steps=MAX_STEPS, max_calls=MAX_CALLS)
    agent.planning = BreakerPolicy(rng=rng)
    await run_arrivals(n, TURNS_PER_S, rng, lambda _: _run_turn(agent, rng.uniform(*TOTALS_S), loop, seen))
    await asyncio.sleep(LINGERS_S)  # until the steps that ignored their cancellation have ended
    note = (f"{seen.n_steps:,} steps and {seen.n_calls:,} calls; {seen.n_whole:,} answers were whole, "
            f"{seen.n_apologies:,} only reported that there was no time.")
    return ClaimResult((
        Figure.count("turns that ended with an answer", seen.n_answered, float(n), Sense.AT_LEAST),
        Figure.exact("latest end of a turn, past its deadline", seen.latest_s * 1e3, "ms", (BODY_GRACE_S + CLEANUP_S) * 1e3),
        Figure.exact("latest word of an answer, past its deadline", seen.latest_word_s * 1e3, "ms", BODY_GRACE_S * 1e3),
        Figure.count("most planning steps of a turn", seen.max_steps, float(MAX_STEPS)),
        Figure.count("most calls of a turn", seen.max_calls, float(MAX_CALLS)),
        Figure.share("answers that were whole", seen.n_whole, n, MIN_WHOLE, Sense.AT_LEAST),
        leftover_tasks_figure()), (note,))


AGENT = VirtualClaim(
    "agent", f"An agent whose model never stops calling tools ends within {(BODY_GRACE_S + CLEANUP_S) * 1e3:g} ms of "
    f"its deadline and with an answer, 1,000 times of 1,000. At least {MIN_WHOLE:.0%} of the answers are whole.",
    measure, "{:,} turns in virtual time", 1000, 1000)


async def _run_turn(agent: Agent, total_s: float, loop: SimLoop, seen: AgentRun) -> None:
    deadline_at = loop.now() + total_s
    a = Answer()
    with suppress(OutOfTime):  # a turn without an answer
        async with budget(total_s), a:
            outcome = await agent.run([{"role": "user", "content": "How do I get there?"}], a)
            seen.latest_word_s = max(seen.latest_word_s, loop.now() - deadline_at)
        seen.n_answered += bool(outcome.text) and outcome.text == a.text
        seen.n_whole += outcome.outcome == "ok"
        seen.n_apologies += outcome.outcome == "apology"
        seen.max_steps = max(seen.max_steps, outcome.n_steps)
        seen.max_calls = max(seen.max_calls, outcome.n_calls)
        seen.n_steps += outcome.n_steps
        seen.n_calls += outcome.n_calls
    seen.latest_s = max(seen.latest_s, loop.now() - deadline_at)
