"""Stages by Server-Timing, and the run over its time."""

from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.lab.load.result import Error, GapCounts, Sample, Samples
from stayfast.lab.load.stats import MeasuredRun
from stayfast.lab.report.timeline import (
    ELSEWHERE,
    FAILED,
    MAX_ROWS,
    MAX_STAGES,
    OTHERS,
    TimingEntry,
    bin_width,
    make_gap_heat,
    make_metric_heat,
    make_timeline,
    parse_server_timing,
    split_by_stage,
)
from tests.bench.synthetic import Scenario, result


@pytest.mark.parametrize(("header", "expected"), [
    ("admit;dur=0.26, call;dur=5.31", [TimingEntry("admit", 0.00026), TimingEntry("call", 0.00531)]),
    ('call;dur=812.40;desc="of 2300"', [TimingEntry("call", 0.8124, 2.3)]),
    ("call; dur = 10; allow=50, total;dur=11", [TimingEntry("call", 0.01, 0.05)]),
    ('a;desc="x, y; dur=3";dur=1,b', [TimingEntry("a", 0.001)]),
    ("cache;desc=hit, db;dur=abc, x;dur=-1, y;dur=nan, z;dur=2", [TimingEntry("z", 0.002)]),
    ("", []), (";;;,,=\"", [])])
def test_parse_server_timing_reads_entries(header: str, expected: list[TimingEntry]) -> None:
    """Entries with a duration, without the total; malformed ones are skipped."""
    found = parse_server_timing(header)
    assert [timing.name for timing in found] == [timing.name for timing in expected]
    assert [timing.allowance_s for timing in found] == [timing.allowance_s for timing in expected]
    assert [timing.spent_s for timing in found] == pytest.approx([timing.spent_s for timing in expected])


@given(st.text(max_size=300))
def test_parse_server_timing_any_header_raises_nothing(header: str) -> None:
    """All durations are finite and not negative."""
    assert all(0 <= timing.spent_s < float("inf") for timing in parse_server_timing(header))


def timed(*rows: tuple[float, str]) -> Samples:
    samples = Samples()
    for number, (took_s, timing) in enumerate(rows):
        samples.add(Sample(number, 0.0, 0.0, 0.0, 0.0, took_s, took_s, server_timing=timing))
    return samples


def test_stage_slices_show_the_slow_stage() -> None:
    """Stages add up to the whole; the rest is `elsewhere`; overruns of allowances are counted."""
    took = ((1.0, 900), (1.0, 700), (5.0, 4000))
    samples = timed(*((took_s, f'call;dur={spent_ms};desc="of 2000"') for took_s, spent_ms in took))
    found = split_by_stage(samples, (0.9, 1.1), 5.0)
    assert found is not None
    usual, slow = found
    assert [(stage.name, round(stage.spent_s, 6)) for stage in usual.stages] == [("call", 0.8), (ELSEWHERE, 0.2)]
    assert [(stage.name, stage.spent_s, stage.n_over) for stage in slow.stages] == [("call", 4.0, 1), (ELSEWHERE, 1.0, 0)]
    assert (usual.n, usual.mean_s, slow.stages[0].allowance_s) == (2, 1.0, 2.0)


def test_stage_slices_without_timings_are_none() -> None:
    assert split_by_stage(timed((1.0, "")), (0.0, 2.0), 1.0) is None


def test_stage_slices_sum_excess_names_as_others() -> None:
    found = split_by_stage(timed((1.0, ",".join(f"s{number};dur=1" for number in range(200)))), (0.0, 2.0), 1.0)
    assert found is not None
    assert len(found[0].stages) == MAX_STAGES + 2
    assert found[0].stages[-2].name == OTHERS


def test_timeline_bins_by_intended_start() -> None:
    """Rates use the bin's own width, also of the last one; in flight counts sends and ends."""
    samples = Samples()
    for number in range(300):
        at_s = (number + 0.5) * 0.01
        failed = 100 <= number < 150
        samples.add(Sample(number, at_s, at_s, at_s, at_s + 0.1, at_s + 0.5, at_s + 0.5, n_output=10,
                           error=Error.STATUS if failed else Error.NONE))
    line = make_timeline(samples, bytes(not error for error in samples.errors), 3.0)
    assert line.bin_s == 0.5
    assert line.rate == pytest.approx([100.0] * 6)
    assert line.bad_rate == pytest.approx([0.0, 0.0, 100.0, 0.0, 0.0, 0.0])
    assert line.good_rate == pytest.approx([100.0, 100.0, 0.0, 100.0, 100.0, 100.0])
    assert line.in_flight == [0, 50, 50, 50, 50, 50]
    assert [line.p50_s[0], line.e2e_p99_s[0]] == pytest.approx([0.1, 0.5])
    assert isnan(line.p50_s[2])


@given(st.floats(min_value=1e-3, max_value=1e7), st.integers(min_value=0, max_value=10 ** 7))
def test_timeline_number_of_bins_is_bounded(span_s: float, n: int) -> None:
    assert 1 <= span_s / bin_width(span_s, n, 20) + 1 <= 182


def test_heat_map_counts_every_request_once() -> None:
    """Failures have their own row; rows cover minimum and maximum."""
    run = MeasuredRun(result(Scenario(n=800, error_share=0.05)))
    heat = make_metric_heat(run.result.samples, "ttft_sched", 41.0)
    assert sum(heat.cells.values()) == 800
    assert sum(n for (_, row), n in heat.cells.items() if row == FAILED) == run.n_offered - run.n_succeeded
    assert max(row for _, row in heat.cells) == heat.n_rows - 1 <= MAX_ROWS - 1
    assert heat.lowest_s * heat.factor ** heat.n_rows >= run.distributions["ttft_sched"].quantile(1.0)


def test_heat_map_counts_every_gap() -> None:
    """Also gaps after the last request was due, and gaps of 0."""
    gaps = GapCounts()
    for at_s, gap_s in ((0.0, 0.0), (0.1, 0.2), (3.9, 0.1), (99.0, 5.0)):
        gaps.add(at_s, gap_s)
    heat = make_gap_heat(gaps, 4.0)
    assert heat is not None
    assert sum(heat.cells.values()) == 4
    assert max(column for column, _ in heat.cells) < heat.n_bins
    assert make_gap_heat(GapCounts(), 4.0) is None
