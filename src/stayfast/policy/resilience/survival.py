"""How long attempts last, where many are cut off before they end: the product-limit estimate.

Problem: an attempt that a quicker one cut off at t took *at least* t. Forgotten, it would take the tail out of the samples,
and what is hedged by their quantiles would be hedged earlier and earlier. Rule: it counts among those at risk up to t and
has no weight beyond, bucket by bucket; inside a bucket S falls in a straight line, beyond the last end it stays where it is:

    S(t) = product over buckets b up to t of (1 - ended(b) / at_risk(b))
    at_risk(b) = attempts that ended, or were cut off, in b or later

Problem: a tail that second attempts cut off is hardly seen any more. Of 250 attempts a minute that would last for 2 s three
are left, and one that ends halves S; if it is the last one, S is 0, and the tail is gone until the next minute. Rule: S
stays where it is as soon as few attempts are at risk because the others were cut off:

    at_risk(b) < LEAST_AT_RISK   and   at_risk(b) < THIN * n * S(b)              n * S(b): as many as there would be

so a tail that hedging hides is taken to be as large as where it was last seen, and to last for ever. Without attempts that
were cut off at_risk(b) = n * S(b), and S is the plain share.
Source: Kaplan, Meier, "Nonparametric Estimation from Incomplete Observations" (JASA, 1958); the end where few are at risk is
usual for its plots, the numbers are ours.
When wrong: where attempts are cut off because of how long they would have taken. And a tail that ends soon after the instant
at which it is cut off looks longer than it is.
"""

from bisect import bisect_right
from math import exp2, inf

from stayfast.policy.histogram import GAMMA, PER_OCTAVE, LogHistogram

LEAST_AT_RISK = 10
THIN = 0.1
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
                if n_at_risk < LEAST_AT_RISK and n_at_risk < THIN * self.n * beyond:
                    break
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
