"""The proofs about second attempts: they hold in virtual time, take every figure over sockets, and fail without hedges."""

from collections.abc import Mapping
from dataclasses import replace
from math import isnan
from typing import Any

import pytest

from stayfast.bench.result import Result
from stayfast.policy.hedge import HedgeConfig
from stayfast.prove import hangs, hedge, tail
from stayfast.prove.claim import Claim
from stayfast.prove.hangs import GOALS as HANGS
from stayfast.prove.hangs import PROVIDER, Hangs
from stayfast.prove.hedge import Hedge
from stayfast.prove.load import Load
from stayfast.prove.mixed import Mixed, Rivals, plan_of
from stayfast.prove.mixed import in_virtual_time as mixed_in_virtual_time
from stayfast.prove.tail import GOALS as TAIL
from stayfast.prove.tail import MIXTURE, Tail
from stayfast.prove.waits import Waits, in_virtual_time, over_sockets, waits
from stayfast.upstreams.simulated import FaultRule, Gaps, Kind, Mixture, ProviderConfig
from tests.prove.running import run

PAIR = {name: ProviderConfig(seed=number, ttft=MIXTURE, gaps=Gaps(0.0, 0.0), fills_max_tokens=True)
        for number, name in enumerate("ab")}
SHORT = Load(60.0, 100.0, n_output=2, warmup_s=10.0)


def _tail(config: HedgeConfig) -> Waits:
    return waits(in_virtual_time(PAIR, config, SHORT, 1))


def test_the_tail_in_virtual_time() -> None:
    """6,000 requests, whose draws are heavy: within 15 % of the goals; without hedges far from them."""
    hedged = _tail(HedgeConfig(budget=0.1))
    assert hedged.p95_s <= TAIL[0.1]["p95_s"] * 1.15
    assert hedged.p99_s <= TAIL[0.1]["p99_s"] * 1.15
    assert hedged.calls <= 1.11
    assert hedged.n_failed == 0
    assert _tail(HedgeConfig("off")).p99_s > 5


def test_hangs_in_virtual_time() -> None:
    """At the default budget p99 is some hundredths of a second; without hedges it is a time-out."""
    providers = {name: ProviderConfig(seed=number, ttft=Mixture(0.002, 0.4), gaps=Gaps(0.0, 0.0), fills_max_tokens=True,
                                      faults=(FaultRule(Kind.HANG, 0.05),)) for number, name in enumerate("ab")}
    load = Load(100.0, 40.0, n_output=2, warmup_s=5.0, timeout_s=10.0)
    hedged = waits(in_virtual_time(providers, HedgeConfig(), load, 1))
    assert (hedged.p99_s <= HANGS["p99_s"], hedged.calls <= HANGS["calls"]) == (True, True)
    assert hedged.n_failed <= 4
    assert waits(in_virtual_time(providers, HedgeConfig("off"), load, 1)).n_failed > 100
    assert PROVIDER["faults"][0]["rate"] == 0.05


def test_mixed_in_virtual_time() -> None:
    """A minute after half a minute: quicker than the best time-out by a third at no more calls; without hedges it is not."""
    plan = plan_of(50.0, 60.0, 30.0, 1)
    rivals = Rivals(plan)
    budget = rivals.best.n_calls / rivals.n - 1
    hedged, plain = (rivals.against("", mixed_in_virtual_time(plan, HedgeConfig(mode, budget)), 1.0)
                     for mode in ("auto", "off"))
    ratio, calls, lost = (next(figure.value for figure in hedged if words in figure.name)
                          for words in ("p99, over", "calls", "without an answer"))
    assert ratio < 0.67
    assert calls <= rivals.best.n_calls / rivals.n
    assert lost == 0
    assert not all(figure.holds for figure in plain)


def test_the_time_outs_throw_the_dice_of_the_gateway() -> None:
    """In calm weather a request that the gateway asks where `direct` does waits as long, to the microsecond."""
    plan = plan_of(20.0, 10.0, 0.0, 1)
    rivals = Rivals(plan)
    samples = mixed_in_virtual_time(plan, HedgeConfig("off")).samples
    waits_s = dict(zip(samples.ints["number"], (first - at for first, at in zip(
        samples.floats["first_s"], samples.floats["at_s"], strict=True)), strict=True))
    same = [abs(waits_s[shot.number] - wait_s) < 1e-6 for shot, wait_s in zip(
        rivals.shots, rivals.direct.waits_s, strict=True)]
    assert sum(same) > len(same) / 3  # of two providers the other was asked for the rest


@pytest.fixture
def _short_warmups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a second, in real time: what is asked before that is no figure."""
    async def shortly(providers: Mapping[str, Any], hedge_settings: Mapping[str, Any], load: Load, seed: int) -> Result:
        return await over_sockets(providers, hedge_settings, replace(load, warmup_s=1.0), seed)

    for module in (hangs, hedge, tail):
        monkeypatch.setattr(module, "over_sockets", shortly)


@pytest.mark.sockets
@pytest.mark.usefixtures("_short_warmups")
@pytest.mark.parametrize("claim", [Tail(real_quick_s=1.0, n_virtual_quick=300), Hangs(real_quick_s=1.0, n_virtual_quick=300),
                                   Hedge(real_quick_s=1.0, n_virtual_quick=300),
                                   Mixed(real_quick_s=1.0, n_virtual_quick=1000, warmup_quick_s=1.0)],
                         ids=["tail", "hangs", "hedge", "mixed"])
def test_every_figure_is_taken(claim: Claim) -> None:
    """So short a run proves nothing, but nothing is missing in it."""
    finding = run(claim)
    assert [figure.name for figure in finding.figures if isnan(figure.value)] == []
    assert any(figure.goal is not None for figure in finding.figures)


@pytest.mark.sockets
@pytest.mark.usefixtures("_short_warmups")
def test_without_hedges_it_falls_short() -> None:
    """The proof is of hedging: switched off, the same run does not hold."""
    finding = run(Hangs(real_quick_s=1.0, n_virtual_quick=1000, hedge={"mode": "off"}))
    assert not finding.holds
