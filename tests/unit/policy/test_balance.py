"""policy.balance: power of two choices, with the failing ones last but never gone."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.balance import Load, in_turn, order

LOADS = st.lists(st.builds(Load, st.booleans(), st.integers(0, 50)), max_size=8)


@given(loads=LOADS, seed=st.integers(0, 99))
def test_every_candidate_is_tried_once(loads: list[Load], seed: int) -> None:
    """The order is a permutation: none is taken out, none comes twice."""
    assert sorted(order(loads, Random(seed))) == list(range(len(loads)))


@given(loads=LOADS, seed=st.integers(0, 99))
def test_a_healthy_one_goes_first_if_there_is_one(loads: list[Load], seed: int) -> None:
    """Failing upstreams are asked only when no other is left."""
    picked = order(loads, Random(seed))
    if any(not load.is_failing for load in loads):
        assert not loads[picked[0]].is_failing


@given(loads=LOADS)
def test_in_turn_keeps_the_list_but_for_the_failing(loads: list[Load]) -> None:
    """Healthy ones as listed, then failing ones as listed; load does not matter."""
    healthy = [index for index, load in enumerate(loads) if not load.is_failing]
    assert in_turn(loads) == healthy + [index for index, load in enumerate(loads) if load.is_failing]


def test_of_two_the_idle_one_goes_first() -> None:
    """With two candidates the choice is exact."""
    assert order([Load(False, 5), Load(False, 1)], Random(1)) == [1, 0]


def test_ties_are_spread() -> None:
    """Equally loaded candidates share the requests."""
    rng = Random(5)
    firsts = Counter(order([Load(False, 0)] * 3, rng)[0] for _ in range(3000))
    assert all(800 < n < 1200 for n in firsts.values())
