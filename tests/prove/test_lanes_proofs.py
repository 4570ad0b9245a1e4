"""The claims about lanes hold in short runs, and fall short with wrong or missing lanes."""

from dataclasses import replace

import pytest

from stayfast.lab.claims import lanes, stragglers
from stayfast.lab.harness.virtual import run_virtual
from stayfast.pipeline.admission.controller import QueuedRequest
from stayfast.policy.admission.lanes import Lane, Lanes
from tests.prove.running import short_figures, short_of, without_interval


def test_lanes_claim_holds() -> None:
    finding = run_virtual(lanes.measure, 1, 1)
    assert short_of(finding) == []
    assert without_interval(finding) == []
    assert len(finding.figures) == 10


def test_lanes_claim_wrong_shares_fall_short() -> None:
    """The long lane gets half its share."""
    finding = run_virtual(lanes.measure, 1, 1, replace(lanes.LANES, long_share=0.125), (None,))
    assert "long, due 25.0% of the places: off by" in short_of(finding)


def test_lanes_claim_lost_place_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """One finished long request is not counted."""
    leave, n_left = Lanes.end_request, iter(range(10**9))

    def forgetful(self: Lanes[QueuedRequest], lane: Lane[QueuedRequest], now: float) -> None:
        if next(n_left) != 50:
            leave(self, lane, now)

    monkeypatch.setattr(Lanes, "end_request", forgetful)
    finding = run_virtual(lanes.measure, 1, 1, lanes.LANES, (None,))
    assert "places still taken at the end" in short_of(finding)


@pytest.mark.parametrize("name", ["continuous", "static"])
def test_stragglers_claim_holds_and_no_lanes_fall_short(name: str) -> None:
    case = stragglers.CASES[name]
    before = run_virtual(stragglers.run_in_virtual_time, case, 3000, 1, has_lanes=False)
    after = run_virtual(stragglers.run_in_virtual_time, case, 3000, 1, has_lanes=True)
    figures = stragglers.make_figures(name, before, after, stragglers.BEFORE_P99_S)
    assert short_figures(figures) == []
    assert len(before.short_s) + len(before.long_s) == len(after.short_s) + len(after.long_s) == 3000
    assert "short, with lanes: p99" in "".join(short_figures(stragglers.make_figures(name, after, before)))
