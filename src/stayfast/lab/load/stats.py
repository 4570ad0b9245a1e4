"""Statistics over the rows of a run.

Percentiles are exact: raw values, sorted, with linear interpolation between the closest ranks (Hyndman and Fan's type 7, as
in numpy and vLLM's bench). Only pooled gaps are counted in buckets (within 1 %). Latencies are those of complete, successful
answers; failures are counted separately and are not good in goodput.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import compress
from math import ceil, floor, fsum, inf, isnan, nan, sqrt
from types import MappingProxyType
from typing import Final, Protocol

from stayfast.lab.load.result import GapCounts, Goodput, Result, Samples, bucket_middle_s, evaluate_goodput, lateness_s

DEFINITIONS: Final[Mapping[str, str]] = MappingProxyType({
    "t0": "intended start: the instant in the schedule, fixed before the run, even if the client is late",
    "ts": "actual send, after the connection is open",
    "t1": "the first non-empty generated piece (content, reasoning or tool arguments); role-only and usage-only chunks, "
          "comments, pings, message_start and response.created do not count",
    "tn": "the last generated piece",
    "te": "the end of the stream",
    "n": "output tokens by the answer's usage, else by chunks; the report says which",
    "ttft": "t1 - ts, time to the first token",
    "ttft_sched": "t1 - t0, the same from the intended start: a user's wait, including the client's own queue",
    "ttfo": "time from ts to the first piece that is not reasoning",
    "ttfb": "headers - ts, time to the response headers",
    "e2e": "tn - ts, time to the last token",
    "e2e_sched": "tn - t0, the same from the intended start",
    "tpot": "(tn - t1) / (n - 1) for n >= 2 in two chunks or more, else undefined",
    "gap": "time between two chunks with content, pooled over all answers, not divided by their tokens",
    "gap_max": "an answer's longest gap",
    "lateness": "ts - t0 minus the time to open a connection: the client's own delay",
    "goodput": "good = success and complete (per protocol) and every SLO met; errors, time-outs, 429, truncated streams, "
               "answers without content and missing values of an SLO are not good. Share of the offered requests",
})
LATENCIES: Final = ("ttft_sched", "ttft", "ttfo", "ttfb", "e2e_sched", "e2e", "tpot", "gap", "gap_max")
_INSTANTS: Final = {
    "ttft": ("first_s", "sent_s"), "ttft_sched": ("first_s", "at_s"), "ttfb": ("headers_s", "sent_s"),
    "ttfo": ("shown_s", "sent_s"), "e2e": ("last_s", "sent_s"), "e2e_sched": ("last_s", "at_s"),
}


class Distribution(Protocol):
    """The distribution of one quantity in seconds. All figures are NaN if `n` is 0."""

    n: int
    mean_s: float
    deviation_s: float  # standard deviation

    def quantile(self, share: float) -> float:
        """The quantile `share` (0 to 1)."""


class ExactDistribution:
    """A distribution of sorted values."""

    __slots__ = ("deviation_s", "mean_s", "n", "values")

    def __init__(self, values: Iterable[float]) -> None:
        self.values = array("d", sorted(value for value in values if not isnan(value)))
        self.n = len(self.values)
        self.mean_s = fsum(self.values) / self.n if self.n else nan
        mean_s = self.mean_s
        self.deviation_s = sqrt(fsum((value - mean_s) ** 2 for value in self.values) / self.n) if self.n else nan

    def quantile(self, share: float) -> float:
        if not self.n:
            return nan
        rank = share * (self.n - 1)
        below = floor(rank)
        low = self.values[below]
        return low + (self.values[min(below + 1, self.n - 1)] - low) * (rank - below)


class BinnedDistribution:
    """A distribution of bucket counts."""

    __slots__ = ("_below", "_middles", "deviation_s", "mean_s", "n")

    def __init__(self, gaps: GapCounts) -> None:
        counts = gaps.sum_by_bucket()
        self._middles = [bucket_middle_s(bucket) for bucket in counts]
        self._below: list[int] = []
        self.n = 0
        for n in counts.values():
            self.n += n
            self._below.append(self.n)
        weighted = list(zip(self._middles, counts.values(), strict=True))
        self.mean_s = fsum(value * n for value, n in weighted) / self.n if self.n else nan
        mean_s = self.mean_s
        self.deviation_s = sqrt(fsum(n * (value - mean_s) ** 2 for value, n in weighted) / self.n) if self.n else nan

    def quantile(self, share: float) -> float:
        rank = share * (self.n - 1)
        return next((value for value, below in zip(self._middles, self._below, strict=True) if rank < below), nan)


class MeasuredRun:
    """A result with its figures, for the reports, the files and the assertions."""

    def __init__(self, result: Result) -> None:
        samples = result.samples
        whole = [not error for error in samples.errors]
        self.result = result
        self.n_offered = len(samples)
        self.n_succeeded = sum(whole)
        self.errors: Counter[str] = Counter(str(error) for error in samples.errors if error)
        self.distributions: dict[str, Distribution] = {
            name: BinnedDistribution(result.gaps) if name == "gap"
            else ExactDistribution(compress(metric_column(samples, name), whole))
            for name in LATENCIES}
        bounded = {name: metric_column(samples, name) for name in result.slo.bounds()}
        self.goodput: Goodput = evaluate_goodput(bounded, samples.errors, result.slo)
        self.n_input = sum(compress(samples.ints["n_input"], whole))
        self.n_output = sum(compress(samples.ints["n_output"], whole))

    @property
    def shown_latencies(self) -> tuple[str, ...]:
        """The latencies to show: those with values; ttfo only if some answer began with reasoning."""
        is_same = self.distributions["ttfo"].mean_s == self.distributions["ttft"].mean_s
        return tuple(name for name in LATENCIES if self.distributions[name].n and not (name == "ttfo" and is_same))

    def n_missing(self, name: str) -> int:
        """Offered requests that failed and so lack this latency; 0 for gaps, which only exist in answers."""
        return 0 if name == "gap" else self.n_offered - self.n_succeeded

    @property
    def error_share(self) -> float:
        """Failed requests as a share of the offered."""
        return (self.n_offered - self.n_succeeded) / self.n_offered if self.n_offered else nan

    def quantile(self, name: str, share: float) -> float:
        """A quantile of a latency of successful answers. Infinite if the rank, over all offered requests, falls among the
        failed ones, as in an assertion; NaN if there are too few values."""
        spread = self.distributions[name]
        if self.n_succeeded and not spread.n:
            return nan
        n_failed = self.n_missing(name)
        if n_failed and quantile_of_offered(spread, n_failed, share) == inf:
            return inf if has_enough_values(spread.n + n_failed, share) else nan
        return spread.quantile(share) if has_enough_values(spread.n, share) else nan

    def per_second(self, n: float) -> float:
        """`n` over the measured seconds."""
        return n / self.result.duration_s if self.result.duration_s > 0 else nan

    def spike_factor(self, name: str = "ttft_sched") -> float:
        """p99 / p50. NaN with too few answers for a p99, infinite if over 1 % failed."""
        median_s = self.distributions[name].quantile(0.5)
        return self.quantile(name, 0.99) / median_s if median_s > 0 else nan

    def __repr__(self) -> str:
        return (f"<MeasuredRun {self.result.label!r}: {self.n_succeeded} of {self.n_offered} whole, "
                f"{self.goodput.n_good} good>")


def metric_column(samples: Samples, name: str) -> Iterable[float]:
    """The metric `name` of each row in seconds; NaN: missing. Raises KeyError for an unknown name."""
    floats = samples.floats
    if name == "gap_max":
        return floats["gap_max_s"]
    if name == "tpot":
        rows = zip(floats["first_s"], floats["last_s"], samples.ints["n_output"], samples.ints["n_chunks"], strict=True)
        return [(last_s - first_s) / (n - 1) if min(n, n_chunks) > 1 else nan for first_s, last_s, n, n_chunks in rows]
    if name == "lateness":
        return list(map(lateness_s, floats["at_s"], floats["sent_s"], floats["connect_s"]))
    end, start = _INSTANTS[name]
    return [end_s - start_s for end_s, start_s in zip(floats[end], floats[start], strict=True)]


def has_enough_values(n: int, share: float) -> bool:
    """Whether `n` values have a quantile `share` that is not simply their maximum. True for the maximum itself (1.0)."""
    return share >= 1 or n * (1 - share) >= 0.999


def quantile_of_offered(spread: Distribution, n_failed: int, share: float) -> float:
    """The quantile `share` if each of `n_failed` counts as infinitely slow."""
    if not spread.n + n_failed:
        return nan
    rank = share * (spread.n + n_failed - 1)
    if ceil(rank) >= spread.n:
        return inf
    return spread.quantile(rank / (spread.n - 1) if spread.n > 1 else 0.0)
