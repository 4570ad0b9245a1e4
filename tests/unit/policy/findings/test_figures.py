"""Bounds, promises and the wait with a second attempt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.snapshot import Snapshot, Spread
from stayfast.policy.findings.figures import (
    Promise,
    deadline_s,
    hedged_p99,
    is_more_than,
    promise_of,
    share_low,
    text_s,
    text_share,
)


def test_share_needs_enough_requests_and_an_interval_above_the_limit() -> None:
    assert is_more_than(0.05, 100, 1000)
    assert not is_more_than(0.05, 52, 1000)
    assert not is_more_than(0.05, 49, 49)
    assert share_low(10, 100) == pytest.approx(0.0552, abs=1e-4)  # Wilson, as statsmodels computes it


@given(st.floats(0.01, 10.0), st.floats(1.0, 10.0), st.floats(1.0, 10.0))
def test_second_attempt_never_lengthens_the_p99(p50: float, to_p95: float, to_p99: float) -> None:
    spread = Spread(1000, p50, p50 * to_p95, p50 * to_p95 * to_p99)
    hedged = hedged_p99(spread)
    assert hedged is not None
    assert 0 < hedged <= (spread.p99 or 0.0) * (1 + 1e-9)


def test_second_attempt_cuts_a_long_tail_to_about_p95_and_p50() -> None:
    assert hedged_p99(Spread(1000, 0.2, 2.3, 8.0)) == pytest.approx(2.3 + 1.0, rel=0.2)
    assert hedged_p99(Spread()) is None


def test_promise_of_a_route_replaces_that_of_all() -> None:
    defaults = {"slo": {"ttft": {"under_s": 2.0, "share": 0.9}}}
    assert promise_of(Snapshot(0.0, settings={"defaults": defaults}), "chat") == Promise(2.0, 0.9)
    own = {"defaults": defaults, "routes": {"chat": {"slo": {"ttft": None}}}}
    assert promise_of(Snapshot(0.0, settings=own), "chat") is None


def test_deadline_of_a_route_is_its_own_or_the_total() -> None:
    settings = {"defaults": {"timeouts": {"total_s": 30}}, "routes": {"chat": {"deadline": 5}}}
    assert deadline_s(Snapshot(0.0, settings=settings), "chat") == 5.0
    assert deadline_s(Snapshot(0.0, settings=settings), "other") == 30.0


def test_figures_as_text_have_two_digits() -> None:
    assert [text_s(value) for value in (0.012, 0.41, 12.3, 1234.0)] == ["12 ms", "0.41 s", "12 s", "1,234 s"]
    assert [text_share(value) for value in (0.0042, 0.123, 1.0)] == ["0.42 %", "12 %", "100 %"]
