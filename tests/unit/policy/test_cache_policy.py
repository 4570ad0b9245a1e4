"""Which answers may be given twice, and for how long."""

from typing import Any

import pytest

from stayfast.core.types import CacheControl
from stayfast.policy.cache.freshness import CacheConfig, fresh_for_s, is_too_warm, stricter


@pytest.mark.parametrize(("temperature", "is_seeded", "is_warm"), [
    (0.0, False, False), (0.3, False, False), (0.31, False, True), (None, False, True), (None, True, False),
    (2.0, True, False)])
def test_only_cold_or_seeded_drawings_stand_for_the_next(temperature: float | None, is_seeded: bool, is_warm: bool) -> None:
    """Without a temperature the provider's own counts, which is 1."""
    assert is_too_warm(CacheConfig("exact"), temperature, is_seeded=is_seeded) is is_warm


def test_an_operator_may_take_every_drawing() -> None:
    """max_temperature 1 takes requests that say nothing; 2 takes all."""
    assert not is_too_warm(CacheConfig("exact", max_temperature=1), None, is_seeded=False)
    assert not is_too_warm(CacheConfig("exact", max_temperature=2), 2.0, is_seeded=False)


def test_the_client_can_only_make_it_stricter() -> None:
    """max-age shortens the route's time, and never lengthens it."""
    config = CacheConfig("exact", ttl_s=100)
    assert fresh_for_s(config, None) == 100
    assert fresh_for_s(config, CacheControl(max_age_s=10)) == 10
    assert fresh_for_s(config, CacheControl(max_age_s=1000)) == 100


def test_of_two_wishes_the_stricter_one_holds() -> None:
    """A header and a body may both say something."""
    both = stricter(CacheControl(no_cache=True, max_age_s=9), CacheControl(only_if_cached=True, max_age_s=5))
    assert both == CacheControl(no_cache=True, only_if_cached=True, max_age_s=5)
    kept = stricter(CacheControl(keep_s=9, namespace="a"), CacheControl(keep_s=5, max_age_s=3, namespace="b"))
    assert kept == CacheControl(keep_s=5, max_age_s=3, namespace="a")
    assert stricter(None, both) == both == stricter(both, None)
    assert stricter(None, None) is None


@pytest.mark.parametrize("wrong", [{"mode": "on"}, {"ttl_s": 0}, {"max_temperature": 3}, {"max_answer_bytes": 5},
                                   {"max_bytes": 2048}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    """Each by its name."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CacheConfig(**wrong)


def test_both_values_of_a_contradiction_are_named() -> None:
    """The one that is not said is the default, which nobody has in his file."""
    with pytest.raises(ValueError, match=r"max_answer_bytes must be at most max_bytes \(2048\), not 1048576$"):
        CacheConfig(max_bytes=2048)
