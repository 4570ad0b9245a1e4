"""One deadline for a whole turn: retrieval, tools and the model each get what is left, and no step outlives it.

    async with budget(total=2.5, reserve={"answer": 1.6}) as b:
        found = await b.gather(kb=step(search, question, cap=0.4), web=look_up(question), need=1, by=0.6)
        text = await b.run(answer, question, found.done, fallback="I do not know yet.")

Rules. The deadline is an absolute instant; of nested budgets the earlier deadline applies. A step may use the time that is
left, minus the reserves of stages that have not started, and at most its cap. Unused time stays for later steps. A step that
exceeds its time is cancelled, gets CLEANUP_S to release its resources, and is replaced by its fallback. A step that cannot
be cancelled (a thread, a step that suppresses the cancellation) is abandoned, and counted. The body of the `async with` has
BODY_GRACE_S more than its steps, to return a result; if it is still waiting then, it is cancelled, and OutOfTime is raised.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Never, TypeVar, overload

from stayfast.core.clock import SystemClock
from stayfast.turns.gather import GatherResult, GatherRun
from stayfast.turns.report import find_broken_by, list_abandoned, render_waterfall, total_cost_usd
from stayfast.turns.step import RAISE, AsyncStep, BreakerPolicy, HedgePolicy, Step, StepCancelled, step_name
from stayfast.turns.step_run import BODY_GRACE_S, CLEANUP_S, BudgetScope, BudgetState, current_scope
from stayfast.turns.threads import StartThread, start_thread
from stayfast.turns.validation import argument_error, is_amount, is_seconds

T = TypeVar("T")
F = TypeVar("F")
_NO_RESERVE: Mapping[str, float] = MappingProxyType({})


class OutOfTime(TimeoutError):
    """The body of an `async with budget(...)` was still waiting when its time was over."""


class Budget(BudgetState):
    """One turn; create it with `budget`. One task enters it; any task may run steps in it until it ends."""

    __slots__ = ("_caller_timeout_s", "_reserve", "_threads")

    def __init__(self, total_s: float | None, reserve: Mapping[str, float], caller_timeout_s: float,
                 threads: StartThread | None) -> None:
        super().__init__(total_s)
        self._caller_timeout_s = caller_timeout_s
        self._reserve = reserve
        self._threads = threads

    async def __aenter__(self) -> "Budget":
        if self.began_at < inf:
            raise RuntimeError("a budget is entered once: write `async with budget(total=2.5) as b:` for each turn")
        self.loop = loop = asyncio.get_running_loop()
        self.now = getattr(loop, "now", SystemClock.now)  # a loop in virtual time is a clock
        self.began_at = now = self.now()
        self._outer_scope = outer = current_scope.get()
        self.start_thread = self._threads or (start_thread if outer is None else outer.budget.start_thread)
        total_s = self.total_s
        if outer is not None:
            self.deadline_at = outer.ends_at if total_s is None else min(outer.ends_at, now + total_s)
            if outer.inner is None:
                outer.inner = []
            outer.inner.append(self)
        elif total_s is None:
            raise RuntimeError("budget() without a total uses the deadline of the budget around it, and there is none: "
                               "write budget(total=2.5)")
        else:
            self.deadline_at = now + total_s
        if self._caller_timeout_s < inf:
            self.deadline_at = min(self.deadline_at, now + self._caller_timeout_s)
        if self._reserve:
            left_s, later_s = max(0.0, self.deadline_at - now), 0.0
            scale = 1.0 if total_s is None else left_s / total_s  # less time shortens every reserve in proportion
            for name, reserve_s in reversed(list(self._reserve.items())):
                self._reserved_after_s[name] = later_s
                later_s += reserve_s * scale
            self._reserved_s = min(later_s, left_s)
        self._root = BudgetScope(self, self.deadline_at - self._reserved_s)
        await self.resume()
        return self

    async def suspend(self) -> None:
        """Leave the body, to continue it elsewhere with `resume`. Running steps continue; no step can start meanwhile."""
        self._is_open = False
        current_scope.set(self._outer_scope)
        await self._timeout.__aexit__(None, None, None)

    async def resume(self) -> None:
        """Continue the body in the current task, which must leave it by `__aexit__`."""
        self._is_open = True
        current_scope.set(self._root)
        self._timeout = asyncio.timeout_at(self.deadline_at + BODY_GRACE_S if self.deadline_at < inf else None)
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        where: TracebackType | None) -> None:
        self._is_open = False
        current_scope.set(self._outer_scope)
        is_out_of_time = False
        try:
            await self._timeout.__aexit__(kind, error, where)
        except TimeoutError:
            is_out_of_time = True
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        try:
            if self.tasks:
                await self._end_all()
        finally:
            self.ended_at = self.now()
        if is_out_of_time:
            raise OutOfTime(f"the turn's {self.deadline_at - self.began_at:.3g} s were over while its body waited for "
                            "something that is not a step: use b.run(...) or b.gather(...) for anything that may take "
                            "long") from error

    if not TYPE_CHECKING:  # a type checker reports the missing methods itself

        def __enter__(self) -> None:
            raise TypeError("a budget waits for its steps: write `async with budget(...) as b:`, in an async function")

        def __exit__(self, *error: object) -> None:
            pass

    @overload
    async def run(self, step: AsyncStep[T], *args: Any, name: str | None = ..., cap: float | None = ...,
                  hedge: HedgePolicy | None = ..., breaker: BreakerPolicy | None = ...) -> T: ...

    @overload
    async def run(self, step: AsyncStep[T], *args: Any, fallback: F, name: str | None = ..., cap: float | None = ...,
                  hedge: HedgePolicy | None = ..., breaker: BreakerPolicy | None = ...) -> T | F: ...

    @overload
    async def run(self, step: Callable[..., T], *args: Any, name: str | None = ..., cap: float | None = ...,
                  hedge: HedgePolicy | None = ..., breaker: BreakerPolicy | None = ...) -> T: ...

    @overload
    async def run(self, step: Callable[..., T], *args: Any, fallback: F, name: str | None = ..., cap: float | None = ...,
                  hedge: HedgePolicy | None = ..., breaker: BreakerPolicy | None = ...) -> T | F: ...

    async def run(self, step: Any, *args: Any, name: str | None = None, cap: float | None = None,
                  hedge: HedgePolicy | None = None, fallback: Any = RAISE, breaker: BreakerPolicy | None = None) -> Any:
        """Run one step and return its result: `await b.run(search, question, name="kb", cap=0.4, fallback=[])`.

        `step` is an async function, a plain function (it runs in a thread) or a coroutine; pass keyword arguments by
        `functools.partial`. `name` defaults to the function's name; a name in `reserve` may use that reserve. `cap`: maximum
        seconds. `hedge`: start a second call if the first is slow (reads only). `breaker`: skip the step while it fails.
        `fallback`: the result if the step has none; without a fallback its own exception is raised, or StepTimeout,
        StepSkipped or StepCancelled. Raises TypeError, ValueError and RuntimeError for wrong use.
        """
        run = self.start_step(Step(step, args, cap, hedge=hedge, fallback=fallback, breaker=breaker),
                              name if type(name) is str and name else step_name(step, name))
        if not run.is_done:
            try:
                await run.done_future()
            except asyncio.CancelledError:
                run.finish("cancelled", StepCancelled(run.name, "the turn was cancelled"))
                await self.clean_up((run,))
                raise
        if run.outcome != "ok":
            await self.clean_up((run,))
        return run.result()

    async def gather(self, /, *unnamed: Never, need: int = 0, by: float | None = None, late: "Budget | None" = None,
                     **calls: Step | Awaitable[Any] | Callable[[], Any]) -> GatherResult:
        """Run several named steps concurrently: `await b.gather(kb=step(search, q, cap=0.4), web=look_up(q))`.

        Returns when all steps are done; with `need`, as soon as that many have succeeded; with `by` (seconds), then; with
        both, when `need` have succeeded, but not before `by`. Steps that are not done are cancelled, or continue under
        `late`, a budget around this one. A failing step never raises: the result has what is missing and the reason.
        """
        if unnamed or not calls:
            raise TypeError(f"gather has {'a step without a name' if unnamed else 'nothing to run'}: name each step, as in "
                            "b.gather(kb=step(search, question), web=...)")
        return await GatherRun(self, need, by, late).run(calls)

    @property
    def cost_usd(self) -> float:
        """The sum of all `charge` calls, in dollars."""
        return total_cost_usd(self)

    @property
    def abandoned(self) -> list[str]:
        """The steps that were cancelled but still run, including those of inner budgets."""
        return list_abandoned(self)

    @property
    def broken_by(self) -> str | None:
        """The first step that used all the time the turn had for it, not only its own cap; also of an inner budget that this
        one shortened. EVENT_LOOP if a blocked event loop, in this turn or another, was the cause.
        """
        return find_broken_by(self)

    def report(self) -> str:
        """The turn as a waterfall in text: per step its time and cost, what was cut, and the step that broke the budget."""
        return render_waterfall(self)

    async def _end_all(self) -> None:
        """Cancel the running steps and wait CLEANUP_S; steps that still run then are abandoned."""
        now = self.now()
        for task, run in list(self.tasks.items()):
            if now - run.ended_at > CLEANUP_S:
                task.cancel()  # it suppressed the first cancellation
            run.finish("cancelled", StepCancelled(run.name, "the turn ended"))
        try:
            await self._wait_for(self.tasks)
        finally:
            for run in self.tasks.values():
                run.is_abandoned = True

    def __repr__(self) -> str:
        left = f"{self.remaining():.3f} s left" if self._is_open else "not running"
        return f"<Budget: {len(self.step_runs)} steps, {left}>"


def budget(total: float | None = None, reserve: Mapping[str, float] = _NO_RESERVE, *,
           caller_timeout: float = inf, threads: StartThread | None = None) -> Budget:
    """A turn of `total` seconds, with seconds reserved for named stages, in their order: `budget(2.5, {"answer": 1.6})`.

    An inner budget ends with the outer one at the latest; without a total, exactly then. `caller_timeout`: seconds that the
    caller waits; a shorter one shortens the turn, and every reserve in proportion. `threads` starts plain functions; tests
    in virtual time pass their own. Raises ValueError and TypeError for values out of range.
    """
    if total is not None and not is_seconds(total):
        raise argument_error(f"total={total!r:.80}: a budget is seconds, above 0, as in budget(total=2.5)", total)
    if reserve is not _NO_RESERVE:
        _check_reserve(reserve, inf if total is None else total)
    if caller_timeout != inf and not is_amount(caller_timeout):
        raise argument_error(f"caller_timeout={caller_timeout!r:.80}: the seconds that the caller waits, 0 or more, as in "
                             "budget(2.5, caller_timeout=1.0); leave it out if unknown", caller_timeout)
    if threads is not None and not callable(threads):
        raise TypeError(f"threads={threads!r:.80}: a function that starts plain functions, for tests, as in "
                        "threads=VirtualThreads(); by default each call has its own thread")
    return Budget(total, reserve, caller_timeout, threads)


def current_budget() -> Budget:
    """The innermost budget around this code. Raises RuntimeError if there is none."""
    scope = current_scope.get()
    if scope is None or not isinstance(scope.budget, Budget):
        raise RuntimeError("no budget is open around this code: write `async with budget(total=2.5):` around its caller, "
                           "or use remaining(), which is infinite without a budget")
    return scope.budget


def remaining() -> float:
    """Seconds left for this code, by its budget and its step; infinite without a budget.

    For code that does not know of turns: `timeout=min(5.0, remaining())`.
    """
    scope = current_scope.get()
    return inf if scope is None else max(0.0, scope.ends_at - scope.budget.now())


def charge(usd: float) -> None:
    """Add the cost of the current step, in dollars. No effect without a budget. Raises ValueError and TypeError."""
    if not is_amount(usd):
        raise argument_error(f"charge({usd!r:.80}): the cost of a step is dollars, 0 or more, as in charge(0.0004)", usd)
    scope = current_scope.get()
    if scope is not None:
        scope.cost_usd += usd


def _check_reserve(reserve: Mapping[str, float], total_s: float) -> None:
    if not isinstance(reserve, Mapping):
        raise TypeError(f"reserve={reserve!r:.80}: map stage names to reserved seconds, as in reserve={{\"answer\": 1.6}}")
    for name, reserve_s in reserve.items():
        if not name or type(name) is not str:
            raise TypeError(f"reserve={{{name!r:.80}: {reserve_s!r:.80}}}: a key is the name of a step, as in "
                            'reserve={"answer": 1.6}')
        if not is_seconds(reserve_s):
            raise argument_error(f"reserve={{{name!r}: {reserve_s!r:.80}}}: a reserve is seconds, above 0, for the step of "
                                 'that name, as in reserve={"answer": 1.6}', reserve_s)
    if sum(reserve.values()) >= total_s:
        raise ValueError(f"reserve adds up to {sum(reserve.values()):g} s, which leaves nothing of total={total_s:g}")
