"""The fixed policies that the gateway is compared with."""

from collections.abc import Callable
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from stayfast.lab.harness.fixed_policy import DIRECT, FAMILIES, FixedPolicy, FixedPolicyRun, choose_best, grid_of_policies

DURATIONS_S = st.lists(st.floats(0.01, 30.0), min_size=6, max_size=6)
DELAY_S = st.floats(0.05, 5.0)


def _attempts(durations_s: list[float]) -> Callable[[int, float], float]:
    return lambda n, _: durations_s[n]


def test_time_out_closes_attempt_and_repeats() -> None:
    assert FixedPolicy(0.5, 3).simulate(_attempts([2.0, 0.4])) == (0.9, 2)
    assert FixedPolicy(0.5, 2).simulate(_attempts([2.0, 3.0])) == (3.5, 2)


def test_one_hedge_keeps_first_attempt() -> None:
    hedge = FixedPolicy(0.5, 2, is_hedge=True)
    assert hedge.simulate(_attempts([0.5])) == (0.5, 1)
    assert hedge.simulate(_attempts([2.0, 9.0])) == (2.0, 2)
    assert hedge.simulate(_attempts([2.0, 0.3])) == (0.8, 2)


def test_repeated_hedges_start_one_delay_after_another() -> None:
    begins_s: list[float] = []

    def attempt_s(_: int, at_s: float) -> float:
        begins_s.append(at_s)
        return 9.0

    assert FixedPolicy(0.5, 4, is_hedge=True).simulate(attempt_s) == (9.0, 4)
    assert begins_s == [0.0, 0.5, 1.0, 1.5]


@given(DURATIONS_S, DELAY_S)
def test_hedges_more_of_them_are_never_slower(durations_s: list[float], after_s: float) -> None:
    """They have at most as many calls as tries, and are never slower than a direct call."""
    policies = [FixedPolicy(after_s, n_tries, is_hedge=n_tries > 1) for n_tries in range(1, 5)]
    results = [policy.simulate(_attempts(durations_s)) for policy in policies]
    waits_s, n_calls = [wait_s for wait_s, _ in results], [n for _, n in results]
    assert waits_s == sorted(waits_s, reverse=True)
    assert n_calls == sorted(n_calls)
    assert all(n <= most for most, n in enumerate(n_calls, 1))


@given(DURATIONS_S, DELAY_S)
def test_time_out_is_never_faster_than_hedges_with_same_attempts(durations_s: list[float], after_s: float) -> None:
    waited_s, _ = FixedPolicy(after_s, 4).simulate(_attempts(durations_s))
    hedged_s, _ = FixedPolicy(after_s, 4, is_hedge=True).simulate(_attempts(durations_s))
    assert hedged_s <= waited_s + 1e-9


def test_grid_has_each_family_with_each_delay() -> None:
    grid = grid_of_policies((0.3, 0.8))
    assert len({policy.name for policy in grid}) == len(grid) == 8
    assert {policy.family for policy in grid} == set(FAMILIES)
    assert [policy.name for policy in grid[4:]] == ["a time-out of 0.8 s", "one hedge after 0.8 s", "two hedges 0.8 s apart",
                                                    "three hedges 0.8 s apart"]
    assert DIRECT.name == "direct"


def _run_of(policy: FixedPolicy, wait_s: float, n_calls: int) -> FixedPolicyRun:
    run = FixedPolicyRun(policy)
    run.add(wait_s, n_calls)
    return run


def test_choose_best_ignores_runs_with_more_calls() -> None:
    dear, cheap, slow = (_run_of(FixedPolicy(after_s, 2, is_hedge=True), wait_s, n_calls)
                         for after_s, wait_s, n_calls in ((0.3, 1.0, 3), (0.5, 1.5, 2), (0.9, 4.0, 1)))
    timeout = _run_of(FixedPolicy(0.5, 6), 1.2, 2)
    runs = [dear, cheap, slow, timeout]
    assert choose_best(runs) is dear
    assert choose_best(runs, 2) is timeout
    assert choose_best(runs, 2, "one hedge") is cheap
    assert choose_best(runs, 1) is slow
    assert choose_best([dear, cheap], 1) is cheap
    assert choose_best(runs, inf, "time-outs") is timeout
