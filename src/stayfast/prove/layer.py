"""What the budget layer costs: CPU of a step, and of a turn.

A step that returns at once is awaited through `Budget.run`, so that all of its time is the layer's: the Task, the timer, the
context, the row for the report. A turn is one that is entered and left, with a reserve; the cost of its steps comes on top.
CPU is the measuring thread's own; the least of many short stretches is what the code takes, as what others do on the machine
only ever adds.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import uvloop

from stayfast.prove.claim import Conditions, Figure, Finding, over
from stayfast.turns import budget

STEP_GOAL_US = 15.0
TURN_GOAL_US = 60.0
N_STEPS = 50
N_AT_ONCE = 8
TOTAL_S = 60.0  # longer than any pause of a collector in a large process: nothing is cut here
_TURNS_A_STRETCH = 20


@dataclass(frozen=True, slots=True)
class Layer:
    """See the module. Each round takes the least of `n_stretches`."""

    n_stretches: int = 200
    n_stretches_quick: int = 40
    n_rounds: int = 5

    name = "layer"
    says = (f"A step through the budget layer costs less than {STEP_GOAL_US:g} us of CPU, a turn beside its steps less than "
            f"{TURN_GOAL_US:g} us.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        n_stretches = self.n_stretches_quick if conditions.is_quick else self.n_stretches
        figures: list[Figure] = []
        for loop, runner in (("uvloop", uvloop.run), ("asyncio", asyncio.run)):
            conditions.say(loop)
            rounds = [await asyncio.to_thread(runner, _round(n_stretches)) for _ in range(self.n_rounds)]
            for name, values, goal in (("a step", [found[0] for found in rounds], STEP_GOAL_US),
                                       ("a step of eight at once", [found[1] for found in rounds], STEP_GOAL_US),
                                       ("a turn", [found[2] for found in rounds], TURN_GOAL_US)):
                median, low, high = over(values)
                figures.append(Figure(f"{loop}: CPU of {name}", median, "us", goal, low=low, high=high))
        return Finding(tuple(figures))


async def _round(n_stretches: int) -> tuple[float, float, float]:
    """Microseconds of a step, of one side by side with others, and of a turn."""
    turn_us = await _least_us(_empty, n_stretches)
    series_us = await _least_us(_series, n_stretches)
    parallel_us = await _least_us(_parallel, n_stretches)
    return (series_us - turn_us) / N_STEPS, (parallel_us - turn_us) / N_AT_ONCE, turn_us


async def _least_us(turn: Callable[[], Awaitable[None]], n_stretches: int) -> float:
    least_s = float("inf")
    for _ in range(n_stretches):
        began_s = time.thread_time()
        for _ in range(_TURNS_A_STRETCH):
            await turn()
        least_s = min(least_s, time.thread_time() - began_s)
    return least_s / _TURNS_A_STRETCH * 1e6


async def _empty() -> None:
    async with budget(TOTAL_S, {"answer": 1.6}):
        pass


async def _series() -> None:
    async with budget(TOTAL_S, {"answer": 1.6}) as b:
        for _ in range(N_STEPS):
            await b.run(_nothing)


async def _parallel() -> None:
    async with budget(TOTAL_S, {"answer": 1.6}) as b:
        await b.gather(a=_nothing(), b=_nothing(), c=_nothing(), d=_nothing(), e=_nothing(), f=_nothing(), g=_nothing(),
                       h=_nothing())


async def _nothing() -> None:
    pass
