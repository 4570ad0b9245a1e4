"""The order of findings, and which of them are hidden."""

import sys
from collections.abc import Iterable
from time import perf_counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stayfast.core.findings import Finding, FindingSite, SettingsChange, Severity
from stayfast.core.snapshot import Snapshot
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.diagnose import diagnose, shown
from stayfast.policy.findings.registry import all_kinds
from tests.unit.policy.findings.snapshots import large_snapshot, snapshots

CHAT = FindingSite(route="chat")


def finding(one: str, severity: Severity = "warn", where: FindingSite = CHAT, saves_s: float | None = None) -> Finding:
    return Finding(one, severity, where, "One.", "Two.", do=(SettingsChange("three", saves_s=saves_s),))


def check(found: Finding | Iterable[Finding], *explains: str, name: str = "") -> Check:
    batch = [found] if isinstance(found, Finding) else list(found)
    return Check(name or batch[0].id, "", lambda _: batch, explains)


def test_findings_are_sorted_by_severity_then_effect() -> None:
    checks = [check(finding("a.info", "info")), check(finding("a.small", saves_s=0.1)),
              check(finding("a.large", saves_s=2.0)), check(finding("a.act", "act"))]
    assert [one.id for one in diagnose(Snapshot(0.0), checks)] == ["a.act", "a.large", "a.small", "a.info"]


def test_consequence_at_the_same_place_is_hidden() -> None:
    elsewhere = finding("a.slow", where=FindingSite(route="other"))
    checks = [check([finding("a.slow"), elsewhere], name="a.slow"), check(finding("a.cause"), "a.slow")]
    found = diagnose(Snapshot(0.0), checks)
    assert [(one.id, one.where.route, one.hidden_by) for one in found] == [
        ("a.cause", "chat", ""), ("a.slow", "other", ""), ("a.slow", "chat", "a.cause")]
    assert shown(found) == found[:2]


def test_first_cause_of_a_chain_is_named_and_has_the_worst_severity() -> None:
    checks = [check(finding("a.last", "act")), check(finding("a.middle"), "a.last"),
              check(finding("a.first", "info"), "a.middle")]
    found = diagnose(Snapshot(0.0), checks)
    assert [(one.id, one.severity, one.hidden_by) for one in found] == [
        ("a.first", "act", ""), ("a.last", "act", "a.first"), ("a.middle", "warn", "a.first")]


def test_finding_at_one_place_is_returned_once_with_its_worst_severity() -> None:
    loud = finding("a.one", "act")
    assert diagnose(Snapshot(0.0, reported=(finding("a.one"),)), [check(loud)]) == [loud]


def test_circle_of_causes_ends() -> None:
    found = diagnose(Snapshot(0.0), [check(finding("a.one"), "a.two"), check(finding("a.two"), "a.one")])
    assert len(found) == 2


def test_empty_snapshot_has_no_findings() -> None:
    assert diagnose(Snapshot(0.0)) == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshots())
def test_random_snapshots_raise_nothing_and_give_known_ids(snapshot: Snapshot) -> None:
    found = diagnose(snapshot)
    assert {one.id for one in found} - set(all_kinds()) - {one.id for one in snapshot.reported} == set()
    assert len({(one.id, one.where) for one in found}) == len(found)
    assert all(one.summary and one.because and one.verify for one in found if one.id in all_kinds())


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.floats(0.1, 10.0))
def test_few_requests_give_no_findings(scale: float) -> None:
    """Thin data: every row of traffic has five requests, however slow."""
    assert diagnose(large_snapshot(n=5, scale=scale)) == []


def test_diagnosis_of_20_routes_and_10_upstreams_takes_under_50_ms(capsys: pytest.CaptureFixture[str]) -> None:
    """The goal on an idle core is 5 ms; the figure is printed."""
    snapshot = large_snapshot()
    spent_s = []
    for _ in range(20):
        began_at = perf_counter()
        diagnose(snapshot)
        spent_s.append(perf_counter() - began_at)
    with capsys.disabled():
        sys.stdout.write(f"\ndiagnose, 20 routes x 10 upstreams: {min(spent_s) * 1e3:.2f} ms\n")
    assert min(spent_s) < 0.05
