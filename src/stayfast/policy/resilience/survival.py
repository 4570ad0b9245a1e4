"""The distribution of the durations of attempts, of which many are cancelled: the product-limit estimate.

Problem: an attempt cancelled at t for a faster one took *at least* t. Without it the samples lack the tail, and hedges
would be sent earlier and earlier. Rule: it counts as at risk up to t, and not after. S(t) is the share of attempts that take
longer than t. It falls linearly within a bucket, and is constant after the last one:

    S(t) = product over buckets b up to t of (1 - ended(b) / at_risk(b))
    at_risk(b) = attempts that ended, or were cancelled, in b or later

Problem: hedges cancel most attempts of the tail. The few that remain have too much weight: the end of one of the last two
halves S, and the end of the last makes it 0. Rule: S stays constant as soon as few attempts are at risk because the others
were cancelled:

    at_risk(b) < LEAST_AT_RISK   and   at_risk(b) < THIN * n * S(b)              n * S(b): expected without cancellations

So the unobserved tail is assumed to be as large as it was when last observed, and to have no end.
Source: Kaplan, Meier, "Nonparametric Estimation from Incomplete Observations" (JASA, 1958); stopping where few are at risk
is usual in its plots; the limits are ours.
When wrong: the cancellation of an attempt is assumed to be independent of how long the attempt would have taken.
"""

from bisect import bisect_right
from math import exp2, inf

from stayfast.policy.histogram import GAMMA, PER_OCTAVE, LogHistogram

LEAST_AT_RISK = 10
THIN = 0.1
_ZERO = 30.0 * PER_OCTAVE  # as in LogHistogram


class Survival:
    """S(t), computed once from two histograms; immutable. `n` counts ended and cancelled attempts."""

    __slots__ = ("_beyond", "_ends_s", "n")

    def __init__(self, ended: LogHistogram, cut_off: LogHistogram) -> None:
        self.n = n_at_risk = ended.n + cut_off.n
        self._ends_s: list[float] = []  # upper ends of the buckets with ended attempts
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

    def share_beyond(self, seconds: float) -> float:
        """S(seconds): the share of attempts that take longer; 1 without samples."""
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
        """The time within which the share `q` of the attempts ends; infinite if a smaller share was observed to end."""
        for end_s, beyond in zip(self._ends_s, self._beyond, strict=True):
            if beyond <= 1.0 - q:
                return end_s
        return inf
