"""policy.cache.freshness: which answers may be served again."""

from typing import Any

import pytest

from stayfast.core.types import CacheControl
from stayfast.policy.cache.freshness import CacheConfig, is_too_random, max_fresh_age_s, merge_directives


@pytest.mark.parametrize(("temperature", "is_seeded", "is_warm"), [
    (0.0, False, False), (0.3, False, False), (0.31, False, True), (None, False, True), (None, True, False),
    (2.0, True, False)])
def test_is_too_warm_cold_or_seeded_is_cacheable(temperature: float | None, is_seeded: bool, is_warm: bool) -> None:
    """Without a temperature the provider's own counts, which is 1."""
    assert is_too_random(CacheConfig("exact"), temperature, is_seeded=is_seeded) is is_warm


def test_is_too_warm_max_temperature_1_accepts_default() -> None:
    """max_temperature 1 takes requests that say nothing; 2 takes all."""
    assert not is_too_random(CacheConfig("exact", max_temperature=1), None, is_seeded=False)
    assert not is_too_random(CacheConfig("exact", max_temperature=2), 2.0, is_seeded=False)


def test_fresh_for_s_client_max_age_only_shortens() -> None:
    """max-age shortens the route's time, and never lengthens it."""
    config = CacheConfig("exact", ttl_s=100)
    assert max_fresh_age_s(config, None) == 100
    assert max_fresh_age_s(config, CacheControl(max_age_s=10)) == 10
    assert max_fresh_age_s(config, CacheControl(max_age_s=1000)) == 100


def test_stricter_combines_directives() -> None:
    """A header and a body may both say something."""
    both = merge_directives(CacheControl(no_cache=True, max_age_s=9), CacheControl(only_if_cached=True, max_age_s=5))
    assert both == CacheControl(no_cache=True, only_if_cached=True, max_age_s=5)
    kept = merge_directives(CacheControl(keep_s=9, namespace="a"), CacheControl(keep_s=5, max_age_s=3, namespace="b"))
    assert kept == CacheControl(keep_s=5, max_age_s=3, namespace="a")
    assert merge_directives(None, both) == both == merge_directives(both, None)
    assert merge_directives(None, None) is None


@pytest.mark.parametrize("wrong", [{"mode": "on"}, {"ttl_s": 0}, {"max_temperature": 3}, {"max_answer_bytes": 5},
                                   {"max_bytes": 2048}])
def test_cache_config_out_of_bounds_is_rejected(wrong: dict[str, Any]) -> None:
    """Each by its name."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CacheConfig(**wrong)


def test_cache_config_contradiction_names_both_values() -> None:
    """The second value is the default, which does not appear in the file."""
    with pytest.raises(ValueError, match=r"max_answer_bytes must be at most max_bytes \(2048\), not 1048576$"):
        CacheConfig(max_bytes=2048)
