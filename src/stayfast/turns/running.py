"""One step while it runs: its calls, and what became of it.

Nothing here waits: callbacks of the loop start and end the calls, and whoever wants the result is told once. So a budget
can watch one step or twenty in the same way, and a step costs one Task and one future.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from inspect import isawaitable
from math import inf
from typing import TYPE_CHECKING, Any

from stayfast.turns.errors import StepCancelled, StepFailed, StepSkipped, StepTimeout
from stayfast.turns.scope import Scope, here
from stayfast.turns.step import ASYNC, RAISE, THREAD, Step, fits_at_a_glance, misfit
from stayfast.turns.threads import TooManyThreads

if TYPE_CHECKING:
    from stayfast.turns.budget import Budget

CLEANUP_S = 0.005  # what a cancelled call has to close what it holds before it is abandoned
BLOCKED_S, BLOCKED_SHARE = 0.05, 0.1  # an event loop that is late by both, in seconds and of a step's time, was blocked


class Contained(RuntimeError):
    """In place of what must not leave a Task: it would end the loop, or never be heard of. Its cause is what was raised."""


def kind_of(error: BaseException) -> str:
    """The name of what was raised."""
    return type(error.__cause__ if isinstance(error, Contained) else error).__name__


class Running(Scope):
    """One step, while it runs and after. `tell` is called once, when it is over.

    `how`: running, ok, timeout, failed, skipped or cancelled. `detail`: names of exceptions and reasons of ours, never what
    was asked. `is_capped`: by its own cap, not by what the turn had left. `is_abandoned`: it was cancelled and went on.
    """

    __slots__ = ("_alarm", "_mark", "_step", "_tell", "_value", "_waiters", "began_at", "calls", "detail", "ended_at",
                 "error", "how", "is_abandoned", "is_capped", "is_over", "n_calls", "name", "used_fallback")

    def __init__(self, name: str, step: Step, budget: "Budget", ends_at: float,
                 tell: "Callable[[], None] | None" = None) -> None:
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
        self._tell = tell
        self._alarm: asyncio.TimerHandle | None = None  # of the hedge
        self._mark = -1  # the breaker's
        self._waiters: list[asyncio.Future[None]] | None = None
        self._value: Any = None

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
                step.hedge.asked(call, now)
                again_at = now + step.hedge.after_s(now)
                if again_at < self.ends_at:
                    self._alarm = self.budget.loop.call_at(again_at, self._again)

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
        """Its result is not wanted any more."""
        if not self.is_over:
            self._end(how, error, self.budget.now())

    def expire(self, now: float) -> None:
        """Its time is over."""
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
        task = budget.loop.create_task(_contained(made, self.name))
        here.set(outer)
        self.n_calls += 1
        self.calls.append(task)
        budget.tasks[task] = self
        task.add_done_callback(partial(self._called, made))
        return task

    async def _in_thread(self) -> Any:
        step = self._step
        try:
            future = self.budget.start_thread(self.name, partial(copy_context().run, _plainly, self.name, step.function,
                                                                     *step.args))
        except TooManyThreads as error:
            raise StepSkipped(self.name, str(error)) from None
        try:
            result = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.is_abandoned = not future.done()
            raise
        return await result if isawaitable(result) else result  # of an async function that a decorator hides

    def _called(self, made: Awaitable[Any], task: "asyncio.Task[Any]") -> None:
        """A call has ended."""
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
        """It is time for the second call."""
        hedge, now = self._step.hedge, self.budget.now()
        if hedge is not None and hedge.may_again(self.ends_at - now, now):
            hedge.asked_again(self._call(), now)

    def _end(self, how: str, error: BaseException | None, now: float) -> None:
        self.is_over = True
        self.how = how
        self.ended_at = now
        if error is not None:
            self._end_badly(error)
        if self._mark >= 0 or self._step.hedge is not None:
            self._teach(now)
        for task in self.calls:
            task.cancel()
        if self._tell is not None:
            self._tell()
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _end_badly(self, error: BaseException) -> None:
        step = self._step
        self.error = error
        self.detail = error.why if isinstance(error, StepFailed) else kind_of(error)
        self.used_fallback = step.fallback is not RAISE
        if not self.n_calls:
            step.discard()

    def _teach(self, now: float) -> None:
        """Tell breaker and hedge."""
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


async def _contained(made: Awaitable[Any], step: str) -> Any:
    try:
        return await made
    except (SystemExit, KeyboardInterrupt) as error:
        raise Contained(f"step {step!r} raised {type(error).__name__}, which ends nothing but the step") from error


def _plainly(step: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except StopIteration as error:  # no future takes it
        raise Contained(f"step {step!r} raised StopIteration: give next() what it returns at the end") from error
