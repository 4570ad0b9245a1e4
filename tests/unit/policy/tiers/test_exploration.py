"""The budget of comparisons: tokens by the hour, and how many run at once."""

from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.tiers.exploration import ASSUMED_TOKENS, ExplorationBudget


def test_start_at_most_as_many_as_may_run() -> None:
    budget = ExplorationBudget(10_000, 2)
    for _ in range(2):
        assert budget.may_start(0.0)
        budget.start()
    assert not budget.may_start(0.0)
    budget.end(10)
    assert budget.may_start(0.0)


def test_debt_is_repaid_over_the_hour() -> None:
    budget = ExplorationBudget(3600, 4)
    assert budget.may_start(0.0)
    budget.start()
    budget.end(3600 + 60)
    assert not budget.may_start(59.0)
    assert budget.may_start(61.0)


def test_unknown_usage_counts_as_assumed_tokens() -> None:
    budget = ExplorationBudget(ASSUMED_TOKENS, 1)
    assert budget.may_start(0.0)
    budget.start()
    budget.end(None)
    assert not budget.may_start(0.0)


def test_no_tokens_start_nothing() -> None:
    budget = ExplorationBudget(0, 1)
    assert not budget.may_start(0.0)
    assert not budget.may_start(3600.0)


@given(st.integers(1, 10_000), st.lists(st.tuples(st.floats(0, 3600), st.integers(0, 5_000)), max_size=60))
def test_spending_never_exceeds_rate_and_bucket_by_more_than_one_answer(per_hour: int,
                                                                         steps: list[tuple[float, int]]) -> None:
    budget, now, spent, largest = ExplorationBudget(per_hour, 1), 0.0, 0, 0
    for wait_s, n_tokens in steps:
        now += wait_s
        if budget.may_start(now):
            budget.start()
            budget.end(n_tokens)
            spent, largest = spent + n_tokens, max(largest, n_tokens)
    assert spent <= per_hour * (1 + now / 3600) + largest + 1e-6
