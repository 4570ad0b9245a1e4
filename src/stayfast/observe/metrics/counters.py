"""Counters and histograms that can be merged across processes, and their Prometheus text.

prometheus_client's generate_latest is not used: at 7 us per sample, a scrape of 200 histograms would block the event loop
for 47 ms. This takes 2.3 ms, in steps between which the loop runs (docs/telemetry.md). The tests read every line with
prometheus_client's parser.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec

from stayfast.observe.metrics.definitions import FAMILIES, MERGED_BY_MAX, SPIKE_FACTOR, Family
from stayfast.policy.histogram import LogHistogram, Packed

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MIN_FOR_SPIKE_FACTOR = 20  # answers; with fewer, one slow request decides the p99
MAX_UNCOUNTED = 64  # values of a histogram: more save little, and cost memory for each series
_SERIES_AT_A_TIME = 64
Labels = tuple[str, ...]
Samples = dict[str, list[tuple[Labels, float]]]  # by family
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Histogram:
    """Counts per bucket, and a sum. `bounds_s`: ascending upper bounds; one more bucket is unbounded. Values are counted
    when there are MAX_UNCOUNTED of them, or when the counts are read.
    """

    __slots__ = ("_counts", "_sum_s", "_uncounted_s", "bounds_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0
        self._uncounted_s: list[float] = []

    @property
    def counts(self) -> list[int]:
        self._count()
        return self._counts

    @property
    def sum_s(self) -> float:
        self._count()
        return self._sum_s

    def add(self, value_s: float) -> None:
        self.add_all([value_s])

    def add_all(self, values_s: list[float]) -> None:
        uncounted_s = self._uncounted_s
        uncounted_s += values_s
        if len(uncounted_s) >= MAX_UNCOUNTED:
            self._count()

    def _count(self) -> None:
        """Count values in ascending order, so that those of one bucket are counted at once."""
        values_s, self._uncounted_s = sorted(self._uncounted_s), []
        bounds_s, counts, n_before = self.bounds_s, self._counts, 0
        while n_before < len(values_s):
            at = bisect_left(bounds_s, values_s[n_before])
            n_up_to = bisect_right(values_s, bounds_s[at], n_before) if at < len(bounds_s) else len(values_s)
            counts[at] += n_up_to - n_before
            n_before = n_up_to
        self._sum_s += sum(values_s)

    def merge(self, bounds_s: tuple[float, ...], counts: list[int], sum_s: float) -> None:
        """Add another histogram's counts: exact for equal bounds, else by each bucket's upper bound."""
        mine = self._counts
        self._sum_s += sum_s
        if bounds_s == self.bounds_s:
            self._counts = [one + other for one, other in zip(mine, counts, strict=True)]
            return
        for bound_s, n in zip(bounds_s, counts, strict=False):
            if n:
                mine[bisect_left(self.bounds_s, bound_s)] += n
        mine[-1] += counts[-1]


class SeriesCounts(msgspec.Struct, frozen=True):
    """One series of a histogram, for another process."""

    labels: Labels
    counts: list[int]
    sum_s: float


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """All counts of one process, and its current gauges."""

    counters: Samples
    histograms: dict[str, list[SeriesCounts]]
    bounds_s: dict[str, tuple[float, ...]]
    gauges: Samples = {}
    live: dict[str, Packed] = {}  # by route: times to the first token in the last 5 minutes


class Totals:
    """Series by family; the sum of the snapshots added to it."""

    def __init__(self, bounds_s: Mapping[str, tuple[float, ...]]) -> None:
        self.bounds_s = dict(bounds_s)
        self.counters = {family.name: defaultdict[Labels, float](float) for family in FAMILIES if family.kind == "counter"}
        self.gauges = {family.name: defaultdict[Labels, float](float) for family in FAMILIES if family.kind == "gauge"}
        self.histograms = {name: _Series(bounds) for name, bounds in self.bounds_s.items()}
        self._live = defaultdict[str, LogHistogram](LogHistogram)

    def add(self, snapshot: MetricsSnapshot, *, is_of_now: bool = True) -> None:
        """Add a process's counts. `is_of_now`: also its gauges; False for an ended process."""
        for _ in self.add_in_steps(snapshot, is_of_now=is_of_now):
            pass

    def add_in_steps(self, snapshot: MetricsSnapshot, *, is_of_now: bool = True) -> Iterator[None]:
        """The same in steps, so that the event loop can run in between."""
        for name, rows in snapshot.counters.items():
            for labels, n in rows:
                self.counters[name][labels] += n
        yield
        for name, series in snapshot.histograms.items():
            for number, one in enumerate(series):
                self.histograms[name][one.labels].merge(snapshot.bounds_s[name], one.counts, one.sum_s)
                if number % _SERIES_AT_A_TIME == 0:
                    yield
        if is_of_now:
            for name, rows in snapshot.gauges.items():
                gauge = self.gauges[name]
                for labels, value in rows:
                    gauge[labels] = max(gauge[labels], value) if name in MERGED_BY_MAX else gauge[labels] + value
            for route, packed in snapshot.live.items():
                self._live[route].merge(LogHistogram(packed))

    def snapshot(self, counters: Samples, gauges: Samples, live: dict[str, Packed]) -> MetricsSnapshot:
        """The current counts, with additional `counters` and `gauges`."""
        counted = {name: list(rows.items()) for name, rows in self.counters.items() if rows}
        for name, more in counters.items():
            counted[name] = [*counted.get(name, ()), *more]
        series = {name: [SeriesCounts(labels, list(one.counts), one.sum_s) for labels, one in family.items()
                         if any(one.counts)]
                  for name, family in self.histograms.items()}
        return MetricsSnapshot(counted, series, self.bounds_s, gauges, live)

    def exposition(self) -> Iterator[str]:
        """Prometheus text format 0.0.4, one series at a time."""
        for route, values in self._live.items():
            p50, p99 = values.quantile(0.5), values.quantile(0.99)
            if p50 is not None and p99 is not None and values.n >= MIN_FOR_SPIKE_FACTOR:
                self.gauges[SPIKE_FACTOR.name][(route,)] = p99 / p50
        for family in FAMILIES:
            if family.kind == "histogram":
                yield from format_family(family, self.histograms[family.name], {})
            else:
                rows = (self.counters if family.kind == "counter" else self.gauges)[family.name]
                yield from format_family(family, {}, rows)


class _Series(dict[Labels, Histogram]):
    """The histograms of one family; created on first access."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        super().__init__()
        self._bounds_s = bounds_s

    def __missing__(self, labels: Labels) -> Histogram:
        self[labels] = histogram = Histogram(self._bounds_s)
        return histogram


def format_family(family: Family, histograms: Mapping[Labels, Histogram], rows: Mapping[Labels, float]) -> Iterator[str]:
    """One family in Prometheus text format 0.0.4, one series at a time. rows: of a counter or a gauge."""
    yield f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n"
    for labels, histogram in histograms.items():
        yield _format_histogram(family, _format_labels(family, labels), histogram)
    for labels, value in rows.items():
        shown = f"{{{_format_labels(family, labels)}}}" if labels else ""
        yield f"{family.name}{shown} {_format_number(value)}\n"


def _format_labels(family: Family, labels: Labels) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(family.labels, labels, strict=True))


def _format_number(value: float) -> str:
    """The shortest form that Prometheus reads."""
    return str(int(value)) if value == int(value) else repr(value)


@lru_cache(maxsize=16)
def _format_bounds(bounds_s: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(repr, bounds_s), "+Inf")


def _format_histogram(family: Family, shown: str, histogram: Histogram) -> str:
    name, lead = family.name, f"{shown}," if shown else ""
    total, lines = 0, []
    for bound, n in zip(_format_bounds(histogram.bounds_s), histogram.counts, strict=True):
        total += n
        lines.append(f'{name}_bucket{{{lead}le="{bound}"}} {total}\n')
    about = f"{{{shown}}}" if shown else ""
    lines.append(f"{name}_sum{about} {histogram.sum_s!r}\n{name}_count{about} {total}\n")
    return "".join(lines)
