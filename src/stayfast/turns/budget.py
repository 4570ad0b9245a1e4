"""One deadline through a turn: retrieval, tools and the model each get what is left, and nothing outlives it.

    async with budget(total=2.5, reserve={"answer": 1.6}) as b:
        found = await b.gather(kb=step(search, question, cap=0.4), web=look_up(question), need=1, by=0.6)
        text = await b.run(answer, question, found.done, fallback="I do not know yet.")

Rules. The deadline is an absolute instant; nested budgets take the earlier one. A step may take what is left, less what is
reserved for stages that have not begun, and never more than its cap; what it does not use is there for the next one. A step
that is not done by then is cancelled, given CLEANUP_S to close what it holds, and its fallback takes its place. What cannot
be cancelled (a thread, a step that swallows it) is abandoned, and counted. The body of the `async with` has BODY_GRACE_S
more than its steps, to say what it has; if it still waits for something then, it is cancelled, and OutOfTime is raised.
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
    """The body of an `async with budget(...)` was still waiting for something when its time was over."""


class Budget(BudgetState):
    """See the module. Made by `budget`; one task enters it, any may run steps in it until it ends."""

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
            raise RuntimeError("budget() without a total takes the deadline of the budget around it, and there is none: "
                               "write budget(total=2.5)")
        else:
            self.deadline_at = now + total_s
        if self._caller_timeout_s < inf:
            self.deadline_at = min(self.deadline_at, now + self._caller_timeout_s)
        if self._reserve:
            left_s, behind_s = max(0.0, self.deadline_at - now), 0.0
            share = 1.0 if total_s is None else left_s / total_s  # in a shorter time every reserve is shorter in proportion
            for name, reserve_s in reversed(list(self._reserve.items())):
                self._reserved_after_s[name] = behind_s
                behind_s += reserve_s * share
            self._reserved_s = min(behind_s, left_s)
        self._is_open = True
        self._root = root = BudgetScope(self, self.deadline_at - self._reserved_s)
        current_scope.set(root)
        self._timeout = asyncio.timeout_at(self.deadline_at + BODY_GRACE_S if self.deadline_at < inf else None)
        await self._timeout.__aenter__()
        return self

    async def suspend(self) -> None:
        """Its body is left, to go on elsewhere by `resume`: until then its steps go on, and none begins."""
        self._is_open = False
        current_scope.set(self._outer_scope)
        await self._timeout.__aexit__(None, None, None)

    async def resume(self) -> None:
        """Its body goes on here, in whichever task this is, which is to leave it by `__aexit__`."""
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
            raise OutOfTime(f"the turn's {self.deadline_at - self.began_at:.3g} s were over while its body waited for what "
                            "is no step: give what may take long to b.run(...) or b.gather(...)") from error

    if not TYPE_CHECKING:  # who checks types is told by that

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
        """Run one step and return what it returns: `await b.run(search, question, name="kb", cap=0.4, fallback=[])`.

        `step` is an async function, a plain one (it runs in a thread) or a coroutine; keyword arguments go in by
        `functools.partial`. `name` defaults to the function's; one that is in `reserve` may use what is reserved for it.
        `cap`: the most seconds it may take. `hedge`: ask a second time when it is slow (reads only). `breaker`: leave it
        alone while it fails. `fallback`: what to return where the step brings nothing; without one its own exception is
        raised, or StepTimeout, StepSkipped or StepCancelled. Raises TypeError, ValueError and RuntimeError for wrong use.
        """
        running = self.start_step(Step(step, args, cap, hedge=hedge, fallback=fallback, breaker=breaker),
                             name if type(name) is str and name else step_name(step, name))
        if not running.is_done:
            try:
                await running.done_future()
            except asyncio.CancelledError:
                running.finish("cancelled", StepCancelled(running.name, "the turn was cancelled"))
                await self.clean_up((running,))
                raise
        if running.outcome != "ok":
            await self.clean_up((running,))
        return running.result()

    async def gather(self, /, *unnamed: Never, need: int = 0, by: float | None = None, late: "Budget | None" = None,
                     **calls: Step | Awaitable[Any] | Callable[[], Any]) -> GatherResult:
        """Run several steps side by side, by name: `await b.gather(kb=step(search, q, cap=0.4), web=look_up(q))`.

        Returns when all are over; with `need`, as soon as so many have succeeded, but with `by` (seconds) not before that;
        with `by` alone, then. What is not done is cancelled, or goes on under `late`, a budget around this one. Never raises
        for what a step does: the result says what is missing and why.
        """
        if unnamed or not calls:
            raise TypeError(f"gather has {'a step without a name' if unnamed else 'nothing to run'}: name each one, as in "
                            "b.gather(kb=step(search, question), web=...)")
        return await GatherRun(self, need, by, late).run(calls)

    @property
    def cost_usd(self) -> float:
        """What all steps said they cost (`charge`), in dollars."""
        return total_cost_usd(self)

    @property
    def abandoned(self) -> list[str]:
        """The steps that were cancelled and go on all the same, those of budgets inside included."""
        return list_abandoned(self)

    @property
    def broken_by(self) -> str | None:
        """The first step that used all that the turn had for it, not just its own cap; also of a budget inside that would
        have had more time of its own. EVENT_LOOP where it was that which did not run: whoever blocked it, in this turn or
        another, a step that merely waited meanwhile is not to blame.
        """
        return find_broken_by(self)

    def report(self) -> str:
        """The turn as a waterfall, for people: its steps, what each took and cost, what was cut, what broke the budget."""
        return render_waterfall(self)

    async def _end_all(self) -> None:
        """Cancel what still runs and give it a moment; what is still there then is abandoned."""
        now = self.now()
        for task, running in list(self.tasks.items()):
            if now - running.ended_at > CLEANUP_S:
                task.cancel()  # it went on once; another time it may not
            running.finish("cancelled", StepCancelled(running.name, "the turn ended"))
        try:
            await self._wait_for(self.tasks)
        finally:
            for running in self.tasks.values():
                running.is_abandoned = True

    def __repr__(self) -> str:
        left = f"{self.remaining():.3f} s left" if self._is_open else "not running"
        return f"<Budget: {len(self.step_runs)} steps, {left}>"


def budget(total: float | None = None, reserve: Mapping[str, float] = _NO_RESERVE, *,
           caller_timeout: float = inf, threads: StartThread | None = None) -> Budget:
    """A turn of `total` seconds, with `reserve` kept for stages by name, in their order: `budget(2.5, {"answer": 1.6})`.

    Inside another one it ends with that at the latest, and without a total just then. `caller_timeout`: seconds that the caller
    waits; they make it shorter, and every reserve in proportion. `threads` starts the plain functions; tests in virtual time
    give their own. Raises ValueError and TypeError for what cannot be.
    """
    if total is not None and not is_seconds(total):
        raise argument_error(f"total={total!r:.80}: a budget is some seconds, as in budget(total=2.5)", total)
    if reserve is not _NO_RESERVE:
        _check_reserve(reserve, inf if total is None else total)
    if caller_timeout != inf and not is_amount(caller_timeout):
        raise argument_error(f"caller_timeout={caller_timeout!r:.80}: the seconds that the caller waits, 0 or more, as in "
                    "budget(2.5, caller_timeout=1.0); leave it out where nobody says", caller_timeout)
    if threads is not None and not callable(threads):
        raise TypeError(f"threads={threads!r:.80}: what starts plain functions, as in threads=VirtualThreads(), in tests; "
                        "without it each has a thread of its own")
    return Budget(total, reserve, caller_timeout, threads)


def current_budget() -> Budget:
    """The innermost budget around this code. Raises RuntimeError where there is none."""
    scope = current_scope.get()
    if scope is None or not isinstance(scope.budget, Budget):
        raise RuntimeError("no budget is open around this code: write `async with budget(total=2.5):` around what calls it, "
                           "or ask remaining(), which is infinite then")
    return scope.budget


def remaining() -> float:
    """Seconds left for this code, by the budget and the step that it runs in; infinite where there is none.

    So that code which knows of no turn can be given its time: `timeout=min(5.0, remaining())`.
    """
    scope = current_scope.get()
    return inf if scope is None else max(0.0, scope.ends_at - scope.budget.now())


def charge(usd: float) -> None:
    """What the step that runs here has just cost, in dollars, for the report; nothing without a budget.

    Raises ValueError and TypeError for what is no amount: it is summed up, and one such sum would spoil all that come after.
    """
    if not is_amount(usd):
        raise argument_error(f"charge({usd!r:.80}): what a step cost is dollars, 0 or more, as in charge(0.0004)", usd)
    scope = current_scope.get()
    if scope is not None:
        scope.cost_usd += usd


def _check_reserve(reserve: Mapping[str, float], total_s: float) -> None:
    if not isinstance(reserve, Mapping):
        raise TypeError(f"reserve={reserve!r:.80}: say how many seconds are kept for which stage, as in "
                        'reserve={"answer": 1.6}')
    for name, reserve_s in reserve.items():
        if not name or type(name) is not str:
            raise TypeError(f"reserve={{{name!r:.80}: {reserve_s!r:.80}}}: say which step it is kept for by its name, as in "
                            'reserve={"answer": 1.6}')
        if not is_seconds(reserve_s):
            raise argument_error(f"reserve={{{name!r}: {reserve_s!r:.80}}}: a reserve is seconds, kept for the step of "
                                 f"that name, "
                        'as in reserve={"answer": 1.6}', reserve_s)
    if sum(reserve.values()) >= total_s:
        raise ValueError(f"reserve comes to {sum(reserve.values()):g} s, which leaves nothing of total={total_s:g}")
