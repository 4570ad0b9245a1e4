"""The charts of the report: percentile curves, curves over time and load, heat maps, stage bars, waterfall, intervals.

A heat map has one path for each colour, which keeps thousands of cells small.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import floor, isfinite, isnan, log, log10, nan
from typing import Final

from stayfast.core import units as amounts
from stayfast.lab.load.result import Sample, Samples
from stayfast.lab.load.stats import MeasuredRun
from stayfast.lab.report.compare import ComparedQuantity, Comparison
from stayfast.lab.report.html.frame import (
    SECONDS,
    WIDE,
    AxisScale,
    Box,
    Series,
    Unit,
    card,
    draw_axes,
    draw_curve,
    draw_limit,
    drawing,
    format_instant,
    format_tick_count,
    format_tick_s,
    hover_lines,
    legend,
    linear_scale,
    log_scale,
    make_ticks,
    make_time_ticks,
    to_pixels,
)
from stayfast.lab.report.html.markup import Markup, format_number, json_data, tag
from stayfast.lab.report.timeline import ELSEWHERE, FAILED, AnswerSlice, Heat, StageMean, Timeline

_N_POINTS: Final = 121
_RANKS: Final = ((0.0, "p0"), (0.5, "p50"), (0.9, "p90"), (0.95, "p95"), (0.99, "p99"), (0.995, "p99.5"), (0.999, "p99.9"),
                 (0.9999, "p99.99"))


@dataclass(frozen=True, slots=True)
class TimelineSeries:
    """A series of a timeline, and how to draw it."""

    name: str
    read: Callable[[Timeline], Sequence[float]]
    is_faint: bool = False
    is_bad: bool = False


def percentile_chart(runs: Sequence[MeasuredRun], title: str, note: str, names: Sequence[str]) -> Markup | None:
    """Curves of the metrics `names` (dashed from the second on), up to the highest rank with enough data."""
    box = Box(height=300)
    n_most = max(run.distributions[name].n for run in runs for name in names)
    if not n_most:
        return None
    end = min(4.0, max(2.0, log10(n_most)))
    scale = AxisScale(0.0, end, box.left, box.right)
    marks = [number * end / (_N_POINTS - 1) for number in range(_N_POINTS)]
    drawn = [(run, order, name, _quantiles_at(run, name, marks)) for order, run in enumerate(runs) for name in names]
    up = log_scale([value for *_, values in drawn for value in values], box.bottom, box.top)
    heads = [f"p{amounts.format_digits(100 - 100 * 10 ** -mark)}" for mark in marks]
    several = len(runs) > 1
    x = to_pixels(scale, marks)
    series = [Series(f"{run.result.label}: {name}" if several else name, order, x, to_pixels(up, values), heads,
                     [amounts.format_seconds(value) for value in values], is_dashed=name != names[0])
              for run, order, name, values in drawn]
    across = [(scale.pixel(-log10(1 - rank)), word) for rank, word in _RANKS if -log10(1 - rank) <= end + 1e-9]
    bounds = slo_bounds(runs, names)
    limits = [draw_limit(box, up.pixel(bound_s), f"SLO {name} {amounts.format_seconds(bound_s)}") for name,
              bound_s in bounds.items()
              if up.low < bound_s < up.high]
    failed = [_draw_failed_share(run, order, scale, box) for order, run in enumerate(runs) if len(names) > 1]
    return card(title, note, legend(series), drawing(
        box, title, draw_axes(box, across, _make_ticks(up, SECONDS)), *limits, *failed,
        *(draw_curve(line, box) for line in series)),
        hover_lines(box, series))


def _quantiles_at(run: MeasuredRun, name: str, marks: Sequence[float]) -> list[float]:
    spread = run.distributions[name]
    resolved = log10(max(1, spread.n)) + 1e-9
    return [spread.quantile(1 - 10 ** -mark) if mark <= resolved else nan for mark in marks]


def _draw_failed_share(run: MeasuredRun, order: int, scale: AxisScale, box: Box) -> Markup | None:
    """The share of failed requests, at its place among the ranks."""
    if not run.error_share > 0 or -log10(run.error_share) > scale.high:
        return None
    x = scale.pixel(-log10(run.error_share))
    side, anchor = (-5, "end") if x > box.right - 80 else (5, "start")
    return tag("g", tag("rect", x=x, y=box.top, width=box.right - x, height=box.bottom - box.top, cls="beyond"),
               tag("line", x1=x, x2=x, y1=box.top, y2=box.bottom, cls="limit"),
               tag("text", f"{amounts.format_share(run.error_share)} failed", x=x + side, y=box.bottom - 8 - 13 * order,
                   text_anchor=anchor, cls="limit-word"))


def time_chart(runs: Sequence[tuple[MeasuredRun, Timeline]], title: str, span_s: float, unit: Unit,
              lines: Sequence[TimelineSeries]) -> Markup:
    box = Box(height=190)
    across = AxisScale(0.0, span_s, box.left, box.right)
    up = unit.scale([value for _, timeline in runs for line in lines for value in line.read(timeline)], box.bottom, box.top)
    series: list[Series] = []
    for order, (run, timeline) in enumerate(runs):
        heads = [f"from {format_instant(round(number * timeline.bin_s, 4))}" for number in range(len(timeline.rate))]
        x = to_pixels(across, ((number + 0.5) * timeline.bin_s for number in range(len(timeline.rate))))
        for line in lines:
            name = f"{run.result.label}: {line.name}" if len(runs) > 1 else line.name
            values = line.read(timeline)
            series.append(Series(name, order, x, to_pixels(up, values), heads, [unit.show(value) for value in values],
                                 is_faint=line.is_faint, is_bad=line.is_bad))
    grid = draw_axes(box, [(across.pixel(at_s), format_instant(at_s)) for at_s in make_time_ticks(span_s)],
                     _make_ticks(up, unit, 4))
    bins = " and ".join(dict.fromkeys(format_instant(line.bin_s) for _, line in runs))
    note = f"By the intended start, in bins of {bins}."
    return card(title, note, legend(series), drawing(box, title, grid, *(draw_curve(line, box) for line in series)),
                hover_lines(box, series))


def load_chart(runs: Sequence[MeasuredRun], title: str, unit: Unit,
                 lines: Sequence[tuple[str, Callable[[MeasuredRun], float]]]) -> Markup:
    """One point for each run of a sweep, by load."""
    box = Box(height=230)
    ordered = sorted(runs, key=load_of_run)
    loads, labels = [load_of_run(run) for run in ordered], [run.result.label for run in ordered]
    across = log_scale(loads, box.left, box.right)
    found = [(name, [read(run) for run in ordered]) for name, read in lines]
    up = unit.scale([value for _, values in found for value in values], box.bottom, box.top)
    series = [Series(name, order, to_pixels(across, loads), to_pixels(up, values), labels,
                     [unit.show(value) for value in values])
              for order, (name, values) in enumerate(found)]
    dots = [tag("circle", cx=x, cy=y, r=3.5, cls=f"f{line.colour}") for line in series
            for x, y in zip(line.x, line.y, strict=True) if isfinite(y)]
    grid = draw_axes(box, [(across.pixel(load), format_tick_count(load)) for load in loads], _make_ticks(up, unit))
    return card(title, None, legend(series), drawing(box, title, grid, *(draw_curve(line, box) for line in series), *dots),
                hover_lines(box, series))


def slo_bounds(runs: Sequence[MeasuredRun], names: Sequence[str]) -> dict[str, float]:
    """The SLO bounds of the metrics `names`, in seconds."""
    return {name: bound_s for run in runs for name, bound_s in run.result.slo.bounds().items() if name in names}


def load_of_run(run: MeasuredRun) -> float:
    """The load that a sweep varies: the number of callers, or the offered rate."""
    return float(run.result.n_concurrent or run.result.offered_rps)


def _make_ticks(scale: AxisScale, unit: Unit, most: int = 6) -> list[tuple[float, str]]:
    return [(scale.pixel(value), unit.tick(value)) for value in make_ticks(scale, most)]


LEVELS: Final = 8
_FAILED_HEIGHT: Final = 10.0


def heat_map(heat: Heat, title: str, note: str, what: str, bounds: Mapping[str, float]) -> Markup:
    """Time on x, the logarithm of the value on y, the logarithm of the count as colour; failures in a row on top."""
    box = Box(height=270, top=30)
    across = AxisScale(0.0, heat.n_bins * heat.bin_s, box.left, box.right)
    high_s = heat.lowest_s * heat.factor ** heat.n_rows
    up = AxisScale(heat.lowest_s, high_s, box.bottom, box.top, is_log=True)
    most = max((n for (_, row), n in heat.cells.items() if row != FAILED), default=1)
    paths = _make_cell_paths(heat, box, most)
    has_failures = any(row == FAILED for _, row in heat.cells)
    cells = [tag("path", d=path, cls=style) for style, path in sorted(paths.items())]
    limits = [draw_limit(box, up.pixel(bound_s), f"SLO {name} {amounts.format_seconds(bound_s)}") for name,
              bound_s in bounds.items()
              if heat.lowest_s < bound_s < high_s]
    grid = draw_axes(box, [(across.pixel(at_s), format_instant(at_s)) for at_s in make_time_ticks(across.high)],
                [(up.pixel(value_s), format_tick_s(value_s)) for value_s in make_ticks(up)])
    failed = tag("text", "failed", x=box.left - 7, y=box.top - 5.5, text_anchor="end", cls="tick bad-word")
    chart = drawing(box, title, grid, *cells, failed if has_failures else None, *limits)
    levels = tag("span", *(tag("span", cls=f"swatch b{level}") for level in range(1, LEVELS + 1)), cls="ramp")
    ramp = tag("div", tag("span", f"1 {what}"), levels, tag("span", amounts.format_count(most)), cls="legend")
    return card(title, note, ramp, chart, _hover_cells(heat, box, what))


def _make_cell_paths(heat: Heat, box: Box, most: int) -> dict[str, str]:
    """One path a style: h1 to h8 by count, x0 to x2 by the share of failed requests of a bin."""
    wide, tall = (box.right - box.left) / heat.n_bins, (box.bottom - box.top) / heat.n_rows
    offered: Counter[int] = Counter()
    for (column, _), n in heat.cells.items():
        offered[column] += n
    drawn: dict[str, list[str]] = {}
    for (column, row), n in sorted(heat.cells.items()):
        has_failed = row == FAILED
        y = box.top - 4 - _FAILED_HEIGHT if has_failed else box.bottom - (row + 1) * tall
        shape = f"h{wide:.2f}v{_FAILED_HEIGHT if has_failed else tall:.2f}h-{wide:.2f}z"
        share = n / offered[column]
        level = LEVELS if n >= most else 1 + int((LEVELS - 1) * log(n) / log(most))
        style = ("x2" if share > 0.1 else "x1" if share > 0.01 else "x0") if has_failed else f"h{level}"
        drawn.setdefault(style, []).append(f"M{format_number(box.left + column * wide)} {format_number(y)}{shape}")
    return {style: "".join(parts) for style, parts in drawn.items()}


def _hover_cells(heat: Heat, box: Box, what: str) -> Markup:
    rows = [f"{format_tick_s(float(f'{heat.lowest_s * heat.factor ** row:.3g}'))} to "
            f"{format_tick_s(float(f'{heat.lowest_s * heat.factor ** (row + 1):.3g}'))}" for row in range(heat.n_rows)]
    cells: list[list[list[int]]] = [[] for _ in range(heat.n_bins)]
    for (column, row), n in heat.cells.items():
        cells[column].append([row, n])
    return json_data({"kind": "heat", "box": [box.left, box.top, box.right, box.bottom], "width": box.width, "what": what,
                 "rows": rows, "heads": [f"from {format_instant(round(column * heat.bin_s, 4))}"
                                         for column in range(heat.n_bins)],
                 "cells": cells})


N_SLOWEST: Final = 24
N_FAILED: Final = 8  # at most; time-outs could fill the chart
_ROW: Final = 17.0
TEXT_WIDTH: Final = 450.0  # "12.3 ms to 45.6 ms, worse, beyond the threshold (few values)"
_MOST_TICKS: Final = 6
_PARTS: Final = (("late", "before the send"), ("head", "to the head"), ("first", "to the first token"), ("stream", "tokens"),
                 ("end", "to the end"))


def stage_chart(run: MeasuredRun, slices: Sequence[AnswerSlice]) -> Markup:
    """Both slices as stacked bars on one scale, with their table."""
    box = Box(height=122, left=190, width=WIDE, right=WIDE - 40)
    across = linear_scale([part.mean_s for part in slices], box.left, box.right)
    names = list(dict.fromkeys(stage.name for part in slices for stage in part.stages if stage.name != ELSEWHERE))
    names.append(ELSEWHERE)
    bars = [_draw_bar(part, box.top + 8 + order * 34, across, names) for order, part in enumerate(slices)]
    grid = draw_axes(box, [(across.pixel(value_s), format_tick_s(value_s)) for value_s in make_ticks(across)], [])
    keys = [tag("span", tag("span", cls=f"swatch {_stage_colour(name, names)}"), name) for name in names]
    return card("Where the time goes, by stage", _describe_excess(slices), tag("div", *keys, cls="legend"),
                drawing(box, "stages of usual and of slow requests", grid, *bars), _stage_table(slices, names), wide=True)


def _stage_colour(name: str, names: Sequence[str]) -> str:
    return "g-rest" if name == ELSEWHERE else f"g{names.index(name) % 8}"


def _draw_bar(part: AnswerSlice, y: float, across: AxisScale, names: Sequence[str]) -> Markup:
    words = tag("text", part.title, x=across.start - 8, y=y + 12, text_anchor="end", cls="tick strong")
    count = tag("text", f"{amounts.format_count(part.n)} answers, {amounts.format_seconds(part.mean_s)}", x=across.start - 8,
                y=y + 24,
                text_anchor="end", cls="tick")
    parts, from_s = [], 0.0
    for stage in part.stages:
        x, x_end = across.pixel(from_s), across.pixel(from_s + stage.spent_s)
        hint = tag("title", f"{stage.name}: {amounts.format_seconds(stage.spent_s)}")
        parts.append(tag("rect", hint, x=x, y=y, width=max(0.0, x_end - x), height=24, cls=_stage_colour(stage.name, names)))
        from_s += stage.spent_s
    return tag("g", words, count, *parts)


def _describe_excess(slices: Sequence[AnswerSlice]) -> str:
    usual = {stage.name: stage.spent_s for stage in slices[0].stages}
    excess = {stage.name: stage.spent_s - usual.get(stage.name, 0.0) for stage in slices[1].stages}
    more_s = slices[1].mean_s - slices[0].mean_s
    if not excess or more_s <= 0:
        return "By the target's own Server-Timing."
    worst = max(excess, key=lambda name: excess[name])
    part = amounts.format_share(min(1.0, excess[worst] / more_s))
    return (f"{worst} is {part} of the extra time of the slowest answers over the usual ones "
            f"({amounts.format_seconds(more_s)}). "
            "By the target's own Server-Timing, means over each slice.")


def _stage_table(slices: Sequence[AnswerSlice], names: Sequence[str]) -> Markup:
    none = StageMean("", 0.0)
    by_name = [{stage.name: stage for stage in part.stages} for part in slices]
    rows = []
    for name in names:
        usual, slow = (stages.get(name, none) for stages in by_name)
        allowances = [amounts.DASH if stage.allowance_s is None else amounts.format_seconds(stage.allowance_s)
                      for stage in (usual, slow)]
        over = amounts.format_share(slow.n_over / slices[1].n) if slow.allowance_s is not None else amounts.DASH
        rows.append(tag("tr", tag("th", name, scope="row"), *(tag("td", cell) for cell in (
            amounts.format_seconds(usual.spent_s), allowances[0], amounts.format_seconds(slow.spent_s), allowances[1],
            over))))
    heads = ("stage", "usual", "allowed", "slowest", "allowed", "over its allowance")
    return tag("table", tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))), tag("tbody", *rows))


def waterfall_chart(run: MeasuredRun) -> Markup | None:
    """The requests that took longest, from their intended start."""
    slowest = _find_slowest(run.result.samples)
    if not slowest:
        return None
    box = Box(height=44 + _ROW * len(slowest), left=130, width=WIDE, right=WIDE - 130)
    across = linear_scale([took_s for took_s, _ in slowest], box.left, box.right)
    grid = draw_axes(box, [(across.pixel(value_s), format_tick_s(value_s)) for value_s in make_ticks(across)], [])
    lanes = [_draw_request(sample, took_s, box.top + _ROW * order, across) for order, (took_s, sample) in enumerate(slowest)]
    keys = [tag("span", tag("span", cls=f"swatch w-{part}"), words) for part, words in (*_PARTS, ("bad", "failed"))]
    note = "From the intended start. Left: the request's number and when it was due."
    return card(f"The slowest {len(slowest)} requests", note, tag("div", *keys, cls="legend"),
                drawing(box, "waterfall of the slowest requests", grid, *lanes), wide=True)


def _find_slowest(samples: Samples) -> list[tuple[float, Sample]]:
    at, ended, errors = samples.floats["at_s"], samples.floats["ended_s"], samples.errors
    took = [(ended[row] - at[row], row) for row in range(len(samples)) if isfinite(ended[row])]
    failed = nlargest(N_FAILED, (pair for pair in took if errors[pair[1]]))
    whole = nlargest(N_SLOWEST, (pair for pair in took if not errors[pair[1]]))
    return [(took_s, samples[row]) for took_s, row in sorted(failed + whole, reverse=True)[:N_SLOWEST]]


def _draw_request(sample: Sample, took_s: float, y: float, across: AxisScale) -> Markup:
    marks = (sample.sent_s, sample.headers_s, sample.first_s, sample.last_s, sample.ended_s)
    parts, from_s = [], 0.0
    for (part, words), mark in zip(_PARTS, marks, strict=True):
        if isnan(mark):
            continue
        until_s = mark - sample.at_s
        cls = "w-bad" if sample.error and mark == sample.ended_s else f"w-{part}"
        hint = tag("title", f"{words}: {amounts.format_seconds(until_s - from_s)}")
        width = max(0.0, across.pixel(until_s) - across.pixel(from_s))
        parts.append(tag("rect", hint, x=across.pixel(from_s), y=y + 2, width=width, height=_ROW - 5, cls=cls))
        from_s = until_s
    what = f"{sample.error} " * bool(sample.error) + amounts.format_seconds(took_s)
    due = format_instant(round(sample.at_s, 1 if sample.at_s < 60 else 0))
    name = tag("text", f"#{sample.number} at {due}", x=across.start - 8, y=y + 12, text_anchor="end", cls="tick")
    return tag("g", name, *parts, tag("text", what, x=across.pixel(took_s) + 6, y=y + 12,
                                  cls="tick bad-word" if sample.error else "tick"))


def interval_chart(comparison: Comparison) -> Markup:
    """B / A of each quantity with its interval, on a logarithmic axis around 1."""
    rows = [row for row in comparison.rows if isfinite(row.ratio.value) and row.ratio.low > 0 and isfinite(row.ratio.high)]
    box = Box(height=44 + _ROW * len(rows), left=130, width=WIDE, right=WIDE - TEXT_WIDTH)
    low, high = min([0.8, *(row.ratio.low for row in rows)]), max([1.25, *(row.ratio.high for row in rows)])
    across = AxisScale(low / 1.05, high * 1.05, box.left, box.right, is_log=True)
    grid = draw_axes(box, [(across.pixel(value), f"{value:.4g}x") for value in _ticks_around_one(low, high)], [])
    one = tag("line", x1=across.pixel(1), x2=across.pixel(1), y1=box.top, y2=box.bottom, cls="axis")
    lines = [_draw_interval(row, box.top + _ROW * order + 10, across, box) for order, row in enumerate(rows)]
    words = (f"B / A with its {comparison.config.level:.0%} interval. An interval that includes 1x means that no difference "
             "was seen, not that there is none.")
    return card(f"{comparison.label_b} (B) against {comparison.label_a} (A)", words,
                drawing(box, "ratios with their intervals", grid, one, *lines), wide=True)


def _ticks_around_one(low: float, high: float) -> list[float]:
    """Powers of the smallest step with few of them between `low` (below 1) and `high`."""
    steps = (1.1, 1.25, 1.5, 2.0, 3.0, *(10.0 ** power for power in range(1, 20)))
    step = next((step for step in steps if log(high / low) / log(step) <= _MOST_TICKS), steps[-1])
    numbers = range(-floor(-log(low) / log(step) + 1e-9), floor(log(high) / log(step) + 1e-9) + 1)
    return [step ** number for number in numbers]


def _draw_interval(row: ComparedQuantity, y: float, across: AxisScale, box: Box) -> Markup:
    kind = "same" if row.difference.spans_zero else "worse" if row.verdict.startswith("worse") else "better"
    show = amounts.format_share if row.quantity in {"goodput", "errors"} else amounts.format_seconds
    words = f"{show(row.a)} to {show(row.b)}, {row.verdict}{' (few values)' * row.is_few}"
    return tag("g", tag("text", row.quantity, x=box.left - 8, y=y + 4, text_anchor="end", cls="tick"),
               tag("line", x1=across.pixel(row.ratio.low), x2=across.pixel(row.ratio.high), y1=y, y2=y,
                   cls=f"whisker {kind}"),
               tag("circle", cx=across.pixel(row.ratio.value), cy=y, r=4, cls=f"point {kind}"),
               tag("text", words, x=box.right + 12, y=y + 4, cls=f"tick {kind}-word"))
