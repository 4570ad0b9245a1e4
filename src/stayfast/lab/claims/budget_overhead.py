"""The cost of the budget layer: CPU of a step, and of a turn.

The measured step returns at once, so that its whole CPU time is the layer's. A turn is entered and left, with a reserve; the
cost of its steps is extra. CPU time is that of the measuring thread. Other load on the machine can only add to it, so the
minimum of many short stretches is the cost of the code.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import uvloop

from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure
from stayfast.turns import budget

STEP_GOAL_US = 15.0
TURN_GOAL_US = 60.0
N_STEPS = 50
N_AT_ONCE = 8
TOTAL_S = 60.0  # longer than any garbage collection in a large process: no step is cut off
_TURNS_PER_STRETCH = 20


@dataclass(frozen=True, slots=True)
class BudgetOverhead:
    """n of an extent: stretches per round."""

    full: Extent = Extent(200, n_rounds=6)
    quick: Extent = Extent(40, n_rounds=6)

    name = "layer"
    statement = (f"A step through the budget layer takes less than {STEP_GOAL_US:g} us of CPU, a turn without its steps "
                 f"less "
            f"than {TURN_GOAL_US:g} us.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent = conditions.choose(self.full, self.quick)
        figures: list[Figure] = []
        for loop, runner in (("uvloop", uvloop.run), ("asyncio", asyncio.run)):
            conditions.report_progress(loop)
            rounds = [await asyncio.to_thread(runner, _measure_round(extent.n)) for _ in range(extent.n_rounds)]
            steps_us, parallel_us, turns_us = zip(*rounds, strict=True)
            figures += [Figure.of_rounds(f"{loop}: CPU of a step", steps_us, "us", STEP_GOAL_US),
                        Figure.of_rounds(f"{loop}: CPU of a step of eight at once", parallel_us, "us", STEP_GOAL_US),
                        Figure.of_rounds(f"{loop}: CPU of a turn", turns_us, "us", TURN_GOAL_US)]
        return ClaimResult(tuple(figures))


async def _measure_round(n_stretches: int) -> tuple[float, float, float]:
    """Microseconds of a step in sequence, of a parallel step, and of a turn."""
    turn_us = await _min_turn_us(_run_empty_turn, n_stretches)
    sequence_us = await _min_turn_us(_run_sequence, n_stretches)
    parallel_us = await _min_turn_us(_run_parallel, n_stretches)
    return (sequence_us - turn_us) / N_STEPS, (parallel_us - turn_us) / N_AT_ONCE, turn_us


async def _min_turn_us(run_turn: Callable[[], Awaitable[None]], n_stretches: int) -> float:
    min_s = float("inf")
    for _ in range(n_stretches):
        began_s = time.thread_time()
        for _ in range(_TURNS_PER_STRETCH):
            await run_turn()
        min_s = min(min_s, time.thread_time() - began_s)
    return min_s / _TURNS_PER_STRETCH * 1e6


async def _run_empty_turn() -> None:
    async with budget(TOTAL_S, {"answer": 1.6}):
        pass


async def _run_sequence() -> None:
    async with budget(TOTAL_S, {"answer": 1.6}) as b:
        for _ in range(N_STEPS):
            await b.run(_do_nothing)


async def _run_parallel() -> None:
    async with budget(TOTAL_S, {"answer": 1.6}) as b:
        await b.gather(a=_do_nothing(), b=_do_nothing(), c=_do_nothing(), d=_do_nothing(), e=_do_nothing(),
                       f=_do_nothing(), g=_do_nothing(), h=_do_nothing())


async def _do_nothing() -> None:
    pass
