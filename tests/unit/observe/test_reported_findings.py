"""Findings that parts reported, over time and over workers."""

from stayfast.core.events import JudgeUnclear
from stayfast.core.findings import Finding, FindingSite
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.snapshot.reported import RETENTION_S, ReportedFindings, merge_reported
from tests.unit.observe.fact_rig import FrozenClock

UNCLEAR = JudgeUnclear("chat", "small", 20, "other words")
DIFFER = Finding("fleet.versions_differ", "info", FindingSite(), "Versions differ.", "An update.")


def pass_time(clock: FrozenClock, seconds: float) -> None:
    clock.now_s += seconds
    clock.wall_s += seconds


def test_repeated_finding_keeps_its_begin_and_ends_after_an_hour() -> None:
    clock = FrozenClock()
    reported = ReportedFindings(clock)
    handle_facts(reported, [UNCLEAR])
    [first] = reported.current()
    pass_time(clock, RETENTION_S / 2)
    handle_facts(reported, [UNCLEAR])
    pass_time(clock, RETENTION_S)
    assert [one.since for one in reported.current()] == [first.since]
    pass_time(clock, 1.0)
    assert reported.current() == []


def test_workers_report_one_place_once_with_its_earliest_begin() -> None:
    clock = FrozenClock()
    early, late = ReportedFindings(clock), ReportedFindings(clock)
    handle_facts(early, [UNCLEAR])
    pass_time(clock, 10.0)
    handle_facts(late, [UNCLEAR])
    [merged] = merge_reported([late.current(), early.current()])
    assert merged == early.current()[0]


def test_finding_of_a_state_lasts_as_long_as_the_state() -> None:
    states = [DIFFER]
    reported = ReportedFindings(FrozenClock(), lambda: states)
    handle_facts(reported, [UNCLEAR])
    assert [one.id for one in reported.current()] == ["semantic.judge_unclear", "fleet.versions_differ"]
    states.clear()
    assert [one.id for one in reported.current()] == ["semantic.judge_unclear"]
