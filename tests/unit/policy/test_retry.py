"""policy.retry: who may try again, and when."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.resilience.retry import RetryConfig, patience_s, wait_before_next

CONFIG = RetryConfig(max_attempts=3, base_s=0.1, cap_s=0.3, min_left_s=0.05)


@given(n_made=st.integers(1, 20), remaining_s=st.floats(0, 100), alone_s=st.floats(0, 100), is_fresh=st.booleans(),
       seed=st.integers(0, 99))
def test_wait_before_next_always_fits_deadline(n_made: int, remaining_s: float, alone_s: float, is_fresh: bool, seed: int) -> None:
    """Whatever the samples: within the count, within the time that is left, within the jitter's ceiling."""
    wait_s = wait_before_next(CONFIG, n_made, remaining_s, Random(seed), is_fresh=is_fresh, alone_s=alone_s, least_s=0.2)
    if wait_s is None:
        return
    assert n_made < CONFIG.max_attempts
    assert wait_s + 0.2 <= remaining_s
    assert 0 <= wait_s <= max(min(CONFIG.cap_s, CONFIG.base_s * 2 ** (n_made - 1)), alone_s)
    assert wait_s >= (0 if is_fresh else alone_s)


def test_wait_before_next_fresh_upstream_is_immediate() -> None:
    """An upstream that is well and was not asked: at once."""
    assert wait_before_next(CONFIG, 1, 10, Random(1), is_fresh=True) == 0.0


def test_wait_before_next_honours_retry_after() -> None:
    """Not before it asked to be asked again; not at all where that is too late."""
    wait_s = wait_before_next(CONFIG, 1, 10, Random(1), alone_s=5)
    assert wait_s is not None
    assert wait_s >= 5
    assert wait_before_next(CONFIG, 1, 5, Random(1), alone_s=5) is None


def test_wait_before_next_has_full_jitter() -> None:
    """Waits spread over the whole range from 0 to the ceiling, not around it."""
    rng = Random(3)
    waits = [wait_before_next(CONFIG, 2, 10, rng) or 0.0 for _ in range(1000)]
    assert min(waits) < 0.01
    assert max(waits) > 0.19
    assert max(waits) <= 0.2


@pytest.mark.parametrize("wrong", [{"max_attempts": 0}, {"max_attempts": 11}, {"base_s": 0}, {"base_s": 9, "cap_s": 1},
                                   {"cap_s": 61}, {"min_left_s": -1}])
def test_retry_config_out_of_bounds_is_rejected(wrong: dict[str, float]) -> None:
    """Nonsense is refused at construction."""
    with pytest.raises(ValueError, match="must"):
        RetryConfig(**wrong)  # type: ignore[arg-type]


def test_patience_s_is_bounded() -> None:
    """By the setting over all waits of a request, and by a quarter of what is left."""
    assert patience_s(CONFIG, 600) == CONFIG.max_wait_s
    assert patience_s(CONFIG, 600, waited_s=3) == CONFIG.max_wait_s - 3
    assert patience_s(CONFIG, 8) == 2.0
    assert patience_s(CONFIG, 600, waited_s=99) == patience_s(CONFIG, -1) == 0.0
    assert patience_s(RetryConfig(max_wait_s=0), 600) == 0.0
