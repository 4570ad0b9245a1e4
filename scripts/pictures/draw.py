"""Draws two distributions: percentiles on x, on a scale with equal room for each nine, and times on y."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10, nan
from textwrap import wrap
from typing import Final

from stayfast.core import units as amounts
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.report.html.frame import (
    AxisScale,
    Box,
    Series,
    draw_axes,
    draw_curve,
    format_tick_s,
    log_scale,
    make_ticks,
    to_pixels,
)
from stayfast.lab.report.html.markup import Markup, format_number, tag

WIDTH: Final = 760.0
LEAST_S: Final = 0.001  # smaller values are drawn here
LEAST_BEYOND: Final = 5  # a line ends where fewer values are beyond
_STEPS: Final = 40  # points for each nine
_ROW: Final = 19.0
_CHARACTERS: Final = 112  # of a row of notes
_RANKS: Final = (("p0", 0.0), ("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999))
_LEGEND_RANKS: Final = ("p50", "p90", "p99", "p99.9")
# A card in the reader's colour scheme, readable on any page colour.
_STYLE: Final = """
svg{--card:#fff;--edge:#d5dae1;--ink:#14181f;--soft:#56606e;--grid:#e4e7ec;--axis:#9aa3af;--off:#d9580d;--on:#2563eb}
@media (prefers-color-scheme:dark){svg{--card:#151b23;--edge:#323c49;--ink:#e8edf3;--soft:#a1adbb;--grid:#252e39;
--axis:#5d6976;--off:#ff9a4d;--on:#6ea8ff}}
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--ink)}
.card{fill:var(--card);stroke:var(--edge)}.title{font-size:16px;font-weight:650}.tick,.note{fill:var(--soft);font-size:12px}
.grid{stroke:var(--grid)}.axis{stroke:var(--axis)}.line{fill:none;stroke-width:2.4;stroke-linejoin:round}
.s0{stroke:var(--off);stroke-dasharray:7 4}.s1{stroke:var(--on)}.d0{fill:var(--off)}.d1{fill:var(--on)}.name{font-weight:650}
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One distribution, in seconds; infinite for failed requests."""

    name: str
    values_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class Words:
    """The texts of a picture."""

    title: str
    measure: str  # the quantity on y
    notes: Sequence[str]  # paragraphs below


def picture(words: Words, off: Line, on: Line) -> str:
    """The complete SVG file; `off` is dashed. Raises ValueError for a line with too few values."""
    lines = (off, on)
    if not all(len(line.values_s) >= LEAST_BEYOND and isfinite(min(line.values_s)) for line in lines):
        raise ValueError(f"{words.title}: too few answers: use a larger --n")
    spreads = [ExactDistribution(max(LEAST_S, value_s) for value_s in line.values_s) for line in lines]
    top = 104.0
    box = Box(height=top + 292, left=66, right=WIDTH - 30, top=top, width=WIDTH)
    nines = max(1.0, log10(max(spread.n for spread in spreads) / LEAST_BEYOND))
    across = AxisScale(0.0, nines, box.left, box.right)
    marks = [step / _STEPS for step in range(floor(nines * _STEPS) + 1)]
    found = [[_value_at(spread, mark) for mark in marks] for spread in spreads]
    up = log_scale([value_s for values_s in found for value_s in values_s], box.bottom, box.top)
    series = [Series(line.name, order, to_pixels(across, marks), to_pixels(up, values_s), (), ())
              for order, (line, values_s) in enumerate(zip(lines, found, strict=True))]
    grid = draw_axes(box, [(across.pixel(-log10(1 - rank)), name) for name, rank in _RANKS
                           if -log10(1 - rank) <= nines + 1e-9],
                [(up.pixel(value_s), format_tick_s(value_s)) for value_s in make_ticks(up)])
    rows = [row for note in words.notes for row in wrap(note, _CHARACTERS)]
    height = box.height + _ROW * len(rows) + 16
    below = [tag("text", row, x=20, y=box.height + 14 + _ROW * order, cls="note") for order, row in enumerate(rows)]
    size = {"viewBox": f"0 0 {format_number(WIDTH)} {format_number(height)}", "width": format_number(WIDTH),
            "height": format_number(height)}
    return tag("svg", tag("title", words.title), tag("style", Markup(_STYLE)),
               tag("rect", x=0.5, y=0.5, width=WIDTH - 1, height=height - 1, rx=10, cls="card"),
               tag("text", words.title, x=20, y=30, cls="title"), _legend(lines, spreads),
               tag("text", words.measure, x=20, y=box.top - 10, cls="note"), grid,
               *(draw_curve(line, box) for line in reversed(series)), *(_draw_end(line) for line in series), *below,
               xmlns="http://www.w3.org/2000/svg", role="img", **size) + "\n"


def _value_at(spread: ExactDistribution, mark: float) -> float:
    """The value at a number of nines; NaN if it is infinite or rests on too few values."""
    value_s = spread.quantile(1 - 10 ** -mark) if spread.n * 10 ** -mark >= LEAST_BEYOND - 1e-6 else nan
    return value_s if isfinite(value_s) else nan


def _legend(lines: Sequence[Line], spreads: Sequence[ExactDistribution]) -> Markup:
    rows = []
    for order, (line, spread) in enumerate(zip(lines, spreads, strict=True)):
        y = 54 + 20 * order
        shown = [f"{name} {amounts.format_seconds(spread.quantile(rank))}" for name, rank in _RANKS
                if name in _LEGEND_RANKS and spread.n * (1 - rank) >= LEAST_BEYOND and isfinite(spread.quantile(rank))]
        n_lost = sum(not isfinite(value_s) for value_s in spread.values)
        lost = [f"{amounts.format_share(n_lost / spread.n)} without an answer"] if n_lost else []
        rows.append(tag("g", tag("path", d=f"M20 {format_number(y - 4)}H50", cls=f"line s{order}"),
                        tag("text", tag("tspan", f"{line.name}:", cls="name"), " " + ", ".join([*shown, *lost]), x=58, y=y)))
    return tag("g", *rows)


def _draw_end(series: Series) -> Markup:
    """A dot at the end of a line."""
    x, y = [(x, y) for x, y in zip(series.x, series.y, strict=True) if isfinite(y)][-1]
    return tag("circle", cx=x, cy=y, r=4, cls=f"d{series.colour}")
