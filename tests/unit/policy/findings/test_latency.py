"""Checks of slow first tokens."""

import msgspec
import pytest

from stayfast.core.snapshot import Snapshot, Spread, TrafficRow
from stayfast.policy.findings.hedging import find_hedging_off
from stayfast.policy.findings.latency import (
    find_all_slow,
    find_promise_missed,
    find_slow_upstream,
    find_tail,
    find_uneven_upstreams,
)

TAIL = Spread(1000, 0.4, 0.9, 8.0, 9.0)
PROMISE = {"routes": {"chat": {"slo": {"ttft": {"under_s": 2.0, "share": 0.95}}}}}


def snapshot_of(*rows: TrafficRow, **settings: object) -> Snapshot:
    return Snapshot(0.0, traffic=rows, settings=settings)


def test_long_tail_is_found_with_a_time_out_and_its_saving() -> None:
    [found] = find_tail(snapshot_of(TrafficRow("chat", "", 300.0, 1000, ttft_s=TAIL)))
    assert found.where.route == "chat"
    assert "20 times" in found.summary
    assert "first_token_s: 1.8" in found.do[0].patch
    assert found.do[0].saves_s == pytest.approx(8.0 - 1.8 - 0.4)


def test_tail_with_refused_hedges_gets_a_larger_budget() -> None:
    [found] = find_tail(snapshot_of(TrafficRow("chat", "", 300.0, 1000, ttft_s=TAIL, n_hedges=5, n_hedges_refused=50)))
    assert "budget: 0.15" in found.do[0].patch


def test_few_requests_give_no_tail() -> None:
    assert not list(find_tail(snapshot_of(TrafficRow("chat", "", 300.0, 199, ttft_s=Spread(199, 0.4, 0.9, 8.0, 9.0)))))


def test_slow_median_is_no_tail_but_all_slow() -> None:
    rows = snapshot_of(TrafficRow("chat", "", 300.0, 1000, ttft_s=TAIL),
                       TrafficRow("chat", "", 3600.0, 9000, ttft_s=Spread(9000, 0.2, 0.9, 8.0, 9.0)))
    assert not list(find_tail(rows))
    [found] = find_all_slow(rows)
    assert "2.0 times" in found.summary


def test_hour_that_only_holds_the_last_minutes_proves_no_change() -> None:
    rows = snapshot_of(TrafficRow("chat", "", 300.0, 1000, ttft_s=TAIL),
                       TrafficRow("chat", "", 3600.0, 1100, ttft_s=Spread(1100, 0.2, 0.9, 8.0, 9.0)))
    assert not list(find_all_slow(rows))


def test_slow_upstream_is_named_and_ejection_silences_it() -> None:
    rows = (TrafficRow("chat", "a", 300.0, 300, ttft_s=Spread(300, 0.4, 0.6, 0.9, 1.0)),
            TrafficRow("chat", "b", 300.0, 300, ttft_s=Spread(300, 1.2, 1.6, 1.9, 2.0)))
    [found] = find_slow_upstream(snapshot_of(*rows))
    assert found.where.upstream == "b"
    assert found.do[0].saves_s == pytest.approx(0.8)
    assert not list(find_slow_upstream(snapshot_of(*rows, routes={"chat": {"eject": {"enabled": True}}})))


def test_steadier_upstream_with_the_same_median_is_named() -> None:
    [found] = find_uneven_upstreams(snapshot_of(
        TrafficRow("chat", "a", 300.0, 300, ttft_s=Spread(300, 0.4, 0.6, 0.9, 1.0)),
        TrafficRow("chat", "b", 300.0, 300, ttft_s=Spread(300, 0.4, 1.6, 4.0, 5.0))))
    assert found.where.upstream == "b"
    assert "weights:\n      a: 4" in found.do[0].patch


def test_missed_promise_is_urgent_only_far_beyond_its_share() -> None:
    def severities(n_late: int, n_streamed: int = 1000) -> list[str]:
        row = TrafficRow("chat", "", 300.0, 1000, n_streamed, n_late=n_late, ttft_s=TAIL, stages_at_p99_s={"call": 7.9})
        return [found.severity for found in find_promise_missed(snapshot_of(row, **PROMISE))]

    assert severities(400) == ["act"]
    assert severities(100) == ["warn"]
    assert severities(55) == []
    assert severities(400, n_streamed=0) == []


def test_answers_of_the_cache_make_no_tail_and_no_time_out() -> None:
    """19 of 20 requests are answered from the cache in 1 ms; a call takes half a second, as always."""
    hits, calls = Spread(9500, 0.001, 0.002, 0.003, 0.01), Spread(500, 0.5, 0.8, 0.9, 1.0)
    mixed = Spread(10000, 0.001, 0.002, 0.6, 1.0)
    rows = [TrafficRow("chat", "", 300.0, 10000, 10000, ttft_s=mixed),
            TrafficRow("chat", "(cache)", 300.0, 9500, 9500, ttft_s=hits),
            TrafficRow("chat", "a", 300.0, 500, 500, ttft_s=calls)]
    assert list(find_tail(snapshot_of(*rows))) == []
    assert list(find_hedging_off(snapshot_of(*rows, routes={"chat": {"hedge": {"mode": "off"}}}))) == []
    [found] = find_tail(snapshot_of(*rows[:2], msgspec.structs.replace(rows[2], ttft_s=Spread(500, 0.5, 0.8, 6.0, 7.0))))
    assert "first_token_s: 1.6" in found.do[0].patch


def test_fewer_hits_are_no_slower_provider() -> None:
    """The p50 of all requests rises from 1 ms to 500 ms when the cache is emptied; that of the calls does not."""
    calls, mixed = Spread(500, 0.5, 0.8, 0.9, 1.0), Spread(9500, 0.001, 0.002, 0.6, 1.0)
    rows = [TrafficRow("chat", "", 300.0, 500, 500, ttft_s=calls), TrafficRow("chat", "a", 300.0, 500, 500, ttft_s=calls),
            TrafficRow("chat", "", 3600.0, 9500, 9500, ttft_s=mixed),
            TrafficRow("chat", "a", 3600.0, 900, 900, ttft_s=calls),
            TrafficRow("chat", "(cache)", 3600.0, 8600, 8600, ttft_s=mixed)]
    assert list(find_all_slow(snapshot_of(*rows))) == []


def test_time_out_of_a_quick_route_is_no_pause_of_a_process() -> None:
    """3 ms would be rounded to 0, which no settings file may have."""
    row = TrafficRow("chat", "", 300.0, 1000, ttft_s=Spread(1000, 0.001, 0.0012, 0.5, 0.6))
    assert "first_token_s: 0.1" in next(iter(find_tail(snapshot_of(row)))).do[0].patch
