"""When credentials are renewed."""

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.credentials.renewal import RenewalConfig, wait_after_failure_s, wait_before_renewal_s

CONFIG = RenewalConfig()


@given(left_s=st.floats(1.25, 200_000), seed=st.integers(0, 1000))
def test_renewal_falls_between_72_and_80_percent_of_the_life(left_s: float, seed: int) -> None:
    wait_s = wait_before_renewal_s(CONFIG, left_s, Random(seed))
    assert max(1.0, 0.72 * left_s) - 1e-6 <= wait_s <= max(1.0, 0.8 * left_s)


def test_renewal_same_credential_again_is_fetched_a_few_times_per_life() -> None:
    """A metadata server that caches its token of an hour is not called in a loop near its end."""
    rng, left_s, n = Random(1), 3600.0, 0
    while left_s > 5:
        left_s, n = left_s - wait_before_renewal_s(CONFIG, left_s, rng), n + 1
    assert n <= 6


def test_renewal_of_a_credential_without_an_end_rereads_it() -> None:
    assert 810 <= wait_before_renewal_s(CONFIG, inf, Random(1)) <= 900


@given(n_failed=st.integers(1, 10_000), seed=st.integers(0, 100))
def test_failures_back_off_to_a_minute(n_failed: int, seed: int) -> None:
    ceiling_s = min(60.0, 2.0 ** min(n_failed - 1, 10))
    assert ceiling_s / 2 <= wait_after_failure_s(CONFIG, n_failed, Random(seed)) <= ceiling_s


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"share": 1.1}, {"jitter": 1.0}, {"jitter": -0.1}, {"min_wait_s": 0.0},
                                   {"max_backoff_s": 0.5}, {"reread_s": 0.0}])
def test_config_outside_bounds_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RenewalConfig(**wrong)
