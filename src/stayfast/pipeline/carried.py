"""A call that begins in one Task and can go on in another.

Problem: a call that others may come to share must outlive the request that began it, and a Task of its own for each costs
more than all the rest of a look-up, though nearly none is ever shared. Rule: the call runs in its beginner's Task, step by
step, as if it were awaited there; when that Task is cancelled and somebody else wants the call, what it waits for is left
alone, and a new Task takes the next step.

A cancelled Task cancels the future it waits for, and a socket's reader does not survive that. So the Task is given `_Wait`
in the future's place: the same but for `cancel`. Nothing else stands between, and no turn of the loop is added.
Source: asyncio's protocol of future-like objects (`asyncio.isfuture`), which its Tasks, in C or not, go by.
When wrong: a time-out that the call itself has put down (`asyncio.timeout`, of a connect) stays its first Task's.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Step = Coroutine[Any, Any, Any]


class Carrier(Protocol):
    """Who knows whether a call goes on when its Task is cancelled."""

    def is_wanted(self) -> bool:
        """Whether what cancels its Task just now is no reason to end the call."""
        ...

    def take(self, call: Step, waits_for: Any) -> None:
        """The call is left where it is: `go_on(call, waits_for)` does so with it, in another Task."""
        ...


@types.coroutine
def carry(call: Coroutine[Any, Any, T], carrier: Carrier) -> Generator[Any, Any, T]:
    """Await a call so that it can be left. In C all the way, as `map` has no `throw`: what the Task is told ends here."""
    wait = _Wait(carrier)
    try:
        ended: T = yield from map(wait.of, call.__await__())
    except GeneratorExit:
        call.close()
        raise
    except BaseException as error:
        if getcoroutinestate(call) is CORO_CLOSED or wait.is_left(call, error):
            raise
        rest = go_on(call, None, error, wait)
    else:
        return ended
    return (yield from rest)


@types.coroutine
def go_on(call: Coroutine[Any, Any, T], waits_for: Any, why: BaseException | None = None, wait: "_Wait | None" = None
          ) -> Generator[Any, Any, T]:
    """Await a call from where it was left. why: what it is told first. With a wait it can be left again."""
    while True:
        if waits_for is None:
            try:
                waits_for = call.send(None) if why is None else call.throw(why)
            except StopIteration as end:
                ended: T = end.value
                return ended
            finally:
                why = None
        try:
            if wait is not None:
                yield wait.of(waits_for)
            elif waits_for is None:
                yield
            else:
                waits_for._asyncio_future_blocking = True
                yield waits_for
        except GeneratorExit:
            call.close()
            raise
        except BaseException as error:
            if wait is not None and wait.is_left(call, error):
                raise
            why = error
        waits_for = None


class _Wait:
    """A future, as a Task sees it that may be cancelled without it: of a call, the one that it waits for just now."""

    __slots__ = ("_asyncio_future_blocking", "_carrier", "_context", "_future", "_wake", "_why")

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._future: Any = None
        self._wake: Any = None
        self._why: tuple[Any, ...] = ()  # it was cancelled

    def of(self, future: Any) -> "_Wait | None":
        """In the place of this one. None is a turn of the loop, which nobody wakes."""
        self._future = future
        if future is None:
            return None
        self._asyncio_future_blocking = True
        return self

    def is_left(self, call: Step, error: BaseException) -> bool:
        """Whether the call is not to hear of an error that its Task is told of, as somebody else goes on with it."""
        future = self._future
        is_its_own = future is not None and future.cancelled()  # by whoever was to bring it, or by `cancel`
        if is_its_own or not isinstance(error, asyncio.CancelledError) or not self._carrier.is_wanted():
            return False
        self._wake = None
        self._carrier.take(call, future)
        return True

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """See `asyncio.Future`."""
        loop: asyncio.AbstractEventLoop = self._future.get_loop()
        return loop

    def add_done_callback(self, wake: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Wake the Task when it is done."""
        self._wake = wake
        self._context = context
        self._future.add_done_callback(wake, context=context)

    def cancel(self, msg: Any = None) -> bool:
        """Cancel it, or only the waiting for it."""
        future = self._future
        if not future.done() and self._carrier.is_wanted():
            self._why = () if msg is None else (msg,)
            future.remove_done_callback(self._wake)
            future.get_loop().call_soon(self._wake, self, context=self._context)
            return True
        is_cancelled: bool = future.cancel(msg)
        return is_cancelled

    def result(self) -> Any:
        """What the Task is told that no longer waits."""
        raise asyncio.CancelledError(*self._why)
