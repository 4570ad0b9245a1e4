"""What a step is: a function, its arguments, and what may be done about it. Wrong use is told before anything runs.

    search, crm = HedgePolicy(), BreakerPolicy()                   # once, beside the functions: they learn from every call
    await b.run(find, question, name="kb", hedge=search)
    await b.run(look_up, customer, name="crm", cap=0.8, breaker=crm, fallback=None)

Hedge: when to ask a second time for the same read while the first one still runs. Only for reads: what changes something may
not be done twice. The delay comes from the live distribution of the step's own times (`policy.resilience.hedge`), second
calls are a bounded share of all (`policy.resilience.retry_budget`), and the slower of the two is cancelled.
Breaker: the gateway's own (`policy.resilience.breaker`), for one step. While it is open the step is not begun, its
fallback is used at once, and now and then one call is let through as a probe. A call that took all of its cap has failed;
one that was cut short because the turn had no more time says nothing.
"""

import inspect
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from functools import partial
from math import inf
from pathlib import PurePath
from random import Random
from types import CoroutineType, FunctionType
from typing import Any, Final, Never, TypeVar

from stayfast.policy.resilience import breaker as policy
from stayfast.policy.resilience.hedge import NEVER, FirstTokens, HedgeConfig, HedgePlan, LateStreak, aim, live, plan
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.resilience.retry_budget import RetryBudget
from stayfast.turns.validation import argument_error, is_amount, is_seconds

T = TypeVar("T")
AsyncStep = Callable[..., Coroutine[Any, Any, T]] | Awaitable[T]
REFRESHED_S = 1.0  # how old a plan may be: making one takes a tenth of a millisecond
_WEIGHT = 1.0  # all calls of a step are alike
_MAX_AFTER_S = 60.0
_N_FRAMES = 3  # of a traceback
_IS_ASYNC = inspect.CO_COROUTINE


class StepFailed(Exception):
    """A step brought no result, and not by an exception of its own. `name`: of the step."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"step {name!r}: {reason}")
        self.name = name
        self.reason = reason


class StepTimeout(StepFailed, TimeoutError):
    """A step used all the time that it might take, or there was none left for it to begin."""


class StepSkipped(StepFailed):
    """A step was not begun: its breaker is open, or too many threads are busy."""


class StepCancelled(StepFailed):
    """A step was cancelled by itself or by somebody else, while whoever waited for it was not."""


class ContainedError(RuntimeError):
    """In place of what must not leave a Task: it would end the loop, or never be heard of. Its cause is what was raised."""


def error_kind(error: BaseException) -> str:
    return type(error.__cause__ if isinstance(error, ContainedError) else error).__name__


def last_frames(error: BaseException) -> str:
    """The last frames before it was raised, as "file:line function"."""
    raised = error.__cause__ if isinstance(error, ContainedError) else error
    frames = traceback.extract_tb(raised.__traceback__ if raised is not None else None)[-_N_FRAMES:]
    return ", ".join(f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)


async def run_contained(made: Awaitable[Any], step: str) -> Any:
    """Await the call of a step. Raises what it raises, or Contained."""
    try:
        return await made
    except (SystemExit, KeyboardInterrupt) as error:
        raise ContainedError(f"step {step!r} raised {type(error).__name__}, which ends nothing but the step") from error


def call_contained(step: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call the plain function of a step, in its thread. Raises what it raises, or Contained."""
    try:
        return function(*args)
    except StopIteration as error:  # no future takes it
        raise ContainedError(f"step {step!r} raised StopIteration: give next() what it returns at the end") from error


class BreakerPolicy:
    """Of one step; share it among turns. Changed on one loop, nothing here awaits."""

    __slots__ = ("_breaker",)

    def __init__(self, config: policy.BreakerConfig | None = None, rng: Random | None = None) -> None:
        if config is not None and not isinstance(config, policy.BreakerConfig):
            raise TypeError(f"BreakerPolicy({config!r:.80}): say what opens it, or nothing, as in "
                            "BreakerPolicy(BreakerConfig(consecutive_failures=3))")
        self._breaker = policy.Breaker(config or policy.BreakerConfig(), rng or Random())

    def skip_reason(self, now: float) -> str:
        """Why no call may be made now; empty where one may."""
        of = self._breaker
        return "" if of.state is policy.BreakerState.CLOSED or of.wants_probe(now) else f"suspended: {of.why}"

    def start_call(self) -> int:
        """A call begins; its mark, which comes back with what became of it."""
        return self._breaker.began()

    def record_outcome(self, mark: int, now: float, *, is_good: bool | None) -> None:
        """What became of it; None: nothing that says anything."""
        if is_good is None:
            self._breaker.forgotten(mark)
        elif is_good:
            self._breaker.succeeded(mark, now)
        else:
            self._breaker.failed(mark, now)

    def __repr__(self) -> str:
        return repr(self._breaker)


class HedgePolicy:
    """Of one step; share it among turns, not among steps. Changed on one loop, nothing here awaits.

    `share`: of the calls, how many may be made a second time. `after_s`: a fixed delay; None: learned, and none before 32
    calls are known. Raises ValueError and TypeError for what cannot be.
    """

    __slots__ = ("_budget", "_durations", "_is_fixed", "_late_streak", "_plan", "_refresh_at", "_share")

    def __init__(self, share: float = 0.05, *, after_s: float | None = None) -> None:
        if not is_seconds(share) or share > 1:
            raise argument_error(f"share={share!r:.80}: how many of all calls may be made twice, more than 0 and at most "
                                 f"1, as in "
                        "HedgePolicy(share=0.05)", share)
        if after_s is not None and (not is_amount(after_s) or after_s > _MAX_AFTER_S):
            raise argument_error(f"after_s={after_s!r:.80}: seconds before the second call, 0 to {_MAX_AFTER_S:g}, as in "
                        "HedgePolicy(after_s=0.2); leave it out where it is to be learned", after_s)
        self._is_fixed = after_s is not None
        config = HedgeConfig(budget=share, race_after_s=0.0 if after_s is None else after_s)
        self._share = share
        self._budget = RetryBudget(RetryConfig().budget, share)
        self._late_streak = LateStreak(share)
        self._durations = FirstTokens(self._late_streak)
        self._plan = NEVER if after_s is None else HedgePlan(config.race_after_s, 0.0, 0, 0.0)
        self._refresh_at = inf if self._is_fixed else -inf

    def record_call(self, call: object, now: float) -> None:
        """A turn makes a first call; `call` is whatever tells it from the others."""
        self._budget.request(_WEIGHT, now)
        self._durations.began(call, now)

    def after_s(self, now: float) -> float:
        """How long to wait for a call before a second one is made; infinite where none would help."""
        if now >= self._refresh_at:
            lately = live((self._durations,), now)
            self._plan = plan(lately, lately, aim(self._share, self._budget.wanted_share(now)), 1)
            self._durations.due_s = self._plan.after_s
            self._refresh_at = now + REFRESHED_S
        return self._plan.after_s

    def may_hedge(self, left_s: float, now: float) -> bool:
        """Whether the second call may be made now, with `left_s` before the step's end."""
        if not self._is_fixed:
            self._late_streak.late(now)
            if self._late_streak.is_slow(now):
                return False
        if self._plan.usual_s >= left_s:
            return False
        if self._budget.may_hedge(_WEIGHT, now):
            return True
        self._budget.miss_hedge(_WEIGHT, now)
        return False

    def record_hedge(self, call: object, now: float) -> None:
        self._budget.take_hedge(_WEIGHT, now)
        self._durations.began(call, now)

    def record_success(self, call: object, now: float) -> None:
        self._durations.took(call, now)

    def record_cancelled(self, call: object, now: float) -> None:
        """A call was ended before it brought anything."""
        self._durations.cut_off(call, now)

    def record_failure(self, call: object) -> None:
        """A call failed: that says nothing about how long one takes."""
        self._durations.failed(call)

    def __repr__(self) -> str:
        return f"<Hedge: {self._durations!r}, {self._budget!r}>"


class _Raise(Enum):
    RAISE = "without a fallback, a step that fails raises"


RAISE: Final = _Raise.RAISE


class StepMode(Enum):
    """How a step is run."""

    ASYNC = "on the loop"
    THREAD = "in a thread"
    READY = "a coroutine that was made already"


ASYNC, THREAD, READY = StepMode


KINDS: Final = ("", "tool", "retrieval")


class Step:
    """One call to be made. `cap_s`: the most seconds it may take; None: all that is left. `kind`: of KINDS, for traces."""

    __slots__ = ("args", "breaker", "cap_s", "fallback", "function", "hedge", "kind", "mode")

    def __init__(self, function: Callable[..., Any] | Awaitable[Any], args: tuple[Any, ...], cap_s: float | None = None, *,
                 hedge: HedgePolicy | None = None, fallback: Any = RAISE, breaker: BreakerPolicy | None = None,
                 kind: str = "") -> None:
        self.function: Any = function
        self.kind = kind
        self.args = args
        self.cap_s = cap_s
        self.hedge = hedge
        self.fallback = fallback
        self.breaker = breaker
        self.mode = ASYNC if type(function) is FunctionType and function.__code__.co_flags & _IS_ASYNC else _detect_mode(function)
        if cap_s is not None and not is_seconds(cap_s):
            raise argument_error(f"cap={cap_s!r}: a cap is the most seconds that the step may take, more than 0, as in "
                                 f"cap=0.4; "
                        "leave it out where the step may take all that is left", cap_s)
        if kind not in KINDS:
            raise ValueError(f"kind={kind!r:.80}: what the step is in traces, {' or '.join(filter(None, KINDS))}; leave it "
                             "out where it is neither")
        if args and self.mode is READY:
            self._reject("a coroutine that was made already has its arguments: give the function and what it takes, as in "
                         "b.run(find, question), or the coroutine alone, b.run(find(question))")
        if fallback is not RAISE and type(fallback) is CoroutineType:
            fallback.close()
            self._reject("fallback=a coroutine: a fallback is a value that is there already, as in fallback=[]; a step that "
                         "is to run instead is run where this one has brought nothing")
        if hedge is not None and not isinstance(hedge, HedgePolicy):
            raise TypeError(f"hedge={hedge!r}: make a hedge once, beside the function, search = HedgePolicy(), and give it "
                            f"to "
                            "each call, hedge=search: it learns from all of them; HedgePolicy(after_s=0.2) has a fixed "
                            "delay")
        if hedge is not None and self.mode is READY:
            self._reject("a coroutine that was made already can run only once: to hedge it, give the function and its "
                         "arguments, as in step(find, question, hedge=search)")
        if breaker is not None and not isinstance(breaker, BreakerPolicy):
            raise TypeError(f"breaker={breaker!r}: make a breaker once, beside the function, crm = BreakerPolicy(), and "
                            f"give it "
                            "to each call, breaker=crm: it learns from all of them")

    def discard(self) -> None:
        if self.mode is READY and type(self.function) is CoroutineType:
            self.function.close()

    def _reject(self, rule: str) -> Never:
        self.discard()
        raise TypeError(rule)


def step(function: Callable[..., Any] | Awaitable[Any], *args: Any, cap: float | None = None,
         hedge: HedgePolicy | None = None,
         fallback: Any = RAISE, breaker: BreakerPolicy | None = None, kind: str = "") -> Step:
    """A call for `Budget.gather` with a cap (seconds), hedge, breaker, fallback of its own: `kb=step(find, query, cap=0.4)`.
    `kind`: what it is in traces, "tool" or "retrieval".

    Raises ValueError and TypeError for wrong use, saying what to write.
    """
    return Step(function, args, cap, hedge=hedge, fallback=fallback, breaker=breaker, kind=kind)


def takes_n_positional(function: object, n_args: int) -> bool:
    """Whether a function certainly takes so many arguments, all by their place; what is not certain `misfit` finds out."""
    if type(function) is not FunctionType:
        return False
    code = function.__code__
    return code.co_argcount == n_args and not code.co_kwonlyargcount


def argument_mismatch(name: str, step: Step) -> TypeError | None:
    """What to raise where the arguments do not fit the function; None where they do, or nobody can say."""
    try:
        signature = inspect.signature(step.function)
    except ValueError:  # of some that are written in C
        return None
    try:
        signature.bind(*step.args)
    except TypeError as error:
        called = getattr(step.function, "__name__", "function")
        wanted = ", ".join([called, *[one.name for one in signature.parameters.values() if one.default is one.empty
                                      and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]])
        return TypeError(f"step {name!r}: {called}{signature} was given {len(step.args)} argument(s), {error}: write "
                         f"b.run({wanted}), or {name}=step({wanted}) in b.gather; keyword arguments go in by "
                         "functools.partial")
    return None


def step_name(function: object, given: str | None = None) -> str:
    """A step's name: what was said, or the function's own. Raises TypeError and ValueError where that says nothing."""
    if given is not None:
        if not isinstance(given, str):
            raise TypeError(f"name={given!r:.80}: a step's name is text, as in b.run(find, question, name=\"kb\")")
        if not given:
            raise ValueError("name='': leave the name out where the function's own will do, or say one, as in name=\"kb\"")
        return given
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise TypeError(f"a step needs a name, and {type(function).__name__} has none: b.run(..., name=\"kb\")")
    return name


def _detect_mode(function: object) -> StepMode:
    if inspect.isawaitable(function):
        return READY
    if inspect.isasyncgenfunction(function) or inspect.isasyncgen(function):
        raise TypeError("a step returns once, and an async generator does not: iterate over it in an async function, and "
                        "give that to b.run")
    if not callable(function):
        raise TypeError(f"a step is a function and its arguments, b.run(find, question, name=\"kb\"), not {function!r:.80}")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return ASYNC
    return THREAD
