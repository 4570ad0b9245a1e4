"""policy/pick: by weights, by what is known of the prompt, by load; bounded, and the same for the same seed."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.routing.load_balancing import CandidateLoad, choose, weighted

SHARE = st.sampled_from([0.0, 0.4, 1.0])
UPSTREAM = st.tuples(st.floats(0, 50), SHARE, st.booleans(), st.floats(0, 1), st.floats(0.01, 20), st.floats(0.1, 10))
FLEET = st.lists(UPSTREAM, min_size=2, max_size=6)


@given(fleet=FLEET, max_load=st.floats(1, 10), seed=st.integers(0, 99), foresees=st.booleans(), has_weights=st.booleans())
def test_choose_affinity_respects_max_load(fleet: list[tuple[float, float, bool, float, float, float]], max_load: float, seed: int,
                             foresees: bool, has_weights: bool) -> None:
    """Everybody once; nobody that is left alone before one that is well; none chosen for what it knows has more than
    `max_load` times the least load; the same again with the same seed."""
    loads = [CandidateLoad(seconds, share, probe and share == 0) for seconds, share, probe, *_ in fleet]
    new_shares = [one[3] for one in fleet]
    waits_s = [one[4] for one in fleet] if foresees else []
    weights = [one[5] for one in fleet] if has_weights else []

    def picked(news: list[float]) -> list[int]:
        return choose(loads, weights, news, waits_s, max_load=max_load, rng=Random(seed))

    found = picked(new_shares)
    assert sorted(found) == list(range(len(fleet)))
    assert found == picked(new_shares)
    first = found[0]
    if loads[first].wants_probe:
        return
    if any(load.share == 1 for load in loads):
        assert loads[first].share > 0
    behind = [loads[index].share for index in found if not loads[index].wants_probe and loads[index].share in {0, 1}]
    assert behind == sorted(behind, reverse=True)
    if all(load.share == 1 for load in loads) and first != picked([])[0]:
        assert loads[first].seconds <= max_load * min(load.seconds for load in loads)


def test_choose_known_prefix_goes_first() -> None:
    """By what the rest of it would take there; the load decides where that is more."""
    loads, new_shares = [CandidateLoad(0.3), CandidateLoad(0.2), CandidateLoad(0.2)], [0.1, 1.0, 1.0]
    assert choose(loads, [], new_shares, [], max_load=6, rng=Random(1))[0] == 0
    assert choose(loads, [], new_shares, [0.05, 0.2, 0.2], max_load=6, rng=Random(1))[0] == 0
    assert choose(loads, [], new_shares, [0.5, 0.2, 0.2], max_load=6, rng=Random(1))[0] != 0
    assert choose([CandidateLoad(3.0), CandidateLoad(0.2), CandidateLoad(0.2)], [], new_shares, [0.05, 0.2, 0.2], max_load=6,
                  rng=Random(1))[0] != 0


def test_choose_equal_wait_prefers_cached() -> None:
    """A hosted API is as quick without its cache, and costs more."""
    assert choose([CandidateLoad(0.2), CandidateLoad(0.2)], [], [1.0, 0.2], [0.2, 0.21], max_load=6, rng=Random(1))[0] == 1


@pytest.mark.parametrize(("weights", "share"), [([9.0, 1.0], 0.9), ([1.0, 1.0], 0.5)])
def test_choose_shares_follow_weights(weights: list[float], share: float) -> None:
    """As long as everybody keeps up."""
    rng, loads = Random(1), [CandidateLoad(0.2), CandidateLoad(0.2)]
    firsts = Counter(choose(loads, weights, [], [], max_load=6, rng=rng)[0] for _ in range(4000))
    assert firsts[0] / 4000 == pytest.approx(share, abs=0.02)


def test_choose_overloaded_first_draw_is_skipped() -> None:
    """Whatever its weight; work counts by weight, so nine in flight at weight nine are no more than one at weight one."""
    weights = [9.0, 1.0]
    slow = [CandidateLoad(2.0), CandidateLoad(0.2)]
    assert {choose(slow, weights, [], [], max_load=6, rng=Random(seed))[0] for seed in range(50)} == {1}
    nine, one = weighted(CandidateLoad(0.2 * 10), 9, weights[0]), weighted(CandidateLoad(0.2 * 2), 1, weights[1])
    assert nine.seconds == pytest.approx(one.seconds)
