"""The records of a route's tiers."""

import pytest

from stayfast.policy.tiers.config import TierConfig, TierEntry, TierLadder, read_served

SMALL, LARGE = TierEntry("small", ("a",), "s"), TierEntry("large", ("b",), "l")


def test_ladder_with_a_start_among_its_names_is_valid() -> None:
    assert TierLadder((SMALL, LARGE), TierConfig(start="large")).config.start == "large"


@pytest.mark.parametrize(("entries", "config", "field"), [
    ((SMALL, SMALL), TierConfig(), "tiers"),
    ((SMALL, LARGE), TierConfig(start="tiny"), "tier.start"),
    ((), TierConfig(hedge_up=True), "tier"),
    ((SMALL, TierEntry("same", ("a",), "s", "standard")), TierConfig(), "tiers"),
])
def test_ladder_contradiction_begins_with_its_field(entries: tuple[TierEntry, ...], config: TierConfig, field: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field} "):
        TierLadder(entries, config)


@pytest.mark.parametrize(("word", "speed"), [("default", "standard"), ("priority", "fast"), ("FLEX", "flex"), ("auto", ""),
                                             ("ultrafast", "ultrafast"), ("", "")])
def test_served_tier_of_a_provider_is_one_of_the_speeds(word: str, speed: str) -> None:
    assert read_served(word) == speed
