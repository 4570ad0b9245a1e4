"""policy.resilience.retry: back-off and waits before retries."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.resilience.retry import RetryConfig, backoff_s, longest_wait_s, wait_before_next

CONFIG = RetryConfig(max_attempts=3, backoff_base_s=0.1, backoff_cap_s=0.3, min_remaining_s=0.05)


@given(n_made=st.integers(1, 20), remaining_s=st.floats(0, 100), alone_s=st.floats(0, 100), is_fresh=st.booleans(),
       seed=st.integers(0, 99))
def test_wait_before_next_always_fits_deadline(n_made: int, remaining_s: float, alone_s: float, is_fresh: bool,
                                               seed: int) -> None:
    """Whatever the samples: within the count, within the time that is left, within the jitter's ceiling."""
    wait_s = wait_before_next(CONFIG, n_made, remaining_s, Random(seed), is_fresh=is_fresh, retry_after_s=alone_s,
                              min_attempt_s=0.2)
    if wait_s is None:
        return
    assert n_made < CONFIG.max_attempts
    assert wait_s + 0.2 <= remaining_s
    assert 0 <= wait_s <= max(min(CONFIG.backoff_cap_s, CONFIG.backoff_base_s * 2 ** (n_made - 1)), alone_s)
    assert wait_s >= (0 if is_fresh else alone_s)


def test_wait_before_next_fresh_upstream_is_immediate() -> None:
    """A healthy upstream not tried yet: at once."""
    assert wait_before_next(CONFIG, 1, 10, Random(1), is_fresh=True) == 0.0


def test_wait_before_next_honours_retry_after() -> None:
    """Not before the Retry-After ends; not at all if that is too late."""
    wait_s = wait_before_next(CONFIG, 1, 10, Random(1), retry_after_s=5)
    assert wait_s is not None
    assert wait_s >= 5
    assert wait_before_next(CONFIG, 1, 5, Random(1), retry_after_s=5) is None


def test_wait_before_next_has_full_jitter() -> None:
    """Waits spread over the whole range from 0 to the ceiling, not around it."""
    rng = Random(3)
    waits = [wait_before_next(CONFIG, 2, 10, rng) or 0.0 for _ in range(1000)]
    assert min(waits) < 0.01
    assert max(waits) > 0.19
    assert max(waits) <= 0.2


@pytest.mark.parametrize("wrong", [{"max_attempts": 0}, {"max_attempts": 11}, {"backoff_base_s": 0},
                                   {"backoff_base_s": 9, "backoff_cap_s": 1},
                                   {"backoff_cap_s": 61}, {"min_remaining_s": -1}])
def test_retry_config_out_of_bounds_is_rejected(wrong: dict[str, float]) -> None:
    """Nonsense is refused at construction."""
    with pytest.raises(ValueError, match="must"):
        RetryConfig(**wrong)  # type: ignore[arg-type]


def test_patience_s_is_bounded() -> None:
    """By the setting over all waits of a request, and by a quarter of what is left."""
    assert longest_wait_s(CONFIG, 600) == CONFIG.max_retry_after_s
    assert longest_wait_s(CONFIG, 600, waited_s=3) == CONFIG.max_retry_after_s - 3
    assert longest_wait_s(CONFIG, 8) == 2.0
    assert longest_wait_s(CONFIG, 600, waited_s=99) == longest_wait_s(CONFIG, -1) == 0.0
    assert longest_wait_s(RetryConfig(max_retry_after_s=0), 600) == 0.0


class _Dice(Random):
    """An rng whose every draw is the given share of its range."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self._share


@pytest.mark.parametrize(("n_failures", "share", "delay_s"), [
    (1, 0.0, 0.125), (1, 1.0, 0.25), (2, 0.0, 0.25), (2, 1.0, 0.5), (3, 0.5, 0.75), (7, 1.0, 16.0), (8, 1.0, 30.0),
    (8, 0.0, 15.0), (5_000, 1.0, 30.0),
])
def test_backoff_equal_jitter_keeps_half_the_pause(n_failures: int, share: float, delay_s: float) -> None:
    """Base 0.25 s doubles to the cap of 30 s; the lower half is fixed, the upper half drawn."""
    assert backoff_s(n_failures, 0.25, 30.0, _Dice(share), jitter=0.5) == delay_s


@pytest.mark.parametrize(("n_failures", "share", "delay_s"), [(1, 0.0, 0.0), (1, 1.0, 0.1), (3, 0.5, 0.2), (90, 1.0, 5.0)])
def test_backoff_full_jitter_spreads_over_the_ceiling(n_failures: int, share: float, delay_s: float) -> None:
    """Any wait up to the ceiling may be drawn."""
    assert backoff_s(n_failures, 0.1, 5.0, _Dice(share)) == pytest.approx(delay_s)


def test_backoff_without_rng_is_the_ceiling() -> None:
    """Each wait is the ceiling; the factor is a choice."""
    assert [backoff_s(n, 1.0, 15.0) for n in (1, 2, 3, 4, 5, 10_000)] == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    assert [backoff_s(n, 0.01, 0.1, factor=1.5) for n in (1, 2, 50)] == [0.01, 0.015, 0.1]


def test_backoff_zero_failures_is_rejected() -> None:
    """No failure, no wait."""
    with pytest.raises(ValueError, match="at least 1, not 0"):
        backoff_s(0, 0.25, 30.0, Random(1))
