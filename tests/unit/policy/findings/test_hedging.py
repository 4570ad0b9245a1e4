"""Checks of second attempts."""

from stayfast.core.snapshot import Snapshot, Spread, TrafficRow
from stayfast.policy.findings.hedging import find_hedge_waste, find_hedging_off

OFF = {"routes": {"chat": {"hedge": {"mode": "off"}}}}
TAIL = Spread(1000, 0.2, 2.3, 8.0, 9.0)


def test_hedging_off_predicts_the_p99() -> None:
    row = TrafficRow("chat", "", 300.0, 1000, 1000, ttft_s=TAIL)
    [found] = find_hedging_off(Snapshot(0.0, traffic=(row,), settings=OFF))
    assert found.do[0].saves_s is not None
    assert 4.0 < found.do[0].saves_s < 5.5
    assert found.do[0].patch == "routes:\n  chat:\n    hedge:\n      mode: auto"


def test_hedging_that_is_on_or_has_little_to_gain_is_not_found() -> None:
    row = TrafficRow("chat", "", 300.0, 1000, 1000, ttft_s=TAIL)
    assert not list(find_hedging_off(Snapshot(0.0, traffic=(row,))))
    whole = TrafficRow("chat", "", 300.0, 1000, 0, ttft_s=Spread(1000, 2.0, 4.0, 6.5, 9.0))
    assert not list(find_hedging_off(Snapshot(0.0, traffic=(whole,), settings=OFF)))


def test_hedges_that_do_not_win_are_waste() -> None:
    def patches(n_won: int, mode: str) -> list[str]:
        row = TrafficRow("chat", "", 300.0, 1000, n_hedges=200, n_hedges_won=n_won, cost_usd={"hedge": 0.5})
        settings = {"routes": {"chat": {"hedge": {"mode": mode}}}}
        return [found.do[0].patch for found in find_hedge_waste(Snapshot(0.0, traffic=(row,), settings=settings))]

    assert "mode: auto" in patches(5, "race")[0]
    assert "budget: 0.02" in patches(5, "auto")[0]
    assert patches(60, "race") == []
