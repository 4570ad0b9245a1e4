"""The state of a budget, the scope that code runs in, and one step while it runs and after.

Loop callbacks start and finish the calls of a step; a waiter is woken once. A step costs one Task and one future.
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

BODY_GRACE_S = 0.01  # the body of a budget has this much more time than its steps
CLEANUP_S = 0.005  # time for a cancelled call to release its resources before it counts as abandoned
BLOCKED_S, BLOCKED_SHARE = 0.05, 0.1  # the loop was blocked if it is late by both: seconds, and share of the step's time
_MIN_CLEANUP_S = 0.001
_SAME_INSTANT_S = 1e-3  # uvloop rounds its timers to milliseconds


class BudgetState:
    """The steps of one budget and their time. `turns.budget` opens and closes it and sets the reserves."""

    __slots__ = ("_expiry_at", "_expiry_timer", "_is_open", "_outer_scope", "_reserved_after_s", "_reserved_s", "_root",
                 "_timeout", "began_at", "deadline_at", "ended_at", "loop", "now", "start_thread", "step_runs", "tasks",
                 "total_s")

    loop: asyncio.AbstractEventLoop
    _outer_scope: "BudgetScope | None"
    _timeout: asyncio.Timeout
    start_thread: StartThread

    def __init__(self, total_s: float | None) -> None:
        self.total_s = total_s
        self.tasks: dict[asyncio.Task[Any], StepRun] = {}  # all calls that have not ended
        self._reserved_after_s: dict[str, float] = {}  # per reserved stage: seconds reserved for later stages
        self._reserved_s = 0.0
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._expiry_at = inf
        self._is_open = False
        self._root: BudgetScope | None = None  # the scope of the body; None before the budget is entered
        self.now: Callable[[], float] = SystemClock.now  # monotonic seconds
        self.began_at = self.ended_at = self.deadline_at = inf
        self.step_runs: list[StepRun] = []  # in start order

    @property
    def scopes(self) -> "list[BudgetScope]":
        """The body, once entered, and the steps."""
        return [*self.step_runs] if self._root is None else [self._root, *self.step_runs]

    @property
    def inner_budgets(self) -> "list[BudgetState]":
        """The budgets opened in the body, outside of any step."""
        return (self._root.inner if self._root is not None else None) or []

    @property
    def is_cut_off(self) -> bool:
        """Whether the deadline, or that of an outer budget, cancelled the body."""
        outer = self._outer_scope
        return self._timeout.expired() or (outer is not None and outer.is_cut_off)

    def remaining(self) -> float:
        """Seconds left for the caller, never negative: without the reserves, and within the cap of the current step."""
        root = self._root
        if root is None:
            raise RuntimeError("this budget has not begun: write `async with budget(...) as b:`")
        if not self._is_open:
            return 0.0
        scope = current_scope.get()
        ends_at = root.ends_at if scope is None else min(root.ends_at, scope.ends_at)
        return max(0.0, ends_at - self.now())

    def start_step(self, step: Step, name: str, on_done: Callable[[], None] | None = None,
                   late: "BudgetState | None" = None) -> "StepRun":
        """Start a step in this budget, or under `late`, a budget around this one."""
        owner = self if late is None else late
        root = owner._root
        if root is None or not owner._is_open:
            raise RuntimeError(f"step {name!r} was started outside of its budget: await it inside `async with budget(...) "
                               "as b:`, or let it continue after the turn with gather(..., late=outer)")
        if asyncio.get_running_loop() is not owner.loop:
            raise RuntimeError(f"step {name!r} was started in another event loop than its budget's: from a plain function, "
                               "use asyncio.run_coroutine_threadsafe(b.run(...), b.loop).result()")
        reserved_after_s = owner._reserved_after_s.get(name)
        if reserved_after_s is not None and reserved_after_s < owner._reserved_s:
            owner._reserved_s = reserved_after_s
            root.ends_at = owner.deadline_at - reserved_after_s
        ends_at = root.ends_at
        if late is None:
            scope = current_scope.get()
            if scope is not None and scope.ends_at < ends_at:
                ends_at = scope.ends_at
        run = StepRun(name, step, owner, ends_at, on_done)
        run.start(owner.now())
        self.step_runs.append(run)
        return run

    def schedule_expiry(self, at: float) -> None:
        """Expire the steps that are due at instant `at`. One timer serves all steps."""
        if at < self._expiry_at:
            if self._expiry_timer is not None:
                self._expiry_timer.cancel()
            self._expiry_timer = self.loop.call_at(at, self._expire_due_steps)
            self._expiry_at = at

    def _expire_due_steps(self) -> None:
        self._expiry_timer, self._expiry_at = None, inf
        now = self.now()
        if now > self.deadline_at and self._is_open and not self._timeout.expired():
            self._timeout.reschedule(now + BODY_GRACE_S)  # after a blocked loop both timers fire at once
        for run in list(self.tasks.values()):
            if run.is_done or all(call.done() for call in run.calls):  # the result exists; its callback comes next
                continue
            if run.ends_at <= now + _SAME_INSTANT_S:
                run.expire(now)
            else:
                self.schedule_expiry(run.ends_at)

    async def clean_up(self, runs: "Iterable[StepRun]") -> None:
        """Wait up to CLEANUP_S for cancelled steps to release their resources."""
        calls = [call for run in runs for call in run.calls]
        if calls:
            await self._wait_for(calls)

    async def _wait_for(self, calls: Iterable["asyncio.Task[Any]"]) -> None:
        max_s = self.deadline_at + BODY_GRACE_S + CLEANUP_S - self.now()
        await asyncio.wait(list(calls), timeout=max(_MIN_CLEANUP_S, min(CLEANUP_S, max_s)))


class BudgetScope:
    """Where code runs: in the body of a budget, or in one of its steps. `ends_at` is an instant of the budget's clock."""

    __slots__ = ("budget", "cost_usd", "ends_at", "inner")

    def __init__(self, budget: BudgetState, ends_at: float) -> None:
        self.budget = budget
        self.ends_at = ends_at
        self.cost_usd = 0.0
        self.inner: list[BudgetState] | None = None  # budgets opened in this scope

    @property
    def is_cut_off(self) -> bool:
        """Whether a deadline, its own or an outer one, cancels the code of this scope."""
        return self.budget.is_cut_off


# Inherited by tasks and threads that the code of the scope starts
current_scope: ContextVar[BudgetScope | None] = ContextVar("stayfast_turn", default=None)


class StepRun(BudgetScope):
    """One step, while it runs and after. `on_done` is called once, when the step is done.

    `outcome`: running, ok, timeout, failed, skipped or cancelled. `detail`: names of exceptions and fixed texts, never user
    data. `is_capped`: the step's own cap is its limit, not the turn. `is_abandoned`: cancelled, but still running.
    """

    __slots__ = ("_breaker_token", "_hedge_timer", "_on_done", "_step", "_value", "_waiters", "began_at", "calls", "detail",
                 "ended_at", "error", "is_abandoned", "is_capped", "is_done", "n_calls", "name", "outcome", "used_fallback")

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
        self.error: BaseException | None = None  # the step's own exception, or a StepFailed
        self.calls: list[asyncio.Task[Any]] = []  # calls that have not ended
        self._step = step
        self._on_done = on_done
        self._hedge_timer: asyncio.TimerHandle | None = None
        self._breaker_token = -1
        self._waiters: list[asyncio.Future[None]] | None = None
        self._value: Any = None

    @property
    def kind(self) -> str:
        return self._step.kind

    def start(self, now: float) -> None:
        """Start the first call, if one is allowed. Raises TypeError if the arguments do not fit the function."""
        self.began_at = now
        step = self._step
        if step.cap_s is not None and now + step.cap_s < self.ends_at:
            self.ends_at = now + step.cap_s
            self.is_capped = True
        skip_reason = step.breaker.skip_reason(now) if step.breaker is not None else ""
        if skip_reason:
            self._finish("skipped", StepSkipped(self.name, skip_reason), now)
        elif now >= self.ends_at:
            self._finish("timeout", StepTimeout(self.name, "no time was left to start it"), now)
        else:
            call = self._start_call()
            self.budget.schedule_expiry(self.ends_at)
            if step.breaker is not None:
                self._breaker_token = step.breaker.start_call()
            if step.hedge is not None:
                step.hedge.record_call(call, now)
                hedge_at = now + step.hedge.after_s(now)
                if hedge_at < self.ends_at:
                    self._hedge_timer = self.budget.loop.call_at(hedge_at, self._start_hedge)

    @property
    def is_cut_off(self) -> bool:
        return self.outcome == "timeout" or self.budget.is_cut_off

    @property
    def spent_s(self) -> float:
        """Seconds used; infinite while the step runs."""
        return self.ended_at - self.began_at

    def result(self) -> Any:
        """The value of the step, or its fallback. Raises its own exception, StepTimeout, StepSkipped or StepCancelled."""
        if self.error is None:
            return self._value
        if self._step.fallback is not RAISE:
            return self._step.fallback
        raise self.error

    async def wait(self) -> Any:
        """Wait until the step is done and return its `result`. Cancelling the waiter does not cancel the step."""
        if not self.is_done:
            await self.done_future()
        return self.result()

    def done_future(self) -> "asyncio.Future[None]":
        """A future for a step that still runs; set when the step is done."""
        waiter = self.budget.loop.create_future()
        if self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)
        return waiter

    def finish(self, outcome: str, error: BaseException) -> None:
        """End the step from outside. Does nothing if it is done."""
        if not self.is_done:
            self._finish(outcome, error, self.budget.now())

    def expire(self, now: float) -> None:
        """End the step because its time is over."""
        seconds, blocked_s = self.ends_at - self.began_at, self._blocked_s(now)
        reason = (f"not done within its cap of {seconds:.3g} s" if self.is_capped else
                  f"not done within the {seconds:.3g} s that the turn had for it")
        if blocked_s:
            reason += f"; the event loop was blocked for {blocked_s:.3g} s at its end"
        self._finish("timeout", StepTimeout(self.name, reason), now)

    @property
    def blocked_s(self) -> float:
        """Seconds by which a blocked event loop delayed the end of the step; 0 below BLOCKED_S and BLOCKED_SHARE."""
        return self._blocked_s(self.ended_at) if self.is_done else 0.0

    def _blocked_s(self, at: float) -> float:
        late_s = at - self.ends_at
        is_blocked = late_s >= BLOCKED_S and late_s >= BLOCKED_SHARE * (self.ends_at - self.began_at)
        return late_s if is_blocked and self.n_calls else 0.0

    def _start_call(self) -> "asyncio.Task[Any]":
        step, budget = self._step, self.budget
        if step.mode is ASYNC:
            try:
                awaitable = step.function(*step.args)
            except TypeError as error:
                raise (argument_mismatch(self.name, step) or error) from None
        elif step.mode is THREAD:
            if not takes_n_positional(step.function, len(step.args)):
                mismatch = argument_mismatch(self.name, step)
                if mismatch is not None:
                    raise mismatch
            awaitable = self._run_in_thread()
        else:
            awaitable = step.function
        outer = current_scope.get()
        current_scope.set(self)  # the Task copies the context
        task = budget.loop.create_task(run_contained(awaitable, self.name))
        current_scope.set(outer)
        self.n_calls += 1
        self.calls.append(task)
        budget.tasks[task] = self
        task.add_done_callback(partial(self._on_call_done, awaitable))
        return task

    async def _run_in_thread(self) -> Any:
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
        return await result if isawaitable(result) else result  # a decorator may hide an async function

    def _on_call_done(self, awaitable: Awaitable[Any], task: "asyncio.Task[Any]") -> None:
        del self.budget.tasks[task]
        self.calls.remove(task)
        is_cancelled = task.cancelled()
        if is_cancelled and asyncio.iscoroutine(awaitable):
            awaitable.close()  # it may not have started
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
        if self.calls:  # the other call may still succeed
            return
        if error is None:
            self._finish("cancelled", StepCancelled(self.name, "cancelled from outside of its budget"), now)
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
        """Report the outcome to the breaker and the hedge. A step cut short by its turn counts as neither good nor bad."""
        step = self._step
        if self._breaker_token >= 0 and step.breaker is not None:
            is_bad = self.outcome == "failed" or (self.outcome == "timeout" and self.is_capped and not self.blocked_s)
            is_good = True if self.outcome == "ok" else False if is_bad else None
            step.breaker.record_outcome(self._breaker_token, now, is_good=is_good)
        if step.hedge is not None:
            for task in self.calls:
                step.hedge.record_cancelled(task, now)
        if self._hedge_timer is not None:
            self._hedge_timer.cancel()

    def __repr__(self) -> str:
        return f"<{self.name}: {self.outcome} after {self.spent_s:.3f} s of {self.ends_at - self.began_at:.3f}>"
