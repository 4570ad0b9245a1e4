"""How long starts take, and when a request may wait for one."""

import pytest

from stayfast.policy.warm.cold_start import MAX_START_S, ColdStartTimes, may_wait


def test_cold_starts_prior_counts_until_enough_are_known() -> None:
    times = ColdStartTimes(60.0)
    for _ in range(4):
        times.add_start(10.0)
    assert times.p90_s == 60.0
    times.add_start(12.0)
    assert times.p90_s == 12.0


def test_late_start_is_expected_to_last_about_as_long_again() -> None:
    times = ColdStartTimes(60.0)
    assert [times.left_s(at) for at in (0.0, 50.0, 60.0, 100.0)] == [60.0, 10.0, 6.0, 46.0]


def test_replica_that_was_gone_for_hours_teaches_no_start() -> None:
    times = ColdStartTimes(60.0)
    times.add_start(MAX_START_S + 1.0)
    assert (times.n_starts, times.p90_s) == (0, 60.0)
    times.add_start(MAX_START_S)
    assert times.p90_s == MAX_START_S


@pytest.mark.parametrize(("left_s", "time_left_s", "max_hold_s", "expected"), [
    (5.0, 7.0, 60.0, True), (5.0, 5.5, 60.0, False), (5.0, 100.0, 4.0, False), (0.0, 1.0, 0.0, True)])
def test_may_wait(left_s: float, time_left_s: float, max_hold_s: float, *, expected: bool) -> None:
    assert may_wait(left_s, 1.0, time_left_s, max_hold_s) is expected
