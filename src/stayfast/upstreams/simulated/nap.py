"""A wait that is nothing but a timer: what a simulated chunk costs is mostly its wait.

`asyncio.sleep` makes a future, a timer that fills it, and a turn of the loop that then wakes the task. Here the timer wakes
the task itself: half the turns, which for a million answers is minutes. asyncio takes anything for a future that has the
attribute `_asyncio_future_blocking` (see `asyncio.isfuture`); the rest of what a task asks of one is below. One at a time
waits for it.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Nap:
    """Some seconds of one task's time, from when it is first awaited. Cancelled as a future is."""

    __slots__ = ("_asyncio_future_blocking", "_at", "_context", "_is_cancelled", "_is_over", "_loop", "_timer", "_why",
                 "_woken")

    def __init__(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._at = loop.time() + seconds
        self._loop = loop
        self._timer: asyncio.Handle | None = None
        self._is_over = self._is_cancelled = False
        self._why: tuple[object, ...] = ()  # it was cancelled

    def __await__(self) -> Generator[Any, None, None]:
        self._asyncio_future_blocking = True
        yield self
        self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that waits."""
        return self._loop

    def done(self) -> bool:
        """Whether the time is up, or the wait was cut short."""
        return self._is_over

    def cancelled(self) -> bool:
        """Whether it was cut short."""
        return self._is_cancelled

    def add_done_callback(self, woken: Callable[["Nap"], object], *, context: Context | None = None) -> None:
        """The task's own: how it goes on."""
        self._woken, self._context = woken, context
        self._timer = self._loop.call_at(self._at, self._ring, context=context)

    def remove_done_callback(self, woken: Callable[["Nap"], object]) -> int:
        """It waits no more; somebody else may. How many were removed."""
        if self._timer is None or woken != self._woken:
            return 0
        self._timer.cancel()
        self._timer = None
        return 1

    def cancel(self, msg: object = None) -> bool:
        """End the wait at once, `msg` being why; False where it is over."""
        if self._is_over or self._timer is None:
            return False
        self._why = () if msg is None else (msg,)
        self._is_over = self._is_cancelled = True
        self._timer.cancel()
        self._timer = None  # which holds this nap: a cycle for each chunk would be work for the collector
        self._loop.call_soon(self._woken, self, context=self._context)
        return True

    def result(self) -> None:
        """Raises CancelledError where the wait was cut short."""
        if self._is_cancelled:
            raise asyncio.CancelledError(*self._why)

    def _ring(self) -> None:
        self._is_over = True
        self._timer = None
        self._woken(self)

    def __repr__(self) -> str:
        return f"<Nap until {self._at:.3f}{', over' * self._is_over}>"
