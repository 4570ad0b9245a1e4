"""Every proof from end to end, as short as it can be: what does not depend on how busy the machine is must hold."""

import re
from math import isfinite

import pytest

from stayfast.lab.claims.budget import BudgetClaim
from stayfast.lab.claims.cancel import Cancel
from stayfast.lab.claims.overhead import Overhead
from stayfast.lab.claims.truth import KNOWN, TruthClaim, compare_with_formula, run_in_virtual_time
from stayfast.lab.harness.claim import ClaimResult, Extent, Verdict
from stayfast.lab.harness.virtual import run_virtual
from tests.prove.running import figure_of, run, run_until, run_until_not_short, short_of, without_interval

pytestmark = pytest.mark.sockets


@pytest.mark.serial
def test_cancel_claim_does_not_fall_short() -> None:
    finding = run_until_not_short(Cancel(quick=Extent(6)))
    assert short_of(finding) == []
    assert len(finding.figures) == 12
    assert without_interval(finding) == []


@pytest.mark.serial
def test_budget_claim_does_not_fall_short() -> None:
    """The run needs the fallback, and has partial answers."""
    finding = run_until_not_short(BudgetClaim(quick=Extent(real_s=2.0)))
    assert short_of(finding) == []
    assert figure_of(finding, "jagged, streams: ended in part").value > 0
    assert without_interval(finding) == []
    assert re.search(r"call (2|199)|relay", finding.notes[1])


@pytest.mark.serial
def test_overhead_claim_takes_every_figure() -> None:
    """The figures depend on the machine; failures do not."""
    finding = run(Overhead(quick=Extent(real_s=0.4)))
    assert [figure.name for figure in finding.figures if not isfinite(figure.value)] == []
    assert len(finding.figures) == 10
    assert without_interval(finding) == []
    assert figure_of(finding, "failed requests").holds
    assert figure_of(finding, "gateway over bare proxy").value > 1


def test_truth_claim_takes_every_figure() -> None:
    """There are too few answers for percentiles, but all must arrive, and the stall must be visible."""
    def shows_the_stall(finding: ClaimResult) -> bool:
        return figure_of(finding, "stalled target: e2e p99").value < 20

    finding = run_until(TruthClaim(quick=Extent(real_s=0.5, virtual_s=2.0), stalled_run_s=2.0, stall_s=0.6), shows_the_stall)
    assert [figure.name for figure in finding.figures if not isfinite(figure.value)] == []
    assert len(finding.figures) == 13
    assert without_interval(finding) == []
    assert not any("without an answer" in name for name in short_of(finding))
    assert shows_the_stall(finding), finding.figures


def test_truth_claim_virtual_time_holds() -> None:
    """20,000 answers are enough for the median, not for the p99."""
    lost, median, p99 = compare_with_formula("virtual time", run_virtual(run_in_virtual_time, 80.0, 1), KNOWN)
    assert lost.holds
    assert median.holds
    assert p99.verdict is not Verdict.FALLS_SHORT
