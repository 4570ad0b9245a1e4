"""policy/routing/replica_cost: the replica with the prefix goes first until its queue takes longer than the prefill."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.engine_signals import EngineSignals
from stayfast.policy.routing.load_balancing import CandidateLoad
from stayfast.policy.routing.replica_cost import (
    DECODE_TOKENS,
    FAILED_S,
    FailurePenalty,
    ReplicaWork,
    costs_s,
    foreign_work,
    order_by_cost,
)

CALM = [CandidateLoad(0.1), CandidateLoad(0.1)]


def work(cached: float = 0.0, ahead: float = 0.0, n_running: float = 0.0, rate: float | None = 10_000.0) -> ReplicaWork:
    return ReplicaWork(cached, ahead, n_running, rate)


def first_of(*works: ReplicaWork, n_prompt: float = 8000.0, owner: int | None = None) -> int:
    loads = [CandidateLoad(0.1)] * len(works)
    return order_by_cost(loads, costs_s(works, n_prompt), owner, Random(1))[0]


def test_costs_add_prefill_queue_and_decodes() -> None:
    assert costs_s([work(6000, 3000, 2)], 8000) == [pytest.approx((2000 + 3000 + 2 * DECODE_TOKENS) / 10_000)]


def test_costs_prompt_shorter_than_cached_is_not_negative() -> None:
    assert costs_s([work(9000)], 8000) == [0.0]


def test_order_by_cost_cached_replica_is_left_when_its_queue_takes_longer() -> None:
    """6,000 tokens are cached at the first: its queue may have up to 6,000 more."""
    assert first_of(work(6000, 5000), work()) == 0
    assert first_of(work(6000, 7000), work()) == 1


def test_order_by_cost_slower_replica_pays_for_its_prefill() -> None:
    assert first_of(work(rate=2_000.0), work(rate=10_000.0)) == 1


def test_order_by_cost_rates_that_differ_by_noise_are_equal() -> None:
    costs = costs_s([work(rate=9_000.0), work(rate=11_000.0)], 8000)
    assert costs[0] == costs[1]


@pytest.mark.parametrize("owner", [0, 1])
def test_order_by_cost_equal_costs_owner_goes_first(owner: int) -> None:
    assert first_of(work(), work(), owner=owner) == owner


def test_order_by_cost_owner_with_a_queue_is_not_preferred() -> None:
    assert first_of(work(ahead=4000), work(), owner=0) == 1


def test_order_by_cost_equal_costs_are_drawn_at_random() -> None:
    rng = Random(1)
    assert {order_by_cost(CALM, [0.1, 0.1], None, rng)[0] for _ in range(30)} == {0, 1}


LOAD = st.builds(CandidateLoad, st.floats(0, 50), st.sampled_from([0.0, 0.4, 1.0]))


@given(fleet=st.lists(st.tuples(LOAD, st.floats(0, 100)), min_size=2, max_size=6), seed=st.integers(0, 99))
def test_order_by_cost_lists_unhealthy_ones_last(fleet: list[tuple[CandidateLoad, float]], seed: int) -> None:
    loads, costs = [load for load, _ in fleet], [cost for _, cost in fleet]
    found = order_by_cost(loads, costs, None, Random(seed))
    assert sorted(found) == list(range(len(fleet)))
    behind = [loads[index].share for index in found if loads[index].share in {0, 1}]
    assert behind == sorted(behind, reverse=True)
    if all(load.share == 1 for load in loads):
        assert costs[found[0]] <= max(min(costs) * 1.05, min(costs) + 0.002)


def test_foreign_work_counts_only_what_is_not_ours() -> None:
    signals = EngineSignals(read_at=0.0, running=20.0, waiting=7.0)
    assert foreign_work(signals, 3, 12, 900, 400) == (4 * 400, 8)
    assert foreign_work(signals, 9, 30, 900, 400) == (0, 0)
    assert foreign_work(EngineSignals(read_at=0.0, waiting=7.0, waiting_tokens=2500.0), 0, 0, 900, 400) == (1600, 0)


def test_foreign_work_unknown_gauges_add_nothing() -> None:
    assert foreign_work(EngineSignals(read_at=0.0), 3, 12, 900, 400) == (0, 0)


def test_failure_penalty_doubles_and_decays() -> None:
    penalty = FailurePenalty()
    assert penalty.seconds(0.0) == 0
    penalty.record_failure(0.0)
    penalty.record_failure(0.0)
    assert penalty.seconds(0.0) == pytest.approx(3 * FAILED_S)
    assert penalty.seconds(10.0) == pytest.approx(1.1 * FAILED_S, rel=0.01)
    for _ in range(50):
        penalty.record_failure(10.0)
    assert penalty.seconds(10.0) == 60
