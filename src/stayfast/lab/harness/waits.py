"""Waits for the first token and upstream calls of one run, in the order of the requests, with intervals.

The gateway adapts, so a request's wait depends on those of the minute before it: intervals come from blocks of neighbours.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
from statistics import fmean
from typing import Final

from stayfast.lab.harness.claim import Figure, Sense, ratio
from stayfast.lab.harness.intervals import block_interval, mean_interval, ratio_interval, share_interval
from stayfast.lab.harness.load import LONG_S
from stayfast.lab.load.result import Result
from stayfast.lab.load.stats import ExactDistribution

N_BATCHES: Final = 50
QUANTILES: Final[Mapping[str, float]] = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class WaitSeries:
    """at_s: intended starts, rising. waits_s: from there to the first token; infinite without one. n_calls: of each."""

    at_s: Sequence[float]
    waits_s: Sequence[float]
    n_calls: Sequence[int]
    n_failed: int = 0

    @property
    def n(self) -> int:
        return len(self.waits_s)

    @property
    def calls(self) -> float:
        """Calls per request."""
        return ratio(sum(self.n_calls), self.n)

    def quantile_s(self, q: float) -> float:
        """NaN without requests; infinite if the quantile is among the failed ones."""
        value = ExactDistribution(self.waits_s).quantile(q)
        return inf if self.n and isnan(value) else value  # it interpolates, and infinity minus infinity is NaN

    def figures(self, where: str, goals: Mapping[str, float]) -> list[Figure]:
        """Quantiles, the share past LONG_S, calls and failures. goals: by p50_s, p95_s, p99_s, past_5_s, calls, n_failed."""
        figures = []
        for name, q in QUANTILES.items():
            low, high = block_interval(self.waits_s, q)
            words = f"{where}: TTFT {name.removesuffix('_s')} (n={self.n})"
            figures.append(Figure(words, self.quantile_s(q), "s", goals.get(name), low=low, high=high))
        n_past = sum(wait_s > LONG_S for wait_s in self.waits_s)
        figures.append(Figure.percent(f"{where}: past {LONG_S:g} s", ratio(n_past, self.n), goals.get("past_5_s"),
                                      interval=share_interval(n_past, self.n)))
        low, high = mean_interval(batch_means(self.n_calls))
        figures.append(Figure(f"{where}: calls a request", self.calls, "", goals.get("calls"), low=low, high=high))
        figures.append(Figure.count(f"{where}: requests without an answer", self.n_failed, goals.get("n_failed")))
        return figures

    def compare_quantile(self, name: str, other: Sequence[float], q: float, goal: float) -> Figure:
        """The quantile as a multiple of that of other, independent waits."""
        low, high = ratio_interval(self.waits_s, other, q, is_paired=False)
        return Figure(name, ratio(self.quantile_s(q), ExactDistribution(other).quantile(q)), "x", goal, low=low, high=high)

    def saved_figure(self, name: str, plain: Sequence[float], q: float, goal: float) -> Figure:
        """By how much the quantile is less than that of other, independent waits, in percent. goal: a share."""
        low, high = ratio_interval(self.waits_s, plain, q, is_paired=False)
        saved = 1 - ratio(self.quantile_s(q), ExactDistribution(plain).quantile(q))
        return Figure.percent(name, saved, goal, Sense.AT_LEAST, (1 - high, 1 - low))


def read_waits(result: Result) -> WaitSeries:
    """The waits of a run. A failed request waits for ever."""
    samples = result.samples
    rows = sorted(range(len(samples)), key=samples.ints["number"].__getitem__)
    at_s, first_s, errors = samples.floats["at_s"], samples.floats["first_s"], samples.errors
    return WaitSeries([at_s[row] for row in rows],
                      [inf if errors[row] or isnan(first_s[row]) else first_s[row] - at_s[row] for row in rows],
                      [samples.ints["n_upstream_attempts"][row] for row in rows], sum(1 for error in errors if error))


def batch_means(values: Sequence[float]) -> list[float]:
    """The means of N_BATCHES equal parts of a series, for `mean_interval`."""
    size = len(values) // N_BATCHES
    return [fmean(values[n * size:(n + 1) * size]) for n in range(N_BATCHES)] if size else []


def most_extra_calls(requests_at: Iterable[float], calls_at: Iterable[float], window_s: float = MINUTE_S) -> float:
    """The largest number of extra calls per request in any window of this length that starts at a full second between the
    first and the last request. Both are instants of one clock.
    """
    requests, calls = sorted(requests_at), sorted(calls_at)
    most, since = -inf, requests[0]
    while since + window_s <= requests[-1]:
        n_requests, n_calls = (bisect_left(all_at, since + window_s) - bisect_left(all_at, since)
                               for all_at in (requests, calls))
        if n_requests:
            most = max(most, n_calls / n_requests - 1)
        since += 1.0
    return most
