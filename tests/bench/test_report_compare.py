"""Intervals: as wide as the noise, and not wider than necessary."""

from array import array
from random import Random
from statistics import median, pstdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.lab.load.result import ClientHealth
from stayfast.lab.load.stats import MeasuredRun
from stayfast.lab.report.compare import (
    CompareConfig,
    ComparedQuantity,
    Comparison,
    compare_runs,
    design_effect,
    draw_binomial,
)
from tests.bench.synthetic import Scenario, result

QUICK = Scenario(n=800, bad_factor=1.0)
STEADY = Scenario(n=1500, bad_factor=1.0, error_share=0.005)


def compared(a: Scenario, b: Scenario, seed: int = 1, **config: float) -> Comparison:
    runs = [MeasuredRun(result(scenario, seed=10 * seed + number, label=label))
            for number, (scenario, label) in enumerate(((a, "A"), (b, "B")))]
    return compare_runs(runs[0], runs[1], Random(seed), CompareConfig(n_replicates=200, **config))


def test_compare_same_seed_gives_the_same_intervals() -> None:
    assert compared(STEADY, STEADY).rows == compared(STEADY, STEADY).rows


@pytest.fixture(scope="module")
def pairs() -> list[Comparison]:
    return [compared(QUICK, QUICK, seed) for seed in range(24)]


def rows_of(pairs: list[Comparison], quantity: str) -> list[ComparedQuantity]:
    return [row for pair in pairs for row in pair.rows if row.quantity == quantity]


def test_compare_noise_is_rarely_a_difference(pairs: list[Comparison]) -> None:
    """A 95 % interval excludes 0 in about one pair of twenty."""
    assert sum(not row.difference.spans_zero for row in rows_of(pairs, "ttft_sched.p50")) <= 4
    assert sum(not row.difference.spans_zero for row in rows_of(pairs, "goodput")) <= 4


@pytest.mark.parametrize("quantity", ["ttft_sched.p50", "ttft_sched.p95", "goodput"])
def test_compare_intervals_cover_differences_between_runs(pairs: list[Comparison], quantity: str) -> None:
    """The spread that an interval claims is, within a factor of two, that of the differences between runs."""
    rows = rows_of(pairs, quantity)
    claimed = median((row.difference.high - row.difference.low) / 3.92 for row in rows)
    assert 0.5 < claimed / pstdev(row.difference.value for row in rows) < 2


def test_compare_slower_target_is_a_regression() -> None:
    """A median 30 % higher is seen, fails the default threshold and passes a larger one."""
    slower = Scenario(n=1500, bad_factor=1.0, error_share=0.005, ttft_s=0.72)
    found = compared(STEADY, slower)
    assert "ttft_sched.p50" in found.regressions
    assert found.exit_status == 1
    assert next(row for row in found.rows if row.quantity == "ttft_sched.p50").verdict == "worse, beyond the threshold"
    assert "ttft_sched.p50" not in compared(STEADY, slower, threshold=0.6).regressions


def test_compare_faster_target_is_no_regression() -> None:
    found = compared(Scenario(n=1500, ttft_s=1.2), STEADY)
    verdicts = {row.quantity: row.verdict for row in found.rows}
    assert (verdicts["ttft_sched.p50"], verdicts["goodput"]) == ("better", "better")
    assert found.exit_status == 0


def test_compare_more_errors_are_a_regression_by_points() -> None:
    """A share's threshold is in points."""
    found = compared(STEADY, Scenario(n=1500, bad_factor=1.0, error_share=0.12))
    assert "errors" in found.regressions
    assert any("successful answers only" in warning for warning in found.warnings)


def test_design_effect_bad_minutes_widen_the_interval() -> None:
    """Clustered slow requests count as fewer independent ones."""
    rng = Random(1)
    at_s = array("d", (number / 10 for number in range(4000)))
    alone = bytes(rng.random() < 0.1 for _ in at_s)
    together = bytes(1000 <= number < 1400 for number in range(4000))
    assert design_effect(alone, at_s) < 2
    assert design_effect(together, at_s) > 20


def test_compare_different_workloads_warn() -> None:
    late = MeasuredRun(result(Scenario(n=500, rps=40), health=ClientHealth(verdict=("late",)), label="B"))
    warnings = " ".join(compare_runs(MeasuredRun(result(STEADY)), late, Random(1)).warnings)
    assert "B is invalid: late" in warnings
    assert "rates differ" in warnings
    assert "workloads differ in: rate" in warnings


def test_compare_run_without_answers_has_no_figures() -> None:
    """No figures, no regressions, no error."""
    found = compared(STEADY, Scenario(n=0))
    assert found.regressions == ()
    assert {row.verdict for row in found.rows} == {"not measured in both"}


@settings(max_examples=25)
@given(st.integers(min_value=1, max_value=5000), st.floats(min_value=0, max_value=1), st.integers())
def test_binomial_variates_have_their_distribution(n: int, p: float, seed: int) -> None:
    """Between 0 and n, with mean n p within six standard errors."""
    rng = Random(seed)
    drawn = [draw_binomial(n, p, rng) for _ in range(200)]
    assert all(0 <= value <= n for value in drawn)
    assert abs(sum(drawn) / 200 - n * p) <= 6 * (n * p * (1 - p) / 200) ** 0.5 + 1e-9


@pytest.mark.parametrize("wrong", [{"level": 1.0}, {"level": 0.2}, {"threshold": -0.1}, {"n_replicates": 9}])
def test_compare_config_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        CompareConfig(**wrong)
