"""The claim about speculation holds on the simulated engine, and falls short with a controller that is always off or on."""

from functools import partial

import pytest

from stayfast.lab.claims.speculate import SpeculateClaim, figure_with_tries, simulated_figures
from stayfast.lab.harness.claim import Extent, Verdict
from stayfast.lab.speculation.engine_arms import ArmTotals
from stayfast.lab.speculation.simulated_arms import constant_arm, learning
from tests.prove.running import run, short_figures, short_of, without_interval


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_speculate_claim_simulated_engine_holds(seed: int) -> None:
    assert short_figures(simulated_figures(learning, seed)) == []


@pytest.mark.parametrize(("arm", "at"), [("off", "1 at a time"), ("draft", "8 at a time")])
def test_speculate_claim_constant_arm_falls_short(arm: str, at: str) -> None:
    """Each of them at the load for which it is wrong."""
    (short,) = short_figures(simulated_figures(partial(constant_arm, arm), 1))
    assert at in short


@pytest.mark.sockets
def test_speculate_claim_real_engine_answers_are_equal_and_tries_bounded() -> None:
    """Speeds of so few answers depend on the machine, counts do not."""
    claim = SpeculateClaim(quick=Extent(n=60, n_rounds=8))
    finding = run(claim)
    assert [name for name in short_of(finding) if "tried" in name or "different" in name] == []
    assert without_interval(finding) == []


@pytest.mark.parametrize(("tried_speed", "verdict"), [
    (0.9, Verdict.HOLDS), (0.2, Verdict.FALLS_SHORT)])
def test_figure_with_tries_slow_tries_fall_short(tried_speed: float, verdict: Verdict) -> None:
    """2 % of the tokens, in every other round, at a share of the speed: a fifth of it costs 7 %."""
    totals = [ArmTotals({("off", "proven"): 25.0 * n, ("draft", "tried"): n // 2},
                        {"off": 1000.0 * n, "draft": 40.0 * (n // 2)},
                        {"off": 1.0 * n, "draft": 0.04 / tried_speed * (n // 2)}) for n in range(1, 46)]
    assert figure_with_tries("copy", totals).verdict is verdict
