"""The exact interval of a share, against published values and against the definition."""

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.cache.calibration import beta_quantile, beta_share, is_at_most, lower, upper


@pytest.mark.parametrize(("x", "n", "confidence", "low", "high"), [
    (0, 59, 0.95, 0.0, 0.04951),  # 1 - 0.05 ** (1 / 59)
    (0, 299, 0.95, 0.0, 0.00997),
    (2, 10, 0.975, 0.02521, 0.55610),  # two-sided 95 %, as in any table
    (5, 100, 0.975, 0.01643, 0.11283),
    (10, 10, 0.95, 0.74113, 1.0),
])
def test_bounds_match_published_intervals(x: int, n: int, confidence: float, low: float, high: float) -> None:
    """Values of published tables."""
    assert lower(x, n, confidence) == pytest.approx(low, abs=1e-5)
    assert upper(x, n, confidence) == pytest.approx(high, abs=1e-5)


@given(st.integers(1, 60), st.floats(0.01, 0.99), st.data())
def test_beta_share_equals_binomial_tail(n: int, share: float, data: st.DataObject) -> None:
    """I_q(x + 1, n - x) is the probability of more than x of n."""
    x = data.draw(st.integers(0, n - 1))
    tail = sum(comb(n, k) * share**k * (1 - share)**(n - k) for k in range(x + 1, n + 1))
    assert beta_share(share, x + 1, n - x) == pytest.approx(tail, abs=1e-9)


@given(st.floats(0.01, 0.99), st.floats(0.5, 3000), st.floats(0.5, 3000))
def test_beta_quantile_inverts_beta_share(share: float, a: float, b: float) -> None:
    """So much lies below it."""
    assert beta_share(beta_quantile(share, a, b), a, b) == pytest.approx(share, abs=1e-6)


@given(st.floats(0, 50), st.floats(50, 5000), st.floats(0.001, 0.5))
def test_is_at_most_agrees_with_upper_bound(x: float, n: float, share: float) -> None:
    """`is_at_most` is `upper(...) <= share`, but for the rounding."""
    bound = upper(x, n)
    if abs(bound - share) > 1e-9:
        assert is_at_most(share, x, n) == (bound <= share)


def test_beta_share_outside_unit_interval_is_0_or_1() -> None:
    """Shares of 0 and 1, and all wrong."""
    assert (beta_share(0.0, 2, 3), beta_share(1.0, 2, 3)) == (0.0, 1.0)
    assert (upper(3, 3), lower(0, 3)) == (1.0, 0.0)
    assert not is_at_most(0.5, 3, 3)
