"""Checks of where the time goes."""

from typing import Any

from stayfast.core.findings import Finding
from stayfast.core.snapshot import MachineRow, Snapshot, Spread, TrafficRow
from stayfast.policy.findings.stages import CHECKS

FIND = {check.id: check.find for check in CHECKS}
USUAL = Spread(1000, 0.4, 0.6, 0.7, 0.8)


def found_by(check: str, traffic: dict[str, Any], route: dict[str, Any] | None = None, **snapshot: Any) -> list[Finding]:
    row = TrafficRow("chat", "", 300.0, 1000, **{"ttft_s": USUAL, **traffic})
    return list(FIND[check](Snapshot(0.0, traffic=(row,), settings={"routes": {"chat": route or {}}}, **snapshot)))


def test_retrieval_that_dominates_gets_its_own_advice() -> None:
    [found] = found_by("time.stage_dominates", {"stages_at_p99_s": {"call": 0.7, "retrieval": 0.9, "relay": 5.0}})
    assert "chunks" in found.do[0].effect
    assert found.do[0].saves_s == 0.45
    assert not found_by("time.stage_dominates", {"stages_at_p99_s": {"call": 0.7, "cache": 0.05, "relay": 5.0}})


def test_overruns_of_a_part_propose_one_that_fits() -> None:
    traffic = {"over_stages": {"call": 200}, "stages_s": {"call": Spread(1000, 0.4, 0.6, 0.8, 0.9)}}
    [found] = found_by("budget.overruns", traffic, {"budget": {"model": 0.5, "cache": "10%"}, "deadline": 3.0})
    assert "model: 0.72" in found.do[0].patch
    [tight] = found_by("budget.overruns", traffic, {"budget": {"model": 0.5, "cache": "80%"}, "deadline": 3.0})
    assert tight.do[0].patch == ""
    assert not found_by("budget.overruns", traffic, {"budget": {}})


def test_late_start_adds_a_worker_where_there_is_a_core() -> None:
    traffic = {"queue_s": Spread(1000, 0.05, 0.2, 0.3, 0.4)}
    machines = (MachineRow(0, n_cpus=4.0, loop_lag_s=Spread(3000, 0.01, 0.1, 0.2, 0.3)),)
    [found] = found_by("gateway.late_start", traffic, machines=machines)
    assert found.do[0].patch == "workers: 2"
    assert "event loop" in found.because
    [found] = found_by("gateway.late_start", traffic)
    assert found.do[0].patch == ""


def test_overhead_is_own_time_that_is_no_wait_for_a_place() -> None:
    traffic = {"own_s": Spread(1000, 0.1, 0.3, 0.3, 0.4)}
    [found] = found_by("gateway.overhead", traffic, machines=(MachineRow(0, log_level="debug"),))
    assert found.do[0].patch == "log:\n  level: info"
    assert not found_by("gateway.overhead", {**traffic, "stages_s": {"admit": Spread(1000, 0.1, 0.3, 0.3, 0.4)}})
