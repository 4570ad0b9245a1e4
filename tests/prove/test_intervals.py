"""Intervals of quantiles, shares, means and ratios."""

from math import inf, isnan, log, nan
from random import Random

import pytest

from stayfast.lab.harness.intervals import (
    block_interval,
    mean_interval,
    quantile_interval,
    ratio_interval,
    share_interval,
    student_t,
)

P95 = -log(0.05)  # of an exponential distribution


def draw(rng: Random, n: int) -> list[float]:
    return [rng.expovariate(1) for _ in range(n)]


@pytest.mark.parametrize(("x", "n", "low", "high"), [
    (0, 10, 0.0, 0.3085), (3, 10, 0.0667, 0.6525), (10, 10, 0.6915, 1.0), (50, 1000, 0.0373, 0.0654),
])
def test_share_interval_equals_published_values(x: int, n: int, low: float, high: float) -> None:
    """Clopper-Pearson's table, and R's binom.test."""
    assert share_interval(x, n) == pytest.approx((low, high), abs=5e-5)


def test_share_interval_of_nothing_is_nan() -> None:
    assert all(map(isnan, share_interval(0, 0)))


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.7062), (4, 2.7764), (30, 2.0423)])
def test_student_t_equals_table(degrees: int, quantile: float) -> None:
    assert student_t(degrees) == pytest.approx(quantile, abs=1e-4)


def test_mean_interval_is_centred_and_needs_two_batches() -> None:
    low, high = mean_interval([1.0, 2.0, 3.0])
    assert (low + high) / 2 == pytest.approx(2.0)
    assert high - 2.0 == pytest.approx(4.3027 / 3 ** 0.5, abs=1e-4)
    assert mean_interval([1.0]) == mean_interval([1.0, inf]) == (-inf, inf)
    assert all(map(isnan, mean_interval([1.0, nan])))


def test_quantile_interval_few_samples_is_unbounded() -> None:
    """A p99 is bounded from above by 368 samples or more, a median by 6."""
    samples = [float(n) for n in range(1, 401)]
    assert quantile_interval(samples, 0.99) == (392.0, 400.0)
    assert quantile_interval(samples[:300], 0.99) == (293.0, inf)
    assert quantile_interval(samples[:6], 0.5) == (1.0, 6.0)
    assert quantile_interval(samples[:5], 0.5) == quantile_interval([], 0.5) == (-inf, inf)
    assert all(map(isnan, quantile_interval([1.0, nan], 0.5)))


def test_quantile_interval_covers_in_95_percent_of_runs() -> None:
    rng = Random(1)
    n_covered = sum(low <= P95 <= high for low, high in (quantile_interval(draw(rng, 500), 0.95) for _ in range(400)))
    assert 0.92 < n_covered / 400 < 0.98


def test_ratio_interval_covers_true_ratio() -> None:
    rng = Random(1)
    intervals = [ratio_interval([2 * each for each in draw(rng, 1000)], draw(rng, 1000), 0.95, is_paired=False, seed=n)
                 for n in range(100)]
    assert sum(low <= 2.0 <= high for low, high in intervals) / 100 >= 0.87
    assert sum(low <= 1.0 for low, _ in intervals) == 0


def test_ratio_interval_pairs_what_the_same_requests_share() -> None:
    """Both sides are slow at the same times: their ratio is known better than either."""
    rng = Random(1)
    slow = [rng.lognormvariate(0, 1) for _ in range(50) for _ in range(40)]
    slow = [slow[n // 40 * 40] for n in range(2000)]
    below = [each * rng.uniform(0.9, 1.1) for each in slow]
    above = [1.5 * each * rng.uniform(0.9, 1.1) for each in slow]
    low, high = ratio_interval(above, below, 0.9)
    wide_low, wide_high = ratio_interval(above, below, 0.9, is_paired=False)
    assert low <= 1.5 <= high
    assert high - low < (wide_high - wide_low) / 3


def test_block_interval_neighbours_alike_is_wider_than_independent_one() -> None:
    """Waits in a queue: 50 independent values, each of 40 neighbours."""
    rng = Random(1)
    each = draw(rng, 50)
    samples = [each[n // 40] for n in range(2000)]
    low, high = block_interval(samples, 0.9)
    narrow_low, narrow_high = quantile_interval(samples, 0.9)
    assert high - low > 2 * (narrow_high - narrow_low)


def test_bootstrap_few_samples_is_unbounded() -> None:
    """A resample has no value above the largest sample; an end that rests on it would be too low."""
    samples = [float(n) for n in range(1, 201)]
    assert block_interval(samples, 0.99)[1] == inf
    assert ratio_interval(samples, samples * 5, 0.99)[1] == inf
    assert ratio_interval(samples * 5, samples, 0.99)[0] == 0.0
    assert all(map(isnan, ratio_interval([], samples, 0.5)))
    assert all(map(isnan, block_interval([nan], 0.5)))


def test_bootstrap_is_reproducible_and_depends_on_seed() -> None:
    samples = draw(Random(1), 1000)
    assert block_interval(samples, 0.9) == block_interval(samples, 0.9, seed=1) != block_interval(samples, 0.9, seed=2)


def test_bootstrap_infinite_samples_give_infinite_ends() -> None:
    """Failed requests wait for ever."""
    failing = [1.0] * 800 + [inf] * 200
    low, high = block_interval([failing[n * 7 % 1000] for n in range(1000)], 0.95)
    assert (low, high) == (inf, inf)
    assert ratio_interval([failing[n * 7 % 1000] for n in range(1000)], [1.0] * 1000, 0.95) == (inf, inf)
