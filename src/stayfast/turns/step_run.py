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
    argument_mismatch,
    call_contained,
    error_kind,
    run_contained,
    takes_n_positional,
)
from stayfast.turns.threads import StartThread, TooManyThreads

BODY_GRACE_S = 0.01  # what the body of a budget has more than its steps
CLEANUP_S = 0.005  # what a cancelled call has to close what it holds before it is abandoned
BLOCKED_S, BLOCKED_SHARE = 0.05, 0.1  # an event loop that is late by both, in seconds and of a step's time, was blocked
_LEAST_CLEANUP_S = 0.001
_SAME_INSTANT_S = 1e-3  # uvloop rounds its timers to milliseconds


class BudgetState:
    """The steps of one budget and the time that they have; `turns.budget` opens, closes and reserves it."""

    __slots__ = (
        "_expiry_at",
        "_expiry_timer",
        "_is_open",
        "_outer_scope",
        "_reserved_after_s",
        "_reserved_s",
        "_root",
        "_timeout",
        "began_at",
        "deadline_at",
        "ended_at",
        "loop",
        "now",
        "start_thread",
        "step_runs",
        "tasks",
        "total_s",
    )

    loop: asyncio.AbstractEventLoop
    _outer_scope: "BudgetScope | None"
    _timeout: asyncio.Timeout
    start_thread: StartThread  # what starts the plain functions

    def __init__(self, total_s: float | None) -> None:
        self.total_s = total_s
        self.tasks: dict[asyncio.Task[Any], StepRun] = {}  # every call that has not ended
        self._reserved_after_s: dict[str, float] = {}  # of each reserved stage: what is reserved for those behind it
        self._reserved_s = 0.0
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._expiry_at = inf
        self._is_open = False
        self._root: BudgetScope | None = None  # of the body; None before it is entered
        self.now: Callable[[], float] = SystemClock.now  # monotonic seconds
        self.began_at = self.ended_at = self.deadline_at = inf
        self.step_runs: list[StepRun] = []  # the steps, in the order in which they began

    @property
    def scopes(self) -> "list[BudgetScope]":
        """The body, once it is entered, and the steps."""
        return [*self.step_runs] if self._root is None else [self._root, *self.step_runs]

    @property
    def inner_budgets(self) -> "list[BudgetState]":
        """The budgets that its body opened itself, in no step."""
        return (self._root.inner if self._root is not None else None) or []

    @property
    def is_cut_off(self) -> bool:
        """Whether its body, or what is around it, was cancelled because the time was over."""
        around = self._outer_scope
        return self._timeout.expired() or (around is not None and around.is_cut_off)

    def remaining(self) -> float:
        """Seconds left for the caller, never negative: less what is reserved, and within the cap of the step it is in."""
        root = self._root
        if root is None:
            raise RuntimeError("this budget has not begun: write `async with budget(...) as b:`")
        if not self._is_open:
            return 0.0
        inside = current_scope.get()
        ends_at = root.ends_at if inside is None else min(root.ends_at, inside.ends_at)
        return max(0.0, ends_at - self.now())

    def start_step(self, step: Step, name: str, on_done: Callable[[], None] | None = None,
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
        behind_s = of._reserved_after_s.get(name)
        if behind_s is not None and behind_s < of._reserved_s:
            of._reserved_s = behind_s
            root.ends_at = of.deadline_at - behind_s
        ends_at = root.ends_at
        if late is None:
            inside = current_scope.get()
            if inside is not None and inside.ends_at < ends_at:
                ends_at = inside.ends_at
        running = StepRun(name, step, of, ends_at, on_done)
        running.start(of.now())
        self.step_runs.append(running)
        return running

    def schedule_expiry(self, at: float) -> None:
        """See to it that steps which must be over at this instant are."""
        if at < self._expiry_at:
            if self._expiry_timer is not None:
                self._expiry_timer.cancel()
            self._expiry_timer = self.loop.call_at(at, self._expire_due_steps)
            self._expiry_at = at

    def _expire_due_steps(self) -> None:
        """End the steps whose time is over, and set the alarm for the others."""
        self._expiry_timer, self._expiry_at = None, inf
        now = self.now()
        if now > self.deadline_at and self._is_open and not self._timeout.expired():
            self._timeout.reschedule(now + BODY_GRACE_S)  # a loop that was blocked rings both bells at once
        for running in list(self.tasks.values()):
            if running.is_done or all(call.done() for call in running.calls):  # its result is there, if not told of yet
                continue
            if running.ends_at <= now + _SAME_INSTANT_S:
                running.expire(now)
            else:
                self.schedule_expiry(running.ends_at)

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
current_scope: ContextVar[BudgetScope | None] = ContextVar("stayfast_turn", default=None)


class StepRun(BudgetScope):
    """One step, while it runs and after. `tell` is called once, when it is over.

    `how`: running, ok, timeout, failed, skipped or cancelled. `detail`: names of exceptions and reasons of ours, never what
    was asked. `is_capped`: by its own cap, not by what the turn had left. `is_abandoned`: it was cancelled and went on.
    """

    __slots__ = (
        "_breaker_token",
        "_hedge_timer",
        "_on_done",
        "_step",
        "_value",
        "_waiters",
        "began_at",
        "calls",
        "detail",
        "ended_at",
        "error",
        "is_abandoned",
        "is_capped",
        "is_done",
        "n_calls",
        "name",
        "outcome",
        "used_fallback",
    )

    def __init__(self, name: str, step: Step, budget: BudgetState, ends_at: float,
                 on_done: Callable[[], None] | None = None) -> None:
        self.budget = budget
        self.ends_at = ends_at
        self.cost_usd = 0.0
        self.inner = None
        self.name = name
        self.began_at = self.ended_at = inf
        self.outcome = "running"
        self.detail = ""
        self.n_calls = 0
        self.is_done = self.is_capped = self.is_abandoned = self.used_fallback = False
        self.error: BaseException | None = None  # the step's own, or why it brought nothing
        self.calls: list[asyncio.Task[Any]] = []  # those that have not ended
        self._step = step
        self._on_done = on_done
        self._hedge_timer: asyncio.TimerHandle | None = None  # of the hedge
        self._breaker_token = -1  # the breaker's
        self._waiters: list[asyncio.Future[None]] | None = None
        self._value: Any = None

    @property
    def kind(self) -> str:
        """What it is in traces; empty: nothing that traces have a name for."""
        return self._step.kind

    def start(self, now: float) -> None:
        """Start the first call, where one may be made. Raises TypeError where the arguments do not fit the function."""
        self.began_at = now
        step = self._step
        if step.cap_s is not None and now + step.cap_s < self.ends_at:
            self.ends_at = now + step.cap_s
            self.is_capped = True
        why_not = step.breaker.skip_reason(now) if step.breaker is not None else ""
        if why_not:
            self._finish("skipped", StepSkipped(self.name, why_not), now)
        elif now >= self.ends_at:
            self._finish("timeout", StepTimeout(self.name, "no time was left for it to begin"), now)
        else:
            call = self._start_call()
            self.budget.schedule_expiry(self.ends_at)
            if step.breaker is not None:
                self._breaker_token = step.breaker.start_call()
            if step.hedge is not None:
                step.hedge.record_call(call, now)
                again_at = now + step.hedge.after_s(now)
                if again_at < self.ends_at:
                    self._hedge_timer = self.budget.loop.call_at(again_at, self._start_hedge)

    @property
    def is_cut_off(self) -> bool:
        """The same of this step, whose own time may be over before its budget's."""
        return self.outcome == "timeout" or self.budget.is_cut_off

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
        if not self.is_done:
            await self.done_future()
        return self.result()

    def done_future(self) -> "asyncio.Future[None]":
        """Done when the step is over, which it is not yet."""
        waiter = self.budget.loop.create_future()
        if self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)
        return waiter

    def finish(self, outcome: str, error: BaseException) -> None:
        if not self.is_done:
            self._finish(outcome, error, self.budget.now())

    def expire(self, now: float) -> None:
        seconds, blocked_s = self.ends_at - self.began_at, self._blocked_s(now)
        why = (f"not done within its cap of {seconds:.3g} s" if self.is_capped else
               f"not done within the {seconds:.3g} s that the turn had for it")
        if blocked_s:
            why += f", at whose end the event loop was blocked for {blocked_s:.3g} s"
        self._finish("timeout", StepTimeout(self.name, why), now)

    @property
    def blocked_s(self) -> float:
        """How long its end was held up by an event loop that did not run; 0 where a busy one is no less late."""
        return self._blocked_s(self.ended_at) if self.is_done else 0.0

    def _blocked_s(self, at: float) -> float:
        late_s = at - self.ends_at
        is_blocked = late_s >= BLOCKED_S and late_s >= BLOCKED_SHARE * (self.ends_at - self.began_at)
        return late_s if is_blocked and self.n_calls else 0.0

    def _start_call(self) -> "asyncio.Task[Any]":
        step, budget = self._step, self.budget
        if step.mode is ASYNC:
            try:
                made = step.function(*step.args)
            except TypeError as error:
                raise (argument_mismatch(self.name, step) or error) from None
        elif step.mode is THREAD:
            if not takes_n_positional(step.function, len(step.args)):
                wrong = argument_mismatch(self.name, step)
                if wrong is not None:
                    raise wrong
            made = self._in_thread()
        else:
            made = step.function
        outer = current_scope.get()
        current_scope.set(self)  # the Task's context is a copy of this one
        task = budget.loop.create_task(run_contained(made, self.name))
        current_scope.set(outer)
        self.n_calls += 1
        self.calls.append(task)
        budget.tasks[task] = self
        task.add_done_callback(partial(self._on_call_done, made))
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

    def _on_call_done(self, made: Awaitable[Any], task: "asyncio.Task[Any]") -> None:
        del self.budget.tasks[task]
        self.calls.remove(task)
        is_cancelled = task.cancelled()
        if is_cancelled and asyncio.iscoroutine(made):
            made.close()  # it may not have begun
        error = None if is_cancelled else task.exception()
        if self.is_done:
            if error is not None:
                self.detail = f"{self.detail}; {error_kind(error)} when it was cancelled".removeprefix("; ")
            return
        hedge, now = self._step.hedge, self.budget.now()
        if error is None and not is_cancelled:
            if hedge is not None:
                hedge.record_success(task, now)
            self._value = task.result()
            self._finish("ok", None, now)
            return
        if hedge is not None:
            hedge.record_failure(task)
        if self.calls:  # the other one may do better
            return
        if error is None:
            self._finish("cancelled", StepCancelled(self.name, "it was cancelled by another hand than its budget's"), now)
        else:
            self._finish("skipped" if isinstance(error, StepSkipped) else "failed", error, now)

    def _start_hedge(self) -> None:
        hedge, now = self._step.hedge, self.budget.now()
        if hedge is not None and hedge.may_hedge(self.ends_at - now, now):
            hedge.record_hedge(self._start_call(), now)

    def _finish(self, outcome: str, error: BaseException | None, now: float) -> None:
        self.is_done = True
        self.outcome = outcome
        self.ended_at = now
        if error is not None:
            self.error = error
            self.detail = error.reason if isinstance(error, StepFailed) else error_kind(error)
            self.used_fallback = self._step.fallback is not RAISE
            if not self.n_calls:
                self._step.discard()
        if self._breaker_token >= 0 or self._step.hedge is not None:
            self._update_policies(now)
        for task in self.calls:
            task.cancel()
        if self._on_done is not None:
            self._on_done()
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _update_policies(self, now: float) -> None:
        step = self._step
        if self._breaker_token >= 0 and step.breaker is not None:
            is_bad = self.outcome == "failed" or (self.outcome == "timeout" and self.is_capped and not self.blocked_s)
            step.breaker.record_outcome(self._breaker_token, now, is_good=True if self.outcome == "ok" else False if is_bad
                                        else None)
        if step.hedge is not None:
            for task in self.calls:
                step.hedge.record_cancelled(task, now)
        if self._hedge_timer is not None:
            self._hedge_timer.cancel()

    def __repr__(self) -> str:
        return f"<{self.name}: {self.outcome} after {self.spent_s:.3f} s of {self.ends_at - self.began_at:.3f}>"
