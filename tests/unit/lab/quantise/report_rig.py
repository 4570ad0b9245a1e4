"""A report of made-up figures."""

from typing import Any

import msgspec

from stayfast.lab.quantise.accuracy import AccuracyFigures, Estimate95
from stayfast.lab.quantise.questions import QuestionFigures
from stayfast.lab.quantise.report import ModelSide, QuantiseReport, QuantiseVerdict
from stayfast.lab.quantise.speed import SpeedFigures


def estimate(low: float, high: float) -> Estimate95:
    """The middle is the value."""
    return Estimate95((low + high) / 2, low, high)


def accuracy(loss: tuple[float, float] = (0.005, 0.015), kl: tuple[float, float] = (0.005, 0.015)) -> AccuracyFigures:
    """Figures with these intervals."""
    return AccuracyFigures("text.txt", 24, 3840, estimate(9, 11), estimate(9.1, 11.1), estimate(*loss), estimate(*kl),
                           estimate(0.97, 0.99), 12, 0.01)


def make_example(**changes: Any) -> QuantiseReport:
    """A model that became smaller and quicker; `changes` are fields."""
    report = QuantiseReport(
        "q4_0", ModelSide("m.f16.gguf", 1100, 1_000_000_000, {"f16": 1_000_000_000}),
        ModelSide("m.q4_0.gguf", 400, 300_000_000, {"q4_0": 200_000_000, "q8_0": 100_000_000}), {"f16": 4096.0},
        SpeedFigures(10, 2, 100.0, 150.0, estimate(1.4, 1.6), 10.0, 16.0, estimate(1.5, 1.7)), accuracy(),
        QuestionFigures("q.yaml", 400, 300, 299, 2, 1, 9, estimate(-0.005, 0.01), 1.0, []), (), QuantiseVerdict.HOLDS)
    return msgspec.structs.replace(report, **changes)
