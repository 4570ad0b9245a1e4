"""lab.plan.engine_fit: tells an engine that slows down from a hosted API, and finds its speeds."""

import pytest

from stayfast.lab.plan.engine_fit import BusyTime
from tests.unit.lab.plan.plan_rig import model_of, world


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


def test_busy_time_overlapping_intervals_add_up() -> None:
    busy = BusyTime([(0.0, 4.0), (2.0, 6.0), (10.0, 11.0)])
    assert busy.mean(0.0, 10.0) == pytest.approx(0.8)
    assert busy.mean(2.0, 4.0) == pytest.approx(2.0)
    assert busy.until(-1.0) == 0.0
    assert busy.most == 2
