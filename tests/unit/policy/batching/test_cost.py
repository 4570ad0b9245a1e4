"""policy.batching.cost: what a batch costs, and whether there is time for one."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.batching.cost import MIN_BATCHES, N_RECENT, OVERRUN, RETRY_EVERY, BatchCost, EncodingPace


def learned(per_batch_s: float = 0.002, per_token_s: float = 0.0001, *, noise: float = 0.0) -> BatchCost:
    cost, rng = BatchCost(), Random(1)
    for n in range(200):
        n_padded = 10 + n * 7 % 250
        cost.add_batch(n_padded, (per_batch_s + per_token_s * n_padded) * rng.uniform(1 - noise, 1 + noise))
    return cost


def test_cost_learns_the_line() -> None:
    cost = learned(noise=0.2)
    assert cost.predict_s(100) == pytest.approx(0.012, rel=0.1)
    assert cost.tokens_worth_a_batch == pytest.approx(20, rel=0.5)


def test_cost_predicts_nothing_before_enough_batches() -> None:
    cost = BatchCost()
    for _ in range(MIN_BATCHES - 1):
        cost.add_batch(10, 1.0)
        assert cost.predict_s(10) is None
    cost.add_batch(10, 1.0)
    assert cost.predict_s(10) == pytest.approx(1.0)


def test_cost_of_equal_batches_is_a_line_through_zero() -> None:
    cost = BatchCost()
    for _ in range(MIN_BATCHES):
        cost.add_batch(10, 1.0)
    assert cost.predict_s(20) == pytest.approx(2.0)
    assert cost.tokens_worth_a_batch == 0.0


def test_cost_after_one_overrun_moves_little() -> None:
    cost = learned()
    before = cost.predict_s(100)
    cost.add_batch(100, 60.0)
    after = cost.predict_s(100)
    assert before is not None
    assert after is not None
    assert before < after < 1.2 * before


def test_cost_of_a_slower_machine_is_learned() -> None:
    cost = learned()
    for _ in range(60):
        cost.add_batch(100, 10 * 0.012)
    assert cost.predict_s(100) == pytest.approx(0.12, rel=0.3)


@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 100)), max_size=60))
def test_cost_is_never_negative(batches: list[tuple[int, float]]) -> None:
    cost = BatchCost()
    for n_padded, seconds in batches:
        cost.add_batch(n_padded, seconds)
        assert cost.per_batch_s >= 0
        assert cost.per_token_s >= 0
    assert OVERRUN > 1


def test_encoding_pace_too_little_time_does_not_fit() -> None:
    """By the p95 of the last ones; one in RETRY_EVERY is tried, and N_RECENT quick ones make it quick again."""
    pace = EncodingPace()
    assert pace.has_time(0.001)
    for n in range(100):
        pace.add_sample(0.002 if n % 10 else 0.05)
    assert pace.p95_s == 0.05
    assert pace.has_time(0.05)
    assert [pace.has_time(0.01) for _ in range(2 * RETRY_EVERY)].count(True) == 2
    for _ in range(N_RECENT):
        pace.add_sample(0.002)
    assert pace.p95_s == 0.002
    assert pace.has_time(0.01)
