"""Helpers that run proofs and read their findings."""

from collections.abc import Callable, Iterable

import uvloop

from stayfast.lab.harness.claim import Claim, ClaimResult, Conditions, Figure, Verdict

N_TRIES = 3  # what is claimed holds on a machine that has a core to spare; a shared one may be kept from running
QUICK = Conditions(is_quick=True)


def run(claim: Claim) -> ClaimResult:
    """One quick run."""
    return uvloop.run(claim.run(QUICK))


def run_until(claim: Claim, is_so: Callable[[ClaimResult], bool]) -> ClaimResult:
    """The first of N_TRIES runs for which `is_so` is true, or the last."""
    finding = run(claim)
    for _ in range(N_TRIES - 1):
        if is_so(finding):
            break
        finding = run(claim)
    return finding


def run_until_not_short(claim: Claim) -> ClaimResult:
    """A busy machine may be late, or leave a figure open; it must not fall short time after time."""
    return run_until(claim, lambda finding: finding.verdict is not Verdict.FALLS_SHORT)


def short_figures(figures: Iterable[Figure]) -> list[str]:
    """The names of the figures that fall short; inconclusive ones do not."""
    return [figure.name for figure in figures if figure.verdict is Verdict.FALLS_SHORT]


def short_of(finding: ClaimResult) -> list[str]:
    """The names of the figures that fall short of their goals; inconclusive ones do not."""
    return short_figures(finding.figures)


def without_interval(finding: ClaimResult) -> list[str]:
    """The names of the figures with a goal that have no interval, and are not exact."""
    return [figure.name for figure in finding.figures
            if figure.goal is not None and not figure.is_exact and (figure.low is None or figure.high is None)]


def figure_of(finding: ClaimResult, words: str) -> Figure:
    """The only figure whose name contains these words."""
    [found] = [figure for figure in finding.figures if words in figure.name]
    return found
