"""lab.plan.replay: a day in virtual time."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from stayfast.lab.plan.changes import default_changes
from stayfast.lab.plan.replay import TrafficScenario, run_replay
from stayfast.lab.plan.traffic import RouteTraffic, pick_route
from stayfast.lab.plan.workload import build_model
from stayfast.policy.admission.price import Price
from stayfast.settings import RouteSettings
from tests.unit.lab.plan.plan_rig import rows


def scenario(**fields: Any) -> TrafficScenario:
    return build_model(RouteTraffic("m", tuple(rows(300, **fields)), 300)).scenario


def test_run_replay_reproduces_constant_waits() -> None:
    run = run_replay(scenario(), 1)
    assert run.quantile_s("first", 0.5) == pytest.approx(0.5, abs=0.001)
    assert run.quantile_s("e2e", 0.99) == pytest.approx(1.0, abs=0.01)
    assert (run.failed_share, run.n_attempts) == (0.0, 300)


def test_run_replay_without_token_counts_reproduces_the_waits() -> None:
    traffic = pick_route(rows(300, n_input=None, n_output=None, tpot_s=None))
    model = build_model(traffic)
    run = run_replay(model.scenario, 1)
    assert run.quantile_s("first", 0.5) == pytest.approx(0.5, abs=0.001)
    assert run.quantile_s("e2e", 0.99) == pytest.approx(1.0, abs=0.01)
    refused = {change.name for change, _ in default_changes(model)[1]}
    assert {"prefix", "diet", "compact", "cap"} <= refused


def test_run_replay_equal_seeds_give_equal_runs() -> None:
    model = build_model(RouteTraffic("m", tuple(rows(300, first_s=0.5)), 300))
    day = model.draw_days(2, 1)[0]
    assert run_replay(day, 7) == run_replay(day, 7)


def test_run_replay_price_gives_the_cost_of_a_day() -> None:
    priced = replace(scenario(), prices={"u": Price(1.0, 2.0)})
    run = run_replay(priced, 1)
    assert run.cost_usd == pytest.approx(300 * (100 + 2 * 51) / 1e6)
    assert run.usd_per_day == pytest.approx(run.cost_usd * 86_400 / 299)


def test_run_replay_failing_upstream_fails_requests() -> None:
    base = scenario()
    failing = replace(base, fits={"u": replace(base.fits["u"], fail_share=1.0)},
                      route=RouteSettings(("u",), retry=replace(base.route.retry, max_attempts=1)))
    run = run_replay(failing, 1)
    assert run.failed_share == 1.0
    assert run.quantile_s("first", 0.5) == inf


def test_draw_days_each_request_is_drawn_from_the_log() -> None:
    model = build_model(RouteTraffic("m", tuple(rows(300)), 300))
    day = model.draw_days(3, 1)[2]
    assert [call.at_s for call in day.calls] == [call.at_s for call in model.scenario.calls]
    assert len({call.content for call in day.calls}) == 300
