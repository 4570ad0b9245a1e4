"""Correlations and slopes from sums."""

from math import exp, log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.findings.correlation import MIN_PAIRS, PairSums

PAIRS = st.lists(st.tuples(st.floats(0.001, 1e4), st.floats(0.001, 1e4)), max_size=60)


def sums_of(pairs: list[tuple[float, float]], *, are_logs: bool = True) -> PairSums:
    sums = PairSums()
    for x, y in pairs:
        (sums.add_logs if are_logs else sums.add)(x, y)
    return sums


def test_correlation_proportional_values_is_one() -> None:
    sums = sums_of([(x, 0.002 * x) for x in range(1, 50)])
    assert sums.correlation == pytest.approx(1.0)
    assert sums.slope_of_values == pytest.approx(0.002)


def test_correlation_unrelated_values_is_near_zero() -> None:
    rng = Random(1)
    sums = sums_of([(rng.lognormvariate(5, 1), rng.lognormvariate(0, 1)) for _ in range(2000)])
    assert abs(sums.correlation or 1.0) < 0.08


def test_correlation_one_outlier_does_not_hide_a_relation() -> None:
    rng = Random(2)
    pairs = [(x, x * exp(rng.gauss(0, 0.1))) for x in range(10, 500, 5)]
    assert (sums_of([*pairs, (20, 60_000)]).correlation or 0) > 0.6
    assert (sums_of([*pairs, (20, 60_000)], are_logs=False).correlation or 0) < 0.2


def test_slope_offset_and_rise_is_the_rise() -> None:
    sums = sums_of([(x, 0.3 + 0.0005 * x) for x in range(800, 1300, 10)])
    assert sums.slope_of_values == pytest.approx(0.0005, rel=0.05)
    assert sums_of([(x, 0.3 + 0.0005 * x) for x in range(100)], are_logs=False).slope == pytest.approx(0.0005)


@pytest.mark.parametrize("pairs", [[], [(1.0, 2.0)] * (MIN_PAIRS - 1), [(5.0, y) for y in range(1, 100)],
                                   [(0.0, 1.0), (-1.0, 2.0)] * MIN_PAIRS])
def test_correlation_too_little_is_unknown(pairs: list[tuple[float, float]]) -> None:
    assert sums_of(pairs).correlation is None
    assert sums_of(pairs).slope is None


@given(PAIRS, PAIRS)
def test_merge_any_parts_are_the_sums_of_all(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> None:
    merged = sums_of(one)
    merged.merge(sums_of(other))
    whole = sums_of([*one, *other])
    assert merged.n == whole.n
    assert merged.xy == pytest.approx(whole.xy, abs=1e-6)
    assert merged.x == pytest.approx(sum(log(x) for x, _ in (*one, *other)), abs=1e-6)


@given(PAIRS)
def test_correlation_any_values_is_at_most_one(pairs: list[tuple[float, float]]) -> None:
    found = sums_of(pairs).correlation
    assert found is None or -1.0 <= found <= 1.0
