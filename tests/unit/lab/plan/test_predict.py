"""lab.plan.predict: what is predicted, and when nothing is."""

from dataclasses import replace
from functools import cache

import msgspec
import pytest

from stayfast.lab.plan.changes import BY_NAME, parse_changes
from stayfast.lab.plan.predict import DO, NOTHING, QUESTION, PlanResult, estimate, observe_rows, plan_route, reproduce
from stayfast.lab.plan.replay import run_replay
from stayfast.lab.plan.report import format_plan
from stayfast.lab.plan.traffic import RouteTraffic
from stayfast.lab.plan.workload import build_model
from stayfast.policy.slo import Latency
from tests.unit.lab.plan.plan_rig import model_of, rows


@cache
def plan_hosted(promise_s: float = 0.001) -> PlanResult:
    """World 5: its answers are short, all are streamed, and a third of its requests repeat."""
    words = ("machine", "stream", "cap=2000", "hits=0.6", "load2")
    return plan_route(model_of("hosted", 5, 500), parse_changes(words), [], n_seeds=3, promise=Latency(promise_s, 0.95))


def test_plan_route_changes_with_and_without_effect_have_their_verdicts() -> None:
    plan = plan_hosted()
    verdicts = {one.name: one.verdict for one in plan.predictions}
    assert plan.is_reproduced
    assert verdicts == {"machine": DO, "stream": NOTHING, "cap": NOTHING, "hits": DO, "load2": QUESTION}
    cap = next(one for one in plan.predictions if one.name == "cap")
    assert {effect.value for effect in cap.effects.values()} == {1.0}


def test_plan_route_promise_met_with_room_means_do_nothing() -> None:
    """Faster first tokens are of no use then."""
    model = build_model(RouteTraffic("m", tuple(rows(300)), 300))
    verdicts = [plan_route(model, parse_changes(["machine"]), [], n_seeds=2, promise=Latency(promise_s, 0.95)).predictions[0]
                for promise_s in (0.4, 5.0)]
    assert [one.verdict for one in verdicts] == [DO, NOTHING]
    assert verdicts[1].why == "the promise is kept with room"


def test_plan_route_replay_that_differs_predicts_nothing() -> None:
    """A model that is twice as fast as the log."""
    model = build_model(RouteTraffic("m", tuple(rows(300)), 300))
    quick = {name: fit.speed_up(2.0) for name, fit in model.scenario.fits.items()}
    seen, run = observe_rows(model.traffic.rows), run_replay(replace(model.scenario, fits=quick), 1)
    baseline = reproduce(seen, [run, run])
    assert not any(one.is_reproduced for one in baseline)
    plan = msgspec.structs.replace(plan_hosted(), baseline=baseline, predictions=[])
    assert "Nothing is predicted" in format_plan(plan)


def test_plan_route_unclear_effect_of_load_leaves_load_changes_out() -> None:
    """A quicker machine helps with and without an effect of load; a replica only with one."""
    model = build_model(RouteTraffic("m", tuple(rows(300)), 300))
    fits = {name: replace(fit, is_load_unclear=True) for name, fit in model.scenario.fits.items()}
    model = replace(model, scenario=replace(model.scenario, fits=fits))
    plan = plan_route(model, parse_changes(["replica", "quantise", "load2"]), [], n_seeds=2, promise=Latency(0.1, 0.95))
    assert [(one.name, one.verdict) for one in plan.predictions] == [("quantise", DO)]
    assert set(plan.left_out) == {"replica", "load2"}
    assert "does not show whether your load slows u down" in plan.left_out["replica"]


def test_format_plan_lines_fit_a_terminal() -> None:
    text = format_plan(plan_hosted())
    assert max(map(len, text.splitlines())) <= 80
    assert "First: " in text
    assert "-> worth it" in text
    assert "-> do nothing" in text


def test_estimate_interval_of_a_day_is_wider_than_that_of_the_mean() -> None:
    logs = [0.0, 0.1, -0.1, 0.05]
    day, mean = estimate(logs, is_day=True), estimate(logs, is_day=False)
    assert day.low < mean.low < mean.value < mean.high < day.high
    assert day.value == pytest.approx(mean.value)


def test_change_describe_names_its_value() -> None:
    assert BY_NAME["diet"].describe(0.3) == "prompts 30% shorter"
    assert BY_NAME["cap"].describe(512) == "answers of at most 512 tokens"
