"""lab.plan.changes: the list of changes, and what each does to a day."""

from typing import Any

import msgspec
import pytest

from stayfast.lab.plan.changes import BY_NAME, CHANGES, EFFORT_DAYS, GROUPS, default_changes, parse_changes
from stayfast.lab.plan.replay import run_replay
from stayfast.lab.plan.traffic import RouteTraffic
from stayfast.lab.plan.workload import TrafficModel, build_model
from tests.unit.lab.plan.plan_rig import model_of, rows


def plain_model(n: int = 300, **fields: Any) -> TrafficModel:
    return build_model(RouteTraffic("m", tuple(rows(n, **fields)), n))


def test_changes_have_known_groups_and_efforts() -> None:
    assert {change.group for change in CHANGES} == set(GROUPS)
    assert {change.effort for change in CHANGES} <= set(EFFORT_DAYS)
    assert len(BY_NAME) == len(CHANGES)


def test_parse_changes_reads_numbers_and_percentages() -> None:
    parsed = parse_changes(["diet=40%", "cap=300", "hedge"])
    assert [(change.name, value) for change, value in parsed] == [("diet", 0.4), ("cap", 300.0), ("hedge", 1.0)]


@pytest.mark.parametrize("word", ["nothing", "cap=many", "diet=120%", "speculate=2", "cap=0", "cap=-5", "machine=1"])
def test_parse_changes_bad_word_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=word.partition("=")[0]):
        parse_changes([word])


def test_default_changes_hosted_api_has_no_changes_of_machines() -> None:
    candidates, left = default_changes(plain_model())
    names = {change.name for change, _ in candidates}
    assert not names & {"replica", "quantise", "machine", "speculate", "stream", "timeout", "retry"}
    assert {"hedge", "diet", "cap", "load2"} <= names
    assert all(why for _, why in left)


def test_default_changes_engine_has_changes_of_machines() -> None:
    names = {change.name for change, _ in default_changes(model_of("engine", 1, 700))[0]}
    assert {"replica", "quantise", "machine", "speculate"} <= names


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("diet", 0.5, (50, 0, 51, True)), ("cap", 20.0, (100, 0, 20, True)), ("compact", 60.0, (60, 0, 51, True)),
    ("prefix", 0.9, (100, 0, 51, True))])
def test_change_alters_each_request(name: str, value: float, expected: tuple[int, int, int, bool]) -> None:
    model = plain_model()
    changed = BY_NAME[name].apply(model, model.scenario, value).calls
    assert {(call.n_input, call.n_cached, call.n_output, call.is_stream) for call in changed} == {expected}


def test_prefix_long_prompts_are_cached_in_steps() -> None:
    model = plain_model(n_input=2000)
    assert {call.n_cached for call in BY_NAME["prefix"].apply(model, model.scenario, 0.8).calls} == {1536}


def test_stream_whole_answers_become_streams() -> None:
    whole = [msgspec.structs.replace(row, is_stream=False, ttft_s=None, tpot_s=None, n_output=20 + number % 60,
                                     e2e_s=0.5 + 0.01 * (19 + number % 60)) for number, row in enumerate(rows(300))]
    model = build_model(RouteTraffic("m", tuple(whole), 300))
    changed = BY_NAME["stream"].apply(model, model.scenario, 1.0)
    before, after = run_replay(model.scenario, 1), run_replay(changed, 1)
    assert after.quantile_s("first", 0.5) < 0.75 * before.quantile_s("first", 0.5)
    assert after.quantile_s("e2e", 0.5) == pytest.approx(before.quantile_s("e2e", 0.5))


def test_hits_reach_the_requested_share() -> None:
    model = plain_model(600, n_output=5, e2e_s=0.54)
    run = run_replay(BY_NAME["hits"].apply(model, model.scenario, 0.4), 1)
    assert run.n_cached / run.n == pytest.approx(0.4, abs=0.06)


def test_cache_without_repeats_changes_nothing() -> None:
    model = plain_model()
    assert run_replay(BY_NAME["cache"].apply(model, model.scenario, 1.0), 1).e2e_s == run_replay(model.scenario, 1).e2e_s


def test_load_compresses_the_arrivals() -> None:
    model = plain_model()
    assert BY_NAME["load5"].apply(model, model.scenario, 5.0).span_s == pytest.approx(model.scenario.span_s / 5)


def test_speculate_low_acceptance_is_slower() -> None:
    model = plain_model()
    pace = {value: BY_NAME["speculate"].apply(model, model.scenario, value).fits["u"].pace_s(0.5, 50)
            for value in (0.3, 0.5, 0.7)}
    assert pace[0.3] > 0.01 == pytest.approx(pace[0.5])
    assert pace[0.7] == pytest.approx(0.01 / 1.5)


def test_replica_is_one_more_upstream_with_the_same_speed() -> None:
    model = plain_model()
    changed = BY_NAME["replica"].apply(model, model.scenario, 2.0)
    assert changed.route.upstreams == ("u", "u+1", "u+2")
    assert len({fit.first_s for fit in changed.fits.values()}) == 1


def test_tier_has_its_own_price_and_share() -> None:
    model = plain_model(cost_usd=0.001)
    changed = BY_NAME["tier"].apply(model, model.scenario, 0.5)
    assert changed.route.weights == {"u": 0.5, "smaller": 0.5}
    assert run_replay(changed, 1).quantile_s("e2e", 0.1) < 0.6 * run_replay(model.scenario, 1).quantile_s("e2e", 0.1)
