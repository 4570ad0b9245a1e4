"""Checks of slow first tokens."""

from stayfast.core.snapshot import Snapshot, Spread, TrafficRow
from stayfast.policy.findings.latency import find_tail

TAIL = Spread(1000, 0.4, 0.9, 8.0, 9.0)
UNHEDGED = {"routes": {"chat": {"hedge": {"mode": "off"}}}}


def snapshot_of(*rows: TrafficRow, **settings: object) -> Snapshot:
    return Snapshot(0.0, traffic=rows, settings=settings or UNHEDGED)


def test_long_tail_without_hedges_is_found_with_its_saving() -> None:
    [found] = find_tail(snapshot_of(TrafficRow("chat", "", 300.0, 1000, ttft_s=TAIL)))
    assert found.where.route == "chat"
    assert "20 times" in found.summary
    assert found.do[0].saves_s == 8.0 - 1.3
    assert "mode: auto" in found.do[0].patch


def test_few_requests_or_hedging_give_no_tail() -> None:
    assert not list(find_tail(snapshot_of(TrafficRow("chat", "", 300.0, 199, ttft_s=Spread(199, 0.4, 0.9, 8.0, 9.0)))))
    assert not list(find_tail(snapshot_of(TrafficRow("chat", "", 300.0, 1000, ttft_s=TAIL), routes={})))


def test_slow_median_is_no_tail() -> None:
    rows = (TrafficRow("chat", "", 300.0, 1000, ttft_s=TAIL),
            TrafficRow("chat", "", 3600.0, 9000, ttft_s=Spread(9000, 0.2, 0.9, 8.0, 9.0)))
    assert not list(find_tail(snapshot_of(*rows)))
