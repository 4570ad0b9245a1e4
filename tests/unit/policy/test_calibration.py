"""policy.cache.calibration: the threshold, and the bounds of a share."""

from collections.abc import Iterator
from math import comb
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.policy.cache.calibration import (
    LEAST_LABELS,
    N_RETAINED,
    CalibrateConfig,
    Calibrator,
    beta_quantile,
    beta_share,
    is_at_most,
    lower_bound,
    upper_bound,
)

SURE, UNSURE = 0.9, 0.5


def stream(rng: Random, n: int) -> Iterator[tuple[tuple[float, ...], bool]]:
    """Labels of one feature: right with a chance that rises steeply with it, as cosines have it."""
    for _ in range(n):
        x = rng.random()
        yield (x,), rng.random() < x**0.25


def online(config: CalibrateConfig, seed: int, n: int) -> tuple[Calibrator, int, int]:
    """Hits and wrong ones of one pass, that learns from misses and audits alone."""
    rng = Random(seed)
    calibrator = Calibrator(config, 1)
    n_hits = n_wrong = 0
    for features, is_right in stream(rng, n):
        is_hit = not calibrator.reject_reason(calibrator.probability(features))
        n_hits += is_hit
        n_wrong += is_hit and not is_right
        if not is_hit or rng.random() < config.audit:
            calibrator.learn(features, is_right=is_right, was_given=is_hit)
    return calibrator, n_hits, n_wrong


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_calibrator_error_stays_below_max_error(seed: int) -> None:
    """And a good part of what could be given at this error is given."""
    calibrator, n_hits, n_wrong = online(CalibrateConfig(max_error=0.1), seed, 6000)
    assert n_hits > 1500
    assert n_wrong / n_hits <= 0.1
    estimate = calibrator.estimate_hits()
    assert estimate is not None
    assert 0 < estimate.low < estimate.error < estimate.high <= 0.1
    assert estimate.hit_share == pytest.approx(n_hits / 6000, abs=0.15)


def test_calibrator_uninformative_features_serve_nothing() -> None:
    """Where the features say nothing, one answer in five is wrong at any threshold."""
    rng = Random(1)
    calibrator = Calibrator(CalibrateConfig(max_error=0.05), 1)
    for _ in range(3000):
        calibrator.learn((rng.random(),), is_right=rng.random() < 0.8)
    assert calibrator.is_shadow
    assert calibrator.reject_reason(1.0) == "shadow"
    assert calibrator.estimate_hits() is None


def test_calibrator_starts_in_shadow() -> None:
    """Until there are min_labels, however good they are; then what would have been given is given."""
    calibrator = Calibrator(CalibrateConfig(max_error=0.05, min_labels=300), 1)
    for number in range(299):
        is_right = number % 3 != 0
        calibrator.learn((SURE if is_right else UNSURE,), is_right=is_right)
    assert calibrator.reject_reason(calibrator.probability((SURE,))) == "shadow"
    estimate = calibrator.estimate_hits()
    assert estimate is not None
    assert estimate.hit_share == pytest.approx(2 / 3, abs=0.02)
    calibrator.learn((SURE,), is_right=True)
    assert calibrator.reject_reason(calibrator.probability((SURE,))) == ""
    assert calibrator.reject_reason(calibrator.probability((UNSURE,))) == "unsure"


@pytest.mark.parametrize("is_right", [True, False])
def test_calibrator_labels_of_one_class_give_no_threshold(is_right: bool) -> None:
    """However many: nothing is known of what tells right from wrong, and an unlike question looks as sure as any."""
    calibrator = Calibrator(CalibrateConfig(max_error=0.01), 1)
    for _ in range(1000):
        calibrator.learn((SURE,), is_right=is_right)
    assert calibrator.is_shadow
    assert calibrator.threshold is None
    assert calibrator.reject_reason(calibrator.probability((0.0,))) == "shadow"


def test_calibrator_audits_weigh_for_unaudited_hits() -> None:
    """Labels of one bin share their weight: 100 free ones and 10 audits of 1 in 10 are 200 hits, and 110 to judge by."""
    calibrator = Calibrator(CalibrateConfig(max_error=0.1, audit=0.1, min_labels=LEAST_LABELS), 1)
    for number in range(200):
        calibrator.learn((SURE if number % 2 else UNSURE,), is_right=bool(number % 2))
    for _ in range(10):
        calibrator.learn((SURE,), is_right=True, was_given=True)
    for _ in range(60):  # until all are in the bins
        calibrator.learn((UNSURE,), is_right=False)
    estimate = calibrator.estimate_hits()
    assert estimate is not None
    assert estimate.n_eff == pytest.approx(110)
    assert estimate.hit_share == pytest.approx(200 / 300, rel=0.3)


def test_calibrator_drift_returns_to_shadow() -> None:
    """When audits come out wrong, it forgets what it was proven by, and begins again in the shadow."""
    calibrator, *_ = online(CalibrateConfig(max_error=0.1), 1, 3000)
    assert calibrator.reject_reason(1.0) == ""
    for number in range(200):
        calibrator.learn((1.0,), is_right=number % 2 == 0, was_given=True)
        if calibrator.n_drifted:
            break
    assert 5 < number < 100
    assert (calibrator.n_labels, calibrator.audit_counts(), calibrator.estimate_hits()) == (N_RETAINED, (0, 0), None)
    assert calibrator.reject_reason(1.0) == "shadow"
    for features, is_right in stream(Random(2), 3000):
        calibrator.learn(features, is_right=is_right)
    assert calibrator.reject_reason(1.0) == ""


def test_calibrator_single_wrong_audit_is_no_drift() -> None:
    """Not even the first one, at 0.1 %."""
    calibrator = Calibrator(CalibrateConfig(max_error=0.001), 1)
    calibrator.learn((SURE,), is_right=False, was_given=True)
    assert calibrator.n_drifted == 0
    assert calibrator.audit_counts() == (1, 1)


def test_calibrator_keeps_only_last_labels() -> None:
    """What was wrong long ago is forgotten."""
    calibrator = Calibrator(CalibrateConfig(max_error=0.1, min_labels=100, max_labels=500), 1)
    rng = Random(1)
    for _ in range(600):
        calibrator.learn((rng.random(),), is_right=False)
    assert calibrator.is_shadow
    for _ in range(600):
        calibrator.learn((rng.random(),), is_right=rng.random() < 0.99)
    assert not calibrator.is_shadow


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, -1.0]), st.booleans(), st.integers(1, 100)), max_size=6))
def test_calibrator_separable_labels_stay_bounded(runs: list[tuple[float, bool, int]]) -> None:
    """Long runs of the same, in any order: p stays a probability, and rises with what was right."""
    calibrator = Calibrator(CalibrateConfig(max_error=0.1, min_labels=LEAST_LABELS, max_labels=300), 1)
    for x, is_right, n in runs:
        for _ in range(n):
            calibrator.learn((x,), is_right=is_right)
            assert 0.0 <= calibrator.probability((x,)) <= 1.0
    for number in range(900):
        calibrator.learn((1.0 if number % 2 else 0.0,), is_right=bool(number % 2))
    assert calibrator.probability((1.0,)) > 0.9 > 0.1 > calibrator.probability((0.0,))
    assert calibrator.reject_reason(calibrator.probability((1.0,))) == ""


@pytest.mark.parametrize("wrong", [{"max_error": 0.0}, {"audit": 0.0}, {"min_labels": 10}, {"max_labels": 100}])
def test_calibrate_config_out_of_bounds_is_rejected(wrong: dict[str, Any]) -> None:
    """The message names the setting."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CalibrateConfig(**wrong)


@pytest.mark.parametrize(("x", "n", "confidence", "low", "high"), [
    (0, 59, 0.95, 0.0, 0.04951),  # 1 - 0.05 ** (1 / 59)
    (0, 299, 0.95, 0.0, 0.00997),
    (2, 10, 0.975, 0.02521, 0.55610),  # two-sided 95 %, as in any table
    (5, 100, 0.975, 0.01643, 0.11283),
    (10, 10, 0.95, 0.74113, 1.0),
])
def test_bounds_match_published_intervals(x: int, n: int, confidence: float, low: float, high: float) -> None:
    """Values of published tables."""
    assert lower_bound(x, n, confidence) == pytest.approx(low, abs=1e-5)
    assert upper_bound(x, n, confidence) == pytest.approx(high, abs=1e-5)


@given(st.integers(1, 60), st.floats(0.01, 0.99), st.data())
def test_beta_share_equals_binomial_tail(n: int, share: float, data: st.DataObject) -> None:
    """I_q(x + 1, n - x) is the probability of more than x of n."""
    x = data.draw(st.integers(0, n - 1))
    tail = sum(comb(n, k) * share**k * (1 - share)**(n - k) for k in range(x + 1, n + 1))
    assert beta_share(share, x + 1, n - x) == pytest.approx(tail, abs=1e-9)


@given(st.floats(0.01, 0.99), st.floats(0.5, 3000), st.floats(0.5, 3000))
def test_beta_quantile_inverts_beta_share(share: float, a: float, b: float) -> None:
    """So much lies below it."""
    assert beta_share(beta_quantile(share, a, b), a, b) == pytest.approx(share, abs=1e-6)


@given(st.floats(0, 50), st.floats(50, 5000), st.floats(0.001, 0.5))
def test_is_at_most_agrees_with_upper_bound(x: float, n: float, share: float) -> None:
    """`is_at_most` is `upper(...) <= share`, but for the rounding."""
    bound = upper_bound(x, n)
    if abs(bound - share) > 1e-9:
        assert is_at_most(share, x, n) == (bound <= share)


def test_beta_share_outside_unit_interval_is_0_or_1() -> None:
    """Shares of 0 and 1, and all wrong."""
    assert (beta_share(0.0, 2, 3), beta_share(1.0, 2, 3)) == (0.0, 1.0)
    assert (upper_bound(3, 3), lower_bound(0, 3)) == (1.0, 0.0)
    assert not is_at_most(0.5, 3, 3)
