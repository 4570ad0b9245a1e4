"""Checks of time limits."""

from typing import Any

from stayfast.core.findings import Finding
from stayfast.core.snapshot import PromptRow, Snapshot, Spread, TrafficRow
from stayfast.policy.findings.time_limits import CHECKS

FIND = {check.id: check.find for check in CHECKS}
USUAL = Spread(1000, 0.4, 0.6, 0.7, 0.8)


def found_by(check: str, row: TrafficRow, client_s: float = 0.0, **route: Any) -> list[Finding]:
    prompts = (PromptRow("chat", 1000, client_timeout_s=Spread(1000, client_s, client_s, client_s, client_s)),)
    return list(FIND[check](Snapshot(0.0, traffic=(row,), prompts=prompts if client_s else (),
                                     settings={"routes": {"chat": route}})))


def test_first_token_limit_near_the_usual_wait_is_raised() -> None:
    row = TrafficRow("chat", "", 300.0, 1000, n_attempts=1000, ttft_s=USUAL, faults={"timeout": 100})
    [found] = found_by("timeouts.first_token_too_short", row, timeouts={"first_token_s": 0.9})
    assert "first_token_s: 2.7" in found.do[0].patch
    assert not found_by("timeouts.first_token_too_short", row, timeouts={"first_token_s": 9.0})


def test_first_token_limit_far_from_the_usual_wait_is_lowered_if_calls_hang() -> None:
    row = TrafficRow("chat", "", 300.0, 1000, n_attempts=1000, ttft_s=USUAL, e2e_s=Spread(1000, 1, 2, 3, 130.0),
                     faults={"timeout": 20})
    [found] = found_by("timeouts.first_token_too_long", row)
    assert found.do[0].saves_s == 117.0
    quiet = TrafficRow("chat", "", 300.0, 1000, n_attempts=1000, ttft_s=USUAL, e2e_s=Spread(1000, 1, 2, 3, 130.0))
    assert not found_by("timeouts.first_token_too_long", quiet)


def test_deadline_that_ends_most_requests_is_below_the_median() -> None:
    [found] = found_by("timeouts.deadline_below_median", TrafficRow("chat", "", 300.0, 1000, n_deadline=600), deadline=2)
    assert found.severity == "act"
    assert "deadline: 6" in found.do[0].patch
    assert not found_by("timeouts.deadline_below_median", TrafficRow("chat", "", 300.0, 1000, n_deadline=100), deadline=2)


def test_client_time_out_near_the_p95_is_too_short_if_clients_leave() -> None:
    row = TrafficRow("chat", "", 300.0, 1000, 1000, ttft_s=USUAL, n_left=50)
    assert found_by("timeouts.client_too_short", row, 1.0)
    assert not found_by("timeouts.client_too_short", row, 30.0)
    assert not found_by("timeouts.client_too_short", TrafficRow("chat", "", 300.0, 1000, 1000, ttft_s=USUAL), 1.0)


def test_client_time_out_of_ten_deadlines_is_too_long() -> None:
    row = TrafficRow("chat", "", 300.0, 1000)
    assert found_by("timeouts.client_too_long", row, 600.0, deadline=30)
    assert not found_by("timeouts.client_too_long", row, 600.0)
