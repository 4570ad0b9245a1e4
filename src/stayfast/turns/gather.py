"""A fan-out: several steps side by side, when enough of them are done, and what they brought."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stayfast.turns.step import Step, StepCancelled, StepFailed, StepTimeout
from stayfast.turns.step_run import BudgetState, StepRun
from stayfast.turns.validation import argument_error, is_seconds


@dataclass(frozen=True, slots=True)
class MissingResult:
    """One that brought nothing. `why`: timeout, failed, skipped, cancelled or late; `detail` says more, in words of ours."""

    reason: str
    detail: str
    elapsed_s: float
    error: BaseException | None = None  # its own


@dataclass(frozen=True, slots=True)
class GatherResult:
    """`done`: results by name, and fallbacks; `missing`: what brought no result of its own; `late`: what of that goes on.

    A late one's result is `await late["web"].wait()`.
    """

    done: Mapping[str, Any]
    missing: Mapping[str, MissingResult] = field(default_factory=dict)
    late: Mapping[str, StepRun] = field(default_factory=dict)

    @property
    def timed_out(self) -> tuple[str, ...]:
        """Those that were not done in time."""
        return tuple(name for name, missing in self.missing.items() if missing.reason in ("timeout", "late"))

    def get(self, name: str, default: Any = None) -> Any:
        """One result, or `default` where it is missing."""
        return self.done.get(name, default)

    def require(self, *names: str) -> None:
        """Raise for the first of these that is missing: its own exception, or StepFailed, which says why."""
        for name in names:
            if name in self.missing:
                missing = self.missing[name]
                raise missing.error or StepFailed(name, missing.detail)
            if name not in self.done:
                raise KeyError(f"there was no {name!r} among {', '.join((*self.done, *self.missing))}")


class GatherRun:
    """One fan-out. Its task owns it. `need` and `by_s` as `Budget.gather` says."""

    __slots__ = ("_budget", "_by_s", "_is_due", "_late", "_need", "_steps", "_waiter")

    def __init__(self, of: BudgetState, need: int, by_s: float | None, late: BudgetState | None) -> None:
        self._budget = of
        self._need = need
        self._by_s = by_s
        self._late = late
        self._is_due = by_s is None  # the time has come from which `need` is enough
        self._steps: dict[str, StepRun] = {}
        self._waiter: asyncio.Future[None] | None = None

    async def run(self, calls: Mapping[str, Any]) -> GatherResult:
        """Raises ValueError and TypeError for what cannot be."""
        loop, of = asyncio.get_running_loop(), self._budget
        timers: list[asyncio.TimerHandle] = []
        try:
            self._check(len(calls))
            for name, call in calls.items():
                self._steps[name] = of.start_step(call if type(call) is Step else _as_step(name, call), name, self._poll,
                                                  self._late)
            if not self._is_enough():
                self._waiter = waiter = loop.create_future()
                if self._by_s is not None:
                    timers.append(loop.call_later(self._by_s, self._on_by_time))
                if self._late is not None:
                    timers.append(loop.call_later(of.remaining(), self._stop))
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
                await self._end_rest("cancelled", "others were enough")
        return self._collect()

    def _check(self, n_calls: int) -> None:
        need, by_s, late = self._need, self._by_s, self._late
        if by_s is not None and not is_seconds(by_s):
            raise argument_error(f"by={by_s!r:.80}: gather waits for by seconds from now, more than 0, as in by=0.6", by_s)
        if type(need) is not int:
            raise TypeError(f"need={need!r:.80}: how many steps are enough, a whole number, as in need=1; no step can have "
                            "this name")
        if late is not None and not isinstance(late, type(self._budget)):
            raise TypeError(f"late={late!r:.80}: the budget around this one, under which steps may go on; no step can "
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
        """Whether there is nothing more to wait for."""
        steps = self._steps.values()
        if all(running.is_done for running in steps):
            return True
        n_good = sum(running.is_done and running.error is None for running in steps)
        return self._is_due and n_good >= self._need and (self._need > 0 or self._by_s is not None)

    async def _end_rest(self, how: str, why: str) -> None:
        left = [running for running in self._steps.values() if not running.is_done]
        for running in left:
            name = running.name
            running.is_capped = False  # its breaker learns nothing: it was within its cap
            running.finish(how, StepTimeout(name, why) if how == "timeout" else StepCancelled(name, why))
            running.is_capped = how == "timeout"  # and it was not the turn's end that it reached
        await self._budget.clean_up(running for running in self._steps.values() if running.outcome != "ok")

    def _collect(self) -> GatherResult:
        done, missing, late = dict[str, Any](), dict[str, MissingResult](), dict[str, StepRun]()
        for name, running in self._steps.items():
            error = running.error
            if not running.is_done:
                late[name] = running
                missing[name] = MissingResult("late", "it goes on", self._budget.now() - running.began_at)
                continue
            if error is None or running.used_fallback:
                done[name] = running.result()
            if error is not None:
                own = None if isinstance(error, StepFailed) else error
                missing[name] = MissingResult(running.outcome, running.detail, running.spent_s, own)
        return GatherResult(done, missing, late)


def _as_step(name: str, call: Any) -> Step:
    try:
        return Step(call, ())
    except TypeError as error:
        raise TypeError(f"{name}={call!r:.80}: {error}; here {name}=step(find, question)") from None


def _close_coroutines(calls: Iterable[Any]) -> None:
    """They were not begun, as another one is wrong: nobody is to be told that they were never awaited."""
    for call in calls:
        made = call.function if isinstance(call, Step) else call
        if asyncio.iscoroutine(made):
            made.close()
