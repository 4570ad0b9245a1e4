"""The claims about hedging hold in virtual time, take every figure over sockets, and fall short without hedges."""

from collections.abc import Mapping
from dataclasses import replace
from math import isnan
from typing import Any

import pytest

from stayfast.lab.claims import tail
from stayfast.lab.claims.mixed import MAX_CALLS, RIVAL_CALLS, Mixed, Rivals, make_load
from stayfast.lab.claims.mixed import run_in_virtual_time as mixed_in_virtual_time
from stayfast.lab.claims.tail import Hangs, HedgeClaim, Tail, run_in_virtual_time, run_over_sockets
from stayfast.lab.harness.claim import Claim, Extent, Finding
from stayfast.lab.harness.load import LoadSpec, WaitSummary, summarize_waits
from stayfast.lab.harness.virtual import run_virtual
from stayfast.lab.load.result import Result
from stayfast.policy.resilience.hedge import HedgeConfig
from tests.prove.running import run, short_of

BRIEF = Extent(300, 1.0)
MIXED = make_load(50.0, 60.0, 30.0)


def _tail(config: HedgeConfig) -> WaitSummary:
    return summarize_waits(run_virtual(run_in_virtual_time, tail.HEAVY_TAILED, config, tail.tail_load(60.0), 1))


def test_tail_claim_virtual_time_holds_and_no_hedges_fall_short() -> None:
    """6,000 requests are within 15 % of the goals."""
    _, goals = tail.TAIL[tail.DEFAULT]
    hedged = _tail(HedgeConfig())
    assert hedged.p95_s <= goals["p95_s"] * 1.15
    assert hedged.p99_s <= goals["p99_s"] * 1.15
    assert hedged.calls <= 1.11
    assert hedged.n_failed == 0
    assert _tail(HedgeConfig("off")).p99_s > 5


def test_hedging_whole_answers_cut_tail() -> None:
    load = replace(tail.tail_load(60.0), stream=False)
    hedged = summarize_waits(run_virtual(run_in_virtual_time, tail.HEAVY_TAILED, HedgeConfig(), load, 1))
    assert hedged.p99_s <= 1.1
    assert hedged.past_5_s < 0.001
    assert 1.06 < hedged.calls <= 1.11


def test_hedging_provider_without_tail_costs_nothing() -> None:
    """At most 2 % more calls for streams and whole answers."""
    for stream in (True, False):
        load = replace(tail.tail_load(60.0), stream=stream)
        assert summarize_waits(run_virtual(run_in_virtual_time, tail.NARROW, HedgeConfig(), load, 1)).calls <= 1.02


def test_simulate_tuned_matches_known_figures() -> None:
    """9.1 % of the attempts exceed 0.5 s, which makes 9.9 % more calls with third attempts."""
    timeout, hedge = tail.simulate_tuned(40_000, 1)
    assert timeout.calls == pytest.approx(1.10, abs=0.006)
    assert hedge.calls == pytest.approx(1.099, abs=0.006)
    assert timeout.p99_s == pytest.approx(0.945, rel=0.04)
    assert hedge.p99_s == pytest.approx(0.88, rel=0.04)


def test_hangs_claim_virtual_time_holds_and_no_hedges_fall_short() -> None:
    hedged, plain = (summarize_waits(run_virtual(run_in_virtual_time, tail.HANGING, config, tail.hangs_load(100.0), 1))
                     for config in (HedgeConfig(), HedgeConfig("off")))
    assert (hedged.p99_s <= tail.HANGS_GOALS["p99_s"], hedged.calls <= tail.HANGS_GOALS["calls"]) == (True, True)
    assert hedged.n_failed <= 4
    assert plain.n_failed > 100
    assert [provider.faults[0].rate for provider in tail.HANGING.values()] == [0.05, 0.05]


def test_mixed_claim_virtual_time_does_not_fall_short() -> None:
    """By default and with the best rival's calls. With 3,000 requests most figures are inconclusive."""
    rivals = Rivals(MIXED, 1)
    by_default, tuned = (rivals.record(run_virtual(mixed_in_virtual_time, MIXED, config, 1))
                         for config in (HedgeConfig(), HedgeConfig(budget=rivals.budget)))
    figures = [*by_default.figures(""), *by_default.compare_by_default(""), *tuned.compare_with_as_many_calls("")]
    assert short_of(Finding(tuple(figures))) == []
    assert by_default.compare("", rivals.best, None).value < 0.95
    assert by_default.compare("", rivals.frugal, None).value < 0.5
    assert tuned.compare("", rivals.best, None).value < 0.8
    assert by_default.calls_figure("").value < tuned.calls_figure("").value < rivals.best.calls


def test_mixed_claim_without_hedges_falls_short_of_each_rival() -> None:
    rivals = Rivals(MIXED, 1)
    plain = rivals.record(run_virtual(mixed_in_virtual_time, MIXED, HedgeConfig("off"), 1))
    short = short_of(Finding((*plain.compare_by_default(""), *plain.compare_with_as_many_calls(""))))
    assert [name for name in short if rivals.best.policy.name in name and "prompts" not in name]
    assert [name for name in short if rivals.frugal.policy.name in name]


def test_mixed_claim_above_budget_falls_short_by_calls() -> None:
    """Three times the budget has a better p99, but more calls than by default and than the rival."""
    rivals = Rivals(MIXED, 1)
    costly = rivals.record(run_virtual(mixed_in_virtual_time, MIXED, HedgeConfig(budget=0.5), 1))
    by_default = short_of(Finding(tuple(costly.compare_by_default(""))))
    with_as_many = short_of(Finding(tuple(costly.compare_with_as_many_calls(""))))
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


@pytest.fixture
def _short_warmups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up of one second, as these runs measure nothing."""
    async def shortly(providers: Mapping[str, Any], hedge_settings: Mapping[str, Any], load: LoadSpec, seed: int) -> Result:
        return await run_over_sockets(providers, hedge_settings, replace(load, warmup_s=1.0), seed)

    monkeypatch.setattr(tail, "run_over_sockets", shortly)


@pytest.mark.sockets
@pytest.mark.usefixtures("_short_warmups")
@pytest.mark.parametrize("claim", [Tail(quick=BRIEF), Hangs(quick=BRIEF), HedgeClaim(quick=BRIEF),
                                   Mixed(quick=Extent(1000, 1.0, warmup_s=1.0))],
                         ids=["tail", "hangs", "hedge", "mixed"])
def test_hedging_claims_take_every_figure(claim: Claim) -> None:
    """The runs are too short for the goals."""
    finding = run(claim)
    assert [figure.name for figure in finding.figures if isnan(figure.value)] == []
    assert any(figure.goal is not None for figure in finding.figures)


@pytest.mark.sockets
@pytest.mark.usefixtures("_short_warmups")
def test_hangs_claim_without_hedges_falls_short() -> None:
    finding = run(Hangs(quick=Extent(1000, 1.0), hedge={"mode": "off"}))
    assert not finding.holds
