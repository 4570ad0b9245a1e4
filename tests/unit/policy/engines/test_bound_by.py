"""What an engine is bound by, from its readings."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.engine_signals import EngineSignals
from stayfast.policy.engines.bound_by import HOLD, Bound, BoundJudge, GapsByBatch

CALM: dict[str, Any] = {"running": 8.0, "waiting": 0.0, "kv_used_ratio": 0.4}


def judged(n_queued: int = 0, **figures: Any) -> Bound:
    """After as many equal readings as a change needs."""
    judge = BoundJudge()
    for _ in range(HOLD):
        judge.observe(EngineSignals(0.0, **{**CALM, **figures}), n_queued)
    return judge.bound


@pytest.mark.parametrize(("figures", "bound"), [
    ({"waiting": 4.0, "kv_used_ratio": 0.95}, Bound.MEMORY),
    ({"kv_used_ratio": 0.95, "preemptions_per_s": 0.2}, Bound.MEMORY),
    ({"kv_used_ratio": 0.95}, Bound.NONE),
    ({"waiting": 4.0}, Bound.PREFILL),
    ({"waiting": 4.0, "max_running": 8.0}, Bound.DECODE),
    ({"waiting": 4.0, "kv_used_ratio": 0.75}, Bound.UNKNOWN),
    ({"waiting": 4.0, "kv_used_ratio": None}, Bound.UNKNOWN),
    ({"waiting": 4.0, "kv_used_ratio": None, "max_running": 64.0}, Bound.PREFILL),
    ({"waiting": 4.0, "is_sleeping": True}, Bound.NONE),
    ({"waiting": None, "running": None}, Bound.UNKNOWN),
    ({}, Bound.NONE)])
def test_bound_each_line_of_the_table_is_named(figures: dict[str, Any], bound: Bound) -> None:
    assert judged(**figures) is bound


def test_bound_queue_of_the_gateway_is_its_own_limit_only_before_an_idle_engine() -> None:
    assert judged(n_queued=3) is Bound.GATEWAY
    assert judged(n_queued=3, waiting=4.0, kv_used_ratio=0.95) is Bound.MEMORY
    assert judged(n_queued=3, waiting=None) is Bound.NONE  # an engine that does not show its queue may have one


def test_bound_gaps_that_grow_with_the_batch_are_decoding() -> None:
    """The same gap at a small batch is the engine's usual speed."""
    judge = BoundJudge()
    for running, gap_s in ((4.0, 0.02), (60.0, 0.06)):
        for _ in range(2 * HOLD):
            judge.observe(EngineSignals(0.0, **{**CALM, "running": running, "inter_token_s": gap_s}), 0)
    assert judge.bound is Bound.DECODE
    steady = BoundJudge()
    for running in (4.0, 60.0):
        for _ in range(2 * HOLD):
            steady.observe(EngineSignals(0.0, **{**CALM, "running": running, "inter_token_s": 0.02}), 0)
    assert steady.bound is Bound.NONE


def test_bound_change_must_hold_for_three_readings() -> None:
    judge = BoundJudge()
    calm, full = EngineSignals(0.0, **CALM), EngineSignals(0.0, **{**CALM, "waiting": 4.0, "kv_used_ratio": 0.95})
    seen = [judge.observe(one, 0) for one in (calm, calm, calm, full, full, calm, full, full, full, calm)]
    assert seen == [Bound.UNKNOWN, Bound.UNKNOWN, *[Bound.NONE] * 6, Bound.MEMORY, Bound.MEMORY]


def test_bound_missing_reading_is_unknown_at_once() -> None:
    judge = BoundJudge()
    for _ in range(HOLD):
        judge.observe(EngineSignals(0.0, **CALM), 0)
    assert judge.observe(None, 0) is Bound.UNKNOWN


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(1e-6, 1e3)), max_size=40), st.floats(0, 1e4), st.floats(1e-6, 1e3))
def test_gaps_any_readings_have_grown_only_above_a_smaller_batch(
        readings: list[tuple[float, float]], running: float, gap_s: float) -> None:
    gaps = GapsByBatch()
    for known, seen_s in readings:
        gaps.learn(known, seen_s)
    if gaps.has_grown(running, gap_s):
        assert any(known < running and seen_s <= gap_s for known, seen_s in readings)
