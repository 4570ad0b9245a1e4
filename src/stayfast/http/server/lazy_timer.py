"""A timer for time-outs that are moved often and fire rarely."""

import asyncio
import math
from collections.abc import Callable


class LazyTimer:
    """Calls `check` at the earliest instant that was set; `check` returns the next instant, or `math.inf` for never.

    A timer is never moved to a later instant. It fires early instead, and `check` finds nothing due: a request on a warm
    connection sets no timer.
    """

    __slots__ = ("_at", "_check", "_handle")

    def __init__(self, check: Callable[[], float]) -> None:
        self._check = check
        self._at = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def set_no_later_than(self, at: float) -> None:
        """Fire no later than `at`, on the loop's clock."""
        if at < self._at:
            if self._handle is not None:
                self._handle.cancel()
            self._at = at
            self._handle = asyncio.get_running_loop().call_at(at, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._at = -math.inf
        self._check = lambda: math.inf  # breaks the reference cycle with the connection

    def _fire(self) -> None:
        self._handle = None
        self._at = math.inf
        self.set_no_later_than(self._check())
