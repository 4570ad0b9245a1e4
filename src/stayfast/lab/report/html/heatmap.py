"""Heat maps: how often each latency came, over the run's time. One path a level keeps thousands of cells small."""

from collections import Counter
from collections.abc import Mapping
from math import log
from typing import Final

from stayfast.core import units as amounts
from stayfast.lab.report.html.frame import Box, axes, card, drawing, limit
from stayfast.lab.report.html.markup import Markup, data, number, tag
from stayfast.lab.report.html.scale import Scale, instant, round_seconds, ticks, time_ticks
from stayfast.lab.report.timeline import FAILED, Heat

LEVELS: Final = 8
_FAILED_HEIGHT: Final = 10.0


def heat_map(heat: Heat, title: str, note: str, what: str, bounds: Mapping[str, float]) -> Markup:
    """Time across, the logarithm of the value up, the logarithm of the count as colour; failures in a row on top."""
    box = Box(height=270, top=30)
    across = Scale(0.0, heat.n_bins * heat.bin_s, box.left, box.right)
    high_s = heat.lowest_s * heat.factor ** heat.n_rows
    up = Scale(heat.lowest_s, high_s, box.bottom, box.top, is_log=True)
    most = max((n for (_, row), n in heat.cells.items() if row != FAILED), default=1)
    paths = _paths(heat, box, most)
    has_failures = any(row == FAILED for _, row in heat.cells)
    cells = [tag("path", d=path, cls=style) for style, path in sorted(paths.items())]
    limits = [limit(box, up.at(bound_s), f"SLO {name} {amounts.seconds(bound_s)}") for name, bound_s in bounds.items()
              if heat.lowest_s < bound_s < high_s]
    grid = axes(box, [(across.at(at_s), instant(at_s)) for at_s in time_ticks(across.high)],
                [(up.at(value_s), round_seconds(value_s)) for value_s in ticks(up)])
    failed = tag("text", "failed", x=box.left - 7, y=box.top - 5.5, text_anchor="end", cls="tick bad-word")
    chart = drawing(box, title, grid, *cells, failed if has_failures else None, *limits)
    return card(title, note, _ramp(most, what), chart, _hover(heat, box, what))


def _paths(heat: Heat, box: Box, most: int) -> dict[str, str]:
    """A path for each style: h1 to h8 by count, x0 to x2 by the share of a bin's requests that failed."""
    wide, tall = (box.right - box.left) / heat.n_bins, (box.bottom - box.top) / heat.n_rows
    offered: Counter[int] = Counter()
    for (column, _), n in heat.cells.items():
        offered[column] += n
    drawn: dict[str, list[str]] = {}
    for (column, row), n in sorted(heat.cells.items()):
        has_failed = row == FAILED
        y = box.top - 4 - _FAILED_HEIGHT if has_failed else box.bottom - (row + 1) * tall
        shape = f"h{wide:.2f}v{_FAILED_HEIGHT if has_failed else tall:.2f}h-{wide:.2f}z"
        style = _failed_style(n / offered[column]) if has_failed else f"h{level_of(n, most)}"
        drawn.setdefault(style, []).append(f"M{number(box.left + column * wide)} {number(y)}{shape}")
    return {style: "".join(parts) for style, parts in drawn.items()}


def _failed_style(share: float) -> str:
    return "x2" if share > 0.1 else "x1" if share > 0.01 else "x0"


def level_of(n: int, most: int) -> int:
    """1 to LEVELS, by the logarithm of the count."""
    return LEVELS if n >= most else 1 + int((LEVELS - 1) * log(n) / log(most))


def _ramp(most: int, what: str) -> Markup:
    steps = [tag("span", cls=f"swatch b{level}") for level in range(1, LEVELS + 1)]
    ends = (tag("span", f"1 {what}"), tag("span", amounts.count(most)))
    return tag("div", ends[0], tag("span", *steps, cls="ramp"), ends[1], cls="legend")


def _hover(heat: Heat, box: Box, what: str) -> Markup:
    rows = [f"{round_seconds(float(f'{heat.lowest_s * heat.factor ** row:.3g}'))} to "
            f"{round_seconds(float(f'{heat.lowest_s * heat.factor ** (row + 1):.3g}'))}" for row in range(heat.n_rows)]
    cells: list[list[list[int]]] = [[] for _ in range(heat.n_bins)]
    for (column, row), n in heat.cells.items():
        cells[column].append([row, n])
    return data({"kind": "heat", "box": [box.left, box.top, box.right, box.bottom], "width": box.width, "what": what,
                 "rows": rows, "heads": [f"from {instant(round(column * heat.bin_s, 4))}" for column in range(heat.n_bins)],
                 "cells": cells})


