"""Intervals of measured figures: 95 % confidence, two-sided.

    quantile_interval   order statistics, for independent samples of any distribution: the rank of the quantile q among n
                        samples is Binomial(n, q)
    share_interval      Clopper-Pearson: never covers less than it promises, also for 0 of n
    mean_interval       Student's t, for a mean of batches or rounds, which are about normal
    ratio_interval      block bootstrap, for a ratio of two quantiles of samples that depend on their neighbours in time
    block_interval      the same for one quantile

An end that the samples cannot bound is infinite: 200 samples bound a p99 from below only. Sources: David and Nagaraja, Order
Statistics (2003), section 7.1; Clopper and Pearson (1934); Kuensch (1989) for blocks. When wrong: order statistics of
samples that depend on each other (waits in a queue) give too short intervals; use blocks for them. Blocks must be longer
than that dependence.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import inf, isinf, isnan, nan, sqrt
from random import Random
from statistics import fmean, stdev
from typing import Final

from stayfast.policy.cache.calibration import beta_share

LEVEL: Final = 0.95
TAIL: Final = (1 - LEVEL) / 2
N_BLOCKS: Final = 50
N_REPLICATES: Final = 1000
_N_BISECTIONS: Final = 80


def quantile_interval(samples: Sequence[float], q: float) -> tuple[float, float]:
    """The interval of the quantile q (0 to 1). The samples must be independent; their order does not matter. An end that
    they cannot bound is infinite; both are NaN if a sample is.
    """
    if any(isnan(sample) for sample in samples):
        return nan, nan
    ordered = sorted(samples)
    below, above = _quantile_ranks(len(ordered), q)
    return (ordered[below - 1] if below else -inf), (ordered[above - 1] if above <= len(ordered) else inf)


def share_interval(x: float, n: float) -> tuple[float, float]:
    """The interval of a share of which x of n trials were seen. Both ends are NaN if n is 0."""
    if not n:
        return nan, nan
    low = _invert(lambda p: beta_share(p, x, n - x + 1) - TAIL) if x else 0.0
    high = _invert(lambda p: beta_share(p, x + 1, n - x) - (1 - TAIL)) if x < n else 1.0
    return low, high


def mean_interval(batches: Sequence[float]) -> tuple[float, float]:
    """The interval of the mean of equal batches. Unbounded if there are fewer than 2 or one is infinite; NaN if one is."""
    if any(map(isnan, batches)):
        return nan, nan
    if len(batches) < 2 or any(map(isinf, batches)):
        return -inf, inf
    half = student_t(len(batches) - 1) * stdev(batches) / sqrt(len(batches))
    return fmean(batches) - half, fmean(batches) + half


def absolute_interval(low: float, high: float) -> tuple[float, float]:
    """The interval of |x|, from that of x."""
    if isnan(low) or isnan(high):
        return nan, nan
    ends = sorted((abs(low), abs(high)))
    return (0.0 if low <= 0 <= high else ends[0]), ends[1]


def block_interval(samples: Sequence[float], q: float, *, seed: int = 1, n_blocks: int = N_BLOCKS) -> tuple[float, float]:
    """The interval of the quantile q of samples in the order of time, which are resampled in blocks of neighbours. An end
    that independent samples could not bound is infinite.
    """
    if not samples or any(isnan(sample) for sample in samples):
        return nan, nan
    blocks = _BlockQuantile(samples, q, n_blocks)
    rng = Random(seed)
    drawn = [blocks.draw(_draw_weights(rng, blocks.n_blocks)) for _ in range(N_REPLICATES)]
    low, high = _middle(drawn)
    return (-inf if blocks.is_unbounded_below else low), (inf if blocks.is_unbounded_above else high)


def ratio_interval(above: Sequence[float], below: Sequence[float], q: float, *, is_paired: bool = True, seed: int = 1,
                   n_blocks: int = N_BLOCKS) -> tuple[float, float]:
    """The interval of quantile q of `above` over quantile q of `below`. Both are in the order of time, positive.

    is_paired: both are of the same requests, or of the same seconds, so that the same blocks are drawn from both. An end
    that the samples cannot bound is infinite or 0.
    """
    if not above or not below or any(isnan(sample) for samples in (above, below) for sample in samples):
        return nan, nan
    n = min(n_blocks, len(above), len(below))
    over, under = _BlockQuantile(above, q, n), _BlockQuantile(below, q, n)
    rng, drawn = Random(seed), []
    for _ in range(N_REPLICATES):
        weights = _draw_weights(rng, n)
        drawn.append(divide(over.draw(weights), under.draw(weights if is_paired else _draw_weights(rng, n))))
    low, high = (nan, nan) if any(map(isnan, drawn)) else _middle(drawn)
    return ((0.0 if over.is_unbounded_below or under.is_unbounded_above else low),
            (inf if over.is_unbounded_above or under.is_unbounded_below else high))


def divide(value: float, by: float) -> float:
    """value / by; infinite for a positive value over 0, NaN where neither is defined (0 / 0, infinite / infinite)."""
    if by == 0:
        return inf if value > 0 else nan
    return value / by


class _BlockQuantile:
    """Samples in blocks of neighbours, from which quantiles of resamples are drawn.

    A resample counts each block's samples `weights[block]` times. The walk to its quantile starts at the quantile of the
    samples, so that a draw costs the blocks and a few hundred samples, not all of them.
    """

    def __init__(self, samples: Sequence[float], q: float, n_blocks: int) -> None:
        n = len(samples)
        self.n_blocks = min(n_blocks, n)
        order = sorted(range(n), key=samples.__getitem__)
        self._values = [samples[row] for row in order]
        self._blocks = [row * self.n_blocks // n for row in order]
        self._q = q
        self._start = min(n - 1, int(q * n))
        self._sizes, self._n_below = [0] * self.n_blocks, [0] * self.n_blocks
        for rank, block in enumerate(self._blocks):
            self._sizes[block] += 1
            self._n_below[block] += rank < self._start
        below, above = _quantile_ranks(n, q)
        self.is_unbounded_below, self.is_unbounded_above = below < 1, above > n

    def draw(self, weights: Sequence[int]) -> float:
        """The quantile of one resample: its smallest value with at least a share q of the values at or below it."""
        wanted = self._q * sum(map(int.__mul__, weights, self._sizes))
        n_seen = sum(map(int.__mul__, weights, self._n_below))  # below the sample at `rank`
        rank, blocks = self._start, self._blocks
        while rank > 0 and n_seen >= wanted:
            rank -= 1
            n_seen -= weights[blocks[rank]]
        while rank < len(blocks) - 1 and n_seen + weights[blocks[rank]] < wanted:
            n_seen += weights[blocks[rank]]
            rank += 1
        return self._values[rank]


def _draw_weights(rng: Random, n_blocks: int) -> list[int]:
    """How often each block is in a resample of as many blocks."""
    weights = [0] * n_blocks
    for block in rng.choices(range(n_blocks), k=n_blocks):
        weights[block] += 1
    return weights


def _middle(drawn: list[float]) -> tuple[float, float]:
    drawn.sort()
    n_cut = int(TAIL * len(drawn))
    return drawn[n_cut], drawn[-1 - n_cut]


def _quantile_ranks(n: int, q: float) -> tuple[int, int]:
    """The ranks (1 to n) of the samples that bound the quantile q: 0 or n + 1 where none does."""
    if not n or not 0 < q < 1:
        return 0, n + 1
    below = bisect_right(range(n), TAIL, key=lambda k: _binomial_cdf(k, n, q))  # the largest k + 1 with P(B <= k) <= TAIL
    above = bisect_right(range(n), 1 - TAIL, key=lambda k: _binomial_cdf(k, n, q)) + 1
    return below, above


def _binomial_cdf(k: int, n: int, p: float) -> float:
    """P(at most k of n)."""
    return 1.0 if k >= n else beta_share(1 - p, n - k, k + 1)


def student_t(degrees: int) -> float:
    """The quantile 1 - TAIL of Student's t with that many degrees of freedom (at least 1)."""
    x = _invert(lambda p: beta_share(p, degrees / 2, 0.5) - 2 * TAIL)  # P(|T| > t) = I_x(v / 2, 1 / 2), x = v / (v + t^2)
    return sqrt(degrees * (1 - x) / x)


def _invert(rising: Callable[[float], float]) -> float:
    """The zero of a rising function in 0 to 1, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_N_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2
