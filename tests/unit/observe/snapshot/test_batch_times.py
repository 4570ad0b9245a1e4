"""Completion times of batches in the last hour, over all processes."""

import pytest

from stayfast.core.events import BatchEnded
from stayfast.core.snapshot import Spread
from stayfast.observe.snapshot.batch_times import HOUR_S, BatchTimes, merge_batch_times


class Hands:
    """A clock that stands."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    wall = cpu = now


def test_batch_times_are_merged_over_processes() -> None:
    clock = Hands()
    one, other = BatchTimes(clock), BatchTimes(clock)
    one.consume([BatchEnded("m", 5, 10.0), BatchEnded("n", 5, 7.0)])
    other.consume([BatchEnded("m", 5, 20.0), BatchEnded("m", 5, 30.0)])
    merged = merge_batch_times([one.collect(), other.collect()])
    assert merged["m"][0] == Spread(3, 20.0, 30.0, 30.0, 30.0)
    assert merged["m"][1] == pytest.approx((200 / 3) ** 0.5 / 20)
    assert merged["n"] == (Spread(1, 7.0, 7.0, 7.0, 7.0), None)


def test_batch_times_older_than_an_hour_are_left_out() -> None:
    clock = Hands()
    times = BatchTimes(clock)
    times.consume([BatchEnded("m", 5, 10.0)])
    clock.at = HOUR_S + 1
    times.consume([BatchEnded("m", 5, 20.0)])
    assert times.collect() == (("m", 20.0),)
    assert merge_batch_times([]) == {}
