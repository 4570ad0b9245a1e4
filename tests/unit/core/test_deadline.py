"""core.deadline: one instant that bounds all waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.deadline import Deadline, Timeouts

INSTANTS = st.floats(0, 1e9)


@given(at=INSTANTS, now=INSTANTS, cap_s=st.floats(0, 1e6))
def test_deadline_within_never_exceeds_it(at: float, now: float, cap_s: float) -> None:
    """Whatever the cap: the wait ends at the deadline at the latest, and what remains is never negative."""
    deadline = Deadline(at)
    assert deadline.end_of_wait(cap_s, now) <= at
    assert deadline.remaining_s(now) >= 0


@given(a=INSTANTS, b=INSTANTS)
def test_deadline_earlier_takes_the_minimum(a: float, b: float) -> None:
    """Budgets nest by min()."""
    assert Deadline(a).min_with(Deadline(b)).at == min(a, b)


@pytest.mark.parametrize("name", ["total_s", "first_token_s", "idle_s", "connect_s"])
@pytest.mark.parametrize("wrong", [0, -1, 90_000, float("nan")])
def test_timeouts_out_of_bounds_are_rejected(name: str, wrong: float) -> None:
    """The message names the setting."""
    with pytest.raises(ValueError, match=name):
        Timeouts(**{name: wrong})
