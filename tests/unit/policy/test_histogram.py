"""policy.histogram: quantiles, merging, and the sliding window."""

from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.histogram import (
    COARSE_S,
    FINE_S,
    GAMMA,
    MAX_RELATIVE_ERROR,
    RETENTION_S,
    LogHistogram,
    Window,
    merge_all,
    quantile_of,
)

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
    assert merge_all(map(of, shuffled)).counts == of([value for part in parts for value in part]).counts


@given(DURATIONS)
def test_log_histogram_packed_is_lossless(values: list[float]) -> None:
    """What goes to another process comes back as it was."""
    histogram = of(values)
    assert LogHistogram(histogram.pack()).counts == histogram.counts
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


STEPS = st.lists(st.tuples(st.floats(0, 400), st.floats(0.001, 100)), min_size=1, max_size=80)  # wait, value


@given(STEPS, st.sampled_from([60.0, 300.0, 3600.0]))
def test_window_last_covers_span_and_one_slot(steps: list[tuple[float, float]], seconds: float) -> None:
    """Every value of the last `seconds` counts; none older than that by more than a slot and its minute does."""
    window, now, seen = Window(), 1000.0, list[float]()
    for wait_s, value in steps:
        now += wait_s
        window.add(value, now)
        seen.append(now)
    n = window.merge_last(seconds, now).n
    assert n >= sum(at > now - seconds for at in seen)
    assert n <= sum(at > now - seconds - COARSE_S - FINE_S for at in seen)


def test_window_memory_is_bounded() -> None:
    """24 hours at one value a second: at most the slots of two minutes of 5 s and of an hour of minutes."""
    window = Window()
    for second in range(24 * 3600):
        window.add(0.5, float(second))
    assert window.n_slots <= 24 + RETENTION_S / COARSE_S + 1
    assert window.merge_last(300, 24 * 3600).n == pytest.approx(300, abs=60)
    assert window.merge_last(RETENTION_S, 24 * 3600).n == pytest.approx(3600, abs=60)


def test_window_silence_drops_old_values() -> None:
    """A series without recent values is empty."""
    window = Window()
    window.add(1.0, 0.0)
    assert window.merge_last(60, 30.0).n == 1
    assert window.merge_last(60, 66.0).n == 0
    window.add(1.0, 2 * RETENTION_S)
    assert window.merge_last(RETENTION_S, 2 * RETENTION_S).n == 1


def test_quantile_of_is_the_value_of_its_rank() -> None:
    values = [float(n) for n in range(10, 0, -1)]
    assert [quantile_of(values, q) for q in (0.0, 0.1, 0.5, 0.9, 0.91, 1.0)] == [1.0, 1.0, 5.0, 9.0, 10.0, 10.0]
    assert quantile_of([], 0.5) == inf


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0.5, 0.99))
def test_quantile_of_covers_its_share(values: list[float], share: float) -> None:
    found = quantile_of(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9
