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
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Step = Coroutine[Any, Any, Any]


class Carrier(Protocol):
    """Who knows whether a call goes on when its Task is cancelled."""

    def is_wanted(self) -> bool:
        """Whether what cancels its Task just now is no reason to end the call."""
        ...

    def take(self, call: Step, waits_for: Any) -> None:
        """The call is left where it is: `carry(call, None, waits_for)` goes on with it, in another Task."""
        ...


@types.coroutine
def carry(call: Coroutine[Any, Any, T], carrier: Carrier | None, waits_for: Any = None) -> Generator[Any, Any, T]:
    """Await a call, from its start or from where it was left. With a carrier it can be left again."""
    is_left = waits_for is not None
    why: BaseException | None = None
    while True:
        if is_left:
            is_left = False
        else:
            try:
                waits_for = call.send(None) if why is None else call.throw(why)
            except StopIteration as end:
                ended: T = end.value
                return ended
            why = None
        try:
            if waits_for is None:
                yield
            elif carrier is not None:
                yield _Wait(waits_for, carrier)
            else:
                waits_for._asyncio_future_blocking = True
                yield waits_for
        except GeneratorExit:
            call.close()
            raise
        except BaseException as error:
            is_its_own = waits_for is not None and waits_for.cancelled()  # by whoever was to bring it, or by `_Wait`
            if carrier is not None and not is_its_own and isinstance(error, asyncio.CancelledError) and carrier.is_wanted():
                carrier.take(call, waits_for)
                raise
            why = error


class _Wait:
    """A future, as a Task sees it that may be cancelled without it. One Task waits for it, once."""

    __slots__ = ("_asyncio_future_blocking", "_carrier", "_context", "_future", "_wake")

    def __init__(self, future: "asyncio.Future[Any]", carrier: Carrier) -> None:
        self._asyncio_future_blocking = True
        self._carrier = carrier
        self._future = future

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """See `asyncio.Future`."""
        return self._future.get_loop()

    def add_done_callback(self, wake: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Wake the Task when it is done."""
        self._wake = wake
        self._context = context
        self._future.add_done_callback(wake, context=context)

    def cancel(self, msg: Any = None) -> bool:
        """Cancel it, or only the waiting for it."""
        future = self._future
        if not future.done() and self._carrier.is_wanted():
            future.remove_done_callback(self._wake)
            future.get_loop().call_soon(self._wake, self, context=self._context)
            return True
        return future.cancel(msg)

    def result(self) -> Any:
        """What the Task is told that no longer waits."""
        raise asyncio.CancelledError
