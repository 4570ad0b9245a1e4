"""The claims about limits and breakers hold in short runs, and fall short without them."""

import pytest

from stayfast.lab.claims import brownout, storm
from stayfast.lab.claims.brownout import Brownout, make_figures
from stayfast.lab.claims.storm import Storm
from stayfast.lab.harness.claim import ClaimResult
from stayfast.lab.harness.virtual import run_virtual
from tests.prove.running import figure_of, run_until, short_figures, short_of, without_interval

BROWNOUT = brownout.BrownoutPhases(10.0, 12.0, 4.0, 12.0, open_s=8.0)


def test_brownout_claim_virtual_time_holds_and_no_breakers_fall_short() -> None:
    run = run_virtual(brownout.run_in_virtual_time, BROWNOUT, 1, {})
    with_breakers = make_figures("v", run._replace(peak_before=10, peak_after=10), BROWNOUT)
    assert short_figures(with_breakers) == []
    without = run_virtual(brownout.run_in_virtual_time, BROWNOUT, 1, {"enabled": False})
    assert short_figures(make_figures("v", without, BROWNOUT)) != []


def test_storm_claim_virtual_time_no_limit_exceeds_goal() -> None:
    phases = storm.StormPhases(3.0, 3.0, 3.0)
    assert run_virtual(storm.run_in_virtual_time, phases, 1, "gradient")[1] <= 1.3 * 32
    assert run_virtual(storm.run_in_virtual_time, phases, 1, "off")[1] >= 200


@pytest.mark.sockets
def test_storm_claim_holds() -> None:
    """The phases are too short for the goals over sockets, so the run is only compared with one without limits. The limit
    halves at most once a second: the outage lasts long enough for that on a busy machine, too.
    """
    def is_far_from_no_limit(finding: ClaimResult) -> bool:
        most, most_without = (figure_of(finding, words).value for words in ("sockets: most at the engine", "without limits"))
        return most < 0.5 * most_without and most_without > 5

    finding = run_until(Storm(quick=storm.StormPhases(3.0, 8.0, 4.0)), is_far_from_no_limit)
    assert [name for name in short_of(finding) if not name.startswith("sockets")] == []
    assert is_far_from_no_limit(finding), finding.figures
    assert without_interval(finding) == []


@pytest.mark.sockets
def test_brownout_claim_loses_no_request() -> None:
    """The p99 of so few requests depends on the machine, the failures do not."""
    phases = brownout.BrownoutPhases(4.0, 5.0, 2.0, 2.0, open_s=4.0)

    def loses_nothing(finding: ClaimResult) -> bool:
        return not any("failed" in name for name in short_of(finding))

    finding = run_until(Brownout(quick=phases, quick_virtual=BROWNOUT), loses_nothing)
    assert loses_nothing(finding), finding.figures
    assert without_interval(finding) == []
