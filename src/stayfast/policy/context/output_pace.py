"""How fast one model at one upstream answers now: time to the first token, time per token after it.

Problem: a limit that is fitted to a deadline needs both, as they will be for an attempt that starts now. Means hide the slow
tenth; ended answers show a slow-down only after the slow answers have ended. Rule: of the answers of the last 10 s, 60 s or
600 s, whichever is the first with 2 / (1 - q) answers (MIN_ANSWERS in 600 s)

    TTFT(q)   the q-quantile among prompts of this size (powers of two); of larger ones, if too few are known; else of
              smaller ones, times the ratio of the sizes
    TPOT(q)   the larger of the q-quantile, and of  median rate of running answers * q-quantile / median
              (at least MIN_RUNNING of them with MIN_FRESH tokens since the last measurement, at most RUNNING_S ago)

Upstreams that send answers whole show no first token. Of N_WHOLE recent ones, `seconds = a + b * tokens` is fitted by least
squares; b is raised by 1.28 standard errors, and a is the q-quantile of what remains. It needs MIN_ANSWERS answers whose
lengths differ by SPREAD. Tokens are the upstream's counts without reasoning, which comes before the first visible token.
Source: order statistics; ordinary least squares. When wrong: the load jumps between two measurements; a slow client makes
its answer look slow; the first answers after a quiet hour are expected to be like those of up to 600 s ago.
"""

from collections import deque
from collections.abc import Sequence
from math import inf, sqrt

from stayfast.policy.context.output_cap import PaceEstimate
from stayfast.policy.histogram import Window, quantile_of

SPANS_S = (10.0, 60.0, 600.0)
MIN_ANSWERS = 8
MIN_RUNNING, MIN_FRESH, RUNNING_S = 2, 8, 5.0
N_WHOLE, SPREAD = 64, 1.5
ONE_SIDED = 1.28  # standard errors to the 90 % quantile of a normal distribution
MAX_SIZES = 24  # powers of two
REFRESHED_S = 0.25
MAX_RATIO = 3.0  # of the quantile to the median: more is a second kind of answers, not a slow tenth


class OutputPace:
    """The times of one model at one upstream. Instants must not go back; changed by its owner only."""

    __slots__ = ("_known", "_lengths", "_reasoning", "_running_at", "_running_s", "_tpots", "_ttfts", "_whole")

    def __init__(self) -> None:
        self._ttfts: dict[int, Window] = {}  # by power of two of the prompt's tokens
        self._tpots = Window()
        self._lengths: deque[int] = deque(maxlen=256)
        self._reasoning: deque[int] = deque(maxlen=64)
        self._whole: deque[tuple[float, float, float]] = deque(maxlen=N_WHOLE)  # instant, tokens, seconds
        self._running_s = 0.0
        self._running_at = -inf
        self._known: dict[tuple[int, float], tuple[float, PaceEstimate | None]] = {}

    def record_stream(self, n_prompt: float, ttft_s: float, tpot_s: float | None, now: float) -> None:
        """An answer that came in parts. tpot_s: of its tokens after the first; None: too few."""
        size = _size_of(n_prompt)
        window = self._ttfts.get(size)
        if window is None:
            self._ttfts[size] = window = Window()
        window.add(ttft_s, now)
        if tpot_s is not None:
            self._tpots.add(tpot_s, now)

    def record_whole(self, n_tokens: int, seconds: float, now: float) -> None:
        """An answer that came at once."""
        self._whole.append((now, float(n_tokens), seconds))

    def record_length(self, n_tokens: int, n_reasoning: int) -> None:
        """The output tokens of an answer, and the reasoning tokens among them."""
        self._lengths.append(n_tokens)
        self._reasoning.append(n_reasoning)

    def record_running(self, tpots_s: Sequence[float], now: float) -> None:
        """The present rates of running answers."""
        if len(tpots_s) >= MIN_RUNNING:
            self._running_s, self._running_at = quantile_of(tpots_s, 0.5), now

    def estimate(self, n_prompt: float, q: float, now: float) -> PaceEstimate | None:
        """What is expected of an attempt with a prompt of `n_prompt` tokens; None: too little is known."""
        key = _size_of(n_prompt), q
        known = self._known.get(key)
        if known is not None and now < known[0]:
            return known[1]
        found = self._estimate(key[0], q, now)
        if len(self._known) >= MAX_SIZES:
            self._known.clear()
        self._known[key] = (now + REFRESHED_S, found)
        return found

    def _estimate(self, size: int, q: float, now: float) -> PaceEstimate | None:
        tpot_s, ttft_s = self._tpot_s(q, now), self._ttft_s(size, q, now)
        if tpot_s is None or ttft_s is None:
            line = self._fit_whole(q, now)
            if line is None:
                return None
            ttft_s, tpot_s = line
        n_reasoning = int(quantile_of(self._reasoning, q)) if self._reasoning else 0
        return PaceEstimate(ttft_s, tpot_s, n_reasoning, max(self._lengths, default=0))

    def _tpot_s(self, q: float, now: float) -> float | None:
        usual = self._recent(self._tpots, q, now)
        if usual is None:
            return None
        high_s, median_s = usual
        if now - self._running_at > RUNNING_S or not median_s:
            return high_s
        return max(high_s, self._running_s * min(MAX_RATIO, high_s / median_s))

    def _ttft_s(self, size: int, q: float, now: float) -> float | None:
        sizes = sorted(self._ttfts)
        for known in (*(known for known in sizes if known >= size), *(known for known in reversed(sizes) if known < size)):
            found = self._recent(self._ttfts[known], q, now)
            if found is not None:
                return found[0] * max(1.0, 2.0 ** (size - known))
        return None

    def _recent(self, window: Window, q: float, now: float) -> tuple[float, float] | None:
        """The quantile and the median of its recent values; None: too few."""
        n_enough = max(MIN_ANSWERS, 2.0 / (1.0 - q))
        for seconds in SPANS_S:
            recent = window.merge_last(seconds, now)
            if recent.n >= (MIN_ANSWERS if seconds == SPANS_S[-1] else n_enough):
                return recent.quantile(q) or 0.0, recent.quantile(0.5) or 0.0
        return None

    def _fit_whole(self, q: float, now: float) -> tuple[float, float] | None:
        """a and b of `seconds = a + b * tokens`, by least squares; None: too few answers, or of too similar lengths."""
        points = [(n_tokens, seconds) for at, n_tokens, seconds in self._whole if now - at <= SPANS_S[-1]]
        n = len(points)
        if n < MIN_ANSWERS:
            return None
        lengths = [n_tokens for n_tokens, _ in points]
        if max(lengths) < SPREAD * max(1.0, min(lengths)):
            return None
        mean_n, mean_s = sum(lengths) / n, sum(seconds for _, seconds in points) / n
        var = sum((n_tokens - mean_n) ** 2 for n_tokens in lengths)
        slope_s = sum((n_tokens - mean_n) * (seconds - mean_s) for n_tokens, seconds in points) / var
        rest = sum((seconds - mean_s - slope_s * (n_tokens - mean_n)) ** 2 for n_tokens, seconds in points)
        slope_s += ONE_SIDED * sqrt(rest / (n - 2) / var)
        if slope_s <= 0:
            return None
        return max(0.0, quantile_of([seconds - slope_s * n_tokens for n_tokens, seconds in points], q)), slope_s

    def __repr__(self) -> str:
        return f"<OutputPace of {len(self._lengths)} answers, {len(self._ttfts)} sizes>"


def _size_of(n_prompt: float) -> int:
    return min(MAX_SIZES - 1, int(max(0.0, n_prompt)).bit_length())
