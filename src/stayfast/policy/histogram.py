"""Percentiles that can be added up: counts of durations in buckets whose width grows with the value.

Problem: the p99 of two workers is not the mean of their p99s, and buckets that double are 58 % wrong at p95. Rule: the
bucket of a value is the whole part of its logarithm, 32 to the octave; histograms merge by adding counts, in any order and
any number, without loss.

    bucket(v) = floor(32 * log2(v)),  gamma = 2 ** (1/32)            it covers [gamma**b, gamma**(b+1))
    quantile(q) = 2 * gamma**b * gamma / (1 + gamma)                 of the bucket that holds the ceil(q*n)-th value
    |quantile(q) - that value| / that value <= (gamma - 1) / (gamma + 1) = 1.09 %

Values below 2**-30 s (a nanosecond) count as that. The shape is that of OpenTelemetry's exponential histogram at scale 5
and of Prometheus's native schema 5. Source: Masson et al., "DDSketch" (VLDB 2019).
When wrong: the error is of the value, not of the rank; with fewer than 1 / (1 - q) values a quantile is their largest.
"""

from collections import defaultdict
from collections.abc import Iterable
from math import ceil, exp2, log2

PER_OCTAVE = 32
GAMMA = exp2(1.0 / PER_OCTAVE)
MAX_RELATIVE_ERROR = (GAMMA - 1.0) / (GAMMA + 1.0)
_LEAST = 2.0**-30
_ZERO = 30.0 * PER_OCTAVE  # makes every bucket's number positive, so that int() rounds down
_SCALE = float(PER_OCTAVE)

Packed = tuple[int, ...]  # bucket, count, bucket, count, ...


class LogHistogram:
    """Counts by bucket. Not more than a few hundred buckets ever fill: 1 ms to 10 min is 615."""

    __slots__ = ("counts",)

    def __init__(self, packed: Packed = ()) -> None:
        self.counts: defaultdict[int, int] = defaultdict(int, zip(packed[::2], packed[1::2], strict=True))

    def add(self, seconds: float) -> None:
        """Count one value; finite. What is not positive counts as the least."""
        self.counts[int(log2(seconds) * _SCALE + _ZERO) if seconds > _LEAST else 0] += 1

    def merge(self, other: "LogHistogram") -> None:
        """Add another's counts."""
        counts = self.counts
        if not counts:
            counts.update(other.counts)
            return
        for bucket, n in other.counts.items():
            counts[bucket] += n

    @property
    def n(self) -> int:
        """How many values."""
        return sum(self.counts.values())

    def quantile(self, q: float) -> float | None:
        """The value of rank ceil(q * n), within MAX_RELATIVE_ERROR; None for an empty histogram. 0 <= q <= 1."""
        rank = max(1, ceil(q * self.n))
        for bucket in sorted(self.counts):
            rank -= self.counts[bucket]
            if rank <= 0:
                return exp2((bucket - _ZERO) / PER_OCTAVE) * 2.0 * GAMMA / (1.0 + GAMMA)
        return None

    def packed(self) -> Packed:
        """A compact form for other processes; the constructor takes it."""
        return tuple(number for pair in sorted(self.counts.items()) for number in pair)

    def __repr__(self) -> str:
        return f"<LogHistogram of {self.n}>"


def merged(histograms: Iterable[LogHistogram]) -> LogHistogram:
    """One histogram of all."""
    whole = LogHistogram()
    for one in histograms:
        whole.merge(one)
    return whole
