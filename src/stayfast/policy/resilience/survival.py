"""How many attempts last longer than t, when some were ended before anybody knew how long they would have taken.

Problem: a hedge that wins ends the slow attempt beside it. If that attempt is forgotten, only quick ones are ever seen to
the end: the tail vanishes from the samples, the delay shrinks, more is hedged, and the samples get quicker still. Rule: an
attempt that was cut off at t took *at least* t. It counts among those at risk up to t and says nothing beyond (the
product-limit estimate, bucket by bucket):

    S(t) = product over buckets b up to t of (1 - ended(b) / at_risk(b))
    at_risk(b) = attempts that ended, or were cut off, in b or later

Inside a bucket S falls in a straight line. Beyond the last end S stays where it is: nothing is known there.
Source: Kaplan, Meier, "Nonparametric Estimation from Incomplete Observations" (JASA, 1958).
When wrong: it takes the cutting off as unrelated to what the attempt would have taken. That holds where another upstream's
answer cut it off; not where one cause slows both.
"""

from bisect import bisect_right
from math import exp2, inf

from stayfast.policy.histogram import GAMMA, PER_OCTAVE, LogHistogram

_ZERO = 30.0 * PER_OCTAVE  # a histogram's own zero


class Survival:
    """S(t), made once from two histograms; immutable. `n` counts the ended and the cut off."""

    __slots__ = ("_beyond", "_ends_s", "n")

    def __init__(self, ended: LogHistogram, cut_off: LogHistogram) -> None:
        self.n = n_at_risk = ended.n + cut_off.n
        self._ends_s: list[float] = []  # the upper ends of the buckets in which something ended
        self._beyond: list[float] = []  # S at each of them
        beyond = 1.0
        for bucket in sorted(ended.counts.keys() | cut_off.counts.keys()):
            n_ended = ended.counts.get(bucket, 0)
            if n_ended:
                beyond *= 1.0 - n_ended / n_at_risk
                self._ends_s.append(exp2((bucket + 1 - _ZERO) / PER_OCTAVE))
                self._beyond.append(beyond)
            n_at_risk -= n_ended + cut_off.counts.get(bucket, 0)

    def at(self, seconds: float) -> float:
        """The share that lasts longer than this; 1 where nothing is known."""
        index = bisect_right(self._ends_s, seconds)
        before = self._beyond[index - 1] if index else 1.0
        if index == len(self._ends_s):
            return before
        end_s = self._ends_s[index]
        begin_s = end_s / GAMMA
        if seconds <= begin_s:
            return before
        return before - (before - self._beyond[index]) * (seconds - begin_s) / (end_s - begin_s)

    def quantile(self, q: float) -> float:
        """When the share `q` has ended; infinite where that many were never seen to end."""
        for end_s, beyond in zip(self._ends_s, self._beyond, strict=True):
            if beyond <= 1.0 - q:
                return end_s
        return inf

    def __repr__(self) -> str:
        return f"<Survival of {self.n}: p50 {self.quantile(0.5):.3g} s>"
