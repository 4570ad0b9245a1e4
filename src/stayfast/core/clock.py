"""Time and randomness as arguments: code takes a `Clock` or `now`, and an `Rng`, so that a run repeats by its seed."""

import time
from typing import Protocol


class Clock(Protocol):
    """Three clocks of the machine."""

    def now(self) -> float:
        """Monotonic seconds, on the same axis as the event loop's timers."""

    def wall(self) -> float:
        """Seconds since the Unix epoch, for logs; never subtract two of them to get a duration."""

    def cpu(self) -> float:
        """CPU seconds used by this process."""


class SystemClock:
    """The machine's clocks. uvloop's `loop.time()` is the same monotonic clock, rounded to milliseconds."""

    __slots__ = ()

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    cpu = staticmethod(time.process_time)


class Rng(Protocol):
    """The source of random numbers; `random.Random` is one."""

    def random(self) -> float:
        """A float in [0, 1)."""

    def uniform(self, a: float, b: float) -> float:
        """A float from `a` to `b`."""

    def getrandbits(self, k: int, /) -> int:
        """An integer of `k` random bits."""
