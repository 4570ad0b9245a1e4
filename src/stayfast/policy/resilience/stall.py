"""When a running answer has stalled, and when its upstream begins to be throttled.

Problem: between two tokens an answer may wait for 20 ms or for 2 s, by model, load and how the provider bundles what it
sends; a constant is either felt by every reader or cuts off whoever is only slow. Rule: a wait is a stall when it is longer
than all of these:

    FLOOR_S                                      about when a reader's attention leaves
    LIVE_TIMES * q(LIVE_QUANTILE)                of the gaps at this upstream in the last five minutes
    OWN_TIMES  * mean gap of this very answer    one that always takes its time does not stall
    switch_s                                     what going on elsewhere usually takes

The last one is the ski rental: whoever waits as long as a change costs, and then changes, loses at most half against one
who knew. Gaps count when they end: a wait that was given up is none, or each stall would hide the next. Nobody is judged
before MIN_GAPS are known.

Throttling shows before anything stops: the rate sags. Over the gaps since the last look, at least MIN_FRESH of them:

    sag = mean gap / usual mean gap here         where that and the ratio to the answer's own start exceed SAG_TIMES
    load is taken (1 + (sag - 1) e^(-t/10)) fold    the largest sag lately; so new requests go elsewhere

Answers that nobody watches are looked at when they end, and every 256 gaps: their second half against their first. Those
that were slow from their start are known by the pace of the last few:

    recent += min(ln(mean gap / usual mean gap) - recent, ln(SAG_TIMES)) / 4      so that no one answer is enough
    load is taken (1 + (exp(recent) - 1) e^(-t/10)) fold        where exp(recent) > RECENT_TIMES; the larger of the two

What is usual learns no more than SAG_TIMES of itself from one answer. Where all upstreams sag alike, all weigh alike.

Source: Karlin et al., "Competitive randomized algorithms for non-uniform problems" (SODA 1990) for the wait; the quantile
of live gaps and the sag are ours.
When wrong: a tool or a search inside the provider is silent for as long as it runs; an upstream that has become slower for
good is refused patience until its longer gaps have ended and are known.
"""

from collections.abc import Sequence
from math import exp, inf, log

from stayfast.policy.histogram import Window
from stayfast.policy.resilience.baselines import Baseline

FLOOR_S = 1.0
LIVE_QUANTILE, LIVE_TIMES, LIVE_S = 0.999, 4.0, 300.0
OWN_TIMES = 8.0
MIN_GAPS, MIN_OWN, MIN_FRESH = 200, 4, 8
N_START = 32  # gaps that are an answer's own start
SAG_TIMES, MAX_SAG = 2.5, 10.0
RECENT_TIMES, RECENT_LEARNS = 1.5, 0.25
SAG_DECAY_S = 10.0
REFRESHED_S = 1.0
_LEAST_S = 1e-6


class TokenFlow:
    """How the answers of one upstream flow. Instants must not go back; changed by its owner only, nothing here awaits."""

    __slots__ = ("_gaps", "_limit_s", "_n", "_read_at", "_recent", "_recent_at", "_sag", "_sag_at", "_usual")

    def __init__(self) -> None:
        self._gaps = Window()
        self._usual = Baseline()
        self._n = 0
        self._limit_s = inf
        self._read_at = -inf
        self._sag = 1.0
        self._sag_at = 0.0
        self._recent = 0.0  # the pace of the last answers, as a logarithm of the ratio to what is usual
        self._recent_at = 0.0

    @property
    def usual_s(self) -> float:
        """About the mean gap, over the long run; 0 before that is known."""
        return self._usual.baseline_s

    def took(self, gaps_s: Sequence[float], now: float) -> None:
        """Gaps of one answer ended since it was last looked at; seconds, never empty."""
        for gap_s in gaps_s:
            self._gaps.add(gap_s, now)
        self._n += len(gaps_s)
        self._learn(sum(gaps_s) / len(gaps_s))

    def saw(self, gaps_s: Sequence[float], now: float) -> None:
        """The gaps of one answer, or of a long part of it, that nobody watched while they lasted: has it sagged?"""
        n = len(gaps_s)
        if n < 2 * MIN_FRESH:
            return
        start_s, rest_s = sum(gaps_s[: n // 2]) / (n // 2), sum(gaps_s[n // 2 :]) / (n - n // 2)
        usual_s = self.usual_s
        if usual_s and rest_s > SAG_TIMES * start_s and rest_s > SAG_TIMES * usual_s:
            self.sagged(rest_s / usual_s, now)
        mean_s = sum(gaps_s) / n
        if usual_s:
            self._recent += min(log(max(mean_s, _LEAST_S) / usual_s) - self._recent, log(SAG_TIMES)) * RECENT_LEARNS
            self._recent_at = now
        self._learn(mean_s)

    def _learn(self, mean_s: float) -> None:
        usual_s = self.usual_s
        self._usual.learn(log(max(min(mean_s, SAG_TIMES * usual_s) if usual_s else mean_s, _LEAST_S)))

    def limit_s(self, now: float) -> float:
        """Longer than nearly all gaps lately, several times; infinite where too few are known."""
        if now - self._read_at >= REFRESHED_S:
            self._read_at = now
            live = self._gaps.last(LIVE_S, now)
            quantile_s = live.quantile(LIVE_QUANTILE) if live.n >= MIN_GAPS else None
            self._limit_s = LIVE_TIMES * quantile_s if quantile_s is not None else inf
        return self._limit_s

    def sagged(self, times: float, now: float) -> None:
        """An answer came so many times slower than usual, or stopped."""
        if times > self._sag_factor(now):
            self._sag, self._sag_at = min(times, MAX_SAG), now

    def load_factor(self, now: float) -> float:
        """How many times its load weighs, from 1 to MAX_SAG."""
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
    """The gaps of one running answer. One task's; a gap costs an append."""

    __slots__ = ("_fresh_s", "_n", "_start_s", "_sum_s")

    def __init__(self) -> None:
        self._fresh_s: list[float] = []  # since the last look
        self._n = 0
        self._sum_s = 0.0
        self._start_s = 0.0  # the mean of its first gaps; 0: not known

    def beat(self, gap_s: float) -> None:
        """Content came, so long after the content before it."""
        self._fresh_s.append(gap_s)

    def check(self, flow: TokenFlow, now: float) -> None:
        """Tell the upstream's flow what came since the last look, and whether it sags."""
        fresh_s, self._fresh_s = self._fresh_s, []
        if not fresh_s:
            return
        n, sum_s = len(fresh_s), sum(fresh_s)
        if n >= MIN_FRESH and flow.usual_s and self._start_s:
            mean_s = sum_s / n
            if mean_s > SAG_TIMES * self._start_s and mean_s > SAG_TIMES * flow.usual_s:
                flow.sagged(mean_s / flow.usual_s, now)
        flow.took(fresh_s, now)
        self._n += n
        self._sum_s += sum_s
        if not self._start_s and self._n >= N_START:
            self._start_s = self._sum_s / self._n

    def limit_s(self, flow: TokenFlow, switch_s: float, now: float) -> float:
        """A wait that lasts longer is a stall, as of the last look. `switch_s`: what going on elsewhere usually takes."""
        own_s = OWN_TIMES * self._sum_s / self._n if self._n >= MIN_OWN else 0.0
        return max(FLOOR_S, own_s, switch_s, flow.limit_s(now))

    def __repr__(self) -> str:
        return f"<StallDetector of {self._n} gaps, {self._sum_s:.3g} s>"
