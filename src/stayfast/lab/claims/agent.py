"""A model that would call tools for ever: each of its turns ends within the deadline, and with an answer.

The planning model asks for one to four tools in every step; now and then it hangs, fails, or refuses to be cancelled. Of
each ten calls of tools one fails and one hangs. The answering model is jagged, too; where it hangs or fails the words so far
must be given. Most budgets are longer than two steps, some too short for any. In virtual time; one agent for all turns,
which learns how long its steps take.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from stayfast.lab.harness.claim import Figure, Finding, Sense
from stayfast.lab.harness.virtual import VirtualClaim, arrive
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

PLANS, WRITES = Mixture(0.5, 0.5, 0.05, 3.0), Mixture(0.9, 0.4, 0.05, 3.0)  # seconds of a step, of an answer
TAKES = Mixture(0.3, 0.8)  # of a tool
TOTALS_S = (1.0, 12.0)
ANSWER_S = 2.0
TOOL_S = 0.8
MAX_STEPS, MAX_CALLS = 6, 10
HANGS, FAILS, REFUSES = 0.05, 0.05, 0.03  # of the models' steps
FOREVER_S = 1e6
LINGERS_S = 1000.0  # longer than any step that was drawn
TURNS_A_S = 2.0
WORDS = ("It", " rains", " in", " the", " north,", " so", " take", " the", " bus.")


class Endless:
    """The model that plans: it always wants more."""

    def __init__(self, rng: Random, names: Sequence[str]) -> None:
        self._rng = rng
        self._names = names

    async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                  max_tokens: int) -> ModelReply:
        rng = self._rng
        calls = tuple(ToolCallRequest(f"call_{len(messages)}_{n}", rng.choice(self._names), "{}")
                      for n in range(rng.randint(1, 4)))
        on_piece(calls[0])
        await jagged(rng, PLANS)
        return ModelReply(calls=calls)


class WordWriter:
    """The model that answers, word by word."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    async def generate(self, messages: Sequence[Json], tools: Sequence[Json], on_piece: OnPiece, *, may_call: bool,
                  max_tokens: int) -> ModelReply:
        bad = self._rng.randrange(len(WORDS))
        for n, word in enumerate(WORDS):
            if n == bad:
                await jagged(self._rng, Mixture(0.01))
            on_piece(word)
            await asyncio.sleep(WRITES.draw(self._rng, 1.0) / len(WORDS))
        return ModelReply("".join(WORDS))


async def jagged(rng: Random, takes: Mixture) -> None:
    """A model's step: it takes its time, hangs, fails, or goes on for a while when it is cancelled."""
    luck = rng.random()
    if luck < HANGS:
        await asyncio.sleep(FOREVER_S)
    if luck < HANGS + FAILS:
        raise ConnectionError
    seconds = takes.draw(rng, rng.random())
    if luck < HANGS + FAILS + REFUSES:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(seconds + 5.0)
        await asyncio.sleep(1.0)
    await asyncio.sleep(seconds)


def made_tool(rng: Random, n: int) -> AgentTool[..., Any]:
    """One tool; every second one may be begun early."""
    async def look_up() -> str:
        """Looks something up."""
        luck = rng.random()
        await asyncio.sleep(FOREVER_S if luck < 0.1 else TAKES.draw(rng, 1.0))
        if luck > 0.9:
            raise ToolError("it is not there")
        return "found"

    look_up.__name__ = f"look_up_{n}"
    return tool(timeout=TOOL_S, idempotent=True, speculative=n % 2 == 0, breaker=BreakerPolicy(rng=rng))(look_up)


@dataclass(slots=True)
class AgentRun:
    n_answered: int = 0
    n_whole: int = 0
    n_apologies: int = 0
    latest_s: float = 0.0  # the end of a turn, past its deadline
    latest_word_s: float = 0.0  # the last word of an answer, past its deadline
    most_steps: int = 0
    most_calls: int = 0
    n_steps: int = 0
    n_calls: int = 0


async def play(loop: SimLoop, n: int, seed: int) -> Finding:
    rng, seen = Random(seed), AgentRun()
    tools = [made_tool(rng, number) for number in range(6)]
    agent = Agent(WordWriter(rng), tools, plan=Endless(rng, [each.name for each in tools]), answer_s=ANSWER_S,
                  max_steps=MAX_STEPS, max_calls=MAX_CALLS)
    agent.planning = BreakerPolicy(rng=rng)
    await arrive(n, TURNS_A_S, rng, lambda _: _turn(agent, rng.uniform(*TOTALS_S), loop, seen))
    await asyncio.sleep(LINGERS_S)  # what refused to be cancelled ends by itself
    n_left = len(asyncio.all_tasks()) - 1
    note = (f"{seen.n_steps:,} steps and {seen.n_calls:,} calls; {seen.n_whole:,} answers were whole, "
            f"{seen.n_apologies:,} only said that there was no time.")
    return Finding((
        Figure("turns that ended with an answer", float(seen.n_answered), "", float(n), Sense.AT_LEAST),
        Figure("latest end of a turn, past its deadline", seen.latest_s * 1e3, "ms", (BODY_GRACE_S + CLEANUP_S) * 1e3),
        Figure("latest word of an answer, past its deadline", seen.latest_word_s * 1e3, "ms", BODY_GRACE_S * 1e3),
        Figure("most planning steps of a turn", float(seen.most_steps), "", float(MAX_STEPS)),
        Figure("most calls of a turn", float(seen.most_calls), "", float(MAX_CALLS)),
        Figure("answers that were whole", seen.n_whole / n * 100, "%", 70.0, Sense.AT_LEAST),
        Figure("Tasks left behind", float(n_left), "", 0.0)), (note,))


AGENT = VirtualClaim(
    "agent", "An agent whose model would call tools for ever ends within its deadline and with an answer, 1,000 times of "
    "1,000.", play, "{:,} turns in virtual time", 1000, 1000)


async def _turn(agent: Agent, total_s: float, loop: SimLoop, seen: AgentRun) -> None:
    deadline_at = loop.now() + total_s
    a = Answer()
    with suppress(OutOfTime):  # a turn without an answer
        async with budget(total_s), a:
            outcome = await agent.run([{"role": "user", "content": "How do I get there?"}], a)
            seen.latest_word_s = max(seen.latest_word_s, loop.now() - deadline_at)
        seen.n_answered += bool(outcome.text) and outcome.text == a.text
        seen.n_whole += outcome.outcome == "ok"
        seen.n_apologies += outcome.outcome == "apology"
        seen.most_steps = max(seen.most_steps, outcome.n_steps)
        seen.most_calls = max(seen.most_calls, outcome.n_calls)
        seen.n_steps += outcome.n_steps
        seen.n_calls += outcome.n_calls
    seen.latest_s = max(seen.latest_s, loop.now() - deadline_at)
