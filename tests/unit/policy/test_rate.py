"""policy.rate: nothing passes that the bucket does not hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.admission.quota import Bucket


def test_bucket_refills_evenly_to_capacity() -> None:
    """What was taken comes back at the rate, and no more than fits."""
    bucket = Bucket(10, 2, now=0)
    assert bucket.take(10, 0)
    assert not bucket.take(1, 0.4)
    assert bucket.take(1, 0.5)
    assert bucket.level(100) == 10


def test_bucket_refused_take_changes_nothing() -> None:
    """Who is refused does not make others wait."""
    bucket = Bucket(10, 1, now=0)
    assert not bucket.take(11, 0)
    assert bucket.take(10, 0)


def test_bucket_wait_s_is_exact() -> None:
    """After the wait it is there, a moment earlier it is not; above the capacity it never will be."""
    bucket = Bucket(10, 4, now=0)
    bucket.take(10, 0)
    wait_s = bucket.wait_s(6, 0)
    assert wait_s == 1.5
    assert not bucket.has(6, 1.499)
    assert bucket.has(6, 1.5)
    assert bucket.wait_s(11, 0) is None
    assert bucket.full_in_s(1.5) == 1.0


def test_bucket_charge_may_leave_debt() -> None:
    """An estimate that was too low is charged in full; one that was too high comes back, but not above the capacity."""
    bucket = Bucket(10, 1, now=0)
    bucket.take(5, 0)
    bucket.charge(20, 0)
    assert bucket.level(0) == -15
    assert bucket.wait_s(1, 0) == 16
    bucket.charge(-100, 0)
    assert bucket.level(0) == 10


@pytest.mark.parametrize(("capacity", "per_s"), [(0, 1), (1, 0), (-1, 1), (float("nan"), 1)])
def test_bucket_invalid_limits_are_rejected(capacity: float, per_s: float) -> None:
    """A bucket that holds nothing or never refills is a mistake."""
    with pytest.raises(ValueError, match="more than 0"):
        Bucket(capacity, per_s, 0)


@given(capacity=st.floats(1, 1000), per_s=st.floats(0.1, 100),
       asks=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 500)), max_size=60))
def test_bucket_never_admits_more_than_its_bound(capacity: float, per_s: float, asks: list[tuple[float, float]]) -> None:
    """In every window of t seconds at most capacity + t * per_s passes, whatever is asked when."""
    bucket, now = Bucket(capacity, per_s, 0), 0.0
    admitted: list[tuple[float, float]] = []
    for wait_s, cost in asks:
        now += wait_s
        if bucket.take(cost, now):
            admitted.append((now, cost))
    for first, (since, _) in enumerate(admitted):
        total = 0.0
        for at, cost in admitted[first:]:
            total += cost
            assert total <= capacity + (at - since) * per_s + 1e-6


@given(st.floats(1, 1000), st.floats(0.1, 100), st.floats(0, 1000), st.floats(0, 1000))
def test_bucket_after_wait_s_take_succeeds(capacity: float, per_s: float, taken: float, wanted: float) -> None:
    """`wait_s` never tells too short a time."""
    bucket = Bucket(capacity, per_s, 0)
    bucket.take(taken, 0)
    wait_s = bucket.wait_s(wanted, 0)
    assert (wait_s is None) == (wanted > capacity)
    if wait_s is not None:
        assert bucket.level(wait_s + 1e-6) >= wanted - 1e-6 * per_s
