"""The claim `mixed` holds in virtual time, takes every figure over sockets, and falls short without hedges."""

from math import isnan

import pytest

from stayfast.lab.claims.mixed import MAX_CALLS, RIVAL_CALLS, Mixed, Rivals, make_load
from stayfast.lab.claims.mixed import run_in_virtual_time as mixed_in_virtual_time
from stayfast.lab.harness.claim import ClaimResult, Extent
from stayfast.lab.harness.virtual import run_virtual
from stayfast.policy.resilience.hedge import HedgeConfig
from tests.prove.running import run, short_of

MIXED = make_load(50.0, 60.0, 30.0)


def test_mixed_claim_virtual_time_does_not_fall_short() -> None:
    """By default and with the best rival's calls. With 3,000 requests most figures are inconclusive."""
    rivals = Rivals(MIXED, 1)
    by_default, tuned = (rivals.record(run_virtual(mixed_in_virtual_time, MIXED, config, 1))
                         for config in (HedgeConfig(), HedgeConfig(budget=rivals.budget)))
    figures = [*by_default.figures(""), *by_default.compare_by_default(""), *tuned.compare_with_as_many_calls("")]
    assert short_of(ClaimResult(tuple(figures))) == []
    assert by_default.compare("", rivals.best, None).value < 0.95
    assert by_default.compare("", rivals.frugal, None).value < 0.5
    assert tuned.compare("", rivals.best, None).value < 0.8
    assert by_default.calls_figure("").value < tuned.calls_figure("").value < rivals.best.calls


def test_mixed_claim_without_hedges_falls_short_of_each_rival() -> None:
    rivals = Rivals(MIXED, 1)
    plain = rivals.record(run_virtual(mixed_in_virtual_time, MIXED, HedgeConfig("off"), 1))
    short = short_of(ClaimResult((*plain.compare_by_default(""), *plain.compare_with_as_many_calls(""))))
    assert [name for name in short if rivals.best.policy.name in name and "prompts" not in name]
    assert [name for name in short if rivals.frugal.policy.name in name]


def test_mixed_claim_above_budget_falls_short_by_calls() -> None:
    """Three times the budget has a better p99, but more calls than by default and than the rival."""
    rivals = Rivals(MIXED, 1)
    costly = rivals.record(run_virtual(mixed_in_virtual_time, MIXED, HedgeConfig(budget=0.5), 1))
    by_default = short_of(ClaimResult(tuple(costly.compare_by_default(""))))
    with_as_many = short_of(ClaimResult(tuple(costly.compare_with_as_many_calls(""))))
    assert by_default == [": calls a request"]
    assert with_as_many == [f": calls a request, less those of {rivals.best.policy.name}"]


def test_rivals_best_has_least_p99_within_its_calls() -> None:
    """Of all families. The one that may spend more is better, the one that must spend less is worse."""
    rivals = Rivals(MIXED, 1)
    families = [run for title, run in rivals.by_title.items() if title.startswith("best of")]
    assert len(families) == 3
    assert rivals.best.p99_s == min(run.p99_s for run in families)
    assert rivals.best.calls <= RIVAL_CALLS
    assert rivals.frugal.calls <= MAX_CALLS
    assert rivals.by_title["best with any number of calls"].p99_s <= rivals.best.p99_s <= rivals.frugal.p99_s
    assert rivals.direct.calls == 1.0


def test_rivals_use_same_random_numbers_as_gateway() -> None:
    """Without hedges a request to the same provider takes as long as in `direct`, to the microsecond."""
    load = make_load(20.0, 10.0, 0.0)
    rivals = Rivals(load, 1)
    samples = run_virtual(mixed_in_virtual_time, load, HedgeConfig("off"), 1).samples
    waits_s = dict(zip(samples.ints["number"], (first - at for first, at in zip(
        samples.floats["first_s"], samples.floats["at_s"], strict=True)), strict=True))
    same = [abs(waits_s[shot.number] - wait_s) < 1e-6 for shot, wait_s in zip(
        rivals.shots, rivals.direct.waits_s, strict=True)]
    assert sum(same) > len(same) / 3  # of two providers the other was asked for the rest


@pytest.mark.sockets
def test_mixed_claim_takes_every_figure() -> None:
    """The run is too short for the goals."""
    finding = run(Mixed(quick=Extent(1000, 1.0, warmup_s=1.0)))
    assert [figure.name for figure in finding.figures if isnan(figure.value)] == []
    assert any(figure.goal is not None for figure in finding.figures)
