"""Compares two runs with confidence intervals, so that noise neither fails a build nor makes a headline.

The bootstrap of a quantile needs no resampling: the k-th smallest of n draws with replacement from n values has a rank
distributed as n * Beta(k, n + 1 - k), so each replicate is one Beta variate, and a million rows cost as much as a hundred.
A replicate of a share is one binomial variate.

Requests of a run are not independent, since a target has bad minutes. So n is first divided by the *design effect*: the
variance of the share of slow (or good) requests between `N_BLOCKS` blocks of time, over that of independent requests.
Without it, the intervals of a run with one bad minute would be several times too narrow.

An interval of a difference that includes 0 means "no difference seen", not "no difference". A regression is an interval
entirely on the worse side *and* a change above the threshold. When it is wrong: with under about 100 / (1 - q) requests, a
quantile q rests on a few values; the row says so.
"""

from array import array
from collections import Counter
from dataclasses import dataclass
from itertools import compress
from math import isfinite, isnan, nan
from random import Random
from typing import Final

import msgspec

from stayfast.lab.load.stats import BinnedDistribution, Distribution, ExactDistribution, MeasuredRun, metric_column

_COMPARED: Final = ("ttft_sched", "ttft", "e2e_sched", "e2e", "tpot", "gap")
QUANTITIES: Final = (*(f"{name}.{rank}" for name in _COMPARED for rank in ("p50", "p95", "p99")), "goodput", "errors")
N_BLOCKS = 40
FEW = 100  # a share of under FEW requests is "few", and a quantile with under FEW / 20 values beyond it
_BETTER_HIGH: Final = frozenset({"goodput"})


@dataclass(frozen=True, slots=True)
class CompareConfig:
    """`level`: of the intervals. `threshold`: a regression exceeds it; 0.05 is 5 % of a time, 5 points of a share."""

    level: float = 0.95
    threshold: float = 0.05
    n_replicates: int = 2000  # interval ends then vary between seeds by about 5 % of their length

    def __post_init__(self) -> None:
        if not 0.5 <= self.level < 1:
            raise ValueError(f"level must be in [0.5, 1), is {self.level}")
        if not self.threshold >= 0:
            raise ValueError(f"threshold must not be negative, is {self.threshold}")
        if self.n_replicates < 100:
            raise ValueError(f"n_replicates must be at least 100, is {self.n_replicates}")


class Interval(msgspec.Struct, frozen=True):
    """A figure with its interval; NaN: unknown."""

    value: float
    low: float
    high: float

    @property
    def spans_zero(self) -> bool:
        return not (self.low > 0 or self.high < 0)


class ComparedQuantity(msgspec.Struct, frozen=True):
    """One quantity of A and of B, with B - A (seconds, or a share) and B / A."""

    quantity: str
    a: float
    b: float
    difference: Interval
    ratio: Interval
    is_regression: bool
    is_few: bool  # the quantile rests on a few values

    @property
    def verdict(self) -> str:
        if isnan(self.difference.value):
            return "not measured in both"
        if self.difference.spans_zero:
            return "no difference seen"
        is_better = (self.difference.value > 0) == (self.quantity in _BETTER_HIGH)
        word = "better" if is_better else "worse"
        return f"{word}, beyond the threshold" if self.is_regression else word


class Comparison(msgspec.Struct, frozen=True):
    """All rows of two runs. `warnings`: visible reasons why they are not comparable."""

    label_a: str
    label_b: str
    config: CompareConfig
    rows: tuple[ComparedQuantity, ...]
    warnings: tuple[str, ...]
    invalid: tuple[str, ...]  # labels of the invalid runs

    @property
    def regressions(self) -> tuple[str, ...]:
        """The quantities in which B is worse by more than noise and the threshold."""
        return tuple(row.quantity for row in self.rows if row.is_regression)

    @property
    def exit_status(self) -> int:
        """1 if there is a regression or an invalid run, else 0."""
        return 1 if self.regressions or self.invalid else 0


def compare_runs(a: MeasuredRun, b: MeasuredRun, rng: Random, config: CompareConfig | None = None) -> Comparison:
    """Compare B with the baseline A. All randomness comes from `rng`."""
    config = config or CompareConfig()
    n_draws = config.n_replicates
    rows = tuple(_compare_quantity(quantity, _bootstrap(a, quantity, rng, n_draws), _bootstrap(b, quantity, rng, n_draws),
                                   config) for quantity in QUANTITIES)
    invalid = tuple(run.result.label for run in (a, b) if not run.result.health.is_valid)
    return Comparison(a.result.label, b.result.label, config, rows, _find_warnings(a, b), invalid)


class _Replicas(msgspec.Struct):
    value: float
    draws: list[float]
    is_few: bool


def _bootstrap(run: MeasuredRun, quantity: str, rng: Random, n_draws: int) -> _Replicas:
    if quantity in {"goodput", "errors"}:
        good = run.goodput.is_good if quantity == "goodput" else bytes(bool(error) for error in run.result.samples.errors)
        return _bootstrap_share(good, run.result.samples.floats["at_s"], rng, n_draws)
    name, percent = quantity.rsplit(".p", 1)
    share = float(percent) / 100
    spread = run.distributions[name]
    if not spread.n:
        return _Replicas(nan, [], is_few=True)
    effect = _design_effect_of(run, name, spread, share)
    n = max(2.0, spread.n / effect)
    rank = min(n, max(1.0, share * n + 0.5))
    draws = [spread.quantile(rng.betavariate(rank, n + 1 - rank)) for _ in range(n_draws)]
    return _Replicas(spread.quantile(share), draws, is_few=spread.n / effect * min(share, 1 - share) < FEW / 20)


def _bootstrap_share(is_one: bytes | bytearray, at_s: "array[float]", rng: Random, n_draws: int) -> _Replicas:
    n = len(is_one)
    if not n:
        return _Replicas(nan, [], is_few=True)
    share = sum(is_one) / n
    n_effective = max(1, round(n / design_effect(is_one, at_s)))
    draws = [draw_binomial(n_effective, share, rng) / n_effective for _ in range(n_draws)]
    return _Replicas(share, draws, is_few=n_effective < FEW)


def _design_effect_of(run: MeasuredRun, name: str, spread: Distribution, share: float) -> float:
    samples = run.result.samples
    if isinstance(spread, BinnedDistribution):
        return max(1.0, spread.n / max(1, run.n_succeeded))  # one independent gap per answer
    bound_s = spread.quantile(share)
    whole = [not error for error in samples.errors]
    at_s = array("d", compress(samples.floats["at_s"], whole))
    return design_effect(bytes(value > bound_s for value in compress(metric_column(samples, name), whole)), at_s)


def design_effect(is_one: bytes | bytearray, at_s: "array[float]") -> float:
    """The variance of the share of ones between blocks of time, over that of independent rows; at least 1."""
    n, n_ones = len(is_one), sum(is_one)
    if n < 2 * N_BLOCKS or n_ones in {0, n}:
        return 1.0
    start_s, span_s = min(at_s), max(at_s) - min(at_s)
    if not span_s > 0:
        return 1.0
    block_of = [min(N_BLOCKS - 1, int((at - start_s) / span_s * N_BLOCKS)) for at in at_s]
    n_rows, n_found = Counter(block_of), Counter(compress(block_of, is_one))
    share = n_ones / n
    between = N_BLOCKS / (N_BLOCKS - 1) * sum((n_found[block] - share * n_rows[block]) ** 2 for block in n_rows)
    return max(1.0, between / (n * share * (1 - share)))


def draw_binomial(n: int, p: float, rng: Random) -> int:
    """One exact binomial variate in O(log n): split at the median of the uniforms until few are left."""
    n_found = 0
    while n > 16:
        middle = n // 2 + 1
        cut = rng.betavariate(middle, n + 1 - middle)
        if cut >= p:
            n, p = middle - 1, p / cut if cut > 0 else 0.0
        else:
            n_found += middle
            n, p = n - middle, (p - cut) / (1 - cut)
    return n_found + sum(rng.random() < p for _ in range(n))


def _compare_quantity(quantity: str, a: _Replicas, b: _Replicas, config: CompareConfig) -> ComparedQuantity:
    differences = sorted(after - before for before, after in zip(a.draws, b.draws, strict=False))
    ratios = sorted(after / before for before, after in zip(a.draws, b.draws, strict=False) if before > 0)
    difference = _make_interval(b.value - a.value, differences, config.level)
    ratio = _make_interval(b.value / a.value if a.value > 0 else nan, ratios, config.level)
    is_share = quantity in {"goodput", "errors"}
    change = difference.value if is_share else ratio.value - 1
    worse = -change if quantity in _BETTER_HIGH else change
    is_regression = not difference.spans_zero and isfinite(worse) and worse > config.threshold
    return ComparedQuantity(quantity, a.value, b.value, difference, ratio, is_regression, a.is_few or b.is_few)


def _make_interval(value: float, draws: list[float], level: float) -> Interval:
    if not draws:
        return Interval(value, nan, nan)
    spread = ExactDistribution(draws)
    return Interval(value, spread.quantile((1 - level) / 2), spread.quantile((1 + level) / 2))


def _find_warnings(a: MeasuredRun, b: MeasuredRun) -> tuple[str, ...]:
    result_a, result_b = a.result, b.result
    load_a, load_b = result_a.workload, result_b.workload
    warnings = [f"{result.label} is invalid: {'; '.join(result.health.verdict)}" for result in (result_a, result_b)
                if not result.health.is_valid]
    if load_a != load_b:
        differing = sorted(key for key in {*load_a, *load_b} if load_a.get(key) != load_b.get(key))
        warnings.append(f"the workloads differ in: {', '.join(differing)}")
    if result_a.mode is not result_b.mode or result_a.is_virtual is not result_b.is_virtual:
        warnings.append("the kinds of run differ (open or closed loop, virtual or real time)")
    if abs(result_a.offered_rps - result_b.offered_rps) > 0.02 * max(result_a.offered_rps, result_b.offered_rps):
        warnings.append(f"offered rates differ: {result_a.offered_rps:g}/s and {result_b.offered_rps:g}/s")
    if result_a.slo != result_b.slo:
        warnings.append("goodput is judged by different SLOs")
    if abs(a.error_share - b.error_share) > 0.01:
        warnings.append("error shares differ by over 1 %, and latencies are of successful answers only")
    return tuple(warnings)
