"""The budget layer: one deadline for retrieval, tools and the model, inside any framework.

    from stayfast.turns import budget

    async with budget(total=2.5, reserve={"answer": 1.6}) as b:
        found = await b.gather(kb=search(question), web=look_up(question), need=1, by=0.6)
        text = await b.run(answer, question, found.done)

Start with `turns.budget`, then `turns.answer` (partial answers and patches) and `turns.agent` (tools). Needs none of the
server's dependencies.
"""

from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.turns.agent import Agent, AgentResult
from stayfast.turns.answer import Answer
from stayfast.turns.budget import Budget, OutOfTime, budget, charge, current_budget, remaining
from stayfast.turns.cached import CachedFunction
from stayfast.turns.function import TurnRefused, TurnRequest
from stayfast.turns.gather import GatherResult, MissingResult
from stayfast.turns.step import (
    BreakerPolicy,
    HedgePolicy,
    Step,
    StepCancelled,
    StepFailed,
    StepSkipped,
    StepTimeout,
    step,
)
from stayfast.turns.tools import ToolError, tool

__all__ = ["Agent", "AgentResult", "Answer", "BreakerConfig", "BreakerPolicy", "Budget", "CachedFunction", "GatherResult",
           "HedgePolicy", "MissingResult", "OutOfTime", "Step", "StepCancelled", "StepFailed", "StepSkipped", "StepTimeout",
           "ToolError", "TurnRefused", "TurnRequest", "budget", "charge", "current_budget", "remaining", "step", "tool"]
