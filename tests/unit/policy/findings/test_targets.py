"""Targets of percentiles, by stage and whole."""

from typing import Any

from stayfast.core.snapshot import Snapshot, Spread, TrafficRow
from stayfast.policy.findings.diagnose import diagnose
from stayfast.policy.findings.targets import find_missed


def observed(slo: dict[str, Any], n: int = 500, call_p95_s: float = 0.8) -> Snapshot:
    spread = Spread(n, 0.4, call_p95_s, 1.0, 1.2)
    row = TrafficRow("chat", "", 300.0, n, n, ttft_s=spread, e2e_s=spread, stages_s={"call": spread})
    return Snapshot(1e9, traffic=(row,), settings={"routes": {"chat": {"slo": slo}}})


def test_missed_targets_are_one_finding_with_the_worst_first() -> None:
    [found] = find_missed(observed({"stages": {"call": {"p95_s": 0.5, "p99_s": None}},
                                    "percentiles": {"e2e": {"p99_s": 0.9}}}))
    assert found.summary == "The p95 of call is 0.8 s; the target is 0.5 s. 2 targets are missed."
    assert {one.value for one in found.evidence} == {0.8, 1.0}


def test_targets_that_hold_or_have_too_few_requests_are_silent() -> None:
    assert not list(find_missed(observed({"stages": {"call": {"p95_s": 0.9}}})))
    assert not list(find_missed(observed({"stages": {"call": {"p99_s": 0.5}}}, n=150)))
    assert list(find_missed(observed({"stages": {"call": {"p95_s": 0.5}}}, n=150)))


def test_targets_of_any_form_never_raise() -> None:
    for slo in ({"stages": None}, {"stages": 3}, {"stages": {"call": 4}}, {"stages": {"call": {"p95_s": "x"}}}):
        assert not list(find_missed(observed(slo)))


def test_cause_of_a_missed_promise_hides_missed_targets() -> None:
    tail = Spread(1000, 0.2, 2.3, 8.0, 9.0)
    row = TrafficRow("chat", "", 300.0, 1000, 1000, ttft_s=tail)
    found = diagnose(Snapshot(1e9, traffic=(row,), settings={"routes": {"chat": {
        "hedge": {"mode": "off"}, "slo": {"percentiles": {"ttft": {"p99_s": 1.0}}}}}}))
    assert [(one.id, one.hidden_by) for one in found if one.id == "latency.target_missed"] == [
        ("latency.target_missed", "hedging.off")]
