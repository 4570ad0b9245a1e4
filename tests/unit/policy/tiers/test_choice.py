"""The choice of a tier."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.tiers.choice import TierOption, TimeLeft, choose_tier, fits, order_tiers, reserve_s, with_margin_s
from stayfast.policy.tiers.speed import SpeedPrediction

times = st.floats(0.01, 100)
predictions = st.builds(lambda first, rest: SpeedPrediction(first, first + rest, 9), times, times)


@st.composite
def option_lists(draw: st.DrawFn, *, known: bool = False) -> list[TierOption]:
    """Tiers of up to three skills and three speeds."""
    kinds = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=6, unique=True))
    said = predictions if known else st.none() | predictions
    pressure = st.just("") if known else st.sampled_from(["", "", "full"])
    return [TierOption(f"t{n}", skill, speed, draw(said), draw(pressure)) for n, (skill, speed) in enumerate(sorted(kinds))]


def option(name: str, skill: int, speed: int = 1, end_s: float | None = None, pressure: str = "") -> TierOption:
    return TierOption(name, skill, speed, SpeedPrediction(end_s / 4, end_s, 9) if end_s is not None else None, pressure)


def choose(options: list[TierOption], start: str, left_s: float, *, down: bool = True, first_s: float = inf,
           may_explore: bool = False) -> str:
    names = [one.name for one in options]
    return names[choose_tier(options, names.index(start), TimeLeft(left_s, first_s), down=down, may_explore=may_explore).at]


LADDER = [option("small", 0, end_s=0.5), option("large", 1, end_s=4), option("fast", 1, 2, end_s=2)]


@pytest.mark.parametrize(("left_s", "expected"), [(10, "large"), (3, "fast"), (1, "small"), (0.1, "small")])
def test_choice_takes_the_faster_service_tier_then_the_smaller_model(left_s: float, expected: str) -> None:
    assert choose(LADDER, "large", left_s) == expected


def test_choice_where_down_is_off_stays_at_the_skill() -> None:
    assert choose(LADDER, "large", 1, down=False) == "fast"  # none fits: the one that ends first


def test_choice_from_a_small_start_takes_a_larger_one_that_fits() -> None:
    options = [option("small", 0, end_s=5), option("large", 1, end_s=1)]
    assert choose(options, "small", 2) == "large"


def test_choice_avoids_a_tier_that_cannot_be_called() -> None:
    options = [option("small", 0, end_s=0.5), option("large", 1, end_s=1, pressure="full")]
    assert choose(options, "large", 5) == "small"
    assert choose([option("large", 1, end_s=1, pressure="full")], "large", 5) == "large"


def test_choice_observes_the_time_to_the_first_token() -> None:
    assert choose(LADDER, "large", 10, first_s=0.6) == "fast"  # a quarter of the end: 1 s, 0.5 s, 0.125 s
    assert choose(LADDER, "large", 10, first_s=0.2) == "small"


def test_unknown_tier_is_explored_only_with_time_for_the_next() -> None:
    options = [option("small", 0, end_s=0.5), option("large", 1)]
    assert choose(options, "large", 2, may_explore=True) == "large"
    assert choose(options, "large", 2, may_explore=False) == "small"
    assert choose(options, "large", 0.9, may_explore=True) == "small"
    assert choose([option("small", 0), option("large", 1)], "large", 2) == "large"


def test_reserve_is_the_predicted_time_of_the_next_tier() -> None:
    left, own = TimeLeft(2.5), option("large", 1, end_s=2)
    assert reserve_s(own, option("small", 0, end_s=0.8), left) == TimeLeft(with_margin_s(0.8), with_margin_s(0.2))
    assert with_margin_s(0.8) == pytest.approx(0.9)
    assert reserve_s(own, option("small", 0), left).end_s == 1.25
    assert reserve_s(own, option("huge", 2, end_s=9), left).end_s == 0


def test_reserve_never_leaves_a_tier_that_fits_before_it_could_answer() -> None:
    assert reserve_s(option("large", 1, end_s=0.9), option("small", 0, end_s=0.8), TimeLeft(1.0)).end_s == 0
    assert reserve_s(option("large", 1), option("small", 0, end_s=0.8), TimeLeft(1.0)).end_s == with_margin_s(0.8)


@given(option_lists(known=True), st.data(), times, times)
def test_choice_fits_whenever_an_allowed_tier_fits(options: list[TierOption], data: st.DataObject, end_s: float,
                                                   first_s: float) -> None:
    start, left, down = data.draw(st.integers(0, len(options) - 1)), TimeLeft(end_s, first_s), data.draw(st.booleans())
    found = choose_tier(options, start, left, down=down, may_explore=True)
    allowed = order_tiers(options, start, down=down)
    assert (found.fits is True) == any(fits(options[n], left) for n in allowed)
    assert {found.at, *found.then} == set(allowed)


@given(option_lists(), st.data(), times)
def test_choice_never_skips_a_smaller_tier_that_is_enough_and_fits(options: list[TierOption], data: st.DataObject,
                                                                   end_s: float) -> None:
    start, left = data.draw(st.integers(0, len(options) - 1)), TimeLeft(end_s)
    found = choose_tier(options, start, left, down=True, may_explore=False)
    chosen = options[found.at]
    for one in options if found.fits else ():
        is_enough = one.skill > options[start].skill or (one.skill == options[start].skill
                                                         and one.speed >= options[start].speed)
        if is_enough and not one.pressure and fits(one, left):
            assert (one.skill, one.speed) >= (chosen.skill, chosen.speed)


@given(option_lists(known=True), st.data(), times, times)
def test_choice_with_more_time_is_at_least_as_preferred(options: list[TierOption], data: st.DataObject, one_s: float,
                                                        other_s: float) -> None:
    start, down = data.draw(st.integers(0, len(options) - 1)), data.draw(st.booleans())
    order = order_tiers(options, start, down=down)
    less, more = [order.index(choose_tier(options, start, TimeLeft(left_s), down=down, may_explore=True).at)
                  for left_s in sorted((one_s, other_s))]
    if any(fits(options[n], TimeLeft(min(one_s, other_s))) for n in order):
        assert more <= less


@given(option_lists(), st.data(), times)
def test_choice_never_takes_a_tier_known_not_to_fit_when_one_fits(options: list[TierOption], data: st.DataObject,
                                                                  end_s: float) -> None:
    start, left = data.draw(st.integers(0, len(options) - 1)), TimeLeft(end_s)
    found = choose_tier(options, start, left, down=True, may_explore=data.draw(st.booleans()))
    if any(not one.pressure and fits(one, left) for one in options):
        assert found.fits is not False
        assert options[found.at].pressure == ""
