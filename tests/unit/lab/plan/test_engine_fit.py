"""lab.plan.engine_fit: tells an engine that slows down from a hosted API, and finds its speeds."""

from dataclasses import replace
from random import Random

import pytest

from stayfast.lab.plan.engine_fit import BusyTime, fit_with_load
from stayfast.lab.plan.fitting import SeenCall, UpstreamFit, fit_upstream
from tests.unit.lab.plan.plan_rig import calls, model_of, world


def test_fit_with_load_engine_speeds_are_found() -> None:
    drawn, _ = world("engine", 1, 700)
    hidden, found = drawn.providers[0].engine, model_of("engine", 1, 700).scenario.fits["provider"].engine
    assert hidden is not None
    assert found is not None
    assert found.prefill_tokens_per_s == pytest.approx(hidden.prefill_tokens_per_s, rel=0.1)
    alone_s, full_s = (engine.decode_step_s + 10 * engine.decode_step_per_sequence_s for engine in (hidden, found))
    assert full_s == pytest.approx(alone_s, rel=0.15)


def test_fit_with_load_hosted_api_has_no_engine() -> None:
    fit = model_of("hosted", 5, 700).scenario.fits["provider"]
    assert fit.engine is None
    assert fit.most_in_flight > 1


@pytest.mark.parametrize(("slope", "is_engine", "is_unclear"), [(0, False, False), (0.02, False, True), (0.1, True, False)])
def test_fit_with_load_weak_effect_of_load_is_unclear(slope: float, is_engine: bool, is_unclear: bool) -> None:
    """A pace that varies by 15 % for each answer, and by `slope` for each other answer that runs."""
    fit = _fit_at_load(slope)
    assert (fit.engine is not None, fit.is_load_unclear) == (is_engine, is_unclear)


def _fit_at_load(slope: float) -> UpstreamFit:
    rng, at, starting = Random(2), 0.0, []
    for call in calls(1000):
        at += rng.expovariate(1.0)
        starting.append(replace(call, at=at))
    busy = BusyTime([(call.at, call.at + call.took_s) for call in starting])
    slowed: list[SeenCall] = []
    for call in starting:
        n_running = busy.mean(call.at, call.at + call.took_s)
        tpot_s = 0.02 * rng.lognormvariate(0, 0.15) * (1 + slope * n_running)
        slowed.append(replace(call, tpot_s=tpot_s, took_s=(call.ttft_s or 0.0) + tpot_s * (call.n_output - 1)))
    return fit_with_load("u", slowed, fit_upstream("u", slowed))


def test_busy_time_overlapping_intervals_add_up() -> None:
    busy = BusyTime([(0.0, 4.0), (2.0, 6.0), (10.0, 11.0)])
    assert busy.mean(0.0, 10.0) == pytest.approx(0.8)
    assert busy.mean(2.0, 4.0) == pytest.approx(2.0)
    assert busy.until(-1.0) == 0.0
    assert busy.most == 2
