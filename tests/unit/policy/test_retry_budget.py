"""policy.resilience.retry_budget: extra attempts stay within their share and floor."""

from math import sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.resilience.retry_budget import (
    FLOOR_CALLS,
    SPREAD,
    WINDOW_S,
    RetryBudget,
    UpstreamRetryBudget,
    weight_of,
)

W = weight_of(400)


def _filled(n: int, *, retry: float = 0.1, hedge: float = 0.05) -> RetryBudget:
    budget = RetryBudget(retry, hedge)
    for _ in range(n):
        budget.deposit(W, 0.0)
    return budget


def test_retry_budget_single_request_may_retry() -> None:
    """The floor: ten extra attempts a minute, however few requests there are."""
    budget = _filled(1)
    n = 0
    while budget.may_retry(W, 0.0):
        budget.withdraw_retry(W, 0.0)
        n += 1
    assert n == FLOOR_CALLS


def _taken(pool: UpstreamRetryBudget, now: float = 0.0) -> int:
    n = 0
    while n < 1000 and pool.has_room(W, now):
        pool.withdraw(W, now)
        n += 1
    return n


def test_upstream_budget_has_one_floor_for_all_routes() -> None:
    """Twenty routes with five requests each: a tenth of all of them, and ten; again after a minute, for want of traffic."""
    pool = UpstreamRetryBudget()
    pool.routes = tuple(_filled(5) for _ in range(20))
    assert _taken(pool) == 0.1 * 100 + FLOOR_CALLS
    assert _taken(pool, 30.0) == 0
    assert _taken(pool, 2 * WINDOW_S) * W == pytest.approx(FLOOR_CALLS * weight_of(0), abs=W)


def test_upstream_budget_sums_route_deposits() -> None:
    """One pays for a tenth, the other for a half."""
    pool = UpstreamRetryBudget()
    pool.routes = (_filled(1000), _filled(1000, retry=0.5))
    assert _taken(pool) == 600 + int(SPREAD * sqrt(600))
    assert _taken(UpstreamRetryBudget()) == 1000


def test_retry_budget_hedges_leave_half_to_retries() -> None:
    """A route that hedges as much as it may still retries half of its retry share."""
    budget = _filled(10_000, hedge=0.2)
    while budget.may_hedge(W, 0.0):
        budget.withdraw_hedge(W, 0.0)
    hedged = budget.hedged_share(0.0)
    while budget.may_retry(W, 0.0):
        budget.withdraw_retry(W, 0.0)
    assert 0.2 <= hedged <= 0.21
    assert 0.05 <= budget.extra_share(0.0) - hedged <= 0.06


def test_retry_budget_retries_reduce_room_for_hedges() -> None:
    """Where failures have used everything up, nothing is hedged."""
    budget = _filled(1000)
    while budget.may_retry(W, 0.0):
        budget.withdraw_retry(W, 0.0)
    assert not budget.may_hedge(W, 0.0)


def test_retry_budget_long_prompt_weighs_more() -> None:
    """One hedge of a hundredfold prompt takes the place of many."""
    budget = _filled(1000)
    assert not budget.may_hedge(W * 100, 0.0)
    assert budget.may_hedge(W, 0.0)


def test_retry_budget_after_a_minute_is_empty() -> None:
    """Neither what was paid in nor what was taken counts after the window."""
    budget = _filled(1000)
    budget.withdraw_retry(W * 200, 0.0)
    assert not budget.may_retry(W, 1.0)
    assert budget.may_retry(W, WINDOW_S + 5.0)
    assert budget.extra_share(WINDOW_S + 5.0) == 0.0


@given(seed=st.integers(0, 2**32), share=st.floats(0.01, 1.0))
def test_retry_budget_never_exceeds_its_share(seed: int, share: float) -> None:
    """Over any schedule of a minute, hedges stay within share and slack."""
    rng, budget = Random(seed), RetryBudget(0.1, share)
    n = n_hedges = 0
    now = 0.0
    while now < WINDOW_S - 5.0:
        now += rng.expovariate(20.0)
        n += 1
        budget.deposit(W, now)
        if rng.random() < 0.7 and budget.may_hedge(W, now):
            budget.withdraw_hedge(W, now)
            n_hedges += 1
    assert n_hedges <= share * n + max(FLOOR_CALLS, SPREAD * sqrt(share * n)) + 1e-6


@pytest.mark.parametrize("n_more", [0, 1])
def test_retry_budget_hedge_reserves_room_for_a_second(n_more: int) -> None:
    """With room for one, the one that needs two is refused."""
    budget = _filled(1)
    for _ in range(9):
        budget.withdraw_hedge(W, 0.0)
    assert budget.may_hedge(W, 0.0, n_more) is (n_more == 0)


def test_retry_budget_blocked_hedge_counts_as_demand() -> None:
    """It takes no room, and is forgotten like the rest."""
    budget = _filled(1000)
    budget.withdraw_hedge(W * 50, 0.0)
    budget.record_blocked_hedge(W * 30, 0.0)
    assert budget.hedged_share(1.0) == pytest.approx(0.05)
    assert budget.hedge_demand(1.0) == pytest.approx(0.08)
    assert budget.hedge_demand(WINDOW_S + 5.0) == 0.0
