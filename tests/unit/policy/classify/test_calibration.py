"""policy.classify.calibration: the error of probabilities, and the fits that lower it."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.classify.calibration import calibration_error, choose_threshold, fit_isotonic, fit_temperature

JUDGED = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=300)


def honest_rows(n: int, rng: Random, bend: float = 1.0) -> list[tuple[float, bool]]:
    """Rows whose chance to be right is p ** bend."""
    return [(p, rng.random() < p**bend) for p in (rng.random() for _ in range(n))]


def test_calibration_error_known_bins_have_the_weighted_difference() -> None:
    judged = [(0.95, True)] * 8 + [(0.95, False)] * 2 + [(0.35, False)] * 10
    assert calibration_error(judged) == pytest.approx(0.5 * 0.15 + 0.5 * 0.35)


def test_calibration_error_honest_probabilities_are_near_0() -> None:
    assert calibration_error(honest_rows(20_000, Random(1))) < 0.02
    assert calibration_error(honest_rows(20_000, Random(1), bend=3.0)) > 0.15
    assert calibration_error([]) == 0


@pytest.mark.parametrize("best", [0.1, 0.7, 1.0, 9.0])
def test_fit_temperature_finds_the_least_loss(best: float) -> None:
    assert fit_temperature(lambda temperature: (temperature - best) ** 2) == pytest.approx(best, rel=1e-3)


def test_fit_isotonic_bent_probabilities_become_honest() -> None:
    found = fit_isotonic(honest_rows(5_000, Random(1), bend=3.0))
    unseen = honest_rows(20_000, Random(2), bend=3.0)
    assert calibration_error([(found(p), is_right) for p, is_right in unseen]) < 0.03


@given(JUDGED)
def test_fit_isotonic_map_never_falls(judged: list[tuple[float, bool]]) -> None:
    points = fit_isotonic(judged * 4).points
    assert list(points) == sorted(points)
    assert [y for _, y in points] == sorted(y for _, y in points)


def test_fit_isotonic_few_rows_are_left_alone() -> None:
    assert fit_isotonic([(0.5, True)] * 10).points == ()


@given(JUDGED, st.floats(0, 1))
def test_choose_threshold_answers_from_it_on_have_the_precision(judged: list[tuple[float, bool]], precision: float) -> None:
    threshold = choose_threshold(judged, precision)
    known = [is_right for p, is_right in judged if p >= threshold]
    assert not known or sum(known) >= precision * len(known)


def test_choose_threshold_takes_the_lowest() -> None:
    assert choose_threshold([(0.9, True), (0.8, True), (0.6, True), (0.5, False)], 0.9) == 0.6
    assert choose_threshold([(0.9, True), (0.5, True)], 0.9) == 0.0
    assert choose_threshold([(0.9, False), (0.5, True)], 0.9) > 1
