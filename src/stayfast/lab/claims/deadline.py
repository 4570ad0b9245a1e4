"""No turn outlives its budget, whatever its steps do, and none leaves a task behind.

A turn is drawn at random: a budget, a reserve, and steps in sequence and in parallel, some of which are turns. Steps
succeed, fail, hang, clean up slowly, swallow their cancellation, run as plain functions in threads, wait outside of any
step, or are cancelled by other code. They have caps, fallbacks, hedges, and breakers that other turns share. Some turns are
cancelled as a whole. The turns run in virtual time, one at a time, so that every leftover belongs to the turn that just
ended. Shortly after a turn, only steps that ignore their cancellation may be left, and the budget must report each of them
as abandoned.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf
from random import Random
from typing import Any

from stayfast.lab.harness.claim import ClaimResult, Figure, Sense
from stayfast.lab.harness.virtual import VirtualClaim
from stayfast.testing.simloop import SimLoop, VirtualThreads
from stayfast.turns import BreakerPolicy, Budget, HedgePolicy, OutOfTime, StepFailed, budget, step
from stayfast.turns.step import RAISE
from stayfast.turns.step_run import StepRun, current_scope

WITHIN_MS = 20.0
SETTLE_S = 0.05
MAX_DEPTH = 3  # of turns in turns
MAX_STEPS = 5
CANCELLED = 0.1  # share of the turns
IGNORES_CANCEL_S = 4.0
ENDS = ("ok", "timeout", "failed", "skipped", "cancelled")
_NAMES = ("kb", "web", "crm", "rerank", "answer")


class _StepError(Exception):
    """Raised by the steps of this proof."""


async def measure(loop: SimLoop, n: int, seed: int) -> ClaimResult:
    turns = RandomTurns(loop, Random(seed))
    for _ in range(n):
        await turns.run_one()
    return turns.make_finding()


DEADLINE = VirtualClaim(
    "deadline", "Of 100,000 random turns in virtual time none outlives its budget or its caller by more than "
    f"{WITHIN_MS:g} ms, and none leaves a task behind.",
    measure, "{:,} turns in virtual time", 100_000, 3_000)


class RandomTurns:
    """Runs random turns one at a time, and records their ends and leftovers."""

    def __init__(self, loop: SimLoop, rng: Random) -> None:
        self._loop = loop
        self._rng = rng
        self._threads = VirtualThreads()
        self._hedges = [HedgePolicy(0.2) for _ in _NAMES]
        self._breakers = [BreakerPolicy(rng=Random(number)) for number in range(len(_NAMES))]
        self._budgets: list[Budget] = []  # of the current turn
        self._uncancellable: dict[object, StepRun] = {}  # running tasks and threads that ignore their cancellation
        self._n = Counter[str]()
        self._past_s = -inf
        self._past_cancel_s = -inf
        self._n_left = self._n_unreported = 0

    async def run_one(self) -> None:
        """Run one turn, and check for leftovers."""
        rng, loop = self._rng, self._loop
        self._budgets.clear()
        task = loop.create_task(self._run_turn(()))
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
            if error is not None and not isinstance(error, OutOfTime | StepFailed | _StepError):
                raise error
        await self._check_leftovers()

    async def _check_leftovers(self) -> None:
        """Count the leftovers shortly after a turn, and again after its uncancellable steps."""
        await asyncio.sleep(SETTLE_S)
        self._n_left += len(asyncio.all_tasks() - {asyncio.current_task()} - self._uncancellable.keys())
        self._n_unreported += sum(not running.is_abandoned for running in self._uncancellable.values())
        self._n["abandoned steps"] += len(self._uncancellable)
        for each in self._budgets:
            self._n.update(f"{row.outcome} steps" for row in each.step_runs)
            self._past_s = max(self._past_s, each.ended_at - each.deadline_at)
        await asyncio.sleep(IGNORES_CANCEL_S if self._uncancellable else 0)
        self._n_left += len(asyncio.all_tasks()) - 1

    def make_finding(self) -> ClaimResult:
        n = self._n
        n_steps = sum(n[f"{how} steps"] for how in ENDS)
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(n.items()))
        return ClaimResult((
            Figure.exact("latest end of a budget, past its deadline", self._past_s * 1e3, "ms", WITHIN_MS),
            Figure.exact("latest end of a cancelled turn, past its cancellation", self._past_cancel_s * 1e3, "ms",
                         WITHIN_MS),
            Figure.count("Tasks left behind", self._n_left),
            Figure.count("steps that went on and were not named as abandoned", self._n_unreported),
            Figure.count("steps that never ended", n["running steps"]),
            Figure.share("steps that were cut off at their end", n["timeout steps"], n_steps, 0.05, Sense.AT_LEAST),
            Figure.count("turns that were cancelled", n["cancelled turns"], 1.0, Sense.AT_LEAST),
            Figure.count("steps that were abandoned", n["abandoned steps"], 1.0, Sense.AT_LEAST)), (f"{counts}.",))

    async def _run_turn(self, enclosing: tuple[Budget, ...]) -> None:
        rng = self._rng
        total_s = rng.uniform(0.01, 3) if not enclosing or rng.random() < 0.7 else None
        reserve = {name: rng.uniform(0.01, 0.3) * (total_s or 1) for name in ("rerank", "answer") if rng.random() < 0.5}
        async with budget(total_s, reserve, threads=self._threads) as b:
            self._budgets.append(b)
            within = (*enclosing, b)
            for _ in range(rng.randint(0, MAX_STEPS)):
                kind = rng.random()
                if kind < 0.05:
                    await asyncio.sleep(rng.uniform(0, 3))  # outside of any step
                elif kind < 0.1:
                    raise _StepError
                elif kind < 0.4:
                    await self._run_parallel(b, within)
                else:
                    await self._run_step(b, within)

    async def _run_step(self, b: Budget, within: tuple[Budget, ...]) -> None:
        rng, number = self._rng, self._rng.randrange(len(_NAMES))
        await b.run(self._draw_step(within), name=_NAMES[number], cap=self._draw_cap(),
                    fallback=rng.choice((None, None, RAISE)), hedge=self._hedges[number] if rng.random() < 0.3 else None,
                    breaker=self._breakers[number] if rng.random() < 0.3 else None)

    async def _run_parallel(self, b: Budget, within: tuple[Budget, ...]) -> None:
        rng = self._rng
        names = rng.sample(_NAMES, rng.randint(1, len(_NAMES)))
        calls: dict[str, Any] = {}
        for name in names:
            drawn = self._draw_step(within)
            calls[name] = drawn if rng.random() < 0.5 else step(drawn, cap=self._draw_cap(),
                                                                fallback=rng.choice((None, RAISE)))
        await b.gather(need=rng.randint(0, len(names)), by=rng.choice((None, rng.uniform(0.01, 1))),
                       late=rng.choice((None, rng.choice(within))), **calls)

    def _draw_cap(self) -> float | None:
        return self._rng.choice((None, self._rng.uniform(0.001, 1)))

    def _draw_step(self, within: tuple[Budget, ...]) -> Callable[[], Awaitable[Any]] | Callable[[], Any]:
        rng = self._rng
        kinds = [self._sleep_briefly, self._sleep_long, self._hang, self._fail, self._clean_up_slowly, self._ignore_cancel,
                 self._block_thread, self._get_cancelled]
        if len(within) < MAX_DEPTH and rng.random() < 0.2:
            async def inner() -> None:
                await self._run_turn(within)

            return inner
        return rng.choice(kinds)

    async def _sleep_briefly(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, 0.3))

    async def _sleep_long(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.3, 3))

    async def _hang(self) -> None:
        await asyncio.Event().wait()

    async def _fail(self) -> None:
        await self._sleep_briefly()
        raise _StepError

    async def _get_cancelled(self) -> None:
        await self._sleep_briefly()
        raise asyncio.CancelledError

    async def _clean_up_slowly(self) -> None:
        """Clean up for up to 30 ms, which may be longer than allowed."""
        try:
            await self._sleep_long()
        finally:
            await asyncio.sleep(self._rng.uniform(0, 0.03))

    async def _ignore_cancel(self) -> None:
        """Continue despite every cancellation."""
        task, running = asyncio.current_task(), current_scope.get()
        assert isinstance(running, StepRun)
        ends_at = self._loop.now() + self._rng.uniform(0, IGNORES_CANCEL_S)
        self._uncancellable[task] = running
        while self._loop.now() < ends_at:
            try:
                await asyncio.sleep(ends_at - self._loop.now())
            except asyncio.CancelledError:
                continue
        del self._uncancellable[task]

    def _block_thread(self) -> None:
        """Run in a thread, which cannot be cancelled."""
        running, took_s, thread = current_scope.get(), self._rng.uniform(0, IGNORES_CANCEL_S), object()
        assert isinstance(running, StepRun)
        self._threads.sleep(took_s)
        self._uncancellable[thread] = running
        self._loop.call_later(took_s, self._uncancellable.pop, thread)
        if self._rng.random() < 0.2:
            raise _StepError
