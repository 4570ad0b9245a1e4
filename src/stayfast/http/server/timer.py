"""One timer for all time-outs of a connection."""

import asyncio
import math
from collections.abc import Callable


class LazyTimer:
    """Calls `check` no later than the earliest instant it was set to; `check` returns when it is due next, `math.inf` for
    never. It is never moved later, only found to be early when it fires: a request on a warm connection moves no timer.
    """

    __slots__ = ("_at", "_check", "_handle")

    def __init__(self, check: Callable[[], float]) -> None:
        self._check = check
        self._at = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def set_by(self, at: float) -> None:
        """Fire no later than `at`, on the loop's clock."""
        if at < self._at:
            if self._handle is not None:
                self._handle.cancel()
            self._at = at
            self._handle = asyncio.get_running_loop().call_at(at, self._fire)

    def cancel(self) -> None:
        """Never fire again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._at = -math.inf
        self._check = _never  # which held the connection, and the connection this

    def _fire(self) -> None:
        self._handle = None
        self._at = math.inf
        self.set_by(self._check())


def _never() -> float:
    return math.inf
