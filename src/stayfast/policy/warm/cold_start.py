"""How long a replica takes from its start to its first token, and whether a request can wait for that.

Problem: a request that arrives while all replicas start must wait or go elsewhere, and only the time of earlier starts shows
which is right. Rule: the 90th percentile (nearest rank) of the last 20 starts; before 5 starts the prior counts as one more.

    left_s = p90 - elapsed                      while the start is within its p90
    left_s = (elapsed - p90) + p90 / 10         after that: a start that is late stays late about as long again
    wait   if left_s + ttft_s <= the time left, and left_s <= max_hold_s

Source: nearest-rank percentiles are textbook; what has lasted t lasts about t more (Gott, "Implications of the Copernican
principle", Nature, 1993).
When wrong: a start after a new image is longer than all before; the p90 of few starts is their maximum. A start that failed
teaches nothing. Only the gateway's own checks show a start, so the time that a replica was gone before it counts as a part
of it; more than MAX_START_S is taken for such an absence, and teaches nothing.
"""

from collections import deque
from math import ceil
from typing import Final

N_STARTS: Final = 20
N_ENOUGH: Final = 5  # starts without the prior
MAX_START_S: Final = 3600.0
_LATE_SHARE: Final = 0.1


class ColdStartTimes:
    """Of one replica, for one way to start. Pure state; changed only by its owner."""

    __slots__ = ("_prior_s", "_starts_s")

    def __init__(self, prior_s: float) -> None:
        self._prior_s = prior_s
        self._starts_s: deque[float] = deque(maxlen=N_STARTS)

    def add_start(self, seconds: float) -> None:
        """A start ended with a first token after so long. More than MAX_START_S is no start."""
        if seconds <= MAX_START_S:
            self._starts_s.append(seconds)

    @property
    def n_starts(self) -> int:
        return len(self._starts_s)

    @property
    def p90_s(self) -> float:
        """The prior, before the first start."""
        known = sorted(self._starts_s if len(self._starts_s) >= N_ENOUGH else (*self._starts_s, self._prior_s))
        return known[ceil(0.9 * len(known)) - 1]

    def left_s(self, elapsed_s: float) -> float:
        """The time until the first token that a start of this age probably needs."""
        p90_s = self.p90_s
        late_s = elapsed_s - p90_s
        return -late_s if late_s < 0 else late_s + p90_s * _LATE_SHARE

    def __repr__(self) -> str:
        return f"<ColdStartTimes p90 {self.p90_s:.3g} s of {len(self._starts_s)}>"


def may_wait(left_s: float, ttft_s: float, time_left_s: float, max_hold_s: float) -> bool:
    """Whether a request can wait for a start. time_left_s: until a fallback or the end needs the time."""
    return left_s <= max_hold_s and left_s + ttft_s <= time_left_s
