"""All claims of the registry that run in virtual time: each figure with a goal has an interval or is exact."""

import asyncio
from dataclasses import replace

import pytest

from stayfast.lab.claims.caps import CapsClaim
from stayfast.lab.claims.isolation import Isolation
from stayfast.lab.claims.prefix import PrefixClaim
from stayfast.lab.claims.registry import claims
from stayfast.lab.claims.stalls import StallsClaim
from stayfast.lab.claims.stragglers import Stragglers
from stayfast.lab.harness.claim import Claim, ClaimResult, Conditions, Extent, Figure, Verdict
from stayfast.lab.harness.virtual import VirtualClaim
from tests.prove.running import short_of, without_interval

SLOW = {"fair", "lanes"}  # their own tests do the same
SHORT: tuple[Claim, ...] = (
    Isolation(n_quick=400), PrefixClaim(quick=Extent(2)), StallsClaim(quick=Extent(60)), CapsClaim(quick=Extent(300)),
    Stragglers(quick=Extent(800)),
    *(replace(claim, n_quick=200) for name, claim in claims().items()
      if isinstance(claim, VirtualClaim) and name not in SLOW))


@pytest.mark.parametrize("claim", SHORT, ids=lambda claim: claim.name)
def test_claim_figures_with_goal_have_interval_or_are_exact(claim: Claim) -> None:
    """A run that is far too short: some figures are open, and none of the sampled ones is without an interval."""
    finding = asyncio.run(claim.run(Conditions(is_quick=True)))
    assert any(figure.goal is not None for figure in finding.figures)
    assert without_interval(finding) == []


def test_without_interval_finds_sampled_figure() -> None:
    """The reference for the test above."""
    sampled = Figure("p99", 1.0, "s", 2.0)
    assert without_interval(ClaimResult((sampled, Figure.count("lost", 0), Figure("p50", 1.0, "s")))) == ["p99"]
    assert without_interval(ClaimResult((with_interval(sampled),))) == []


def with_interval(figure: Figure) -> Figure:
    """The figure with an interval."""
    return Figure(figure.name, figure.value, figure.unit, figure.goal, low=0.5, high=1.5)


def test_short_of_ignores_inconclusive_figures() -> None:
    finding = ClaimResult((Figure("open", 1.0, "s", 2.0, low=1.0, high=3.0), Figure("late", 3.0, "s", 2.0)))
    assert finding.figures[0].verdict is Verdict.INCONCLUSIVE
    assert short_of(finding) == ["late"]
