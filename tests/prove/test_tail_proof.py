"""The claims `tail`, `hangs` and `hedge` hold in virtual time, take every figure over sockets, and fall short without
hedges, with a constant delay, and with a budget that is not enforced.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from math import inf, isnan
from typing import Any

import pytest

from stayfast.lab.claims import tail
from stayfast.lab.claims.tail import Hangs, HedgeClaim, Tail, TailRivals, run_in_virtual_time, run_over_sockets
from stayfast.lab.harness.claim import Claim, Extent, Figure, Verdict
from stayfast.lab.harness.load import LoadSpec
from stayfast.lab.harness.virtual import HEAVY_TAIL, run_virtual
from stayfast.lab.harness.waits import WaitSeries, most_extra_calls, read_waits
from stayfast.lab.load.result import Result
from stayfast.lab.simulated import ProviderConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.retry_budget import RetryBudget
from tests.prove.running import run

BRIEF = Extent(300, 1.0)
OFF = HedgeConfig("off")
CONSTANT = HedgeConfig("race", race_after_s=0.5)
MINUTE = tail.tail_load(60.0)
CASES = {"tail": (tail.heavy_tailed(1), HEAVY_TAIL.tail_share, HedgeConfig(), tail.MINUTE_CALLS),
         "hedge": (tail.hosted(1), 0.03, HedgeConfig(budget=tail.SELF_BUDGET), tail.SELF_MINUTE_CALLS)}


def _run(config: HedgeConfig, load: LoadSpec = MINUTE, providers: Mapping[str, ProviderConfig] = CASES["tail"][0]
         ) -> WaitSeries:
    return read_waits(run_virtual(run_in_virtual_time, providers, config, load, 1))


def _short(figures: list[Figure]) -> list[str]:
    return [figure.name for figure in figures if figure.verdict is Verdict.FALLS_SHORT]


def test_tail_claim_virtual_time_holds_and_no_hedges_fall_short() -> None:
    """6,000 requests are too few for a verdict on each figure, but none falls short."""
    goals = tail.TAIL[tail.DEFAULT].goals
    hedged, plain = _run(HedgeConfig()), _run(OFF)
    assert _short(hedged.figures("", goals)) == []
    assert hedged.n_failed == 0
    assert len(_short(plain.figures("", goals))) == 3  # all but the calls
    assert plain.quantile_s(0.99) > 5


def test_tail_claim_larger_budget_spends_no_more_than_goal() -> None:
    case = tail.TAIL[tail.LARGER]
    figures = _run(HedgeConfig(**case.hedge)).figures("", case.goals)
    assert _short(figures) == []
    assert _short(_run(HedgeConfig(budget=0.4)).figures("", case.goals)) == [": calls a request"]


@pytest.mark.parametrize("name", list(CASES))
def test_surge_budget_holds_and_unenforced_budget_falls_short(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the check of the budget always true, the worst minute has more calls than claimed."""
    providers, tail_share, config, goal = CASES[name]
    surging = tail.add_surge(providers, tail_share)
    assert _short(asyncio.run(tail.surge_figures(surging, config, goal, 1))) == []
    monkeypatch.setattr(RetryBudget, "may_hedge", lambda *_: True)
    [short] = _short(asyncio.run(tail.surge_figures(surging, config, goal, 1)))
    assert "worst minute" in short


@pytest.mark.parametrize("name", list(CASES))
def test_surge_constant_delay_falls_short(name: str) -> None:
    providers, tail_share, _, goal = CASES[name]
    [short] = _short(asyncio.run(tail.surge_figures(tail.add_surge(providers, tail_share), CONSTANT, goal, 1)))
    assert "worst minute" in short


def test_surge_without_slow_calls_falls_short() -> None:
    """A surge that does not happen tests no budget."""
    [short] = _short(asyncio.run(tail.surge_figures(tail.heavy_tailed(1), HedgeConfig(), tail.MINUTE_CALLS, 1)))
    assert "slow" in short


def test_tail_claim_other_seed_redraws_providers() -> None:
    assert tail.heavy_tailed(1)["a"].seed != tail.heavy_tailed(2)["a"].seed
    assert tail.hosted(1)["a"].seed != tail.hosted(2)["a"].seed
    same, load = tail.heavy_tailed(1), tail.tail_load(5.0)
    first, again, other = (_run(OFF, load, providers).waits_s for providers in (same, same, tail.heavy_tailed(2)))
    assert first == again
    assert first != other


def test_hedging_whole_answers_cut_tail() -> None:
    hedged = _run(HedgeConfig(), replace(tail.tail_load(60.0), stream=False))
    assert hedged.quantile_s(0.99) <= 1.1
    assert 1.06 < hedged.calls <= 1.11


def test_hedging_provider_without_tail_costs_nothing() -> None:
    """At most 2 % more calls for streams and whole answers."""
    for stream in (True, False):
        assert _run(HedgeConfig(), replace(tail.tail_load(60.0), stream=stream), tail.narrow(1)).calls <= 1.02


def test_rivals_choose_best_p99_within_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """9.1 % of the attempts exceed 0.5 s, which makes 9.1 to 9.9 % more calls."""
    monkeypatch.setattr(tail, "DELAYS_S", (0.3, 0.5, 1.0))
    rivals = TailRivals(20_000, 1)
    best = rivals.choose(1.105)
    assert (best.policy.after_s, best.policy.is_hedge) == (0.5, True)
    assert best.p99_s == pytest.approx(0.88, rel=0.05)
    assert best.p99_s == min(each.p99_s for each in rivals.runs if each.calls <= 1.105)
    assert rivals.choose(inf).policy.after_s == 0.3


def test_hangs_claim_virtual_time_holds_and_no_hedges_fall_short() -> None:
    hedged, plain = (_run(config, tail.hangs_load(100.0), tail.hanging(1)) for config in (HedgeConfig(), OFF))
    assert _short(hedged.figures("", tail.HANGS_GOALS)) == []
    assert hedged.n_failed <= 4
    assert plain.n_failed > 100
    assert len(_short(plain.figures("", tail.HANGS_GOALS))) == 1


def test_hedge_claim_without_hedges_falls_short() -> None:
    load = LoadSpec(60.0, tail.HEDGE_RPS, n_output=2, warmup_s=tail.WARMUP_S)
    plain = _run(OFF, load, tail.hosted(1))
    hedged = _run(HedgeConfig(), load, tail.hosted(1))
    assert hedged.saved_figure("", plain.waits_s, 0.99, tail.LESS_P99).value > 50
    assert plain.saved_figure("", plain.waits_s, 0.99, tail.LESS_P99).verdict is Verdict.FALLS_SHORT


def test_most_extra_calls_finds_worst_window() -> None:
    """Ten requests in each ten seconds; six more calls in the second ten seconds."""
    requests = [float(n) for n in range(40)]
    calls = [*requests, 12.5, 13.0, 14.0, 15.0, 16.0, 17.0]
    assert most_extra_calls(requests, calls, 10.0) == pytest.approx(0.6)
    assert most_extra_calls(requests, requests, 10.0) == 0.0


def _statement_numbers(goals: Mapping[str, float]) -> list[str]:
    """Each goal as the sentence has it: calls and shares in percent, the rest in seconds."""
    percent = {"calls": lambda goal: goal - 1, "past_5_s": lambda goal: goal}
    return [f"{percent[name](goal) * 100:.4g} %" if name in percent else f"{goal:.2f} s" for name, goal in goals.items()]


def test_statements_contain_their_goals() -> None:
    for case in tail.TAIL.values():
        for goals in (case.goals, case.socket_goals):
            assert [number for number in _statement_numbers(goals) if number not in Tail.statement] == []
        assert f"{case.rival_goal:g} times" in Tail.statement
    assert f"{tail.MINUTE_CALLS * 100:g} %" in Tail.statement


@pytest.fixture
def _short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up of one second, and few draws of the rivals, as these runs measure nothing."""
    async def shortly(providers: Mapping[str, Any], hedge_settings: Mapping[str, Any], load: LoadSpec, seed: int) -> Result:
        return await run_over_sockets(providers, hedge_settings, replace(load, warmup_s=1.0), seed)

    monkeypatch.setattr(tail, "run_over_sockets", shortly)
    monkeypatch.setattr(tail, "MIN_RIVAL_N", 500)


@pytest.mark.sockets
@pytest.mark.usefixtures("_short_runs")
@pytest.mark.parametrize("claim", [Tail(quick=BRIEF), Hangs(quick=BRIEF), HedgeClaim(quick=BRIEF)],
                         ids=["tail", "hangs", "hedge"])
def test_hedging_claims_take_every_figure(claim: Claim) -> None:
    """The runs are too short for the goals."""
    finding = run(claim)
    assert [figure.name for figure in finding.figures if isnan(figure.value)] == []
    assert any(figure.goal is not None for figure in finding.figures)


@pytest.mark.sockets
@pytest.mark.usefixtures("_short_runs")
def test_hangs_claim_without_hedges_falls_short() -> None:
    finding = run(Hangs(quick=Extent(1000, 1.0), hedge={"mode": "off"}))
    assert finding.verdict is Verdict.FALLS_SHORT
