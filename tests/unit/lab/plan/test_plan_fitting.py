"""lab.plan.fitting: recovers what is hidden in attempts."""

from dataclasses import replace
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.lab.plan.fitting import calls_at, fit_upstream, quantile_of, rank_correlation
from stayfast.observe.traffic_rows import TrialRow
from tests.unit.lab.plan.plan_rig import calls, rows


def test_fit_upstream_multiplied_slope_is_found() -> None:
    fit = fit_upstream("u", calls(1500, k=3e-4))
    assert not fit.is_additive
    assert fit.per_token == pytest.approx(3e-4, rel=0.15)
    assert fit.first_wait_s(0.5, 0) == pytest.approx(0.5, rel=0.1)


def test_fit_upstream_added_slope_is_found() -> None:
    fit = fit_upstream("u", calls(1500, b=2e-4))
    assert fit.is_additive
    assert fit.per_token == pytest.approx(2e-4, rel=0.15)


def test_fit_upstream_no_slope_is_zero() -> None:
    assert [fit_upstream("u", calls(600, seed=seed)).per_token for seed in (1, 2, 3)].count(0.0) >= 2


def test_fit_upstream_cancelled_calls_do_not_hide_the_tail() -> None:
    """Every call that took more than 0.7 s was cancelled then by a hedge: its wait is longer, not absent."""
    whole = calls(2000)
    cut = [replace(call, ttft_s=None, is_cut=True, took_s=0.7) if (call.ttft_s or 0) > 0.7 else call for call in whole]
    seen, unseen = fit_upstream("u", cut), fit_upstream("u", [call for call in cut if not call.is_cut])
    true_s = quantile_of(sorted(call.ttft_s or 0.0 for call in whole), 0.9)
    assert seen.first_wait_s(0.9, 0) >= 0.95 * min(true_s, 0.7)
    assert unseen.first_wait_s(0.9, 0) < seen.first_wait_s(0.9, 0)


def test_fit_upstream_whole_answers_are_split_into_wait_and_pace() -> None:
    whole = [replace(call, ttft_s=None, tpot_s=None, is_stream=False) for call in calls(800)]
    fit = fit_upstream("u", whole)
    assert fit.pace_s(0.5, 100) == pytest.approx(0.02, rel=0.1)
    assert fit.first_wait_s(0.5, 0) == pytest.approx(0.5, rel=0.15)


def test_fit_upstream_faults_become_shares() -> None:
    seen = calls(900) + [replace(calls(1)[0], ttft_s=None, fault="status 503", status=503, took_s=0.2)] * 60
    fit = fit_upstream("u", seen + [replace(calls(1)[0], ttft_s=None, fault="timeout")] * 40)
    assert (fit.fail_share, fit.hang_share, fit.fail_status) == (0.06, 0.04, 503)
    assert fit.fail_after_s == pytest.approx(0.2)


def test_calls_at_hedged_request_has_one_cut_and_one_answered_call() -> None:
    trials = (TrialRow("u", "first", 0.9, is_lost=True), TrialRow("v", "hedge", 0.8, 0.3))
    (row,) = rows(1, upstream="v", trials=trials, n_attempts=2)
    (cut,), (answered,) = calls_at([row], "u"), calls_at([row], "v")
    assert (cut.is_cut, cut.took_s, cut.ttft_s) == (True, 0.9, None)
    assert (answered.is_cut, answered.ttft_s, answered.n_output) == (False, 0.3, 51)


@given(st.lists(st.floats(0.01, 100), min_size=3, max_size=60, unique=True))
def test_rank_correlation_of_a_sequence_with_itself_is_one(values: list[float]) -> None:
    assert rank_correlation(values, values) == pytest.approx(1.0)
    assert rank_correlation(values, [-value for value in values]) == pytest.approx(-1.0)


def test_rank_correlation_of_independent_values_is_small() -> None:
    rng = Random(1)
    assert abs(rank_correlation([rng.random() for _ in range(2000)], [rng.random() for _ in range(2000)])) < 0.06


def test_speed_up_divides_all_times() -> None:
    fit = fit_upstream("u", calls(400, b=2e-4))
    quick = fit.speed_up(2.0)
    assert quick.first_wait_s(0.5, 1000) == pytest.approx(fit.first_wait_s(0.5, 1000) / 2)
    assert quick.pace_s(0.5, 100) == pytest.approx(fit.pace_s(0.5, 100) / 2)
    assert fit.speed_up_decode(2.0).first_wait_s(0.5, 1000) == fit.first_wait_s(0.5, 1000)
    assert median(fit.first_s) == pytest.approx(quantile_of(fit.first_s, 0.5))
