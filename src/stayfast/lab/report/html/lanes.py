"""Bars: where the time goes by stage, the waterfall of the slowest requests, and intervals of a comparison."""

from collections.abc import Sequence
from heapq import nlargest
from math import floor, isfinite, isnan, log
from typing import Final

from stayfast.core import units as amounts
from stayfast.lab.load.samples import Sample, Samples
from stayfast.lab.load.stats import Measured
from stayfast.lab.report.compare import Comparison, Row
from stayfast.lab.report.html.frame import WIDE, Box, axes, card, drawing
from stayfast.lab.report.html.markup import Markup, tag
from stayfast.lab.report.html.scale import Scale, from_zero, instant, round_seconds, ticks
from stayfast.lab.report.stages import ELSEWHERE, Slice, Stage

N_SLOWEST: Final = 24
N_FAILED: Final = 8  # of them at most: time-outs alone would fill the picture
_ROW: Final = 17.0
_FOR_WORDS: Final = 450.0  # right of the intervals: "12.3 ms to 45.6 ms, worse, beyond the threshold (few values)"
_MOST_TICKS: Final = 6
_PARTS: Final = (("late", "before the send"), ("head", "to the head"), ("first", "to the first token"), ("stream", "tokens"),
                 ("end", "to the end"))


def breakdown(run: Measured, slices: Sequence[Slice]) -> Markup:
    """Both slices as stacked bars on one scale, and the table behind them."""
    box = Box(height=122, left=190, width=WIDE, right=WIDE - 40)
    across = from_zero([one.mean_s for one in slices], box.left, box.right)
    names = list(dict.fromkeys(stage.name for one in slices for stage in one.stages if stage.name != ELSEWHERE))
    names.append(ELSEWHERE)
    bars = [_bar(one, box.top + 8 + order * 34, across, names) for order, one in enumerate(slices)]
    grid = axes(box, [(across.at(value_s), round_seconds(value_s)) for value_s in ticks(across)], [])
    keys = [tag("span", tag("span", cls=f"swatch {_colour(name, names)}"), name) for name in names]
    return card("Where the time goes, by stage", _culprit(slices), tag("div", *keys, cls="legend"),
                drawing(box, "stages of usual and of slow requests", grid, *bars), _stage_table(slices, names), wide=True)


def _colour(name: str, names: Sequence[str]) -> str:
    return "g-rest" if name == ELSEWHERE else f"g{names.index(name) % 8}"


def _bar(one: Slice, y: float, across: Scale, names: Sequence[str]) -> Markup:
    words = tag("text", one.title, x=across.start - 8, y=y + 12, text_anchor="end", cls="tick strong")
    count = tag("text", f"{amounts.count(one.n)} answers, {amounts.seconds(one.mean_s)}", x=across.start - 8, y=y + 24,
                text_anchor="end", cls="tick")
    parts, from_s = [], 0.0
    for stage in one.stages:
        x, x_end = across.at(from_s), across.at(from_s + stage.spent_s)
        hint = tag("title", f"{stage.name}: {amounts.seconds(stage.spent_s)}")
        parts.append(tag("rect", hint, x=x, y=y, width=max(0.0, x_end - x), height=24, cls=_colour(stage.name, names)))
        from_s += stage.spent_s
    return tag("g", words, count, *parts)


def _culprit(slices: Sequence[Slice]) -> str:
    usual = {stage.name: stage.spent_s for stage in slices[0].stages}
    excess = {stage.name: stage.spent_s - usual.get(stage.name, 0.0) for stage in slices[1].stages}
    more_s = slices[1].mean_s - slices[0].mean_s
    if not excess or more_s <= 0:
        return "By the target's own Server-Timing."
    worst = max(excess, key=lambda name: excess[name])
    part = amounts.share(min(1.0, excess[worst] / more_s))
    return (f"{worst} makes {part} of what the slowest answers took longer than the usual ones ({amounts.seconds(more_s)}). "
            "By the target's own Server-Timing, means over each slice.")


def _stage_table(slices: Sequence[Slice], names: Sequence[str]) -> Markup:
    none = Stage("", 0.0)
    found = [{stage.name: stage for stage in one.stages} for one in slices]
    rows = []
    for name in names:
        usual, slow = (stages.get(name, none) for stages in found)
        allowances = [amounts.DASH if stage.allowance_s is None else amounts.seconds(stage.allowance_s)
                      for stage in (usual, slow)]
        over = amounts.share(slow.n_over / slices[1].n) if slow.allowance_s is not None else amounts.DASH
        rows.append(tag("tr", tag("th", name, scope="row"), *(tag("td", cell) for cell in (
            amounts.seconds(usual.spent_s), allowances[0], amounts.seconds(slow.spent_s), allowances[1], over))))
    heads = ("stage", "usual", "allowed", "slowest", "allowed", "over its allowance")
    return tag("table", tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))), tag("tbody", *rows))


def waterfall(run: Measured) -> Markup | None:
    """The requests that took longest, each from its intended start."""
    slowest = _slowest(run.result.samples)
    if not slowest:
        return None
    box = Box(height=44 + _ROW * len(slowest), left=130, width=WIDE, right=WIDE - 130)
    across = from_zero([took_s for took_s, _ in slowest], box.left, box.right)
    grid = axes(box, [(across.at(value_s), round_seconds(value_s)) for value_s in ticks(across)], [])
    lanes = [_lane(sample, took_s, box.top + _ROW * order, across) for order, (took_s, sample) in enumerate(slowest)]
    keys = [tag("span", tag("span", cls=f"swatch w-{part}"), words) for part, words in (*_PARTS, ("bad", "failed"))]
    note = "From the intended start. Left: the request's number and when it was due."
    return card(f"The slowest {len(slowest)} requests", note, tag("div", *keys, cls="legend"),
                drawing(box, "waterfall of the slowest requests", grid, *lanes), wide=True)


def _slowest(samples: Samples) -> list[tuple[float, Sample]]:
    at, ended, errors = samples.floats["at_s"], samples.floats["ended_s"], samples.errors
    took = [(ended[row] - at[row], row) for row in range(len(samples)) if isfinite(ended[row])]
    failed = nlargest(N_FAILED, (pair for pair in took if errors[pair[1]]))
    whole = nlargest(N_SLOWEST, (pair for pair in took if not errors[pair[1]]))
    return [(took_s, samples[row]) for took_s, row in sorted(failed + whole, reverse=True)[:N_SLOWEST]]


def _lane(sample: Sample, took_s: float, y: float, across: Scale) -> Markup:
    marks = (sample.sent_s, sample.headers_s, sample.first_s, sample.last_s, sample.ended_s)
    parts, from_s = [], 0.0
    for (part, words), mark in zip(_PARTS, marks, strict=True):
        if isnan(mark):
            continue
        until_s = mark - sample.at_s
        cls = "w-bad" if sample.error and mark == sample.ended_s else f"w-{part}"
        hint = tag("title", f"{words}: {amounts.seconds(until_s - from_s)}")
        width = max(0.0, across.at(until_s) - across.at(from_s))
        parts.append(tag("rect", hint, x=across.at(from_s), y=y + 2, width=width, height=_ROW - 5, cls=cls))
        from_s = until_s
    what = f"{sample.error} " * bool(sample.error) + amounts.seconds(took_s)
    due = instant(round(sample.at_s, 1 if sample.at_s < 60 else 0))
    name = tag("text", f"#{sample.number} at {due}", x=across.start - 8, y=y + 12, text_anchor="end", cls="tick")
    return tag("g", name, *parts, tag("text", what, x=across.at(took_s) + 6, y=y + 12,
                                  cls="tick bad-word" if sample.error else "tick"))


def intervals(comparison: Comparison) -> Markup:
    """B / A of every quantity with its interval, on a logarithmic axis around 1."""
    rows = [row for row in comparison.rows if isfinite(row.ratio.value) and row.ratio.low > 0 and isfinite(row.ratio.high)]
    box = Box(height=44 + _ROW * len(rows), left=130, width=WIDE, right=WIDE - _FOR_WORDS)
    low, high = min([0.8, *(row.ratio.low for row in rows)]), max([1.25, *(row.ratio.high for row in rows)])
    across = Scale(low / 1.05, high * 1.05, box.left, box.right, is_log=True)
    grid = axes(box, [(across.at(value), f"{value:.4g}x") for value in _around_one(low, high)], [])
    one = tag("line", x1=across.at(1), x2=across.at(1), y1=box.top, y2=box.bottom, cls="axis")
    lines = [_whisker(row, box.top + _ROW * order + 10, across, box) for order, row in enumerate(rows)]
    words = (f"B / A with its {comparison.config.level:.0%} interval. One that holds 1x says that no difference was seen, "
             "not that there is none.")
    return card(f"{comparison.label_b} (B) against {comparison.label_a} (A)", words,
                drawing(box, "ratios with their intervals", grid, one, *lines), wide=True)


def _around_one(low: float, high: float) -> list[float]:
    """Powers of the smallest step that makes few of them between `low` (below 1) and `high`."""
    steps = (1.1, 1.25, 1.5, 2.0, 3.0, *(10.0 ** power for power in range(1, 20)))
    step = next((step for step in steps if log(high / low) / log(step) <= _MOST_TICKS), steps[-1])
    numbers = range(-floor(-log(low) / log(step) + 1e-9), floor(log(high) / log(step) + 1e-9) + 1)
    return [step ** number for number in numbers]


def _whisker(row: Row, y: float, across: Scale, box: Box) -> Markup:
    kind = "same" if row.difference.spans_zero else "worse" if row.verdict.startswith("worse") else "better"
    show = amounts.share if row.quantity in {"goodput", "errors"} else amounts.seconds
    words = f"{show(row.a)} to {show(row.b)}, {row.verdict}{' (few values)' * row.is_few}"
    return tag("g", tag("text", row.quantity, x=box.left - 8, y=y + 4, text_anchor="end", cls="tick"),
               tag("line", x1=across.at(row.ratio.low), x2=across.at(row.ratio.high), y1=y, y2=y, cls=f"whisker {kind}"),
               tag("circle", cx=across.at(row.ratio.value), cy=y, r=4, cls=f"point {kind}"),
               tag("text", words, x=box.right + 12, y=y + 4, cls=f"tick {kind}-word"))
