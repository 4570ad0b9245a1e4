"""A run over its time, and the stages of a request by the target's own `Server-Timing` header.

The run is binned, so a million requests draw as fast, and as small, as a thousand. A request belongs to the bin of its
*intended* start; it is in flight from its send to its end.

For stages, the usual slice is the 20 % of answers around the median of e2e_sched (p40 to p60); the slow slice is all at or
above its p99. A stage's figure is its mean over the answers of the slice (0 where it did not run), so the stages add up to
the mean e2e_sched. The rest, which the header does not explain (network, the client's lateness, time after the header was
written), is `elsewhere`. Allowances are read from a parameter `allow` (milliseconds) or a description that ends in
`of NUMBER`.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import compress
from math import ceil, isfinite, isnan, log, nan
from typing import Final

import msgspec

from stayfast.lab.load.result import GROWTH, LOWEST_S, GapCounts, Samples, bucket_middle_s
from stayfast.lab.load.stats import ExactDistribution, metric_column

MAX_BINS = 180
MAX_ROWS = 44
FAILED = -1  # the heat map's row of failed requests
_WIDTHS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0,
             600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 43200.0, 86400.0)


class Timeline(msgspec.Struct, frozen=True):
    """One value a bin; NaN: no value."""

    bin_s: float
    rate: list[float]  # offered requests a second
    good_rate: list[float]
    bad_rate: list[float]  # failed requests a second
    in_flight: list[int]  # at the bin's start
    tokens_rate: list[float]  # output tokens a second, by the request's start
    p50_s: list[float]  # of ttft_sched
    p99_s: list[float]
    e2e_p50_s: list[float]
    e2e_p99_s: list[float]
    late_p99_s: list[float]  # of the client's lateness


class Heat(msgspec.Struct, frozen=True):
    """Counts by time bin and logarithmic value row. Row r spans `lowest_s * factor ** r` to `... ** (r + 1)`."""

    bin_s: float
    n_bins: int
    lowest_s: float
    factor: float
    n_rows: int
    cells: dict[tuple[int, int], int]  # (time bin, row) -> count; row FAILED: no value


def bin_width(span_s: float, n: int, n_each: int) -> float:
    """The smallest round bin width with about `n_each` of `n` requests a bin and a bounded number of bins."""
    most = min(MAX_BINS, max(12, n // n_each))
    return next((width_s for width_s in _WIDTHS_S if span_s <= width_s * most), span_s / most)


def make_timeline(samples: Samples, is_good: bytes | bytearray, span_s: float) -> Timeline:
    """Cut the run into bins. `is_good`: of `Goodput`."""
    bin_s = bin_width(span_s, len(samples), 50)
    n_bins = max(1, ceil(span_s / bin_s - 1e-9))
    rows: list[list[int]] = [[] for _ in range(n_bins)]
    for row, at_s in enumerate(samples.floats["at_s"]):
        rows[min(n_bins - 1, max(0, int(at_s / bin_s)))].append(row)
    errors, n_output = samples.errors, samples.ints["n_output"]
    widths_s = [min(bin_s, span_s - number * bin_s) for number in range(n_bins)]  # the last bin may be shorter

    def rates(count: Callable[[list[int]], float]) -> list[float]:
        return [count(bin_rows) / width_s for bin_rows, width_s in zip(rows, widths_s, strict=True)]

    def spreads(name: str) -> list[ExactDistribution]:
        values = array("d", metric_column(samples, name))
        return [ExactDistribution(values[row] for row in bin_rows if name == "lateness" or not errors[row])
                for bin_rows in rows]

    first, last, late = spreads("ttft_sched"), spreads("e2e_sched"), spreads("lateness")
    sent, ended = samples.floats["sent_s"], samples.floats["ended_s"]
    was_sent = [not isnan(sent_s) and not isnan(ended_s) for sent_s, ended_s in zip(sent, ended, strict=True)]
    begins, ends = array("d", sorted(compress(sent, was_sent))), array("d", sorted(compress(ended, was_sent)))
    in_flight = [bisect_right(begins, n * bin_s) - bisect_right(ends, n * bin_s) for n in range(n_bins)]
    return Timeline(
        bin_s, rates(len), rates(lambda bin_rows: sum(is_good[row] for row in bin_rows)),
        rates(lambda bin_rows: sum(1 for row in bin_rows if errors[row])), in_flight,
        rates(lambda bin_rows: sum(n_output[row] for row in bin_rows)), [spread.quantile(0.5) for spread in first],
        [spread.quantile(0.99) for spread in first], [spread.quantile(0.5) for spread in last],
        [spread.quantile(0.99) for spread in last],
        [spread.quantile(0.99) for spread in late])


def make_metric_heat(samples: Samples, name: str, span_s: float) -> Heat:
    """The metric `name` over time; failed requests are in the row FAILED."""
    bin_s = bin_width(span_s, len(samples), 20)
    values = [nan if error else value for value, error in zip(metric_column(samples, name), samples.errors, strict=True)]
    drawn = [value for value in values if value > LOWEST_S]
    counted = ((int(at_s / bin_s), value, 1) for at_s, value in zip(samples.floats["at_s"], values, strict=True))
    return _make_heat(counted, bin_s, max(1, ceil(span_s / bin_s)), min(drawn, default=1e-3), max(drawn, default=1.0))


def make_gap_heat(gaps: GapCounts, span_s: float) -> Heat | None:
    """The pooled gaps over time; None without any."""
    pooled = gaps.sum_by_bucket()
    if not pooled:
        return None
    n_bins = max(1, ceil(span_s / gaps.bin_s))
    merged = max(1, ceil(n_bins / MAX_BINS))
    least_s = max(1e-4, next((bucket_middle_s(bucket) for bucket in pooled if bucket), 1e-4))
    counted = ((number // merged, bucket_middle_s(bucket), n)
               for number, counts in gaps.bins.items() for bucket, n in counts.items())
    return _make_heat(counted, gaps.bin_s * merged, ceil(n_bins / merged), least_s,
                      max(least_s, bucket_middle_s(max(pooled))))


def _make_heat(counted: Iterable[tuple[int, float, int]], bin_s: float, n_bins: int, least_s: float, most_s: float) -> Heat:
    """A heat map of `counted`: time bin, value (NaN: failed) and count. Its rows span `least_s` to `most_s`."""
    factor = max(GROWTH ** 6, (most_s / least_s) ** (1 / (MAX_ROWS - 1)))
    n_rows = min(MAX_ROWS, int(log(most_s / least_s) / log(factor)) + 1)
    base, scale = log(least_s), 1 / log(factor)
    cells: dict[tuple[int, int], int] = {}
    for number, value, n in counted:
        row = FAILED if isnan(value) else min(n_rows - 1, int((log(max(value, least_s)) - base) * scale))
        key = (min(n_bins - 1, max(0, number)), row)
        cells[key] = cells.get(key, 0) + n
    return Heat(bin_s, n_bins, least_s, factor, n_rows, cells)


ELSEWHERE: Final = "elsewhere"
MAX_STAGES = 14  # headers are untrusted: further names are summed as `others`
OTHERS: Final = "others"
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}"  # noqa: S105
_VALUE = rf'(?:"(?:[^"\\]|\\.)*"|{_TOKEN})'
_ENTRY = re.compile(rf"\s*({_TOKEN})((?:\s*;\s*{_TOKEN}\s*(?:=\s*{_VALUE})?)*)\s*(?:,|$)")
_PARAMETER = re.compile(rf";\s*({_TOKEN})\s*=\s*({_VALUE})")
_ALLOWANCE = re.compile(r"(?:^|\bof )\s*([0-9]+(?:\.[0-9]+)?)\s*(?:ms)?$")
_MAX_HEADER = 4096


class TimingEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry of a `Server-Timing` value."""

    name: str
    spent_s: float
    allowance_s: float | None = None


class StageMean(msgspec.Struct, frozen=True):
    """A stage's mean seconds in one slice, and its mean allowance."""

    name: str
    spent_s: float
    allowance_s: float | None = None
    n_over: int = 0  # requests in which it exceeded its allowance


class AnswerSlice(msgspec.Struct, frozen=True):
    """Some of the answers with the time of their stages, in the order in which they ran, then `elsewhere`."""

    title: str
    n: int
    mean_s: float  # of e2e_sched
    stages: tuple[StageMean, ...]


def parse_server_timing(header: str) -> list[TimingEntry]:
    """The entries of a `Server-Timing` value with a duration, without `total`. Malformed ones are skipped."""
    found = []
    for name, parameters in _ENTRY.findall(header[:_MAX_HEADER]):
        given = {key.lower(): value.strip('"') for key, value in _PARAMETER.findall(parameters)}
        spent_ms = _parse_duration_ms(given.get("dur", ""))
        if spent_ms is None or name == "total":
            continue
        allowed = given.get("allow") or given.get("desc", "")
        match = _ALLOWANCE.search(allowed)
        found.append(TimingEntry(name, spent_ms / 1e3, float(match[1]) / 1e3 if match else None))
    return found


def split_by_stage(samples: Samples, usual_s: tuple[float, float], slow_s: float) -> tuple[AnswerSlice, AnswerSlice] | None:
    """Two slices of the successful answers, by bounds of e2e_sched in seconds; None without timings."""
    rows: tuple[list[int], list[int]] = [], []
    at, last = samples.floats["at_s"], samples.floats["last_s"]
    for row, (error, timing) in enumerate(zip(samples.errors, samples.server_timings, strict=True)):
        if error or not timing:
            continue
        took_s = last[row] - at[row]
        if usual_s[0] <= took_s <= usual_s[1]:
            rows[0].append(row)
        if took_s >= slow_s:
            rows[1].append(row)
    if not rows[0] or not rows[1]:
        return None
    return (_make_slice("usual (p40 to p60)", rows[0], samples), _make_slice("slowest (p99 and above)", rows[1], samples))


def _make_slice(title: str, rows: list[int], samples: Samples) -> AnswerSlice:
    spent: dict[str, float] = {}
    allowed: dict[str, tuple[float, int]] = {}
    n_over: dict[str, int] = {}
    for row in rows:
        for timing in parse_server_timing(samples.server_timings[row]):
            name = timing.name if timing.name in spent or len(spent) < MAX_STAGES else OTHERS
            spent[name] = spent.get(name, 0.0) + timing.spent_s
            if timing.allowance_s is not None:
                total_s, n = allowed.get(name, (0.0, 0))
                allowed[name] = (total_s + timing.allowance_s, n + 1)
                n_over[name] = n_over.get(name, 0) + (timing.spent_s > timing.allowance_s)
    n_rows = len(rows)
    mean_s = sum(samples.floats["last_s"][row] - samples.floats["at_s"][row] for row in rows) / n_rows
    stages = [StageMean(name, total_s / n_rows, allowed[name][0] / allowed[name][1] if name in allowed else None,
                    n_over.get(name, 0)) for name, total_s in spent.items()]
    rest_s = mean_s - sum(stage.spent_s for stage in stages)
    return AnswerSlice(title, n_rows, mean_s, (*stages, StageMean(ELSEWHERE, max(0.0, rest_s))))


def _parse_duration_ms(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None
