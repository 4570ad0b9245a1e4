"""Findings that parts reported, over time and over workers."""

from stayfast.core.events import PrefixFinding
from stayfast.observe.snapshot.reported import RETENTION_S, ReportedFindings, merge_reported
from tests.unit.observe.fact_rig import FrozenClock

MOVES = PrefixFinding("chat", "a", "gpt", "moves", "system[0]", 12, "date", 3000, None)


def pass_time(clock: FrozenClock, seconds: float) -> None:
    clock.now_s += seconds
    clock.wall_s += seconds


def test_repeated_finding_keeps_its_begin_and_ends_after_an_hour() -> None:
    clock = FrozenClock()
    reported = ReportedFindings(clock)
    reported.consume([MOVES])
    [first] = reported.current()
    pass_time(clock, RETENTION_S / 2)
    reported.consume([MOVES])
    pass_time(clock, RETENTION_S)
    assert [one.since for one in reported.current()] == [first.since]
    pass_time(clock, 1.0)
    assert reported.current() == []


def test_workers_report_one_place_once_with_its_earliest_begin() -> None:
    clock = FrozenClock()
    early, late = ReportedFindings(clock), ReportedFindings(clock)
    early.consume([MOVES])
    pass_time(clock, 10.0)
    late.consume([MOVES])
    [merged] = merge_reported([late.current(), early.current()])
    assert merged == early.current()[0]
