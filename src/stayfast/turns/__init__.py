"""The budget layer: one deadline through retrieval, tools and the model, inside any framework.

    from stayfast.turns import budget

    async with budget(total=2.5, reserve={"answer": 1.6}) as b:
        found = await b.gather(kb=search(question), web=look_up(question), need=1, by=0.6)
        text = await b.run(answer, question, found.done)

Read `turns.budget` first, then `turns.answer` (partial answers and patches) and `turns.agent` (tools). Nothing here needs
the server's dependencies.
"""

from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.turns.agent import Agent, Outcome
from stayfast.turns.answer import Answer
from stayfast.turns.budget import Budget, OutOfTime, budget, charge, current, remaining
from stayfast.turns.cached import Cached
from stayfast.turns.function import Asked, Refused
from stayfast.turns.gather import Missing, Partial
from stayfast.turns.step import Breaker, Hedge, Step, StepCancelled, StepFailed, StepSkipped, StepTimeout, step
from stayfast.turns.tools import ToolError, tool

__all__ = ["Agent", "Answer", "Asked", "Breaker", "BreakerConfig", "Budget", "Cached", "Hedge", "Missing", "OutOfTime",
           "Outcome", "Partial", "Refused", "Step", "StepCancelled", "StepFailed", "StepSkipped", "StepTimeout",
           "ToolError", "budget", "charge", "current", "remaining", "step", "tool"]
