"""policy.window: what was true in the last minutes, in bounded memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.histogram import COARSE_S, FINE_S, KEPT_S, Window

STEPS = st.lists(st.tuples(st.floats(0, 400), st.floats(0.001, 100)), min_size=1, max_size=80)  # wait, value


@given(STEPS, st.sampled_from([60.0, 300.0, 3600.0]))
def test_window_last_covers_span_and_one_slot(steps: list[tuple[float, float]], seconds: float) -> None:
    """Every value of the last `seconds` counts; none older than that by more than a slot and its minute does."""
    window, now, seen = Window(), 1000.0, list[float]()
    for wait_s, value in steps:
        now += wait_s
        window.add(value, now)
        seen.append(now)
    n = window.last(seconds, now).n
    assert n >= sum(at > now - seconds for at in seen)
    assert n <= sum(at > now - seconds - COARSE_S - FINE_S for at in seen)


def test_window_memory_is_bounded() -> None:
    """24 hours at one value a second: never more slots than a minute of fine ones and an hour of coarse ones need."""
    window = Window()
    for second in range(24 * 3600):
        window.add(0.5, float(second))
    assert len(window._fine) <= 24
    assert len(window._coarse) <= KEPT_S / COARSE_S + 1
    assert window.last(300, 24 * 3600).n == pytest.approx(300, abs=60)
    assert window.last(KEPT_S, 24 * 3600).n == pytest.approx(3600, abs=60)


def test_window_silence_drops_old_values() -> None:
    """A series that gets no values any more tells of none."""
    window = Window()
    window.add(1.0, 0.0)
    assert window.last(60, 30.0).n == 1
    assert window.last(60, 66.0).n == 0
    window.add(1.0, 2 * KEPT_S)
    assert window.last(KEPT_S, 2 * KEPT_S).n == 1
