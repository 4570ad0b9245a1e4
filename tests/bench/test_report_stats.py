"""Percentiles, definitions and gaps."""

from array import array
from math import inf, isnan, nan, sqrt
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.lab.load.result import (
    GROWTH,
    LOWEST_S,
    MAX_BINS,
    Error,
    GapCounts,
    LoadSlo,
    Result,
    Sample,
    Samples,
    bucket_middle_s,
    bucket_number,
)
from stayfast.lab.load.stats import (
    DEFINITIONS,
    LATENCIES,
    BinnedDistribution,
    ExactDistribution,
    MeasuredRun,
    has_enough_values,
    metric_column,
    quantile_of_offered,
)
from tests.bench.synthetic import Scenario, result

SECONDS = st.floats(min_value=0, max_value=1e4)


def measured(*samples: Sample) -> MeasuredRun:
    """The figures of a run with these rows."""
    run: Result = result(Scenario(n=0))
    run.samples = Samples()
    for sample in samples:
        run.samples.add(sample)
    run.duration_s = 10.0
    run.slo = LoadSlo()
    return MeasuredRun(run)


@given(st.lists(SECONDS, min_size=2, max_size=200))
def test_exact_percentiles_use_linear_interpolation(values: list[float]) -> None:
    """All 99 percentiles agree with the standard library's inclusive method."""
    spread = ExactDistribution(values)
    for rank, expected in enumerate(quantiles(values, n=100, method="inclusive"), 1):
        assert spread.quantile(rank / 100) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_exact_ignores_missing_values() -> None:
    """NaN is ignored; without values there is no percentile."""
    assert (ExactDistribution([nan, 2.0, nan]).n, ExactDistribution([nan, 2.0]).quantile(0.99)) == (1, 2.0)
    assert isnan(ExactDistribution([nan]).quantile(0.5))
    assert isnan(ExactDistribution([]).mean_s)


def test_metrics_follow_their_definitions() -> None:
    """Each metric of one hand-made row."""
    row = Sample(0, at_s=1.0, sent_s=1.25, headers_s=1.5, first_s=2.0, last_s=4.0, ended_s=4.5, n_output=5, n_chunks=4,
                 gap_max_s=0.75, connect_s=0.2, shown_s=2.5, status=200)
    run = measured(row)
    expected = {"ttft": 0.75, "ttft_sched": 1.0, "ttfo": 1.25, "ttfb": 0.25, "e2e": 2.75, "e2e_sched": 3.0, "tpot": 0.5,
                "gap_max": 0.75}
    assert {name: run.distributions[name].quantile(0.5) for name in expected} == pytest.approx(expected)
    assert list(metric_column(run.result.samples, "lateness")) == pytest.approx([0.05])
    assert set(LATENCIES) <= set(DEFINITIONS)


def test_tpot_of_one_token_is_undefined() -> None:
    """Nor has an answer in one piece a tpot."""
    run = measured(Sample(0, 0.0, 0.0, 0.1, 0.2, 0.2, 0.3, n_output=1),
                   Sample(1, 0.0, 0.0, 0.1, 0.2, 0.2, 0.3, n_output=64, n_chunks=1))
    assert run.distributions["tpot"].n == 0


def test_measured_failed_requests_are_counted_without_latency() -> None:
    """The first token of a truncated answer is not in the TTFT; rates and shares are of the offered."""
    run = measured(Sample(0, 0.0, 0.0, 0.1, 0.2, 0.4, 0.5, n_output=4),
                   Sample(1, 0.0, 0.0, 0.1, 9.0, 9.1, 9.2, error=Error.TRUNCATED), Sample(2, 0.0, error=Error.UNSENT))
    assert (run.distributions["ttft"].n, run.distributions["ttft"].quantile(1.0)) == (1, 0.2)
    assert (run.error_share, run.errors, run.goodput.share) == (2 / 3, {"truncated": 1, "unsent": 1}, 1 / 3)
    assert (run.per_second(run.n_offered), run.n_output) == (0.3, 4)


def test_quantile_of_offered_counts_failures_as_slowest() -> None:
    """A quantile among the failures is infinite."""
    spread = ExactDistribution([1.0, 2.0, 3.0])
    assert quantile_of_offered(spread, 1, 0.99) == inf
    assert quantile_of_offered(spread, 1, 0.0) == 1.0
    assert quantile_of_offered(spread, 1, 2 / 3) == 3.0
    assert quantile_of_offered(spread, 0, 0.5) == spread.quantile(0.5)
    assert isnan(quantile_of_offered(ExactDistribution([]), 0, 0.5))
    assert quantile_of_offered(ExactDistribution([]), 3, 0.5) == inf


def test_percentile_equal_to_the_maximum_is_not_resolved() -> None:
    """p99 needs 100 values, p99.9 a thousand, the maximum one."""
    assert [has_enough_values(100, 0.99), has_enough_values(99, 0.99), has_enough_values(1000, 0.999),
            has_enough_values(1, 1.0)] == [
        True, False, True, True]


def test_spike_factor_is_p99_over_p50() -> None:
    run = MeasuredRun(result(Scenario(n=500, error_share=0.0)))
    waits = run.distributions["ttft_sched"]
    assert run.spike_factor() == waits.quantile(0.99) / waits.quantile(0.5)
    assert isnan(MeasuredRun(result(Scenario(n=20))).spike_factor())


def test_ttfo_is_shown_only_with_reasoning() -> None:
    plain, thinking = (measured(Sample(0, 0.0, 0.0, 0.1, 0.2, 0.9, 1.0, shown_s=shown_s)) for shown_s in (0.2, 0.7))
    assert "ttfo" not in plain.shown_latencies
    assert "ttfo" in thinking.shown_latencies


@given(st.floats(min_value=LOWEST_S * 1.001, max_value=1e4))
def test_gap_bucket_is_off_by_at_most_one_percent(gap_s: float) -> None:
    assert abs(bucket_middle_s(bucket_number(gap_s)) / gap_s - 1) <= sqrt(GROWTH) - 1 + 1e-9


@given(st.lists(st.tuples(st.floats(min_value=0, max_value=1e5), SECONDS), max_size=100))
def test_gap_counts_long_run_keeps_all_gaps_in_bounded_bins(gaps: list[tuple[float, float]]) -> None:
    """Bins double in width instead of growing in number."""
    counts = GapCounts()
    for at_s, gap_s in gaps:
        counts.add(at_s, gap_s)
    assert len(counts) == len(gaps) == sum(counts.sum_by_bucket().values())
    assert all(0 <= number < MAX_BINS for number in counts.bins)


def test_binned_percentiles_are_within_one_percent() -> None:
    """Compared with exact ones of the same values."""
    gaps, values = GapCounts(), array("d", (0.001 * 1.003 ** number for number in range(3000)))
    for value in values:
        gaps.add(1.0, value)
    binned, exact = BinnedDistribution(gaps), ExactDistribution(values)
    for share in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0):
        assert binned.quantile(share) == pytest.approx(exact.quantile(share), rel=0.012)
    assert binned.mean_s == pytest.approx(exact.mean_s, rel=0.01)
    assert isnan(BinnedDistribution(GapCounts()).quantile(0.5))
