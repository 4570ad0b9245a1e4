"""A step: a function, its arguments, and its policies. Wrong use raises before anything runs.

    search, crm = HedgePolicy(), BreakerPolicy()       # created once, next to the functions: they learn from every call
    await b.run(find, question, name="kb", hedge=search)
    await b.run(look_up, customer, name="crm", cap=0.8, breaker=crm, fallback=None)

HedgePolicy: start a second call of a slow read and use the first result. For reads only: a write may not run twice. The
delay comes from the live distribution of the step's durations (`policy.resilience.hedge`). Second calls are a bounded share
of all calls (`policy.resilience.retry_budget`). The slower call is cancelled.
BreakerPolicy: the circuit breaker of the gateway (`policy.resilience.breaker`) for one step. While it is open, the step is
skipped and its fallback is used at once; now and then one call passes as a probe. A call that uses its whole cap is a
failure. A call cut short because the turn has no more time is neither a failure nor a success.
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
from stayfast.policy.resilience.hedge import (
    NO_HEDGE,
    FirstTokens,
    HedgeConfig,
    HedgePlan,
    LateStreak,
    aim_share,
    live_distribution,
    plan_hedge,
)
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.resilience.retry_budget import RetryBudget
from stayfast.turns.validation import argument_error, is_amount, is_seconds

T = TypeVar("T")
AsyncStep = Callable[..., Coroutine[Any, Any, T]] | Awaitable[T]
REFRESHED_S = 1.0  # maximum age of a hedge plan; computing one takes 0.1 ms
_WEIGHT = 1.0  # all calls of a step weigh the same
_MAX_AFTER_S = 60.0
_N_FRAMES = 3  # of a traceback
_IS_ASYNC = inspect.CO_COROUTINE


class StepFailed(Exception):
    """A step has no result, for a reason other than its own exception. `name`: of the step."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"step {name!r}: {reason}")
        self.name = name
        self.reason = reason


class StepTimeout(StepFailed, TimeoutError):
    """A step used all its time, or no time was left to start it."""


class StepSkipped(StepFailed):
    """A step was not started: its breaker is open, or too many threads are busy."""


class StepCancelled(StepFailed):
    """A step was cancelled while its caller was not."""


class ContainedError(RuntimeError):
    """Replaces an exception that must not leave a Task, because it would end the loop or be lost. See its `__cause__`."""


def error_kind(error: BaseException) -> str:
    """The name of the exception's class."""
    return type(error.__cause__ if isinstance(error, ContainedError) else error).__name__


def last_frames(error: BaseException) -> str:
    """The last frames of the traceback, as "file:line function"."""
    raised = error.__cause__ if isinstance(error, ContainedError) else error
    frames = traceback.extract_tb(raised.__traceback__ if raised is not None else None)[-_N_FRAMES:]
    return ", ".join(f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)


async def run_contained(awaitable: Awaitable[Any], step: str) -> Any:
    """Await the call of a step; SystemExit and KeyboardInterrupt become ContainedError."""
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        raise ContainedError(f"step {step!r} raised {type(error).__name__}, which ends the step only") from error


def call_contained(step: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call the plain function of a step; StopIteration becomes ContainedError."""
    try:
        return function(*args)
    except StopIteration as error:  # a future does not accept it
        raise ContainedError(f"step {step!r} raised StopIteration: give next() a default value") from error


class BreakerPolicy:
    """The circuit breaker of one step; share it among turns. Single loop; nothing here awaits."""

    __slots__ = ("_breaker",)

    def __init__(self, config: policy.BreakerConfig | None = None, rng: Random | None = None) -> None:
        if config is not None and not isinstance(config, policy.BreakerConfig):
            raise TypeError(f"BreakerPolicy({config!r:.80}): pass a BreakerConfig, or nothing, as in "
                            "BreakerPolicy(BreakerConfig(consecutive_failures=3))")
        self._breaker = policy.Breaker(config or policy.BreakerConfig(), rng or Random())

    def skip_reason(self, now: float) -> str:
        """Why no call is allowed now; empty if one is."""
        breaker = self._breaker
        is_allowed = breaker.state is policy.BreakerState.CLOSED or breaker.needs_probe(now)
        return "" if is_allowed else f"breaker open: {breaker.why}"

    def start_call(self) -> int:
        """A call starts. Returns the token for `record_outcome`."""
        return self._breaker.start_call()

    def record_outcome(self, token: int, now: float, *, is_good: bool | None) -> None:
        """The call of `token` ended; None: its outcome is not evidence."""
        if is_good is None:
            self._breaker.discard_call(token)
        elif is_good:
            self._breaker.record_success(token, now)
        else:
            self._breaker.record_failure(token, now)

    def __repr__(self) -> str:
        return repr(self._breaker)


class HedgePolicy:
    """The hedging of one step; share it among turns, not among steps. Single loop; nothing here awaits.

    `share`: maximum share of calls that get a second call. `after_s`: a fixed delay; None: learned, after 32 calls. Raises
    ValueError and TypeError for values out of range.
    """

    __slots__ = ("_budget", "_durations", "_is_fixed", "_late_streak", "_plan", "_refresh_at", "_share")

    def __init__(self, share: float = 0.05, *, after_s: float | None = None) -> None:
        if not is_seconds(share) or share > 1:
            raise argument_error(f"share={share!r:.80}: the maximum share of calls made twice, above 0 and at most 1, as in "
                                 "HedgePolicy(share=0.05)", share)
        if after_s is not None and (not is_amount(after_s) or after_s > _MAX_AFTER_S):
            raise argument_error(f"after_s={after_s!r:.80}: seconds before the second call, 0 to {_MAX_AFTER_S:g}, as in "
                                 "HedgePolicy(after_s=0.2); leave it out to have it learned", after_s)
        self._is_fixed = after_s is not None
        config = HedgeConfig(budget=share, race_after_s=0.0 if after_s is None else after_s)
        self._share = share
        self._budget = RetryBudget(RetryConfig().budget, share)
        self._late_streak = LateStreak(share)
        self._durations = FirstTokens(self._late_streak)
        self._plan = NO_HEDGE if after_s is None else HedgePlan(config.race_after_s, 0.0, 0, 0.0)
        self._refresh_at = inf if self._is_fixed else -inf

    def record_call(self, call: object, now: float) -> None:
        """A first call starts; `call` identifies it, by identity."""
        self._budget.deposit(_WEIGHT, now)
        self._durations.start_attempt(call, now)

    def after_s(self, now: float) -> float:
        """Seconds to wait before the second call; infinite if a second call would not help."""
        if now >= self._refresh_at:
            recent = live_distribution((self._durations,), now)
            self._plan = plan_hedge(recent, recent, aim_share(self._share, self._budget.hedge_demand(now)), 1)
            self._durations.due_s = self._plan.after_s
            self._refresh_at = now + REFRESHED_S
        return self._plan.after_s

    def may_hedge(self, left_s: float, now: float) -> bool:
        """Whether to start the second call now, `left_s` before the end of the step.

        No, if all calls are slow, if a typical call takes longer than `left_s`, or if the budget is spent.
        """
        if not self._is_fixed:
            self._late_streak.record_late(now)
            if self._late_streak.is_slow(now):
                return False
        if self._plan.usual_s >= left_s:
            return False
        if self._budget.may_hedge(_WEIGHT, now):
            return True
        self._budget.record_blocked_hedge(_WEIGHT, now)
        return False

    def record_hedge(self, call: object, now: float) -> None:
        """A second call starts."""
        self._budget.withdraw_hedge(_WEIGHT, now)
        self._durations.start_attempt(call, now)

    def record_success(self, call: object, now: float) -> None:
        """A call returned: its duration is a sample."""
        self._durations.record_first_token(call, now)

    def record_cancelled(self, call: object, now: float) -> None:
        """A call was cancelled before it returned: a censored sample."""
        self._durations.record_cancelled(call, now)

    def record_failure(self, call: object) -> None:
        """A call failed: no sample."""
        self._durations.drop_attempt(call)

    def __repr__(self) -> str:
        return f"<HedgePolicy: {self._durations!r}, {self._budget!r}>"


class _Raise(Enum):
    RAISE = "a step without a fallback raises"


RAISE: Final = _Raise.RAISE


class StepMode(Enum):
    """How a step runs."""

    ASYNC = "on the loop"
    THREAD = "in a thread"
    READY = "an existing coroutine"


ASYNC, THREAD, READY = StepMode


KINDS: Final = ("", "tool", "retrieval")


class Step:
    """A call to be made. `cap_s`: its maximum duration; None: all that is left. `kind`: one of KINDS, for traces."""

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
        is_plain_async = type(function) is FunctionType and function.__code__.co_flags & _IS_ASYNC
        self.mode = ASYNC if is_plain_async else _detect_mode(function)
        if cap_s is not None and not is_seconds(cap_s):
            raise argument_error(f"cap={cap_s!r}: a cap is the maximum seconds of a step, above 0, as in cap=0.4; leave it "
                                 "out if the step may take all that is left", cap_s)
        if kind not in KINDS:
            raise ValueError(f"kind={kind!r:.80}: the kind of the step in traces, {' or '.join(filter(None, KINDS))}; leave "
                             "it out otherwise")
        if args and self.mode is READY:
            self._reject("an existing coroutine has its arguments already: pass the function and its arguments, as in "
                         "b.run(find, question), or the coroutine alone, b.run(find(question))")
        if fallback is not RAISE and type(fallback) is CoroutineType:
            fallback.close()
            self._reject("fallback=a coroutine: a fallback is a value, as in fallback=[]; to run another step instead, "
                         "run it after this one")
        if hedge is not None and not isinstance(hedge, HedgePolicy):
            raise TypeError(f"hedge={hedge!r}: create a policy once, next to the function, search = HedgePolicy(), and pass "
                            "it to each call, hedge=search: it learns from all calls; HedgePolicy(after_s=0.2) has a fixed "
                            "delay")
        if hedge is not None and self.mode is READY:
            self._reject("an existing coroutine can run only once: to hedge it, pass the function and its arguments, as in "
                         "step(find, question, hedge=search)")
        if breaker is not None and not isinstance(breaker, BreakerPolicy):
            raise TypeError(f"breaker={breaker!r}: create a policy once, next to the function, crm = BreakerPolicy(), and "
                            "pass it to each call, breaker=crm: it learns from all calls")

    def discard(self) -> None:
        """Close the coroutine of a step that never started."""
        if self.mode is READY and type(self.function) is CoroutineType:
            self.function.close()

    def _reject(self, rule: str) -> Never:
        self.discard()
        raise TypeError(rule)


def step(function: Callable[..., Any] | Awaitable[Any], *args: Any, cap: float | None = None,
         hedge: HedgePolicy | None = None, fallback: Any = RAISE, breaker: BreakerPolicy | None = None,
         kind: str = "") -> Step:
    """A call for `Budget.gather` with its own cap (seconds), policies and fallback: `kb=step(find, query, cap=0.4)`.
    `kind`: "tool" or "retrieval", for traces. Raises ValueError and TypeError for wrong use.
    """
    return Step(function, args, cap, hedge=hedge, fallback=fallback, breaker=breaker, kind=kind)


def takes_n_positional(function: object, n_args: int) -> bool:
    """Whether a function certainly takes `n_args` positional arguments; if False, `argument_mismatch` decides."""
    if type(function) is not FunctionType:
        return False
    code = function.__code__
    return code.co_argcount == n_args and not code.co_kwonlyargcount


def argument_mismatch(name: str, step: Step) -> TypeError | None:
    """The error for arguments that do not fit the function; None if they fit or the signature is unknown."""
    try:
        signature = inspect.signature(step.function)
    except ValueError:  # some functions written in C
        return None
    try:
        signature.bind(*step.args)
    except TypeError as error:
        called = getattr(step.function, "__name__", "function")
        required = ", ".join([called, *[parameter.name for parameter in signature.parameters.values()
                                        if parameter.default is parameter.empty and parameter.kind in
                                        (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)]])
        return TypeError(f"step {name!r}: {called}{signature} was given {len(step.args)} argument(s), {error}: write "
                         f"b.run({required}), or {name}=step({required}) in b.gather; pass keyword arguments by "
                         "functools.partial")
    return None


def step_name(function: object, name: str | None = None) -> str:
    """The name of a step: `name`, or the function's own. Raises TypeError and ValueError if there is none."""
    if name is not None:
        if not isinstance(name, str):
            raise TypeError(f"name={name!r:.80}: a step's name is text, as in b.run(find, question, name=\"kb\")")
        if not name:
            raise ValueError("name='': leave the name out to use the function's own, or give one, as in name=\"kb\"")
        return name
    while isinstance(function, partial):
        function = function.func
    own_name = getattr(function, "__name__", None)
    if not isinstance(own_name, str) or own_name == "<lambda>":
        raise TypeError(f"a step needs a name, and {type(function).__name__} has none: b.run(..., name=\"kb\")")
    return own_name


def _detect_mode(function: object) -> StepMode:
    if inspect.isawaitable(function):
        return READY
    if inspect.isasyncgenfunction(function) or inspect.isasyncgen(function):
        raise TypeError("a step returns once, an async generator does not: iterate over it in an async function, and pass "
                        "that to b.run")
    if not callable(function):
        raise TypeError(f"a step is a function and its arguments, b.run(find, question, name=\"kb\"), not {function!r:.80}")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return ASYNC
    return THREAD
