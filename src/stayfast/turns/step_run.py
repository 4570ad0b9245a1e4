"""One step while it runs, what it stands in, and what it needs of its budget.

Callbacks of the loop start and end the calls, and what waits for the result is woken once. So a budget watches one step or
twenty in the same way, and a step costs one Task and one future.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar, copy_context
from functools import partial
from inspect import isawaitable
from math import inf
from typing import Any

from stayfast.core.clock import SystemClock
from stayfast.turns.step import (
    ASYNC,
    RAISE,
    THREAD,
    Step,
    StepCancelled,
    StepFailed,
    StepSkipped,
    StepTimeout,
    call_contained,
    fits_at_a_glance,
    kind_of,
    misfit,
    run_contained,
)
from stayfast.turns.threads import StartThread, TooManyThreads

BODY_GRACE_S = 0.01  # what the body of a budget has more than its steps
CLEANUP_S = 0.005  # what a cancelled call has to close what it holds before it is abandoned
BLOCKED_S, BLOCKED_SHARE = 0.05, 0.1  # an event loop that is late by both, in seconds and of a step's time, was blocked
_LEAST_CLEANUP_S = 0.001
_SAME_INSTANT_S = 1e-3  # uvloop rounds its timers to milliseconds


class BudgetState:
    """The steps of one budget and the time that they have; `turns.budget` opens, closes and reserves it."""

    __slots__ = ("_alarm", "_alarm_at", "_behind_s", "_is_open", "_outer", "_reserved_s", "_root", "_timeout", "began_at",
                 "deadline_at", "ended_at", "loop", "now", "rows", "start_thread", "tasks", "total_s")

    loop: asyncio.AbstractEventLoop
    _outer: "BudgetScope | None"
    _timeout: asyncio.Timeout
    start_thread: StartThread  # what starts the plain functions

    def __init__(self, total_s: float | None) -> None:
        self.total_s = total_s
        self.tasks: dict[asyncio.Task[Any], StepRun] = {}  # every call that has not ended
        self._behind_s: dict[str, float] = {}  # of each reserved stage: what is reserved for those behind it
        self._reserved_s = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = inf
        self._is_open = False
        self._root: BudgetScope | None = None  # of the body; None before it is entered
        self.now: Callable[[], float] = SystemClock.now  # monotonic seconds
        self.began_at = self.ended_at = self.deadline_at = inf
        self.rows: list[StepRun] = []  # the steps, in the order in which they began

    @property
    def scopes(self) -> "list[BudgetScope]":
        """The body, once it is entered, and the steps."""
        return [*self.rows] if self._root is None else [self._root, *self.rows]

    @property
    def inner(self) -> "list[BudgetState]":
        """The budgets that its body opened itself, in no step."""
        return (self._root.inner if self._root is not None else None) or []

    @property
    def is_cut_off(self) -> bool:
        """Whether its body, or what is around it, was cancelled because the time was over."""
        around = self._outer
        return self._timeout.expired() or (around is not None and around.is_cut_off)

    def remaining(self) -> float:
        """Seconds left for the caller, never negative: less what is reserved, and within the cap of the step it is in."""
        root = self._root
        if root is None:
            raise RuntimeError("this budget has not begun: write `async with budget(...) as b:`")
        if not self._is_open:
            return 0.0
        inside = here.get()
        ends_at = root.ends_at if inside is None else min(root.ends_at, inside.ends_at)
        return max(0.0, ends_at - self.now())

    def begun(self, step: Step, name: str, tell: Callable[[], None] | None = None,
              late: "BudgetState | None" = None) -> "StepRun":
        """A step that has begun, in this budget or in the one that it may go on under."""
        of = self if late is None else late
        root = of._root
        if root is None or not of._is_open:
            raise RuntimeError(f"step {name!r} was begun outside of its budget: await it inside `async with budget(...) as "
                               "b:`, or keep it going after the turn with gather(..., late=outer)")
        if asyncio.get_running_loop() is not of.loop:
            raise RuntimeError(f"step {name!r} was begun in another event loop than its budget's: from a plain function, "
                               "hand it over with asyncio.run_coroutine_threadsafe(b.run(...), b.loop).result()")
        behind_s = of._behind_s.get(name)
        if behind_s is not None and behind_s < of._reserved_s:
            of._reserved_s = behind_s
            root.ends_at = of.deadline_at - behind_s
        ends_at = root.ends_at
        if late is None:
            inside = here.get()
            if inside is not None and inside.ends_at < ends_at:
                ends_at = inside.ends_at
        running = StepRun(name, step, of, ends_at, tell)
        running.begin(of.now())
        self.rows.append(running)
        return running

    def watch(self, at: float) -> None:
        """See to it that steps which must be over at this instant are."""
        if at < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self.loop.call_at(at, self._ring)
            self._alarm_at = at

    def _ring(self) -> None:
        """End the steps whose time is over, and set the alarm for the others."""
        self._alarm, self._alarm_at = None, inf
        now = self.now()
        if now > self.deadline_at and self._is_open and not self._timeout.expired():
            self._timeout.reschedule(now + BODY_GRACE_S)  # a loop that was blocked rings both bells at once
        for running in list(self.tasks.values()):
            if running.is_over or all(call.done() for call in running.calls):  # its result is there, if not told of yet
                continue
            if running.ends_at <= now + _SAME_INSTANT_S:
                running.expire(now)
            else:
                self.watch(running.ends_at)

    async def clean_up(self, steps: "Iterable[StepRun]") -> None:
        """Give cancelled steps a moment to close what they hold."""
        calls = [call for running in steps for call in running.calls]
        if calls:
            await self._wait_for(calls)

    async def _wait_for(self, calls: Iterable["asyncio.Task[Any]"]) -> None:
        latest_s = self.deadline_at + BODY_GRACE_S + CLEANUP_S - self.now()
        await asyncio.wait(list(calls), timeout=max(_LEAST_CLEANUP_S, min(CLEANUP_S, latest_s)))


class BudgetScope:
    """Where code stands: in the body of a budget, or in one of its steps. `ends_at` is an instant of the budget's clock."""

    __slots__ = ("budget", "cost_usd", "ends_at", "inner")

    def __init__(self, budget: BudgetState, ends_at: float) -> None:
        self.budget = budget
        self.ends_at = ends_at
        self.cost_usd = 0.0  # what was charged to it
        self.inner: list[BudgetState] | None = None  # those that were opened in it

    @property
    def is_cut_off(self) -> bool:
        """Whether what runs there is being cancelled because its time is over, or that of what is around it."""
        return self.budget.is_cut_off


# Tasks and threads started there inherit it
here: ContextVar[BudgetScope | None] = ContextVar("stayfast_turn", default=None)


class StepRun(BudgetScope):
    """One step, while it runs and after. `tell` is called once, when it is over.

    `how`: running, ok, timeout, failed, skipped or cancelled. `detail`: names of exceptions and reasons of ours, never what
    was asked. `is_capped`: by its own cap, not by what the turn had left. `is_abandoned`: it was cancelled and went on.
    """

    __slots__ = ("_alarm", "_mark", "_on_done", "_step", "_value", "_waiters", "began_at", "calls", "detail", "ended_at",
                 "error", "how", "is_abandoned", "is_capped", "is_over", "n_calls", "name", "used_fallback")

    def __init__(self, name: str, step: Step, budget: BudgetState, ends_at: float,
                 on_done: Callable[[], None] | None = None) -> None:
        self.budget = budget
        self.ends_at = ends_at
        self.cost_usd = 0.0
        self.inner = None
        self.name = name
        self.began_at = self.ended_at = inf
        self.how = "running"
        self.detail = ""
        self.n_calls = 0
        self.is_over = self.is_capped = self.is_abandoned = self.used_fallback = False
        self.error: BaseException | None = None  # the step's own, or why it brought nothing
        self.calls: list[asyncio.Task[Any]] = []  # those that have not ended
        self._step = step
        self._on_done = on_done
        self._alarm: asyncio.TimerHandle | None = None  # of the hedge
        self._mark = -1  # the breaker's
        self._waiters: list[asyncio.Future[None]] | None = None
        self._value: Any = None

    @property
    def kind(self) -> str:
        """What it is in traces; empty: nothing that traces have a name for."""
        return self._step.kind

    def begin(self, now: float) -> None:
        """Start the first call, where one may be made. Raises TypeError where the arguments do not fit the function."""
        self.began_at = now
        step = self._step
        if step.cap_s is not None and now + step.cap_s < self.ends_at:
            self.ends_at = now + step.cap_s
            self.is_capped = True
        why_not = step.breaker.why_not(now) if step.breaker is not None else ""
        if why_not:
            self._end("skipped", StepSkipped(self.name, why_not), now)
        elif now >= self.ends_at:
            self._end("timeout", StepTimeout(self.name, "no time was left for it to begin"), now)
        else:
            call = self._call()
            self.budget.watch(self.ends_at)
            if step.breaker is not None:
                self._mark = step.breaker.began()
            if step.hedge is not None:
                step.hedge.note_call(call, now)
                again_at = now + step.hedge.after_s(now)
                if again_at < self.ends_at:
                    self._alarm = self.budget.loop.call_at(again_at, self._again)

    @property
    def is_cut_off(self) -> bool:
        """The same of this step, whose own time may be over before its budget's."""
        return self.how == "timeout" or self.budget.is_cut_off

    @property
    def spent_s(self) -> float:
        """Seconds used; infinite while it runs."""
        return self.ended_at - self.began_at

    def result(self) -> Any:
        """What it brought, or its fallback. Raises the step's own exception, StepTimeout, StepSkipped or StepCancelled."""
        if self.error is None:
            return self._value
        if self._step.fallback is not RAISE:
            return self._step.fallback
        raise self.error

    async def wait(self) -> Any:
        """Its `result`, once it is over. May be awaited by several, and again; who cancels that leaves the step alone."""
        if not self.is_over:
            await self.over()
        return self.result()

    def over(self) -> "asyncio.Future[None]":
        """Done when the step is over, which it is not yet."""
        waiter = self.budget.loop.create_future()
        if self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)
        return waiter

    def end(self, how: str, error: BaseException) -> None:
        if not self.is_over:
            self._end(how, error, self.budget.now())

    def expire(self, now: float) -> None:
        seconds, blocked_s = self.ends_at - self.began_at, self._blocked_s(now)
        why = (f"not done within its cap of {seconds:.3g} s" if self.is_capped else
               f"not done within the {seconds:.3g} s that the turn had for it")
        if blocked_s:
            why += f", at whose end the event loop was blocked for {blocked_s:.3g} s"
        self._end("timeout", StepTimeout(self.name, why), now)

    @property
    def blocked_s(self) -> float:
        """How long its end was held up by an event loop that did not run; 0 where a busy one is no less late."""
        return self._blocked_s(self.ended_at) if self.is_over else 0.0

    def _blocked_s(self, at: float) -> float:
        late_s = at - self.ends_at
        is_blocked = late_s >= BLOCKED_S and late_s >= BLOCKED_SHARE * (self.ends_at - self.began_at)
        return late_s if is_blocked and self.n_calls else 0.0

    def _call(self) -> "asyncio.Task[Any]":
        step, budget = self._step, self.budget
        if step.way is ASYNC:
            try:
                made = step.function(*step.args)
            except TypeError as error:
                raise (misfit(self.name, step) or error) from None
        elif step.way is THREAD:
            if not fits_at_a_glance(step.function, len(step.args)):
                wrong = misfit(self.name, step)
                if wrong is not None:
                    raise wrong
            made = self._in_thread()
        else:
            made = step.function
        outer = here.get()
        here.set(self)  # the Task's context is a copy of this one
        task = budget.loop.create_task(run_contained(made, self.name))
        here.set(outer)
        self.n_calls += 1
        self.calls.append(task)
        budget.tasks[task] = self
        task.add_done_callback(partial(self._called, made))
        return task

    async def _in_thread(self) -> Any:
        step = self._step
        try:
            future = self.budget.start_thread(self.name, partial(copy_context().run, call_contained, self.name,
                                                                     step.function, *step.args))
        except TooManyThreads as error:
            raise StepSkipped(self.name, str(error)) from None
        try:
            result = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.is_abandoned = not future.done()
            raise
        return await result if isawaitable(result) else result  # of an async function that a decorator hides

    def _called(self, made: Awaitable[Any], task: "asyncio.Task[Any]") -> None:
        del self.budget.tasks[task]
        self.calls.remove(task)
        is_cancelled = task.cancelled()
        if is_cancelled and asyncio.iscoroutine(made):
            made.close()  # it may not have begun
        error = None if is_cancelled else task.exception()
        if self.is_over:
            if error is not None:
                self.detail = f"{self.detail}; {kind_of(error)} when it was cancelled".removeprefix("; ")
            return
        hedge, now = self._step.hedge, self.budget.now()
        if error is None and not is_cancelled:
            if hedge is not None:
                hedge.took(task, now)
            self._value = task.result()
            self._end("ok", None, now)
            return
        if hedge is not None:
            hedge.failed(task)
        if self.calls:  # the other one may do better
            return
        if error is None:
            self._end("cancelled", StepCancelled(self.name, "it was cancelled by another hand than its budget's"), now)
        else:
            self._end("skipped" if isinstance(error, StepSkipped) else "failed", error, now)

    def _again(self) -> None:
        hedge, now = self._step.hedge, self.budget.now()
        if hedge is not None and hedge.may_again(self.ends_at - now, now):
            hedge.note_hedge(self._call(), now)

    def _end(self, how: str, error: BaseException | None, now: float) -> None:
        self.is_over = True
        self.how = how
        self.ended_at = now
        if error is not None:
            self.error = error
            self.detail = error.why if isinstance(error, StepFailed) else kind_of(error)
            self.used_fallback = self._step.fallback is not RAISE
            if not self.n_calls:
                self._step.discard()
        if self._mark >= 0 or self._step.hedge is not None:
            self._teach(now)
        for task in self.calls:
            task.cancel()
        if self._on_done is not None:
            self._on_done()
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _teach(self, now: float) -> None:
        step = self._step
        if self._mark >= 0 and step.breaker is not None:
            is_bad = self.how == "failed" or (self.how == "timeout" and self.is_capped and not self.blocked_s)
            step.breaker.ended(self._mark, now, is_good=True if self.how == "ok" else False if is_bad else None)
        if step.hedge is not None:
            for task in self.calls:
                step.hedge.cut_off(task, now)
        if self._alarm is not None:
            self._alarm.cancel()

    def __repr__(self) -> str:
        return f"<{self.name}: {self.how} after {self.spent_s:.3f} s of {self.ends_at - self.began_at:.3f}>"
