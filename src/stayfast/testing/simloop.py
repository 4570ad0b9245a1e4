"""Virtual time: an asyncio event loop on which waiting costs nothing and every instant is exact.

The loop asks its selector for ready sockets with a time-out; `_Skip` finds none and moves the clock forward by that
time-out. So `asyncio.sleep`, `timeout_at` and `call_at` work unchanged, in no real time. No real sockets and no threads:
use scripted upstreams. If every task waits for something that no timer will bring, the run fails at once instead of hanging.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
WALL_AT_ZERO = 1_750_000_000.0  # what the wall clock says when virtual time is 0


class Deadlocked(RuntimeError):
    """Every task is blocked and no timer is set."""


class _Skip(selectors.BaseSelector):
    """Skips waiting. Holds the loop's own wake-up socket, which never becomes ready without threads."""

    def __init__(self) -> None:
        self.now = 0.0
        self._real = selectors.SelectSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready:
            return ready
        if timeout is None:
            raise Deadlocked("every task waits and no timer is set: this would hang for ever")
        self.now += max(0.0, timeout)
        return []

    def close(self) -> None:
        self._real.close()


class SimLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual seconds, starting at 0. Also a `core.clock.Clock`, so that policies see the same time."""

    def __init__(self) -> None:
        self._skip = _Skip()
        super().__init__(self._skip)

    def time(self) -> float:
        """Virtual seconds."""
        return self._skip.now

    def stall(self, seconds: float) -> None:
        """Let time pass at once, as for a loop that was kept from running: timers fire late."""
        self._skip.now += seconds

    def now(self) -> float:
        """Virtual seconds, as a Clock."""
        return self._skip.now

    def wall(self) -> float:
        """Virtual seconds since the epoch."""
        return WALL_AT_ZERO + self._skip.now


def run(main: Callable[[SimLoop], Coroutine[Any, Any, T]]) -> T:
    """Run `main(loop)` on a fresh SimLoop to its end; returns its result. Tasks left over are cancelled."""
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimLoop)
        return runner.run(main(loop))
