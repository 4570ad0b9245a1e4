"""Verdicts, and the file beside a quantised model."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.lab.quantise.accuracy import Estimate95
from stayfast.lab.quantise.report import (
    LossBounds,
    QuantiseVerdict,
    find_reports,
    judge,
    judge_loss,
    read_report,
    report_path,
    write_report,
)
from stayfast.lab.quantise.report_text import format_change, format_report
from tests.unit.lab.quantise.report_rig import accuracy, make_example

HOLDS, EXCEEDS, INCONCLUSIVE = QuantiseVerdict.HOLDS, QuantiseVerdict.EXCEEDS, QuantiseVerdict.INCONCLUSIVE


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_judge_loss_holds_only_if_the_whole_interval_is_within(low: float, width: float, bound: float) -> None:
    verdict = judge_loss("x", Estimate95(low + width / 2, low, low + width), bound).verdict
    assert (verdict is HOLDS) is (low + width <= bound)
    assert (verdict is EXCEEDS) is (low > bound)


@pytest.mark.parametrize(("loss", "kl", "verdict"), [
    ((0.0, 0.01), (0.0, 0.01), HOLDS), ((0.0, 0.03), (0.0, 0.01), INCONCLUSIVE), ((0.0, 0.03), (0.04, 0.05), EXCEEDS),
    ((0.03, 0.05), (0.0, 0.01), EXCEEDS)])
def test_judge_worst_measure_decides(loss: tuple[float, float], kl: tuple[float, float], verdict: QuantiseVerdict) -> None:
    verdicts, worst = judge(accuracy(loss, kl), None, LossBounds())
    assert worst is verdict
    assert [one.measure for one in verdicts] == ["perplexity", "KL divergence"]


def test_judge_nothing_measured_is_not_checked() -> None:
    assert judge(None, None, LossBounds()) == ((), QuantiseVerdict.NOT_CHECKED)


def test_write_report_is_read_and_found_from_both_models(tmp_path: Path) -> None:
    report = make_example()
    new, old = tmp_path / report.after.file, tmp_path / report.before.file
    new.write_bytes(b"x" * report.after.file_bytes)
    old.write_bytes(b"x" * report.before.file_bytes)
    path = write_report(report, new)
    assert (path, read_report(path)) == (report_path(new), report)
    (tmp_path / "other.gguf.json").write_text("{}")
    assert find_reports(new) == find_reports(old) == {path: report}
    old.write_bytes(b"x" * (report.before.file_bytes + 1))
    assert find_reports(old) == {}
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([new.name, old.name, path.name, "other.gguf.json"])


def test_format_report_has_each_figure_with_its_interval() -> None:
    text = format_report(make_example())
    for words in ("m.f16.gguf -> m.q4_0.gguf", "1.00 GB", "300 MB", "30%", "+1.00% [+0.50%, +1.50%]",
                  "0.01000 [0.00500, 0.01500] nats", "x 1.60 [1.50, 1.70]", "2 lost, 1 gained", "Verdict: holds"):
        assert words in text, text
    assert format_change(make_example()) == ("perplexity +1.00% [+0.50%, +1.50%], KL 0.0100 [0.0050, 0.0150] nats, 2 of 400 "
                                             "answers lost, 1 gained: holds")
