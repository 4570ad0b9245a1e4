"""policy.resilience.breaker: invariants of all states, and its settings. Each state has a file of its own."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.resilience.breaker import Breaker, BreakerConfig, BreakerState
from tests.unit.policy.breaker_rig import CONFIG, closed_breaker, fail, succeed


@given(n=st.integers(0, 200), seed=st.integers(0, 99), start=st.sampled_from(list(BreakerState)))
def test_breaker_discarded_calls_change_no_state(n: int, seed: int, start: BreakerState) -> None:
    """Any number of clients that leave, in each state."""
    breaker = Breaker(CONFIG, Random(seed))
    if start is not BreakerState.CLOSED:
        fail(breaker, 0.0, 5)
    if start is BreakerState.HALF_OPEN:
        succeed(breaker, 80.0)
    marks = [breaker.start_call() for _ in range(n)]
    for mark in marks:
        breaker.discard_call(mark)
    assert breaker.state is start
    assert breaker.needs_probe(1e6) == (start is not BreakerState.CLOSED)


@given(steps=st.lists(st.tuples(st.floats(0, 40), st.sampled_from(["good", "slow", "bad", "ignored", "judged", "late"])),
                      max_size=200))
def test_breaker_random_steps_close_only_by_good_probes(steps: list[tuple[float, str]]) -> None:
    """It closes only by good calls that began after it opened, and the number of running probes is right."""
    breaker, now, old = closed_breaker(), 0.0, 0
    for gap_s, what in steps:
        now += gap_s
        before = breaker.state
        if what == "judged":
            breaker.record_verdicts(7, 0, now)
        elif what == "late":
            breaker.record_success(old - 1, now)
        else:
            old = mark = breaker.start_call()
            if what == "bad":
                breaker.record_failure(mark, now)
            elif what == "ignored":
                breaker.discard_call(mark)
            else:
                breaker.record_success(mark, now, is_slow=what == "slow")
        if before is BreakerState.OPEN:
            assert breaker.state is not BreakerState.CLOSED
        if before is not BreakerState.CLOSED and breaker.state is BreakerState.CLOSED:
            assert what == "good"
        assert not breaker.is_probing
        assert 0 <= breaker.traffic_share(now) <= 1


@pytest.mark.parametrize(("wrong", "named"), [
    ({"consecutive_failures": 0}, "consecutive_failures"), ({"failure_ratio": 0}, "failure_ratio"),
    ({"slow_ratio": 1.5}, "slow_ratio"),
    ({"slow_factor": 1}, "slow_factor"), ({"min_calls": 30}, "min_calls"), ({"n_calls": 10**6}, "n_calls"),
    ({"window_s": 0}, "window_s"), ({"open_s": 1e9}, "open_s")])
def test_breaker_config_out_of_bounds_is_rejected(wrong: dict[str, Any], named: str) -> None:
    """The message names the setting."""
    with pytest.raises(ValueError, match=named):
        BreakerConfig(**wrong)
