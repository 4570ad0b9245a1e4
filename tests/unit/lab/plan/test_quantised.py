"""A plan with the figures of quantised models."""

from pathlib import Path

import pytest

from stayfast.lab.plan.changes import parse_changes
from stayfast.lab.plan.quantised import QuantisedMemory, format_quantised, plan_quantised, use_measured_speed
from stayfast.lab.quantise.report import QuantiseReport, QuantiseVerdict
from stayfast.policy.engines.sizing import ModelShape
from tests.unit.lab.quantise.report_rig import make_example

SHAPE = ModelShape("m", 500_000_000, 16, 8, 64, 1100)


def plan(report: QuantiseReport) -> list[QuantisedMemory]:
    """On a machine of 4 GB."""
    return plan_quantised(SHAPE, {Path("/models/m.q4_0.gguf.json"): report}, kv="f16", live_tokens=2000, memory_bytes=4e9,
                          bandwidth=50e9)


def test_plan_quantised_memory_is_that_of_each_model() -> None:
    [found] = plan(make_example())
    each = 2 * 16 * 8 * 64 * 2 * 2000
    assert found.before.most_concurrent == int((4e9 * 0.9 - 1e9 - 1e9) / each)
    assert found.after.most_concurrent == int((4e9 * 0.9 - 0.3e9 - 1e9) / each)
    assert found.after.tokens_per_s_alone == pytest.approx(50e9 / (0.3e9 + each))
    text = format_quantised([found])
    for words in ("quantise to q4_0: m.q4_0.gguf", "weights 1.00 GB -> 300 MB", "most requests at a time: 24 -> 35",
                  "measured: 10.0 -> 16.0 tokens/s", "x 1.60 [1.50, 1.70]", "KL 0.0100", "holds",
                  "source: /models/m.q4_0.gguf.json"):
        assert words in text, text


def test_use_measured_speed_smaller_ratio_takes_the_place_of_the_assumed_one() -> None:
    [(change, value), other] = use_measured_speed(parse_changes(["quantise", "cap=100"]), plan(make_example()))
    assert (value, change.describe(value), change.source) == (
        1.5, "weights in q4_0, 1.5 times as fast", "measured: m.q4_0.gguf.json")
    assert other == parse_changes(["cap=100"])[0]


@pytest.mark.parametrize("report", [
    make_example(verdict=QuantiseVerdict.INCONCLUSIVE), make_example(verdict=QuantiseVerdict.EXCEEDS),
    make_example(speed=None)])
def test_use_measured_speed_without_a_proof_stays_assumed(report: QuantiseReport) -> None:
    changes = parse_changes(["quantise"])
    assert use_measured_speed(changes, plan(report)) == changes


def test_use_measured_speed_value_of_the_user_stays() -> None:
    changes = parse_changes(["quantise=1.3"])
    assert use_measured_speed(changes, plan(make_example())) == changes
