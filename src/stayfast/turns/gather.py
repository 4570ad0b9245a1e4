"""A fan-out: several steps run concurrently until enough of them are done."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stayfast.turns.step import Step, StepCancelled, StepFailed, StepTimeout
from stayfast.turns.step_run import BudgetState, StepRun
from stayfast.turns.validation import argument_error, is_seconds


@dataclass(frozen=True, slots=True)
class MissingResult:
    """A step without a result. `reason`: timeout, failed, skipped, cancelled or late. `detail`: no user data."""

    reason: str
    detail: str
    elapsed_s: float
    error: BaseException | None = None  # the step's own exception


@dataclass(frozen=True, slots=True)
class GatherResult:
    """`done`: results by name, including fallbacks. `missing`: the steps without a result of their own. `late`: those of
    them that still run; get the result with `await late["web"].wait()`.
    """

    done: Mapping[str, Any]
    missing: Mapping[str, MissingResult] = field(default_factory=dict)
    late: Mapping[str, StepRun] = field(default_factory=dict)

    @property
    def timed_out(self) -> tuple[str, ...]:
        """The names of the steps that were not done in time."""
        return tuple(name for name, missing in self.missing.items() if missing.reason in ("timeout", "late"))

    def get(self, name: str, default: Any = None) -> Any:
        """The result of a step, or `default` if it is missing."""
        return self.done.get(name, default)

    def require(self, *names: str) -> None:
        """Raise if a step of `names` is missing: its own exception, or StepFailed with the reason."""
        for name in names:
            if name in self.missing:
                missing = self.missing[name]
                raise missing.error or StepFailed(name, missing.detail)
            if name not in self.done:
                raise KeyError(f"there is no step {name!r} among {', '.join((*self.done, *self.missing))}")


class GatherRun:
    """One fan-out, owned by its task. For `need`, `by_s` and `late` see `Budget.gather`."""

    __slots__ = ("_budget", "_by_s", "_is_due", "_late", "_need", "_steps", "_waiter")

    def __init__(self, budget: BudgetState, need: int, by_s: float | None, late: BudgetState | None) -> None:
        self._budget = budget
        self._need = need
        self._by_s = by_s
        self._late = late
        self._is_due = by_s is None  # from now on `need` results are enough
        self._steps: dict[str, StepRun] = {}
        self._waiter: asyncio.Future[None] | None = None

    async def run(self, calls: Mapping[str, Any]) -> GatherResult:
        """Raises ValueError and TypeError for wrong use."""
        loop, budget = asyncio.get_running_loop(), self._budget
        timers: list[asyncio.TimerHandle] = []
        try:
            self._check(len(calls))
            for name, call in calls.items():
                step = call if type(call) is Step else _as_step(name, call)
                self._steps[name] = budget.start_step(step, name, self._poll, self._late)
            if not self._is_enough():
                self._waiter = waiter = loop.create_future()
                if self._by_s is not None:
                    timers.append(loop.call_later(self._by_s, self._on_by_time))
                if self._late is not None:
                    timers.append(loop.call_later(budget.remaining(), self._stop))
                await waiter
        except BaseException:
            _close_coroutines([calls[name] for name in calls.keys() - self._steps.keys()])
            await self._end_rest("cancelled", "the turn was cancelled")
            raise
        finally:
            for timer in timers:
                timer.cancel()
        if self._late is None:
            if self._by_s is not None and self._is_due:
                await self._end_rest("timeout", f"not done by {self._by_s:.3g} s")
            else:
                await self._end_rest("cancelled", "enough other steps were done")
        return self._collect()

    def _check(self, n_calls: int) -> None:
        need, by_s, late = self._need, self._by_s, self._late
        if by_s is not None and not is_seconds(by_s):
            raise argument_error(f"by={by_s!r:.80}: gather waits for by seconds from now, above 0, as in by=0.6", by_s)
        if type(need) is not int:
            raise TypeError(f"need={need!r:.80}: how many steps are enough, an integer, as in need=1; no step can have this "
                            "name")
        if late is not None and not isinstance(late, type(self._budget)):
            raise TypeError(f"late={late!r:.80}: the budget around this one, under which steps may continue; no step can "
                            "have this name")
        if not 0 <= need <= n_calls:
            raise ValueError(f"need={need}: of {n_calls} steps, 0 to {n_calls} can be needed")

    def _poll(self) -> None:
        if self._waiter is not None and self._is_enough():
            self._stop()

    def _on_by_time(self) -> None:
        self._is_due = True
        self._poll()

    def _stop(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _is_enough(self) -> bool:
        steps = self._steps.values()
        if all(run.is_done for run in steps):
            return True
        n_good = sum(run.is_done and run.error is None for run in steps)
        return self._is_due and n_good >= self._need and (self._need > 0 or self._by_s is not None)

    async def _end_rest(self, outcome: str, reason: str) -> None:
        for run in self._steps.values():
            if not run.is_done:
                error = StepTimeout if outcome == "timeout" else StepCancelled
                run.is_capped = False  # the breaker learns nothing: the step was within its cap
                run.finish(outcome, error(run.name, reason))
                run.is_capped = outcome == "timeout"  # and it did not exhaust the turn's time either
        await self._budget.clean_up(run for run in self._steps.values() if run.outcome != "ok")

    def _collect(self) -> GatherResult:
        done, missing, late = dict[str, Any](), dict[str, MissingResult](), dict[str, StepRun]()
        for name, run in self._steps.items():
            error = run.error
            if not run.is_done:
                late[name] = run
                missing[name] = MissingResult("late", "still running", self._budget.now() - run.began_at)
                continue
            if error is None or run.used_fallback:
                done[name] = run.result()
            if error is not None:
                own_error = None if isinstance(error, StepFailed) else error
                missing[name] = MissingResult(run.outcome, run.detail, run.spent_s, own_error)
        return GatherResult(done, missing, late)


def _as_step(name: str, call: Any) -> Step:
    try:
        return Step(call, ())
    except TypeError as error:
        raise TypeError(f"{name}={call!r:.80}: {error}; here {name}=step(find, question)") from None


def _close_coroutines(calls: Iterable[Any]) -> None:
    """Close coroutines that never started, so that Python does not warn "was never awaited"."""
    for call in calls:
        function = call.function if isinstance(call, Step) else call
        if asyncio.iscoroutine(function):
            function.close()
