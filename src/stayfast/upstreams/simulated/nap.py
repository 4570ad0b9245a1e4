"""A wait that is nothing but a timer: what a simulated chunk costs is mostly its wait.

`asyncio.sleep` makes a future, a timer that fills it, and a turn of the loop that then wakes the task. Here the timer wakes
the task itself: half the turns, which for a million answers is minutes. asyncio takes anything for a future that has the
attribute `_asyncio_future_blocking` (see `asyncio.isfuture`); the rest of what a task asks of one is below.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Nap:
    """Some seconds of one task's time. Awaited once; cancelled as a future is."""

    __slots__ = ("_asyncio_future_blocking", "_context", "_is_cancelled", "_loop", "_seconds", "_timer", "_woken")

    def __init__(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._seconds = seconds
        self._loop = loop
        self._timer: asyncio.Handle | None = None
        self._is_cancelled = False

    def __await__(self) -> Generator[Any, None, None]:
        self._asyncio_future_blocking = True
        yield self
        self._timer = None  # which holds this nap: a cycle for each chunk would be work for the collector
        self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that waits."""
        return self._loop

    def add_done_callback(self, woken: Callable[["Nap"], object], *, context: Context | None = None) -> None:
        """The task's own: how it goes on."""
        self._woken, self._context = woken, context
        self._timer = self._loop.call_later(self._seconds, woken, self, context=context)

    def cancel(self, msg: object = None) -> bool:
        """End the wait at once; False if somebody did before. No task asks this of a wait that is over."""
        if self._is_cancelled or self._timer is None:
            return False
        self._is_cancelled = True
        self._timer.cancel()
        self._loop.call_soon(self._woken, self, context=self._context)
        return True

    def result(self) -> None:
        """Raises CancelledError where the wait was cut short."""
        if self._is_cancelled:
            raise asyncio.CancelledError

    def __repr__(self) -> str:
        return f"<Nap of {self._seconds:.3g} s>"
