"""prove plan: holds for the planner, and falls short of planners that predict no change or ignore the log."""

from functools import cache

import msgspec

from stayfast.lab.claims.plan import ForecastCheck, WorldRun, judge, measure_world, plan_from_lines
from stayfast.lab.harness.claim import Verdict
from stayfast.lab.harness.hidden_world import N_OFF, HiddenWorld, draw_world
from stayfast.lab.plan.predict import NOTHING, PlanResult
from tests.prove.running import short_of

N = 400
WORLD = draw_world(101, "engine", N)


@cache
def planned(seed: int) -> PlanResult:
    """A plan from the log of the world with this seed."""
    drawn = draw_world(seed, "engine", N)
    return plan_from_lines(drawn, drawn.run(seed), 3, seed)


def without_effects(world: HiddenWorld, lines: list[bytes], n_seeds: int, seed: int) -> PlanResult:
    """Always predicts the unchanged day."""
    plan = planned(101)
    same = {one.metric: one.replayed for one in plan.baseline}
    return msgspec.structs.replace(plan, predictions=[msgspec.structs.replace(one, quantiles=same, verdict=NOTHING)
                                                      for one in plan.predictions])


def of_another_log(world: HiddenWorld, lines: list[bytes], n_seeds: int, seed: int) -> PlanResult:
    """Ignores the log: its figures are those of another world."""
    other = planned(102)
    return msgspec.structs.replace(other, predictions=other.predictions)


def test_plan_claim_planner_without_effects_falls_short() -> None:
    finding = judge([measure_world(WORLD, 0, 3, 101, without_effects)])
    assert finding.verdict is Verdict.FALLS_SHORT
    assert any(name.startswith("of them, ") for name in short_of(finding))
    assert any(name.startswith("p95 within") for name in short_of(finding))
    assert "changes that cut a p95 by 15 % or more, called nothing" in short_of(finding)


def test_plan_claim_planner_that_ignores_the_log_falls_short() -> None:
    finding = judge([measure_world(WORLD, 0, 3, 101, of_another_log)])
    assert finding.verdict is Verdict.FALLS_SHORT
    assert any(name.startswith("p95 within") for name in short_of(finding))


def test_plan_claim_exact_predictions_hold() -> None:
    right = ForecastCheck(0, "cap", "e2e_p95", 1.0, 0.9, 1.1, 1.0, 2.0)
    assert judge([WorldRun((right,), (NOTHING,) * N_OFF, 0, is_reproduced=True)]).holds
    wrong = right._replace(measured_s=1.3)
    assert not judge([WorldRun((wrong,), (NOTHING,) * N_OFF, 0, is_reproduced=True)]).holds
    assert not judge([WorldRun((right,), ("worth it",) * N_OFF, 0, is_reproduced=True)]).holds


def test_hidden_world_changes_without_effect_differ_by_seed() -> None:
    """The name of a change does not give away whether it has an effect."""
    for kind in ("hosted", "engine"):
        off = [draw_world(seed, kind, 50).off for seed in range(12)]
        assert {len(names) for names in off} == {N_OFF}
        assert len(set(off)) >= 4
