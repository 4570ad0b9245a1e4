"""What a step is: a function, its arguments, and what may be done about it. Wrong use is told before anything runs."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from functools import partial
from types import CoroutineType, FunctionType
from typing import Any, Final, Never, TypeVar

from stayfast.turns.amounts import is_seconds, wrong
from stayfast.turns.breaker import Breaker
from stayfast.turns.hedge import Hedge

T = TypeVar("T")
AsyncStep = Callable[..., Coroutine[Any, Any, T]] | Awaitable[T]


class _Raise(Enum):
    RAISE = "without a fallback, a step that fails raises"


RAISE: Final = _Raise.RAISE


class Way(Enum):
    """How a step is run."""

    ASYNC = "on the loop"
    THREAD = "in a thread"
    READY = "a coroutine that was made already"


ASYNC, THREAD, READY = Way


class Step:
    """One call to be made. `cap_s`: the most seconds it may take; None: all that is left."""

    __slots__ = ("args", "breaker", "cap_s", "fallback", "function", "hedge", "way")

    def __init__(self, function: Callable[..., Any] | Awaitable[Any], args: tuple[Any, ...], cap_s: float | None = None, *,
                 hedge: Hedge | None = None, fallback: Any = RAISE, breaker: Breaker | None = None) -> None:
        self.function: Any = function
        self.args = args
        self.cap_s = cap_s
        self.hedge = hedge
        self.fallback = fallback
        self.breaker = breaker
        self.way = ASYNC if type(function) is FunctionType and function.__code__.co_flags & _IS_ASYNC else _way(function)
        if cap_s is not None and not is_seconds(cap_s):
            raise wrong(f"cap={cap_s!r}: a cap is the most seconds that the step may take, more than 0, as in cap=0.4; "
                        "leave it out where the step may take all that is left", cap_s)
        if args and self.way is READY:
            self._refuse("a coroutine that was made already has its arguments: give the function and what it takes, as in "
                         "b.run(find, question), or the coroutine alone, b.run(find(question))")
        if fallback is not RAISE and type(fallback) is CoroutineType:
            fallback.close()
            self._refuse("fallback=a coroutine: a fallback is a value that is there already, as in fallback=[]; a step that "
                         "is to run instead is run where this one has brought nothing")
        if hedge is not None:
            self._check_hedge(hedge)
        if breaker is not None and not isinstance(breaker, Breaker):
            raise TypeError(f"breaker={breaker!r}: make a breaker once, beside the function, crm = Breaker(), and give it "
                            "to each call, breaker=crm: it learns from all of them")

    def discard(self) -> None:
        """It will never run."""
        if self.way is READY and type(self.function) is CoroutineType:
            self.function.close()

    def _refuse(self, says: str) -> Never:
        self.discard()
        raise TypeError(says)

    def _check_hedge(self, hedge: Hedge) -> None:
        if not isinstance(hedge, Hedge):
            raise TypeError(f"hedge={hedge!r}: make a hedge once, beside the function, search = Hedge(), and give it to "
                            "each call, hedge=search: it learns from all of them; Hedge(after_s=0.2) has a fixed delay")
        if self.way is READY:
            self._refuse("a coroutine that was made already can run only once: to hedge it, give the function and its "
                         "arguments, as in step(find, question, hedge=search)")


_IS_ASYNC = inspect.CO_COROUTINE


def step(function: Callable[..., Any] | Awaitable[Any], *args: Any, cap: float | None = None, hedge: Hedge | None = None,
         fallback: Any = RAISE, breaker: Breaker | None = None) -> Step:
    """A call for `Budget.gather` with a cap (seconds), hedge, breaker, fallback of its own: `kb=step(find, query, cap=0.4)`.

    Raises ValueError and TypeError for wrong use, saying what to write.
    """
    return Step(function, args, cap, hedge=hedge, fallback=fallback, breaker=breaker)


def fits_at_a_glance(function: object, n_args: int) -> bool:
    """Whether a function certainly takes so many arguments, all by their place; what is not certain `misfit` finds out."""
    if type(function) is not FunctionType:
        return False
    code = function.__code__
    return code.co_argcount == n_args and not code.co_kwonlyargcount


def misfit(name: str, step: Step) -> TypeError | None:
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


def name_of(function: object, said: str | None = None) -> str:
    """A step's name: what was said, or the function's own. Raises TypeError and ValueError where that says nothing."""
    if said is not None:
        if not isinstance(said, str):
            raise TypeError(f"name={said!r:.80}: a step's name is text, as in b.run(find, question, name=\"kb\")")
        if not said:
            raise ValueError("name='': leave the name out where the function's own will do, or say one, as in name=\"kb\"")
        return said
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise TypeError(f"a step needs a name, and {type(function).__name__} has none: b.run(..., name=\"kb\")")
    return name


def _way(function: object) -> Way:
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
