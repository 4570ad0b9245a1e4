"""Mergeable histograms of durations, and a sliding window of them.

Problem: the p99 of two workers is not the mean of their p99s, and buckets that double are 58 % wrong at p95. Rule: a bucket
is the integer part of a value's logarithm, 32 per octave. Histograms are merged by adding counts, without loss.

    bucket(v) = floor(32 * log2(v)),  gamma = 2 ** (1/32)            it covers [gamma**b, gamma**(b+1))
    quantile(q) = 2 * gamma**b * gamma / (1 + gamma)                 of the bucket of the ceil(q*n)-th value
    |quantile(q) - that value| / that value <= (gamma - 1) / (gamma + 1) = 1.09 %

Values below 2**-30 s count as that. The buckets are those of OpenTelemetry's exponential histogram at scale 5 and of
Prometheus's native schema 5. Source: Masson et al., "DDSketch" (VLDB 2019).

The window: values go into the histogram of their slot of 5 s. A minute after its end a slot is merged into that of its
minute, and after an hour it is dropped. A query of the last `seconds` merges all slots that overlap them, so it covers up to
one slot more (5 s up to a minute back, 60 s beyond). Memory: at most 24 + 61 histograms a series.
When wrong: with fewer than 1 / (1 - q) values a quantile is the maximum; compute rates from counters instead.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from math import ceil, exp2, floor, inf, log2

PER_OCTAVE = 32
GAMMA = exp2(1.0 / PER_OCTAVE)
MAX_RELATIVE_ERROR = (GAMMA - 1.0) / (GAMMA + 1.0)
_LEAST = 2.0**-30
_ZERO = 30.0 * PER_OCTAVE  # makes every bucket number positive
_SCALE = float(PER_OCTAVE)

Packed = tuple[int, ...]  # bucket, count, bucket, count, ...


def bucket_of(seconds: float) -> int:
    """The bucket of one finite value."""
    return floor(log2(seconds) * _SCALE + _ZERO) if seconds > _LEAST else 0


def middle_of(bucket: int) -> float:
    """The value that stands for a bucket: within MAX_RELATIVE_ERROR of all values in it."""
    return exp2((bucket - _ZERO) / PER_OCTAVE) * 2.0 * GAMMA / (1.0 + GAMMA)


class LogHistogram:
    """Counts by bucket. At most a few hundred buckets are used: 1 ms to 10 min is 615."""

    __slots__ = ("counts",)

    def __init__(self, packed: Packed = ()) -> None:
        self.counts: defaultdict[int, int] = defaultdict(int, zip(packed[::2], packed[1::2], strict=True))

    def add(self, seconds: float) -> None:
        """Count one finite value. Values below the least bucket count as the least."""
        self.counts[floor(log2(seconds) * _SCALE + _ZERO) if seconds > _LEAST else 0] += 1

    def merge(self, other: "LogHistogram") -> None:
        counts = self.counts
        if not counts:
            counts.update(other.counts)
            return
        for bucket, n in other.counts.items():
            counts[bucket] += n

    def add_counts(self, counts: Mapping[int, int]) -> None:
        """Add counts by bucket."""
        mine = self.counts
        for bucket, n in counts.items():
            mine[bucket] += n

    @property
    def n(self) -> int:
        return sum(self.counts.values())

    def quantile(self, q: float) -> float | None:
        """The value of rank ceil(q * n), within MAX_RELATIVE_ERROR; None if empty. 0 <= q <= 1."""
        rank = max(1, ceil(q * self.n))
        for bucket in sorted(self.counts):
            rank -= self.counts[bucket]
            if rank <= 0:
                return middle_of(bucket)
        return None

    def pack(self) -> Packed:
        """A compact form to send to other processes; the constructor accepts it."""
        return tuple(number for pair in sorted(self.counts.items()) for number in pair)


def quantile_of(values: Collection[float], q: float) -> float:
    """The exact quantile of a few values: that of rank ceil(q * n), the least that a share q of them does not exceed.
    Infinite if there are none. 0 <= q <= 1.
    """
    return sorted(values)[max(0, ceil(q * len(values)) - 1)] if values else inf


def merge_all(histograms: Iterable[LogHistogram]) -> LogHistogram:
    whole = LogHistogram()
    for one in histograms:
        whole.merge(one)
    return whole


FINE_S, COARSE_S, RETENTION_S = 5.0, 60.0, 3600.0
_MOST_SPANS = 8  # query spans with a cached sum


class Window:
    """The recent values of one series. Instants must not go back."""

    __slots__ = ("_before", "_coarse", "_ends_at", "_fine", "_open")

    def __init__(self) -> None:
        self._fine: deque[tuple[float, LogHistogram]] = deque()  # (start of the slot, its values), oldest first
        self._coarse: deque[tuple[float, LogHistogram]] = deque()
        self._ends_at = float("-inf")
        self._open = LogHistogram()
        self._before: dict[float, tuple[float, LogHistogram]] = {}  # by span: start of the slot, sum of the closed slots

    @property
    def n_slots(self) -> int:
        """Histograms in memory, of 5 s or a minute each."""
        return len(self._fine) + len(self._coarse)

    def add(self, seconds: float, now: float) -> None:
        if now >= self._ends_at:
            self._open_slot(now)
        self._open.add(seconds)

    def add_all(self, counts: Mapping[int, int], now: float) -> None:
        """Add counts by bucket, all as of `now`."""
        if now >= self._ends_at:
            self._open_slot(now)
        self._open.add_counts(counts)

    def merge_last(self, seconds: float, now: float) -> LogHistogram:
        """The values of the last `seconds`, at most RETENTION_S."""
        whole = LogHistogram()
        self.add_recent_to(seconds, now, whole)
        return whole

    def add_recent_to(self, seconds: float, now: float, whole: LogHistogram) -> None:
        """Add the values of the last `seconds` to `whole`."""
        began_at = now // FINE_S * FINE_S
        bucket = self._before.get(seconds)
        if bucket is None or bucket[0] != began_at:
            if len(self._before) >= _MOST_SPANS:
                self._before.clear()
            self._before[seconds] = bucket = (began_at, self._merge_closed(began_at - seconds))
        whole.merge(bucket[1])
        if self._fine and self._fine[-1][0] + FINE_S > began_at - seconds:
            whole.merge(self._open)

    def _merge_closed(self, since: float) -> LogHistogram:
        """The slots that overlap the time after `since`, without the running one."""
        whole = LogHistogram()
        for began_at, values in self._coarse:
            if began_at + COARSE_S > since:
                whole.merge(values)
        for began_at, values in self._fine:
            if began_at + FINE_S > since and values is not self._open:
                whole.merge(values)
        return whole

    def _open_slot(self, now: float) -> None:
        """Open the slot of `now`; merge slots older than a minute, and drop those older than an hour."""
        began_at = now // FINE_S * FINE_S
        self._ends_at = began_at + FINE_S
        self._open = LogHistogram()
        self._before.clear()
        fine, coarse = self._fine, self._coarse
        fine.append((began_at, self._open))
        while fine[0][0] + FINE_S + COARSE_S <= now:
            at, values = fine.popleft()
            minute_at = at // COARSE_S * COARSE_S
            if not coarse or coarse[-1][0] != minute_at:
                coarse.append((minute_at, LogHistogram()))
            coarse[-1][1].merge(values)
        while coarse and coarse[0][0] + COARSE_S + RETENTION_S <= now:
            coarse.popleft()
