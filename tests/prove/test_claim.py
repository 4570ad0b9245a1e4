"""Figures, findings and claims."""

from math import inf, isnan, nan

import pytest

from stayfast.lab.claims.registry import claims
from stayfast.lab.harness.claim import Figure, Finding, Sense, median_and_range


@pytest.mark.parametrize(("value", "sense", "holds"), [
    (50.0, Sense.AT_MOST, True), (50.1, Sense.AT_MOST, False), (-1.0, Sense.AT_MOST, True), (inf, Sense.AT_MOST, False),
    (50.0, Sense.AT_LEAST, True), (49.9, Sense.AT_LEAST, False), (nan, Sense.AT_MOST, False), (nan, Sense.AT_LEAST, False),
])
def test_figure_holds_depends_on_goal_and_sense(value: float, sense: Sense, holds: bool) -> None:
    """A value equal to its goal holds; NaN never does."""
    assert Figure("it", value, "ms", 50.0, sense).holds is holds


def test_figure_without_goal_does_not_fail_finding() -> None:
    assert Finding((Figure("it", 1.0, "ms", 2.0), Figure("that", nan, "ms"))).holds


@pytest.mark.parametrize("finding", [
    Finding((Figure("it", 1.0, "ms", 2.0), Figure("that", 3.0, "ms", 2.0))),
    Finding((Figure("it", 1.0, "ms", 2.0),), spoiled="the client was late"),
    Finding(()),
    Finding((Figure("it", 1.0, "ms"),)),
], ids=["one median_and_range", "spoiled", "no figures", "no goals"])
def test_finding_invalid_or_short_does_not_hold(finding: Finding) -> None:
    assert not finding.holds


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
