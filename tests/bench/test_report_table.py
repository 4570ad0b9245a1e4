"""The report in the terminal."""

import re
from math import isnan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core import units as amounts
from stayfast.lab.load.result import ClientHealth
from stayfast.lab.load.stats import MeasuredRun
from stayfast.lab.report import table
from stayfast.lab.report.assertions import check_assertions, parse_assertion
from stayfast.lab.report.compare import CompareConfig, compare_runs
from stayfast.lab.report.html.page import render_page
from stayfast.lab.report.table import TerminalStyle
from tests.bench.synthetic import Scenario, result

PLAIN, COLOUR = TerminalStyle(is_on=False), TerminalStyle(is_on=True)
RED = "\x1b[1;31m"


def test_table_headline_is_from_the_intended_start() -> None:
    text = table.format_report([MeasuredRun(result())], COLOUR)
    assert text.index("from the intended start") < text.index("ttft_sched") < text.index("from the actual send")
    assert re.search(r"\x1b\[1m *ttft_sched", text)


def test_table_invalid_run_is_marked_red_before_its_figures() -> None:
    text = table.format_report([MeasuredRun(result(health=ClientHealth(verdict=("late by 31 ms", "7 % short"))))], COLOUR)
    assert f"{RED}  INVALID: late by 31 ms" in text
    assert f"{RED}  INVALID: 7 % short" in text
    assert text.index("INVALID") < text.index("ttft_sched")


def test_table_many_runs_have_a_line_each() -> None:
    runs = [MeasuredRun(result(Scenario(n=200), label=f"c={number}")) for number in (1, 2, 4)]
    runs.append(MeasuredRun(result(Scenario(n=200), label="c=8", health=ClientHealth(verdict=("late",)))))
    lines = table.format_report(runs, PLAIN).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  c=")] == ["c=1", "c=2", "c=4", "c=8"]
    assert "  INVALID: late" in lines


@pytest.mark.parametrize(("is_terminal", "no_color", "has_colour"), [
    (True, None, True), (True, "", True), (True, "1", False), (False, None, False)])
def test_ink_colours_only_terminals_without_no_color(is_terminal: bool, no_color: str | None, has_colour: bool) -> None:
    """An empty NO_COLOR does not count."""
    ink = TerminalStyle.choose(is_terminal=is_terminal, no_color=no_color)
    assert ("\x1b" in table.format_report([MeasuredRun(result(Scenario(n=50)))], ink)) is has_colour


def test_table_shows_the_runs_figures() -> None:
    """p50 and p99 of the headline; p99.9 of a few answers is a dash."""
    run = MeasuredRun(result(Scenario(n=400, error_share=0.0)))
    line = next(line for line in table.format_report([run], PLAIN).splitlines() if line.startswith("  ttft_sched"))
    cells = re.split(r" {2,}", line[31:].strip())
    spread = run.distributions["ttft_sched"]
    assert (cells[0], cells[3], cells[4]) == (amounts.format_seconds(spread.quantile(0.5)),
                                              amounts.format_seconds(spread.quantile(0.99)), "-")


def test_table_rank_among_failures_is_marked() -> None:
    """5 % failed: p50 and p90 are of answers; p99 and the maximum are marked as failed."""
    run = MeasuredRun(result(Scenario(error_share=0.05, bad_factor=1.0)))
    line = next(line for line in table.format_report([run], PLAIN).splitlines() if line.startswith("  ttft_sched"))
    cells = re.split(r" {2,}", line[31:].strip())
    spread = run.distributions["ttft_sched"]
    assert cells[:2] == [amounts.format_seconds(spread.quantile(0.5)), amounts.format_seconds(spread.quantile(0.9))]
    assert cells[3:] == ["failed"] * 3
    gap = next(line for line in table.format_report([run], PLAIN).splitlines() if line.startswith("  gap "))
    assert "failed" not in gap
    single = MeasuredRun(result(Scenario(error_share=0.6, n_output=0, bad_factor=1.0)))
    assert isnan(single.quantile("tpot", 0.5))  # no answer has one, which is no failure
    step = next(line for line in table.format_report([run] * 3, PLAIN).splitlines() if line.startswith("  gateway"))
    assert step.count("failed") == 2
    tiles = render_page([run]).partition('class="tiles"')[2].partition("</section>")[0]
    assert tiles.count(">failed<") == 2


def test_table_comparison_has_verdicts() -> None:
    """Regressions are red with their names."""
    base, slow = (MeasuredRun(result(Scenario(n=800, ttft_s=ttft_s))) for ttft_s in (0.5, 0.9))
    config = CompareConfig(n_replicates=200)
    worse, better = compare_runs(base, slow, Random(1), config), compare_runs(slow, base, Random(1), config)
    assert f"{RED}regressed by more than 5%: ttft_sched.p50" in table.format_comparison(worse, COLOUR)
    assert "no regression" in table.format_comparison(better, PLAIN)


def test_table_assertions_show_result_and_figure() -> None:
    run = MeasuredRun(result(Scenario(error_share=0.0)))
    texts = ("ttft.p50<800", "ttft.p50<900ms", "ttft.p50<1us", "goodput>99.9%")
    text = table.format_assertions(check_assertions([parse_assertion(text) for text in texts], run), PLAIN)
    p50_s = run.distributions["ttft"].quantile(0.5)
    assert text.splitlines() == [f"holds  ttft.p50<800 s: {p50_s:.3f} s", f"holds  ttft.p50<900ms: {p50_s * 1e3:.0f} ms",
                                 f"FAILS  ttft.p50<1us: {p50_s * 1e6:.0f} us",
                                 f"FAILS  goodput>99.9%: {amounts.format_share(run.goodput.share)}"]


@pytest.mark.parametrize(("value_s", "unit", "expected"), [
    (0.226, "s", "0.226 s"), (1.5, "ms", "1500 ms"), (0.0004, "s", "400 us"), (float("inf"), "s", "never"),
    (float("nan"), "ms", "-"), (0.0, "s", "0")])
def test_table_assertion_figure_has_the_unit_of_its_bound(value_s: float, unit: str, expected: str) -> None:
    assert amounts.format_in_unit(value_s, unit) == expected


def test_table_without_success_shows_the_cause_first() -> None:
    run = result(Scenario(n=50, error_share=1.0), health=ClientHealth(verdict=("its loop lagged",)))
    run.notes = ("127.0.0.1:9 cannot be reached: Connection refused.",)
    text = table.format_report([MeasuredRun(run)], COLOUR)
    assert f"{RED}  127.0.0.1:9 cannot be reached" in text
    assert text.index("cannot be reached") < text.index("INVALID: its loop lagged")


def test_table_comparison_with_an_invalid_run_is_not_judged() -> None:
    """Neither a regression nor none: the invalid run is named, with exit status 1."""
    good = MeasuredRun(result(Scenario(n=400), label="good"))
    bad = MeasuredRun(result(Scenario(n=400), label="bad", health=ClientHealth(verdict=("late",))))
    found = compare_runs(good, bad, Random(1), CompareConfig(n_replicates=200))
    text = table.format_comparison(found, PLAIN)
    assert text.splitlines()[-1] == "not judged: bad invalid; measure again"
    assert "no regression" not in text
    assert found.exit_status == 1


@given(st.text(max_size=40))
def test_table_removes_control_characters(text: str) -> None:
    run = result(Scenario(n=2), label=text, model=text)
    run.notes = (text,)
    run.health = ClientHealth(verdict=(text,))
    shown = table.format_report([MeasuredRun(run)], PLAIN)
    assert all(char == "\n" or char.isprintable() for char in shown)


@pytest.mark.parametrize(("value_s", "expected"), [
    (0.000578, "578 us"), (0.0421, "42.1 ms"), (4.4914, "4.49 s"), (0.99951, "1.00 s"), (123.4, "123 s"), (0.0, "0"),
    (float("nan"), "-"), (float("inf"), "never"), (-0.0471, "-47.1 ms"), (0.00099951, "1.00 ms")])
def test_seconds_are_shown_in_three_digits(value_s: float, expected: str) -> None:
    assert amounts.format_seconds(value_s) == expected


def test_a_share_is_never_rounded_to_all_or_nothing() -> None:
    """99.98 % is not 100 %, 0.01 % is not 0 %."""
    assert [amounts.format_share(value) for value in (0.9998, 0.9999999, 1.0, 0.0001, 0.0, 0.5)] == [
        "99.980 %", "99.999 %", "100.0 %", "0.010 %", "0.0 %", "50.0 %"]
