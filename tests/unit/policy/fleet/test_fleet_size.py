"""The number of gateways for limits."""

from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.fleet.fleet_size import SETTLED_S, FleetSize


def test_join_counts_at_once_and_leave_after_a_while() -> None:
    size = FleetSize()
    assert size.observe(3, 0.0) == 1 / 3
    assert size.observe(2, 1.0) == 1.0
    assert size.observe(2, 1.0 + SETTLED_S - 0.1) == 1.0
    assert size.observe(2, 1.0 + SETTLED_S) == 1.5
    assert size.n == 2


def test_interrupted_observation_starts_again() -> None:
    """After an outage, the gateways come back one after another."""
    size = FleetSize()
    size.observe(4, 0.0)
    size.observe(1, 1.0)
    size.interrupt()
    assert size.observe(1, 20.0) == 1.0
    assert size.observe(4, 21.0) == 1.0
    assert size.observe(3, 22.0) == 1.0
    assert size.n == 4


def test_smaller_number_is_the_highest_observed() -> None:
    size = FleetSize()
    size.observe(4, 0.0)
    for second, n in enumerate((1, 3, 1, 2, 1, 1, 1, 1, 1, 1, 1)):
        factor = size.observe(n, 1.0 + second)
    assert (size.n, factor) == (3, 4 / 3)


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 30)), max_size=40))
def test_factors_multiply_to_the_number(observations: list[tuple[int, float]]) -> None:
    """So the sum of the limits stays the same over joins and leaves."""
    size, now, product = FleetSize(), 0.0, 1.0
    for n, later_s in observations:
        now += later_s
        product *= size.observe(n, now)
        assert size.n >= 1
    assert abs(product * size.n - 1.0) < 1e-9
