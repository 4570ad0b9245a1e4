"""Several gateways admit a limit once; without the section `fleet` each of them admits it."""

import pytest

from stayfast.lab.claims.fleet import PER_S, FleetClaim, Phases, measure_checks, why_late
from stayfast.lab.harness.claim import Figure, Sense, Verdict
from stayfast.lab.harness.redis import RedisProcess
from stayfast.lab.harness.steady_load import SteadyLoad
from tests.prove.running import figure_of, run, run_until_not_short, short_of, without_interval

BRIEF = Phases(0.5, 10.6, 0.1, 0.1, 0.1)


@pytest.mark.sockets
def test_fleet_claim_quick_run_does_not_fall_short() -> None:
    finding = run_until_not_short(FleetClaim())
    assert short_of(finding) == []
    assert without_interval(finding) == []
    assert figure_of(finding, "with 5xx, with Redis").name.split()[2] != "0"
    assert PER_S * 0.2 < float(finding.notes[0].split()[4]) < PER_S * 3  # the declared slack


@pytest.mark.sockets
def test_fleet_claim_gateways_that_do_not_share_falls_short() -> None:
    """Each admits its own limit, and its own burst first."""
    finding = run(FleetClaim(shares=False, quick=BRIEF))
    most = [figure for figure in finding.figures if figure.name.startswith("most admitted in any 10 s,")]
    assert len(most) == 2
    assert all(figure.value > 80 for figure in most)
    assert finding.verdict is Verdict.FALLS_SHORT or not any(figure.is_valid for figure in most)


def test_fleet_claim_late_client_leaves_a_figure_open() -> None:
    """A window of 10 s without 0.2 s of its requests is off by 2 %."""
    off, slow, failed = (Figure.exact("least admitted in any 10 s", -3.0, "%", -2.0, Sense.AT_LEAST),
                         Figure.exact("longest answer", 80.0, "ms", 50.0), Figure.count("requests with 5xx", 1))
    assert [why_late(figure, 0.05) is not None for figure in (off, slow, failed)] == [False, True, False]
    assert [why_late(figure, 0.15) is not None for figure in (off, slow, failed)] == [True, True, False]
    assert why_late(Figure.exact("longest answer", 8.0, "ms", 50.0), 0.15) is None


def test_fleet_claim_check_of_a_request_is_measured() -> None:
    checks_s = measure_checks()
    assert len(checks_s) > 10_000
    assert sorted(checks_s)[len(checks_s) // 2] < 1e-3


def test_redis_process_url_is_of_loopback() -> None:
    assert RedisProcess().url.startswith("redis://127.0.0.1:")


def test_steady_load_without_rates_sends_nothing() -> None:
    load = SteadyLoad({"one": "http://127.0.0.1:1/v1"}, {"a": "key"}, b"{}")
    assert load.answered == []
