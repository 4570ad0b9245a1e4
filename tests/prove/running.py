"""Helpers that run proofs and read their findings."""

from collections.abc import Callable

import uvloop

from stayfast.lab.harness.claim import Claim, Conditions, Figure, Finding, Verdict

N_TRIES = 3  # what is claimed holds on a machine that has a core to spare; a shared one may be kept from running
QUICK = Conditions(is_quick=True)


def run(claim: Claim) -> Finding:
    """One quick run."""
    return uvloop.run(claim.run(QUICK))


def run_until(claim: Claim, is_so: Callable[[Finding], bool]) -> Finding:
    """The first of N_TRIES runs for which `is_so` is true, or the last."""
    finding = run(claim)
    for _ in range(N_TRIES - 1):
        if is_so(finding):
            break
        finding = run(claim)
    return finding


def run_until_it_holds(claim: Claim) -> Finding:
    return run_until(claim, lambda finding: finding.holds)


def short_of(finding: Finding) -> list[str]:
    """The names of the figures that fall short of their goals; inconclusive ones do not."""
    return [figure.name for figure in finding.figures if figure.verdict is Verdict.FALLS_SHORT]


def figure_of(finding: Finding, words: str) -> Figure:
    """The only figure whose name contains these words."""
    [found] = [figure for figure in finding.figures if words in figure.name]
    return found
