"""Checks of queues and limits."""

from stayfast.core.snapshot import PromptRow, Snapshot, Spread, TenantRow, TrafficRow, UpstreamRow
from stayfast.policy.findings.load import CHECKS

FIND = {check.id: check.find for check in CHECKS}


def test_thousand_waiting_requests_are_a_long_queue() -> None:
    [found] = FIND["load.long_queue"](Snapshot(0.0, n_waiting=1000))
    assert "max_queue: 200" in found.do[0].patch
    assert not list(FIND["load.long_queue"](Snapshot(0.0, n_waiting=999)))


def test_lanes_are_proposed_between_short_and_long_prompts() -> None:
    waits = {"admit": Spread(1000, 0.1, 0.8, 1.0, 2.0)}
    row = TrafficRow("chat", "", 300.0, 1000, ttft_s=Spread(1000, 0.6, 1.4, 1.8, 2.0), stages_s=waits)
    prompt = PromptRow("chat", 1000, input_tokens=Spread(1000, 100.0, 5000.0, 10000.0, 12000.0))

    def found(**admission: object) -> list[str]:
        return [one.do[0].patch for one in FIND["load.no_lanes"](Snapshot(
            0.0, traffic=(row,), prompts=(prompt,), settings={"admission": {"max_in_flight": 10, **admission}}))]

    assert found() == ["admission:\n  lanes:\n    long_input_tokens: 1000"]
    assert found(lanes={"long_input_tokens": 4000}) == []


def test_full_upstream_is_found_if_requests_wait_for_it() -> None:
    def found(waiting: int) -> list[str]:
        row = UpstreamRow("a", in_flight=10, waiting=waiting, limit=10.0, n_attempts=500)
        settings = {"upstreams": {"a": {"limit": {"mode": "fixed"}}}}
        return [one.do[0].patch for one in FIND["load.near_limit"](Snapshot(0.0, upstreams=(row,), settings=settings))]

    assert "mode: gradient" in found(3)[0]
    assert found(2) == []


def test_refusals_of_one_tenant_are_its_quota() -> None:
    row = TrafficRow("chat", "", 300.0, 1000, n_shed=300)
    assert list(FIND["load.shedding"](Snapshot(0.0, traffic=(row,))))
    tenants = (TenantRow("a", n_shed=290, left={"requests_per_minute": 0.0}), TenantRow("b", n_shed=10))
    assert not list(FIND["load.shedding"](Snapshot(0.0, traffic=(row,), tenants=tenants)))
    without_quota = (TenantRow("a", n_shed=290), TenantRow("b", n_shed=10))
    assert list(FIND["load.shedding"](Snapshot(0.0, traffic=(row,), tenants=without_quota)))
