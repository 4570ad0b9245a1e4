"""Stalls of a running answer, and early signs that its upstream throttles.

Problem: the pause between two tokens may be 20 ms or 2 s, by model, load and batching. Rule: a pause is a stall if it is
longer than all of these:

    FLOOR_S                                      about when a reader's attention is lost
    LIVE_TIMES * q(LIVE_QUANTILE)                of the gaps at this upstream in the last five minutes
    OWN_TIMES  * mean gap of this answer         an answer that is slow throughout does not stall
    switch_s                                     the usual time to continue at another upstream (ski rental: waiting as long
                                                 as a switch costs is at most twice the optimum)

Gaps count when they end, and not if they were given up, or each stall would hide the next. Before MIN_GAPS gaps there are no
stalls. Throttling shows earlier, as a lower rate. Over the gaps since the last check, at least MIN_FRESH:

    sag = mean gap / usual mean gap here         if it, and the ratio to the answer's own start, exceed SAG_TIMES
    the load counts (1 + (sag - 1) e^(-t/10)) times    for the largest recent sag, so new requests prefer others

Answers without a watcher are checked at their end and every 256 gaps, their second half against the first. Answers that are
slow from the start show in the pace of the last few:

    recent += min(ln(mean gap / usual mean gap) - recent, ln(SAG_TIMES)) / 4      so no single answer is enough
    the load counts (1 + (exp(recent) - 1) e^(-t/10)) times     if exp(recent) > RECENT_TIMES; the larger of the two

Source: Karlin et al., "Competitive randomized algorithms for non-uniform problems" (SODA 1990) for the wait; the rest is
ours. When wrong: a tool or a search inside the provider is silent while it runs; answers of an upstream that has become
slower for good count as stalls until its longer gaps are known.
"""

from collections.abc import Sequence
from math import exp, inf, log

from stayfast.policy.histogram import Window
from stayfast.policy.resilience.baselines import Baseline

FLOOR_S = 1.0
LIVE_QUANTILE, LIVE_TIMES, LIVE_S = 0.999, 4.0, 300.0
OWN_TIMES = 8.0
MIN_GAPS, MIN_OWN, MIN_FRESH = 200, 4, 8
N_START = 32  # gaps that define an answer's own start
SAG_TIMES, MAX_SAG = 2.5, 10.0
RECENT_TIMES, RECENT_LEARNS = 1.5, 0.25
SAG_DECAY_S = 10.0
REFRESHED_S = 1.0
_LEAST_S = 1e-6


class TokenFlow:
    """The flow of tokens from one upstream. Instants must not go back; changed by its owner only, nothing here awaits."""

    __slots__ = ("_gaps", "_limit_s", "_n", "_read_at", "_recent", "_recent_at", "_sag", "_sag_at", "_usual")

    def __init__(self) -> None:
        self._gaps = Window()
        self._usual = Baseline()
        self._n = 0
        self._limit_s = inf
        self._read_at = -inf
        self._sag = 1.0
        self._sag_at = 0.0
        self._recent = 0.0  # pace of the last answers: logarithm of the ratio to the usual gap
        self._recent_at = 0.0

    @property
    def usual_s(self) -> float:
        """About the long-term mean gap; 0 if it is not known yet."""
        return self._usual.baseline_s

    def add_gaps(self, gaps_s: Sequence[float], now: float) -> None:
        """Gaps of a watched answer ended since its last check; seconds, never empty."""
        for gap_s in gaps_s:
            self._gaps.add(gap_s, now)
        self._n += len(gaps_s)
        self._learn(sum(gaps_s) / len(gaps_s))

    def check_unwatched(self, gaps_s: Sequence[float], now: float) -> None:
        """Check the gaps of an answer, or of a long part of it, that had no watcher."""
        n = len(gaps_s)
        if n < 2 * MIN_FRESH:
            return
        start_s, rest_s = sum(gaps_s[: n // 2]) / (n // 2), sum(gaps_s[n // 2 :]) / (n - n // 2)
        usual_s = self.usual_s
        if usual_s and rest_s > SAG_TIMES * start_s and rest_s > SAG_TIMES * usual_s:
            self.record_sag(rest_s / usual_s, now)
        mean_s = sum(gaps_s) / n
        if usual_s:
            self._recent += min(log(max(mean_s, _LEAST_S) / usual_s) - self._recent, log(SAG_TIMES)) * RECENT_LEARNS
            self._recent_at = now
        self._learn(mean_s)

    def _learn(self, mean_s: float) -> None:
        usual_s = self.usual_s
        self._usual.learn(log(max(min(mean_s, SAG_TIMES * usual_s) if usual_s else mean_s, _LEAST_S)))

    def limit_s(self, now: float) -> float:
        """A multiple of nearly all recent gaps; infinite if too few are known."""
        if now - self._read_at >= REFRESHED_S:
            self._read_at = now
            live = self._gaps.merge_last(LIVE_S, now)
            quantile_s = live.quantile(LIVE_QUANTILE) if live.n >= MIN_GAPS else None
            self._limit_s = LIVE_TIMES * quantile_s if quantile_s is not None else inf
        return self._limit_s

    def record_sag(self, times: float, now: float) -> None:
        """An answer slowed down by this factor relative to the usual gap, or stopped."""
        if times > self._sag_factor(now):
            self._sag, self._sag_at = min(times, MAX_SAG), now

    def load_factor(self, now: float) -> float:
        """The factor by which its load counts, from 1 to MAX_SAG."""
        recent = exp(self._recent)
        if recent <= RECENT_TIMES:
            return self._sag_factor(now)
        faded = 1.0 + (min(recent, MAX_SAG) - 1.0) * exp((self._recent_at - now) / SAG_DECAY_S)
        return max(self._sag_factor(now), faded)

    def _sag_factor(self, now: float) -> float:
        return 1.0 if self._sag <= 1.0 else 1.0 + (self._sag - 1.0) * exp((self._sag_at - now) / SAG_DECAY_S)

    def __repr__(self) -> str:
        return (f"<TokenFlow of {self._n} gaps, usually {self.usual_s:.3g} s, sag {self._sag:.3g}, "
                f"lately {exp(self._recent):.3g}>")


class StallDetector:
    """The gaps of one running answer. Used by one task; recording a gap costs one append."""

    __slots__ = ("_fresh_s", "_n", "_start_s", "_sum_s")

    def __init__(self) -> None:
        self._fresh_s: list[float] = []  # since the last check
        self._n = 0
        self._sum_s = 0.0
        self._start_s = 0.0  # mean of its first gaps; 0: not known yet

    def add_gap(self, gap_s: float) -> None:
        """Content arrived `gap_s` after the content before it."""
        self._fresh_s.append(gap_s)

    def check(self, flow: TokenFlow, now: float) -> None:
        """Report the gaps since the last check to the upstream's flow, and detect a sag."""
        fresh_s, self._fresh_s = self._fresh_s, []
        if not fresh_s:
            return
        n, sum_s = len(fresh_s), sum(fresh_s)
        if n >= MIN_FRESH and flow.usual_s and self._start_s:
            mean_s = sum_s / n
            if mean_s > SAG_TIMES * self._start_s and mean_s > SAG_TIMES * flow.usual_s:
                flow.record_sag(mean_s / flow.usual_s, now)
        flow.add_gaps(fresh_s, now)
        self._n += n
        self._sum_s += sum_s
        if not self._start_s and self._n >= N_START:
            self._start_s = self._sum_s / self._n

    def limit_s(self, flow: TokenFlow, switch_s: float, now: float) -> float:
        """The longest pause that is no stall, as of the last check. `switch_s`: usual time to continue elsewhere."""
        own_s = OWN_TIMES * self._sum_s / self._n if self._n >= MIN_OWN else 0.0
        return max(FLOOR_S, own_s, switch_s, flow.limit_s(now))
