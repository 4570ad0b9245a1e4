"""policy.histogram: percentiles within the stated error, and merging that loses nothing."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.histogram import GAMMA, MAX_RELATIVE_ERROR, LogHistogram, merged

DURATIONS = st.lists(st.floats(1e-9, 1e5), min_size=1, max_size=200)
ROUNDING = 1e-9  # of log2 and exp2 at a bucket's edge


def of(values: list[float]) -> LogHistogram:
    """A histogram of these."""
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(DURATIONS, st.floats(0, 1))
def test_log_histogram_quantile_within_stated_error(values: list[float], q: float) -> None:
    """|estimate - value of rank ceil(q*n)| <= (gamma - 1) / (gamma + 1) of it: 1.09 %."""
    exact = sorted(values)[max(1, ceil(q * len(values))) - 1]
    estimate = of(values).quantile(q)
    assert estimate is not None
    assert abs(estimate - exact) <= (MAX_RELATIVE_ERROR + ROUNDING) * exact


@given(st.lists(DURATIONS, max_size=6).flatmap(lambda parts: st.tuples(st.just(parts), st.permutations(parts))))
def test_log_histogram_merge_is_lossless(both: tuple[list[list[float]], list[list[float]]]) -> None:
    """However values are spread over histograms and in whatever order these are merged, all counts are the same."""
    parts, shuffled = both
    assert merged(map(of, shuffled)).counts == of([value for part in parts for value in part]).counts


@given(DURATIONS)
def test_log_histogram_packed_is_lossless(values: list[float]) -> None:
    """What goes to another process comes back as it was."""
    histogram = of(values)
    assert LogHistogram(histogram.packed()).counts == histogram.counts
    assert histogram.n == len(values)


def test_log_histogram_relative_error_is_1_percent() -> None:
    """At most 2 %, as the design demands."""
    assert MAX_RELATIVE_ERROR == (GAMMA - 1) / (GAMMA + 1) == pytest.approx(0.01083, abs=1e-5)


def test_log_histogram_empty_and_tiny_values() -> None:
    """No values have no quantile; zero and less count as the least, about a nanosecond."""
    assert LogHistogram().quantile(0.5) is None
    for value in (0.0, -1.0, 1e-12):
        estimate = of([value]).quantile(1)
        assert estimate is not None
        assert 0 < estimate < 1.1e-9
