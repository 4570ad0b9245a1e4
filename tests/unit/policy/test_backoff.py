"""policy.backoff: waits after failures in a row."""

from random import Random

import pytest

from stayfast.policy.resilience.retry import backoff_s


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
