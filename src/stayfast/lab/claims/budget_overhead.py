"""The cost of the budget layer: CPU of a step, and of a turn.

A step that returns at once is awaited through `Budget.run`, so that all of its time is the layer's. A turn is one that is
entered and left, with a reserve; the cost of its steps comes on top. CPU is the measuring thread's own; the least of many
short stretches is what the code takes, as what others do on the machine only ever adds.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import uvloop

from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, figure_of_rounds
from stayfast.turns import budget

STEP_GOAL_US = 15.0
TURN_GOAL_US = 60.0
N_STEPS = 50
N_AT_ONCE = 8
TOTAL_S = 60.0  # longer than any pause of a collector in a large process: nothing is cut here
_TURNS_A_STRETCH = 20


@dataclass(frozen=True, slots=True)
class BudgetOverhead:
    """n of an extent: stretches; each round takes the least of them."""

    full: Extent = Extent(200, n_rounds=5)
    quick: Extent = Extent(40, n_rounds=5)

    name = "layer"
    says = (f"A step through the budget layer costs less than {STEP_GOAL_US:g} us of CPU, a turn beside its steps less than "
            f"{TURN_GOAL_US:g} us.")

    async def run(self, conditions: Conditions) -> Finding:
        extent = conditions.choose(self.full, self.quick)
        figures: list[Figure] = []
        for loop, runner in (("uvloop", uvloop.run), ("asyncio", asyncio.run)):
            conditions.report_progress(loop)
            rounds = [await asyncio.to_thread(runner, _round(extent.n)) for _ in range(extent.n_rounds)]
            steps_us, parallel_us, turns_us = zip(*rounds, strict=True)
            figures += [figure_of_rounds(f"{loop}: CPU of a step", steps_us, "us", STEP_GOAL_US),
                        figure_of_rounds(f"{loop}: CPU of a step of eight at once", parallel_us, "us", STEP_GOAL_US),
                        figure_of_rounds(f"{loop}: CPU of a turn", turns_us, "us", TURN_GOAL_US)]
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
