"""Figures, findings and claims."""

from math import inf, isnan, nan

import pytest

from stayfast.lab.claims.registry import claims
from stayfast.lab.harness.claim import ClaimResult, Figure, Sense, Verdict, mark_invalid, median_and_range

HOLDS, FALLS_SHORT, INCONCLUSIVE = Verdict


@pytest.mark.parametrize(("value", "sense", "verdict"), [
    (50.0, Sense.AT_MOST, HOLDS), (50.1, Sense.AT_MOST, FALLS_SHORT), (-1.0, Sense.AT_MOST, HOLDS),
    (inf, Sense.AT_MOST, FALLS_SHORT), (50.0, Sense.AT_LEAST, HOLDS), (49.9, Sense.AT_LEAST, FALLS_SHORT),
    (nan, Sense.AT_MOST, INCONCLUSIVE), (nan, Sense.AT_LEAST, INCONCLUSIVE),
])
def test_figure_without_interval_is_judged_by_its_value(value: float, sense: Sense, verdict: Verdict) -> None:
    """A value equal to its goal holds; NaN shows nothing."""
    figure = Figure("it", value, "ms", 50.0, sense)
    assert figure.verdict is verdict
    assert figure.holds is (verdict is HOLDS)


@pytest.mark.parametrize(("low", "high", "at_most", "at_least"), [
    (40.0, 50.0, HOLDS, INCONCLUSIVE), (40.0, 50.1, INCONCLUSIVE, INCONCLUSIVE), (50.1, 60.0, FALLS_SHORT, HOLDS),
    (40.0, 49.9, HOLDS, FALLS_SHORT), (-inf, inf, INCONCLUSIVE, INCONCLUSIVE), (51.0, inf, FALLS_SHORT, HOLDS),
    (nan, nan, INCONCLUSIVE, INCONCLUSIVE),
])
def test_figure_with_interval_straddling_goal_is_inconclusive(low: float, high: float, at_most: Verdict,
                                                              at_least: Verdict) -> None:
    """The side of the value does not matter, only that of the whole interval."""
    for value in (45.0, 55.0):
        assert Figure("it", value, "ms", 50.0, Sense.AT_MOST, low, high).verdict is at_most
        assert Figure("it", value, "ms", 50.0, Sense.AT_LEAST, low, high).verdict is at_least


def test_figure_marked_invalid_is_inconclusive_only_with_reason() -> None:
    figures = (Figure("it", 60.0, "ms", 50.0), Figure("that", 1.0, "ms"))
    assert mark_invalid(figures, None) == figures
    late, without_goal = mark_invalid(figures, "the client was late")
    assert late.verdict is INCONCLUSIVE
    assert without_goal.verdict is None


def test_figure_share_has_interval_and_count_is_exact() -> None:
    share = Figure.share("wrong", 3, 10, 0.2)
    assert (share.value, share.goal) == (30.0, 20.0)
    assert (share.low, share.high) == pytest.approx((6.67, 65.25), abs=0.01)
    assert share.verdict is INCONCLUSIVE
    assert Figure.count("lost", 0).is_exact
    assert not share.is_exact


def test_figure_of_rounds_fewer_than_six_is_inconclusive() -> None:
    """The range of five rounds covers their median with 94 % only."""
    assert Figure.of_rounds("it", [1.0] * 5, "ms", 2.0).verdict is INCONCLUSIVE
    six = Figure.of_rounds("it", [1.0, 1.2, 1.1, 1.3, 1.0, 1.9], "ms", 2.0)
    assert (six.low, six.high, six.verdict) == (1.0, 1.9, HOLDS)


GOOD, SHORT = Figure("it", 1.0, "ms", 2.0), Figure("that", 3.0, "ms", 2.0)
OPEN = Figure("those", 1.0, "ms", 2.0, low=0.0, high=3.0)


@pytest.mark.parametrize(("figures", "spoiled", "verdict"), [
    ((GOOD, Figure("that", nan, "ms")), None, HOLDS), ((GOOD, SHORT), None, FALLS_SHORT), ((GOOD, OPEN), None, INCONCLUSIVE),
    ((OPEN, SHORT), None, FALLS_SHORT), ((GOOD,), "the client was late", INCONCLUSIVE),
    (mark_invalid((GOOD, SHORT), "the client was late"), "the client was late", INCONCLUSIVE),
    ((), None, INCONCLUSIVE), ((Figure("it", 1.0, "ms"),), None, INCONCLUSIVE),
], ids=["holds", "one short", "one open", "open and short", "spoiled", "spoiled and short", "no figures", "no goals"])
def test_finding_verdict_is_worst_of_figures(figures: tuple[Figure, ...], spoiled: str | None, verdict: Verdict) -> None:
    finding = ClaimResult(figures, spoiled=spoiled)
    assert finding.verdict is verdict
    assert finding.holds is (verdict is HOLDS)


def test_median_and_range_of_rounds() -> None:
    assert median_and_range([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert median_and_range([4.0, 1.0, 2.0, 3.0]) == (2.5, 1.0, 4.0)


@pytest.mark.parametrize("rounds", [[], [1.0, nan, 2.0], [nan]])
def test_median_and_range_nan_round_gives_nan(rounds: list[float]) -> None:
    """NaN compares with nothing, so sorting would hide it."""
    assert all(isnan(value) for value in median_and_range(rounds))


def test_claims_each_state_a_number() -> None:
    found = claims()
    assert found.keys() >= {"truth", "overhead", "cancel", "budget"}
    for name, claim in found.items():
        assert claim.name == name
        assert any(character.isdigit() for character in claim.statement)
