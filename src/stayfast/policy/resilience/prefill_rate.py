"""The prefill rate of one model at one upstream (V_P), in uncached prompt tokens per second, learned from its traffic.

Problem: what a cached prefix is worth depends on how fast the engine computes the rest, and nobody measures that for each
replica. Rule: of the first tokens that waited for no other prefill, the newest 64 are split by their uncached tokens; the
rate is the slope between the medians of the upper and the lower third:

    V_P = (n_upper - n_lower) / (ttft_upper - ttft_lower)         n: median uncached tokens, ttft: median seconds

So the constant part of the time (network, one decode step) drops out, and some of the samples may be outliers. A sample
counts if the prompts in flight ahead of it have at most a quarter of its own tokens. Uncertain rates are bounded: none
before 16 samples, where the thirds are closer than 256 tokens, or where two halves of the samples differ by more than 1.5;
at most a factor of 2 a step (of 8 samples), and 50 to 1,000,000 tokens a second. Among replicas of a route, a rate counts
by what it differs from the median of the known ones beyond a factor of 1.3, at most 4; the median stands in for an unknown
rate, and PRIOR where none is known. Equal replicas are ordered the same by any rate, which then only scales the cost.
Before that, rates that differed by noise alone made queues: mean TTFT 1.18 s instead of 0.32 s at 80 % load.
Source: llm-d computes V_P = chunk / median idle TTFT in a calibration run (15,928 tokens/s for a 32B model on two H100,
2,696 through a path that transfers the KV cache); medians of thirds are Tukey's resistant line (1977).
When wrong: time that grows faster than the prompt (attention of very long ones); a replica that gets no calls for long keeps
an old rate; other gateways' prefills are not seen.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

PRIOR: Final = 8_000.0  # tokens a second: between an 8B model on one GPU and a 70B model on several
N_SAMPLES: Final = 64
N_WARM: Final = 16
EVERY: Final = 8  # samples between two estimates
AHEAD_SHARE: Final = 0.25
LEAST_SPREAD: Final = 256.0  # tokens between the thirds
AGREE: Final = 1.5
STEP: Final = 2.0
SURE: Final = 1.3  # a smaller difference between replicas is noise
SPREAD: Final = 4.0  # around the median of the route's replicas
LEAST, MOST = 50.0, 1e6


class PrefillRate:
    """Pure state; changed only by its owner."""

    __slots__ = ("_n_new", "_samples", "tokens_per_s")

    def __init__(self) -> None:
        self.tokens_per_s: float | None = None  # None: not known yet
        self._samples: deque[tuple[float, float]] = deque(maxlen=N_SAMPLES)
        self._n_new = 0

    def learn(self, n_uncached: float, n_ahead: float, ttft_s: float) -> None:
        """A first token after `ttft_s`, of a prompt with `n_uncached` tokens to compute; n_ahead: tokens of the prompts that
        waited for their first token when it was sent.
        """
        if n_ahead > AHEAD_SHARE * n_uncached or ttft_s <= 0:
            return
        self._samples.append((n_uncached, ttft_s))
        self._n_new += 1
        if self._n_new >= EVERY and len(self._samples) >= N_WARM:
            self._n_new = 0
            self._estimate()

    def _estimate(self) -> None:
        ranked = sorted(self._samples)
        rate, one, other = _slope(ranked), _slope(ranked[::2]), _slope(ranked[1::2])
        if rate is None or one is None or other is None or not 1 / AGREE <= one / other <= AGREE:
            return
        before = self.tokens_per_s
        if before is not None:
            rate = min(before * STEP, max(before / STEP, rate))
        self.tokens_per_s = min(MOST, max(LEAST, rate))

    def __repr__(self) -> str:
        return f"<PrefillRate {'unknown' if self.tokens_per_s is None else f'{self.tokens_per_s:.0f} tokens/s'}>"


def _slope(ranked: Sequence[tuple[float, float]]) -> float | None:
    """Tokens per second between the thirds; None: they are too close to tell."""
    n_third = len(ranked) // 3
    (n_low, low_s), (n_high, high_s) = _medians(ranked[:n_third]), _medians(ranked[-n_third:])
    if n_high - n_low < LEAST_SPREAD or high_s <= low_s:
        return None
    return (n_high - n_low) / (high_s - low_s)


def _medians(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return median([n for n, _ in samples]), median([ttft_s for _, ttft_s in samples])


def bound_rates(rates: Sequence[float | None]) -> list[float]:
    """The rates to compare replicas by: known ones drawn to their median, which stands in for unknown ones."""
    known = [rate for rate in rates if rate is not None]
    if not known:
        return [PRIOR] * len(rates)
    middle = median(known)
    return [middle if rate is None else _draw_to(middle, rate) for rate in rates]


def _draw_to(middle: float, rate: float) -> float:
    if rate > middle:
        return max(middle, min(rate / SURE, middle * SPREAD))
    return min(middle, max(rate * SURE, middle / SPREAD))
