"""Time and randomness as arguments: what needs `now` holds a `Clock` or is handed it, what draws is handed an `Rng`, so
that a run repeats by its seed.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Three readings of time. Task-safe: reading changes nothing."""

    def now(self) -> float:
        """Monotonic seconds, on the same axis as the event loop's timers."""

    def wall(self) -> float:
        """Seconds since the Unix epoch; for people and logs, never for arithmetic on durations."""

    def cpu(self) -> float:
        """Seconds of a core that this process has used."""


class SystemClock:
    """The machine's clocks. uvloop's `loop.time()` is the same monotonic clock, rounded to milliseconds."""

    __slots__ = ()

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    cpu = staticmethod(time.process_time)


class Rng(Protocol):
    """What is drawn from. `random.Random` is one."""

    def random(self) -> float:
        """From 0 to 1, without 1."""

    def uniform(self, a: float, b: float) -> float:
        """From `a` to `b`."""

    def getrandbits(self, k: int, /) -> int:
        """A whole number of `k` bits."""
