"""What a figure and a finding hold by."""

from math import inf, isnan, nan

import pytest

from stayfast.lab.claims.registry import claims
from stayfast.lab.harness.claim import Figure, Finding, Sense, median_and_range


@pytest.mark.parametrize(("value", "sense", "holds"), [
    (50.0, Sense.AT_MOST, True), (50.1, Sense.AT_MOST, False), (-1.0, Sense.AT_MOST, True), (inf, Sense.AT_MOST, False),
    (50.0, Sense.AT_LEAST, True), (49.9, Sense.AT_LEAST, False), (nan, Sense.AT_MOST, False), (nan, Sense.AT_LEAST, False),
])
def test_a_figure_holds_on_the_right_side_of_its_goal(value: float, sense: Sense, holds: bool) -> None:
    """The goal itself is on the right side; what could not be taken is on neither."""
    assert Figure("it", value, "ms", 50.0, sense).holds is holds


def test_a_figure_without_a_goal_only_informs() -> None:
    """Even one that could not be taken does not fail a finding that has goals."""
    assert Finding((Figure("it", 1.0, "ms", 2.0), Figure("that", nan, "ms"))).holds


@pytest.mark.parametrize("finding", [
    Finding((Figure("it", 1.0, "ms", 2.0), Figure("that", 3.0, "ms", 2.0))),
    Finding((Figure("it", 1.0, "ms", 2.0),), spoiled="the client was late"),
    Finding(()),
    Finding((Figure("it", 1.0, "ms"),)),
], ids=["one median_and_range", "spoiled", "no figures", "no goals"])
def test_a_finding_falls_short(finding: Finding) -> None:
    """One figure is enough; so is a run that proves nothing, and one that measured nothing."""
    assert not finding.holds


def test_a_figure_of_rounds_is_their_median_and_ends() -> None:
    """Odd and even numbers of rounds."""
    assert median_and_range([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert median_and_range([4.0, 1.0, 2.0, 3.0]) == (2.5, 1.0, 4.0)


@pytest.mark.parametrize("rounds", [[], [1.0, nan, 2.0], [nan]])
def test_a_round_that_could_not_be_taken_is_not_sorted_away(rounds: list[float]) -> None:
    """NaN compares with nothing: it must not end up beside the median."""
    assert all(isnan(value) for value in median_and_range(rounds))


def test_every_claim_says_its_number() -> None:
    """A claim without a number cannot fall short of it; names are what the command takes."""
    found = claims()
    assert found.keys() >= {"truth", "overhead", "cancel", "budget"}
    for name, claim in found.items():
        assert claim.name == name
        assert any(character.isdigit() for character in claim.says)
