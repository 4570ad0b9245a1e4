"""No turn outlives its budget, whatever its steps do, and none leaves a Task behind.

A turn is drawn: a budget, a reserve, and steps one after another and side by side, some of them turns themselves. Steps
succeed, fail, hang, take their time to clean up, swallow their cancellation, run as plain functions that cannot be
cancelled, wait outside of any step, or are cancelled by another hand; they have caps, fallbacks, hedges and breakers that
other turns share; some turns are cancelled as a whole. In virtual time, each turn alone, so that what is there after it is
its own. A moment after it only those steps may still be there that refuse to end, and each must be named by the budget that
abandoned it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf
from random import Random
from typing import Any

from stayfast.lab.harness.claim import Figure, Finding, Sense
from stayfast.lab.harness.virtual import VirtualClaim
from stayfast.testing.simloop import SimLoop, VirtualThreads
from stayfast.turns import BreakerPolicy, Budget, HedgePolicy, OutOfTime, StepFailed, budget, step
from stayfast.turns.step import RAISE
from stayfast.turns.step_run import StepRun, current_scope

WITHIN_MS = 20.0
MOMENT_S = 0.05
MAX_DEPTH = 3  # of turns in turns
MAX_STEPS = 5
CANCELLED = 0.1  # of all turns
REFUSES_S = 4.0
ENDS = ("ok", "timeout", "failed", "skipped", "cancelled")
_NAMES = ("kb", "web", "crm", "rerank", "answer")


class _Failed(Exception):
    """Raised by a step of this proof."""


async def play(loop: SimLoop, n: int, seed: int) -> Finding:
    turns = RandomTurns(loop, Random(seed))
    for _ in range(n):
        await turns.run_one()
    return turns.finding()


DEADLINE = VirtualClaim(
    "deadline", f"Of 100,000 random turns in virtual time none outlives its budget or its caller by more than {WITHIN_MS:g} "
    "ms, and none leaves a Task behind.", play, "{:,} turns in virtual time", 100_000, 3_000)


class RandomTurns:
    """Random turns, one after another, and what was seen of them."""

    def __init__(self, loop: SimLoop, rng: Random) -> None:
        self._loop = loop
        self._rng = rng
        self._threads = VirtualThreads()
        self._hedges = [HedgePolicy(0.2) for _ in _NAMES]
        self._breakers = [BreakerPolicy(rng=Random(number)) for number in range(len(_NAMES))]
        self._budgets: list[Budget] = []  # of the turn that runs
        self._refusing: dict[object, StepRun] = {}  # tasks and threads that do not end when they are cancelled
        self._n = Counter[str]()
        self._past_s = -inf
        self._past_cancel_s = -inf
        self._n_left = self._n_unnamed = 0

    async def run_one(self) -> None:
        """One turn, alone, and what is there after it."""
        rng, loop = self._rng, self._loop
        self._budgets.clear()
        task = loop.create_task(self._turn(()))
        cancelled_at = loop.now() + rng.uniform(0, 2) if rng.random() < CANCELLED else inf
        if cancelled_at < inf:
            loop.call_at(cancelled_at, task.cancel)
        await asyncio.wait((task,))
        self._n["turns"] += 1
        if task.cancelled():
            self._n["cancelled turns"] += 1
            self._past_cancel_s = max(self._past_cancel_s, loop.now() - cancelled_at)
        else:
            self._past_s = max(self._past_s, loop.now() - self._budgets[0].deadline_at)
            error = task.exception()
            if error is not None and not isinstance(error, OutOfTime | StepFailed | _Failed):
                raise error
        await self._check_leftovers()

    async def _check_leftovers(self) -> None:
        """Count what is still there after a moment, and after the steps that refuse to end; note when each budget ended."""
        await asyncio.sleep(MOMENT_S)
        self._n_left += len(asyncio.all_tasks() - {asyncio.current_task()} - self._refusing.keys())
        self._n_unnamed += sum(not running.is_abandoned for running in self._refusing.values())
        self._n["abandoned steps"] += len(self._refusing)
        for each in self._budgets:
            self._n.update(f"{row.outcome} steps" for row in each.step_runs)
            self._past_s = max(self._past_s, each.ended_at - each.deadline_at)
        await asyncio.sleep(REFUSES_S if self._refusing else 0)
        self._n_left += len(asyncio.all_tasks()) - 1

    def finding(self) -> Finding:
        n = self._n
        n_steps = sum(n[f"{how} steps"] for how in ENDS)
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(n.items()))
        return Finding((
            Figure("latest end of a budget, past its deadline", self._past_s * 1e3, "ms", WITHIN_MS),
            Figure("latest end of a cancelled turn, past its cancellation", self._past_cancel_s * 1e3, "ms", WITHIN_MS),
            Figure("Tasks left behind", float(self._n_left), "", 0.0),
            Figure("steps that went on and were not named as abandoned", float(self._n_unnamed), "", 0.0),
            Figure("steps that never ended", float(n["running steps"]), "", 0.0),
            Figure("steps that were cut off at their end", n["timeout steps"] / n_steps * 100, "%", 5.0, Sense.AT_LEAST),
            Figure("turns that were cancelled", float(n["cancelled turns"]), "", 1.0, Sense.AT_LEAST),
            Figure("steps that were abandoned", float(n["abandoned steps"]), "", 1.0, Sense.AT_LEAST)), (f"{counts}.",))

    async def _turn(self, around: tuple[Budget, ...]) -> None:
        rng = self._rng
        total_s = rng.uniform(0.01, 3) if not around or rng.random() < 0.7 else None
        reserve = {name: rng.uniform(0.01, 0.3) * (total_s or 1) for name in ("rerank", "answer") if rng.random() < 0.5}
        async with budget(total_s, reserve, threads=self._threads) as b:
            self._budgets.append(b)
            within = (*around, b)
            for _ in range(rng.randint(0, MAX_STEPS)):
                kind = rng.random()
                if kind < 0.05:
                    await asyncio.sleep(rng.uniform(0, 3))  # what is no step
                elif kind < 0.1:
                    raise _Failed
                elif kind < 0.4:
                    await self._side_by_side(b, within)
                else:
                    await self._one_step(b, within)

    async def _one_step(self, b: Budget, within: tuple[Budget, ...]) -> None:
        rng, number = self._rng, self._rng.randrange(len(_NAMES))
        await b.run(self._drawn(within), name=_NAMES[number], cap=self._cap(), fallback=rng.choice((None, None, RAISE)),
                    hedge=self._hedges[number] if rng.random() < 0.3 else None,
                    breaker=self._breakers[number] if rng.random() < 0.3 else None)

    async def _side_by_side(self, b: Budget, within: tuple[Budget, ...]) -> None:
        rng = self._rng
        names = rng.sample(_NAMES, rng.randint(1, len(_NAMES)))
        calls: dict[str, Any] = {}
        for name in names:
            drawn = self._drawn(within)
            calls[name] = drawn if rng.random() < 0.5 else step(drawn, cap=self._cap(), fallback=rng.choice((None, RAISE)))
        await b.gather(need=rng.randint(0, len(names)), by=rng.choice((None, rng.uniform(0.01, 1))),
                       late=rng.choice((None, rng.choice(within))), **calls)

    def _cap(self) -> float | None:
        return self._rng.choice((None, self._rng.uniform(0.001, 1)))

    def _drawn(self, within: tuple[Budget, ...]) -> Callable[[], Awaitable[Any]] | Callable[[], Any]:
        rng = self._rng
        kinds = [self._quick, self._slow, self._hangs, self._fails, self._careful, self._refuses, self._blocks, self._lost]
        if len(within) < MAX_DEPTH and rng.random() < 0.2:
            async def inner() -> None:
                await self._turn(within)

            return inner
        return rng.choice(kinds)

    async def _quick(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, 0.3))

    async def _slow(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.3, 3))

    async def _hangs(self) -> None:
        await asyncio.Event().wait()

    async def _fails(self) -> None:
        await self._quick()
        raise _Failed

    async def _lost(self) -> None:
        await self._quick()
        raise asyncio.CancelledError

    async def _careful(self) -> None:
        """Takes its time to clean up, at times more than it is given."""
        try:
            await self._slow()
        finally:
            await asyncio.sleep(self._rng.uniform(0, 0.03))

    async def _refuses(self) -> None:
        """Goes on, however often it is cancelled."""
        task, running = asyncio.current_task(), current_scope.get()
        assert isinstance(running, StepRun)
        ends_at = self._loop.now() + self._rng.uniform(0, REFUSES_S)
        self._refusing[task] = running
        while self._loop.now() < ends_at:
            try:
                await asyncio.sleep(ends_at - self._loop.now())
            except asyncio.CancelledError:
                continue
        del self._refusing[task]

    def _blocks(self) -> None:
        """In a thread, which cannot be ended."""
        running, took_s, thread = current_scope.get(), self._rng.uniform(0, REFUSES_S), object()
        assert isinstance(running, StepRun)
        self._threads.sleep(took_s)
        self._refusing[thread] = running
        self._loop.call_later(took_s, self._refusing.pop, thread)
        if self._rng.random() < 0.2:
            raise _Failed
