"""Output of `bench` and `prove` in a terminal of 80 columns: lines fit, progress is one line."""

import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from stayfast.cli.terminal import format_line, format_time_left
from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure, format_text
from stayfast.lab.load.faults import SCENARIOS, FaultTable
from stayfast.lab.load.faults import FaultRow as FaultsRow
from stayfast.lab.load.result import ClientHealth
from stayfast.lab.load.stats import MeasuredRun
from stayfast.lab.report import table
from stayfast.lab.report.compare import CompareConfig, compare_runs
from stayfast.lab.report.table import TerminalStyle
from tests.bench.synthetic import Scenario, result
from tests.ports import free_port
from tests.prove.fakes import Fake
from tests.terminal import in_terminal

ROOT = Path(__file__).parents[2]
NARROW = TerminalStyle(is_on=False, width=80)
BENCH = [sys.executable, "-m", "stayfast", "bench"]


@pytest.mark.parametrize("share", [None, 0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("width", [10, 40, 79, 200])
def test_progress_line_fits_the_width(width: int, share: float | None) -> None:
    """Parts without room are left out from the end; the bar needs a known share."""
    line = format_line(["", "120 of 240 sent", "12 s left", "3 failed", "9 on their way", "late " * 20], share, width)
    assert len(line) <= width
    assert line.startswith("[") is (share is not None)
    if width == 79:
        assert "120 of 240 sent, 12 s left, 3 failed" in line
        assert "late" not in line


@pytest.mark.parametrize(("seconds", "expected"), [(0.2, "1 s"), (12.4, "13 s"), (99.6, "2 min"), (3599, "1 h 0 min"),
                                               (4800, "1 h 20 min")])
def test_time_left_has_a_fitting_unit(seconds: float, expected: str) -> None:
    assert format_time_left(seconds) == expected


def test_tables_fit_80_columns() -> None:
    """One run, several, a comparison, with all notes and long names."""
    verdict = ("its sends were late by 31.4 ms at p99, more than 5.0 ms (the larger of 5 ms and 2 % of the median TTFT): "
               "the figures are the client's as much as the target's")
    health = ClientHealth(verdict=(verdict,))
    runs = [MeasuredRun(result(Scenario(n=400, ttft_s=ttft_s, error_share=0.05), label=label, health=health))
            for ttft_s, label in ((0.5, "gateway"), (0.9, "a-name-that-is-long.example:8090"), (0.9, "c=128"))]
    found = compare_runs(runs[0], runs[1], Random(1), CompareConfig(n_replicates=200))
    texts = [table.format_report(runs[:1], NARROW), table.format_report(runs, NARROW), table.format_comparison(found,
                                                                                                               NARROW)]
    for text in texts:
        assert max(map(len, text.splitlines())) <= 80
    assert "as much as the target's" in " ".join(texts[0].split())
    assert "a-name-that-is-long.example:8090\n" in texts[1]
    assert "regressed" in table.format_comparison(compare_runs(MeasuredRun(result(Scenario(n=800, ttft_s=0.5))), MeasuredRun(
        result(Scenario(n=800, ttft_s=0.9))), Random(1), CompareConfig(n_replicates=200)), NARROW)


def test_fault_table_fits_80_columns() -> None:
    shown = FaultTable(SCENARIOS, ["stayfast-direct"])
    rows = [FaultsRow(scenario.name, "stayfast-direct", "first token", 600, 0.2, 12.5, None, 600, 1.251)
            for scenario in SCENARIOS]
    assert max(len(line) for text in (shown.format_head(), *map(shown.format_row, rows)) for line in text.splitlines()) <= 80


def test_prove_finding_fits_80_columns() -> None:
    """Names of figures are wrapped, nothing is lost."""
    finding = ClaimResult((Figure("p99 to the first token over sockets, without hedges", 1234567.8, "ms", 1234567.8, low=1e6,
                              high=2e6), Figure("short", 1.5, "us", 2.0)), ("word " * 40,), "because " * 30)
    text = format_text(Fake("it"), finding, Conditions(), {"CPU": "model " * 20}, NARROW)
    assert max(map(len, text.splitlines())) <= 80
    assert "p99 to the first token over sockets, without hedges" in re.sub(r"\s+", " ", text)


def test_bench_in_a_terminal_shows_progress_and_a_report_that_fits() -> None:
    """On a real terminal, nothing reaches the last column, and all progress lines are erased."""
    seen = in_terminal([*BENCH, "--virtual", "--model", "m", "--rate", "100", "--requests", "4000"], cwd=ROOT)
    assert seen.status == 0, seen.coloured
    assert max(map(len, seen.lines)) <= 80
    assert max(map(len, seen.rewritten), default=0) <= 79
    assert all(re.match(r"\[[#-]+\] +\d+ %  (\d+ of 4000 sent, \d+ s left|waiting for the last)", line)
               for line in seen.rewritten)
    assert any("ttft_sched" in line for line in seen.lines)
    assert not any("sent," in line for line in seen.lines)


@pytest.mark.sockets
def test_bench_over_sockets_shows_progress() -> None:
    """Updated within two seconds in one line; the remaining time does not rise; errors are printed below."""
    seen = in_terminal([*BENCH, "--target", f"http://127.0.0.1:{free_port()}/v1", "--model", "m", "--rate", "20",
                        "--duration", "2s"], cwd=ROOT)
    assert seen.status == 1
    assert max(map(len, seen.lines)) <= 80
    assert max(map(len, seen.rewritten)) <= 79
    left_s = [int(found[1]) for line in seen.rewritten if (found := re.search(r"of \d+ sent, (\d+) s left", line))]
    assert len(left_s) >= 2
    assert left_s == sorted(left_s, reverse=True)
    assert any("cannot be reached" in line for line in seen.lines)


def test_prove_in_a_terminal_shows_its_position() -> None:
    """The proof's own progress text ends the line."""
    seen = in_terminal([sys.executable, "-m", "tests.prove.fakes", "good", "bad", "good"], cwd=ROOT)
    assert seen.status == 1
    assert max(map(len, seen.lines)) <= 80
    assert max(map(len, seen.rewritten)) <= 79
    assert any(re.fullmatch(r"\[#+-+\]  33 %  2 of 3, bad: half of it done", line) for line in seen.rewritten)
    assert not any("half of it done" in line for line in seen.lines)


def test_prove_in_a_pipe_prints_lines() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.prove.fakes", "good", "bad"], cwd=ROOT, capture_output=True,
                          text=True, timeout=60, check=False)
    assert "good (1 of 2):\n  half of it done\n" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
