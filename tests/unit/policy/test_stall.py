"""When a wait is a stall, and when an upstream's rate sags."""

from math import exp, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.resilience.stall import (
    FLOOR_S,
    LIVE_S,
    LIVE_TIMES,
    MAX_SAG,
    MIN_GAPS,
    OWN_TIMES,
    SAG_DECAY_S,
    StallDetector,
    TokenFlow,
)


def flow_of(gap_s: float, n: int = 300, now: float = 0.0) -> TokenFlow:
    """An upstream whose answers all have gaps of this length."""
    flow = TokenFlow()
    for _ in range(n // 30):
        flow.add_gaps([gap_s] * 30, now)
    return flow


def pulse_of(flow: TokenFlow, gap_s: float, n: int, now: float = 0.0) -> StallDetector:
    """An answer with so many such gaps, looked at once."""
    pulse = StallDetector()
    for _ in range(n):
        pulse.add_gap(gap_s)
    pulse.check(flow, now)
    return pulse


@pytest.mark.parametrize(("live_s", "own_s", "switch_s", "limit_s"), [
    (0.02, 0.02, 0.3, FLOOR_S),  # a quick model: as soon as it is felt
    (0.02, 0.02, 4.0, 4.0),  # going elsewhere takes longer than that
    (2.0, 0.02, 0.3, LIVE_TIMES * 2.0),  # gaps of two seconds are usual there
    (0.02, 0.5, 0.3, OWN_TIMES * 0.5),  # this answer takes its time
])
def test_stall_limit_is_longest_of_four(live_s: float, own_s: float, switch_s: float, limit_s: float) -> None:
    """Each of the four bounds decides where it is the longest."""
    pulse = pulse_of(TokenFlow(), own_s, 10)
    assert pulse.limit_s(flow_of(live_s), switch_s, 1.0) == pytest.approx(limit_s, rel=0.02)


def test_stall_limit_infinite_before_enough_gaps() -> None:
    """One gap too few gives no limit; gaps of more than five minutes ago are forgotten."""
    flow = TokenFlow()
    flow.add_gaps([0.02] * (MIN_GAPS - 1), 0.0)
    assert StallDetector().limit_s(flow, 0.3, 0.0) == inf
    flow.add_gaps([0.02], 2.0)
    assert StallDetector().limit_s(flow, 0.3, 2.0) == FLOOR_S
    assert StallDetector().limit_s(flow, 0.3, 2.0 * LIVE_S) == inf


def test_stall_limit_adapts_to_usual_pauses() -> None:
    """Two gaps in a thousand are of three seconds: the limit is four times that, once they have ended."""
    flow = flow_of(0.02, 900)
    assert flow.limit_s(0.0) < FLOOR_S
    flow.add_gaps([3.0, 3.0], 2.0)
    assert flow.limit_s(2.0) == pytest.approx(LIVE_TIMES * 3.0, rel=0.02)


def test_token_flow_sag_weighs_and_fades() -> None:
    """Five times slower than its own start and than usual: its load weighs five times, and a third of that after 11 s."""
    flow = flow_of(0.02)
    pulse = pulse_of(flow, 0.02, 40)
    assert flow.load_factor(1.0) == 1.0
    for _ in range(10):
        pulse.add_gap(0.1)
    pulse.check(flow, 1.0)
    assert flow.load_factor(1.0) == pytest.approx(5.0, rel=0.05)
    assert flow.load_factor(1.0 + SAG_DECAY_S) == pytest.approx(1.0 + 4.0 * exp(-1.0), rel=0.05)


@pytest.mark.parametrize(("own_s", "later_s"), [
    (0.1, 0.1),  # slow from its start: a long context, not a throttle
    (0.005, 0.02),  # as slow as usual, after a quick start
    (0.02, 0.04),  # twice is nothing
])
def test_token_flow_ordinary_gaps_are_no_sag(own_s: float, later_s: float) -> None:
    """Both must be exceeded, the answer's own start and what is usual there."""
    flow = flow_of(0.02)
    pulse = pulse_of(flow, own_s, 40)
    for _ in range(10):
        pulse.add_gap(later_s)
    pulse.check(flow, 1.0)
    assert flow.load_factor(1.0) == 1.0


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 1e6)), max_size=30), st.floats(0, 100))
def test_token_flow_load_factor_is_bounded(sags: list[tuple[float, float]], after_s: float) -> None:
    """From 1 to MAX_SAG, for any input."""
    flow, now = TokenFlow(), 0.0
    for wait_s, times in sags:
        now += wait_s
        flow.record_sag(times, now)
    assert 1.0 <= flow.load_factor(now + after_s) <= MAX_SAG


@given(st.lists(st.floats(0, 100), max_size=300), st.floats(0, 10))
def test_stall_limit_never_below_floor(gaps_s: list[float], switch_s: float) -> None:
    """No pause below the floor, or below the time of a switch, is a stall."""
    flow, pulse = flow_of(0.01), StallDetector()
    for gap_s in gaps_s:
        pulse.add_gap(gap_s)
    pulse.check(flow, 0.0)
    assert pulse.limit_s(flow, switch_s, 0.0) >= max(FLOOR_S, switch_s)
