"""Time and randomness as arguments: what needs `now` holds a `Clock` or is handed it, what draws is handed an `Rng`: so a
run repeats by its seed.

A request has one absolute instant, and each wait reaches only so far into the time that is left: `remaining = at - now`;
nested deadlines take `min()`; a wait of `cap` seconds ends at `min(now + cap, at)`.
Source: gRPC deadlines; the SDKs' own 600 s default for `total_s`.
"""

import time
from dataclasses import dataclass
from typing import Protocol

import msgspec


class Clock(Protocol):
    """Three readings of time. Task-safe: reading changes nothing."""

    def now(self) -> float:
        """Monotonic seconds, on the same axis as the event loop's timers."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch; for people and logs, never for arithmetic on durations."""
        ...

    def cpu(self) -> float:
        """Seconds of a core that this process has used."""
        ...


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
        ...

    def uniform(self, a: float, b: float) -> float:
        """From `a` to `b`."""
        ...

    def getrandbits(self, k: int, /) -> int:
        """A whole number of `k` bits."""
        ...


class Deadline(msgspec.Struct, frozen=True, gc=False):
    """An instant on the monotonic clock. Immutable, so safe to share."""

    at: float

    def remaining(self, now: float) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - now)

    def has_passed(self, now: float) -> bool:
        """Whether nothing may be started any more."""
        return now >= self.at

    def within(self, cap_s: float, now: float) -> float:
        """The instant at which a wait of at most `cap_s` seconds ends, never after this deadline."""
        return min(self.at, now + cap_s)

    def earlier(self, other: "Deadline") -> "Deadline":
        """The stricter of two: how budgets nest."""
        return self if self.at <= other.at else other


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a request may wait for each thing, in seconds. All are bounded by `total_s`.

    connect: TCP and TLS. first_token: from the attempt's start to the first token of content. idle: between two reads
    of a running answer. total: from accept to the last byte.
    """

    total_s: float = 600.0  # what the OpenAI and Anthropic SDKs themselves wait
    first_token_s: float = 120.0  # a long prompt on a busy self-hosted engine prefills for a minute
    idle_s: float = 60.0
    connect_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("total_s", "first_token_s", "idle_s", "connect_s"):
            value = getattr(self, name)
            if not 0 < value <= 86_400:
                raise ValueError(f"{name} must be more than 0 and at most 86400 seconds, not {value}")
