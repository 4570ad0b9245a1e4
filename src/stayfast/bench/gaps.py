"""Gaps between chunks, pooled over all answers of a run and kept by time.

A run has a hundred times more gaps than requests, so they are counted, not kept. Buckets grow by `GROWTH`; a bucket answers
with its geometric middle, so a quantile is off by at most sqrt(GROWTH) - 1 = 1 %. Gaps of 1 us and less (several chunks in
one read) are one bucket that answers 0. Time bins double in width when there would be more than `MAX_BINS` of them: memory
is bounded whatever the run's length. Sums merge exactly.
"""

from collections.abc import Iterable
from math import log

GROWTH = 1.02
LOWEST_S = 1e-6
MAX_BINS = 512
_LOG_GROWTH = log(GROWTH)
_OFFSET = log(LOWEST_S)


def bucket_of(gap_s: float) -> int:
    """The bucket's number: 0 for up to `LOWEST_S`, then one for each factor of `GROWTH`."""
    return 0 if gap_s <= LOWEST_S else 1 + int((log(gap_s) - _OFFSET) / _LOG_GROWTH)


def middle_s(bucket: int) -> float:
    """The value that stands for a bucket: its geometric middle."""
    return 0.0 if bucket == 0 else float(LOWEST_S * GROWTH ** (bucket - 0.5))


class Gaps:
    """Counts by time bin and bucket. One task owns it."""

    __slots__ = ("bin_s", "bins")

    def __init__(self, bin_s: float = 0.125) -> None:
        if bin_s <= 0:
            raise ValueError(f"bin_s must be above 0, is {bin_s}")
        self.bin_s = bin_s
        self.bins: dict[int, dict[int, int]] = {}  # time bin -> bucket -> count

    def add(self, at_s: float, gap_s: float) -> None:
        """Count one gap that ended at `at_s` seconds of the run."""
        number = int(at_s / self.bin_s)
        counts = self.bins.get(number)
        if counts is None:
            if number >= MAX_BINS:
                self._widen_to_fit(number)
                return self.add(at_s, gap_s)
            counts = self.bins[number] = {}
        bucket = bucket_of(gap_s)
        counts[bucket] = counts.get(bucket, 0) + 1
        return None

    def merge(self, other: "Gaps") -> None:
        """Count what `other` counted as well. The bin widths must be a power of two apart."""
        while self.bin_s < other.bin_s:
            self._widen()
        factor = self.bin_s / other.bin_s
        for number, counts in other.bins.items():
            into = self.bins.setdefault(int(number / factor), {})
            _sum_into(into, counts)

    def pooled(self) -> dict[int, int]:
        """Counts by bucket over the whole run, in rising order of bucket."""
        total: dict[int, int] = {}
        for counts in self.bins.values():
            _sum_into(total, counts)
        return dict(sorted(total.items()))

    def __len__(self) -> int:
        return sum(sum(counts.values()) for counts in self.bins.values())

    def _widen_to_fit(self, number: int) -> None:
        while number >= MAX_BINS:
            self._widen()
            number //= 2

    def _widen(self) -> None:
        self.bin_s *= 2
        halves, self.bins = self.bins, {}
        for number, counts in halves.items():
            _sum_into(self.bins.setdefault(number // 2, {}), counts)


def quantiles_of(counts: dict[int, int], shares: Iterable[float]) -> list[float]:
    """The values in seconds below which each share (0 to 1, rising) of the counted gaps lies; NaN where none was counted."""
    n_all = sum(counts.values())
    found: list[float] = []
    walk = iter(sorted(counts.items()))
    bucket, n_below = next(walk, (0, 0))
    for share in shares:
        rank = share * (n_all - 1)
        while n_below <= rank and (step := next(walk, None)) is not None:
            bucket, n_below = step[0], n_below + step[1]
        found.append(middle_s(bucket) if n_all else float("nan"))
    return found


def _sum_into(total: dict[int, int], counts: dict[int, int]) -> None:
    for bucket, n in counts.items():
        total[bucket] = total.get(bucket, 0) + n
