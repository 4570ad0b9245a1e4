"""policy.routing.load_balancing: the order of upstreams, and their loads."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.routing.load_balancing import (
    MAX_WORK,
    CandidateLoad,
    LatencyEstimate,
    PrefillBacklog,
    draw_less_loaded,
    order_as_listed,
    order_by_load,
    order_by_weight,
    weigh_load,
)

LOADS = st.lists(st.builds(CandidateLoad, st.floats(0, 100), st.sampled_from([0.0, 0.3, 1.0]), st.booleans()), max_size=6)


@given(loads=LOADS, seed=st.integers(0, 1000))
def test_order_lists_each_once_healthy_first(loads: list[CandidateLoad], seed: int) -> None:
    """Both orders name every candidate once; without a probe the first one is well, as long as anybody is."""
    for pick in (order_by_load, order_as_listed):
        picked = pick(loads, Random(seed))
        assert sorted(picked) == list(range(len(loads)))
        if any(load.share == 1 for load in loads) and not any(load.needs_probe for load in loads):
            assert loads[picked[0]].share > 0


def test_in_turn_keeps_listed_order() -> None:
    """The listed order, unhealthy upstreams last."""
    assert order_as_listed([CandidateLoad(9), CandidateLoad(1, 0.0), CandidateLoad(2)], Random(1)) == [0, 2, 1]


def test_order_probe_goes_first() -> None:
    """Once, whatever its load: that request finds out whether it works again."""
    loads = [CandidateLoad(1), CandidateLoad(1), CandidateLoad(9, 0.0, needs_probe=True)]
    assert (order_by_load(loads, Random(1))[0], order_as_listed(loads, Random(1))[0]) == (2, 2)


def test_able_all_unhealthy_returns_all() -> None:
    """If all upstreams are unhealthy, the least loaded one is tried."""
    assert order_by_load([CandidateLoad(5, 0.0), CandidateLoad(1, 0.0)], Random(1)) == [1, 0]
    assert order_as_listed([CandidateLoad(5, 0.0), CandidateLoad(1, 0.0)], Random(1)) == [0, 1]


def test_order_less_load_goes_first() -> None:
    """Of two, the one with less."""
    assert order_by_load([CandidateLoad(5), CandidateLoad(1)], Random(1)) == [1, 0]


def test_order_equal_loads_share_evenly() -> None:
    """No candidate is favoured."""
    rng = Random(1)
    firsts = Counter(order_by_load([CandidateLoad(0)] * 3, rng)[0] for _ in range(3000))
    assert min(firsts.values()) > 900


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=7), st.integers(0, 2**32))
def test_less_of_two_draws_like_random_sample(seconds: list[float], seed: int) -> None:
    """The same two, from the same randomness: runs of a seed stay what they were."""
    rng, other = Random(seed), Random(seed)
    loads, those = [CandidateLoad(each) for each in seconds], list(range(len(seconds)))
    drawn = other.sample(those, min(2, len(those)))
    assert draw_less_loaded(loads, those, rng) == min(drawn, key=lambda index: loads[index].seconds)
    assert rng.random() == other.random()


def test_able_recovering_upstream_gets_its_share() -> None:
    """A tenth of the requests at first, with another one that is well."""
    rng = Random(1)
    firsts = Counter(order_as_listed([CandidateLoad(0, 0.1), CandidateLoad(9)], rng)[0] for _ in range(3000))
    assert 200 < firsts[0] < 400


def test_latency_estimate_peak_rises_at_once_and_decays() -> None:
    """At a slow sample at once, then to what is usual; a failure is no quick answer; nothing known: one at a time."""
    pace = LatencyEstimate()
    assert (pace.load_s(0, 0.0, 0.0), pace.load_s(3, 0.0, 0.0)) == (0.0, 3.0)
    pace.add_sample(0.2, 0.2, 1.0)
    assert pace.load_s(1, 0.2, 1.0) == pytest.approx(0.4)
    pace.add_sample(2.0, 0.2, 1.0)
    assert pace.load_s(0, 0.2, 1.0) == pytest.approx(2.0)
    assert pace.load_s(0, 0.2, 11.0) == pytest.approx(0.2 + 1.8 / 2.718281828)
    assert pace.load_s(0, 0.2, 1000.0) == pytest.approx(0.2)
    pace.record_failure(0.2, 1000.0)
    assert pace.load_s(0, 0.2, 1000.0) == pytest.approx(0.4)


def test_latency_estimate_unanswered_call_raises_load() -> None:
    """One call in vain counts as one that runs, and is forgotten; once a pace is known it is nothing."""
    pace = LatencyEstimate()
    pace.record_unanswered(5.0)
    assert pace.load_s(0, 0.0, 5.0) == 1.0
    assert pace.load_s(1, 0.0, 15.0) == pytest.approx(1 + 1 / 2.718281828)
    assert pace.load_s(0, 0.0, 100.0) < 0.01
    pace.add_sample(0.2, 0.2, 100.0)
    pace.record_unanswered(200.0)
    assert pace.load_s(0, 0.2, 200.0) == pytest.approx(0.2)


def test_prefill_backlog_counts_prompts_longer_than_usual() -> None:
    """Prompts alike are none; a long one is as many as it is long, up to a bound; each is taken off as it was put on."""
    backlog = PrefillBacklog()
    assert [backlog.start_call(100) for _ in range(100)] == [0.0] * 100
    ten, huge = backlog.start_call(1000), backlog.start_call(1e9)
    assert (round(ten), huge) == (8, MAX_WORK - 1)
    assert backlog.start_call(10) == 0
    assert backlog.work == ten + huge
    backlog.end_prefill(huge)
    backlog.end_prefill(ten)
    assert backlog.work == pytest.approx(0, abs=1e-9)


@given(st.lists(st.floats(0, 1e9), max_size=50))
def test_prefill_backlog_ended_calls_leave_nothing(prompts: list[float]) -> None:
    """Whatever came: once all is read, nothing is left, and it was never below that."""
    backlog = PrefillBacklog()
    for work in [backlog.start_call(n_tokens) for n_tokens in prompts]:
        assert 0 <= work < MAX_WORK
        assert backlog.work >= 0
        backlog.end_prefill(work)
    assert backlog.work == pytest.approx(0, abs=1e-6)


def test_latency_estimate_lost_call_is_a_lower_bound() -> None:
    """A lost race raises the pace, and never lowers it."""
    pace = LatencyEstimate()
    pace.add_sample(1.0, 0.2, 0.0)
    pace.add_lower_bound(0.5, 0.2, 0.0)
    assert pace.load_s(0, 0.2, 0.0) == pytest.approx(1.0)
    pace.add_lower_bound(3.0, 0.2, 0.0)
    assert pace.load_s(0, 0.2, 0.0) == pytest.approx(3.0)


def test_latency_estimate_many_failures_are_bounded() -> None:
    """Thousands of refusals double the pace no further than to a minute, from which it comes back."""
    pace = LatencyEstimate()
    pace.add_sample(0.5, 0.5, 0.0)
    for number in range(5000):
        pace.record_failure(0.5, number / 1000)
    assert pace.load_s(0, 0.5, 5.0) == pytest.approx(60, rel=0.01)
    assert pace.load_s(0, 0.5, 100.0) < 0.51


SHARE = st.sampled_from([0.0, 0.4, 1.0])
UPSTREAM = st.tuples(st.floats(0, 50), SHARE, st.booleans(), st.floats(0, 1), st.floats(0.01, 20), st.floats(0.1, 10))
FLEET = st.lists(UPSTREAM, min_size=2, max_size=6)


@given(fleet=FLEET, seed=st.integers(0, 99), has_weights=st.booleans())
def test_order_by_weight_lists_unhealthy_last(fleet: list[tuple[float, float, bool, float, float, float]], seed: int, *,
                                              has_weights: bool) -> None:
    """Every candidate once, unhealthy ones behind, and the same again with the same seed."""
    loads = [CandidateLoad(seconds, share, probe and share == 0) for seconds, share, probe, *_ in fleet]
    weights = [one[5] for one in fleet] if has_weights else []
    found = order_by_weight(loads, weights, Random(seed))
    assert sorted(found) == list(range(len(fleet)))
    assert found == order_by_weight(loads, weights, Random(seed))
    behind = [loads[index].share for index in found if not loads[index].needs_probe and loads[index].share in {0, 1}]
    assert behind == sorted(behind, reverse=True)


@pytest.mark.parametrize(("weights", "share"), [([9.0, 1.0], 0.9), ([1.0, 1.0], 0.5)])
def test_choose_shares_follow_weights(weights: list[float], share: float) -> None:
    """As long as all keep up."""
    rng, loads = Random(1), [CandidateLoad(0.2), CandidateLoad(0.2)]
    firsts = Counter(order_by_weight(loads, weights, rng)[0] for _ in range(4000))
    assert firsts[0] / 4000 == pytest.approx(share, abs=0.02)


def test_choose_overloaded_first_draw_is_skipped() -> None:
    """Whatever its weight; work counts by weight, so nine in flight at weight nine are no more than one at weight one."""
    weights = [9.0, 1.0]
    slow = [CandidateLoad(2.0), CandidateLoad(0.2)]
    assert {order_by_weight(slow, weights, Random(seed))[0] for seed in range(50)} == {1}
    nine, one = weigh_load(CandidateLoad(0.2 * 10), 9, weights[0]), weigh_load(CandidateLoad(0.2 * 2), 1, weights[1])
    assert nine.seconds == pytest.approx(one.seconds)
