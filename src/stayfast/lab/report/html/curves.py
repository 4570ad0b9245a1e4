"""Percentile curves, lines over the run's time, and the load curve of a sweep."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, log10, nan
from typing import Final

from stayfast.core import units as amounts
from stayfast.lab.load.stats import Measured
from stayfast.lab.report.html.frame import Box, Series, axes, card, curve, drawing, hover_lines, legend, limit
from stayfast.lab.report.html.markup import Markup, tag
from stayfast.lab.report.html.scale import SECONDS, Scale, Unit, instant, log_scale, pixels, round_count, ticks, time_ticks
from stayfast.lab.report.timeline import Timeline

_N_POINTS: Final = 121
_RANKS: Final = ((0.0, "p0"), (0.5, "p50"), (0.9, "p90"), (0.95, "p95"), (0.99, "p99"), (0.995, "p99.5"), (0.999, "p99.9"),
                 (0.9999, "p99.99"))


@dataclass(frozen=True, slots=True)
class Line:
    """What to read of a timeline, and how to draw it."""

    name: str
    read: Callable[[Timeline], Sequence[float]]
    is_faint: bool = False
    is_bad: bool = False


def percentiles(runs: Sequence[Measured], title: str, note: str, names: Sequence[str]) -> Markup | None:
    """Curves of the metrics `names` (the second and later ones dashed) to the rank that the data resolve."""
    box = Box(height=300)
    n_most = max(run.spreads[name].n for run in runs for name in names)
    if not n_most:
        return None
    end = min(4.0, max(2.0, log10(n_most)))
    scale = Scale(0.0, end, box.left, box.right)
    marks = [number * end / (_N_POINTS - 1) for number in range(_N_POINTS)]
    drawn = [(run, order, name, _quantiles(run, name, marks)) for order, run in enumerate(runs) for name in names]
    up = log_scale([value for *_, values in drawn for value in values], box.bottom, box.top)
    heads = [f"p{amounts.three(100 - 100 * 10 ** -mark)}" for mark in marks]
    several = len(runs) > 1
    x = pixels(scale, marks)
    series = [Series(f"{run.result.label}: {name}" if several else name, order, x, pixels(up, values), heads,
                     [amounts.seconds(value) for value in values], is_dashed=name != names[0])
              for run, order, name, values in drawn]
    across = [(scale.at(-log10(1 - rank)), word) for rank, word in _RANKS if -log10(1 - rank) <= end + 1e-9]
    bounds = slo_of(runs, names)
    limits = [limit(box, up.at(bound_s), f"SLO {name} {amounts.seconds(bound_s)}") for name, bound_s in bounds.items()
              if up.low < bound_s < up.high]
    failed = [_failed(run, order, scale, box) for order, run in enumerate(runs) if len(names) > 1]
    return card(title, note, legend(series), drawing(
        box, title, axes(box, across, _up(up, SECONDS)), *limits, *failed, *(curve(one, box) for one in series)),
        hover_lines(box, series))


def _quantiles(run: Measured, name: str, marks: Sequence[float]) -> list[float]:
    spread = run.spreads[name]
    resolved = log10(max(1, spread.n)) + 1e-9
    return [spread.at(1 - 10 ** -mark) if mark <= resolved else nan for mark in marks]


def _failed(run: Measured, order: int, scale: Scale, box: Box) -> Markup | None:
    """The share of the offered that got no whole answer, where it would stand among the ranks."""
    if not run.error_share > 0 or -log10(run.error_share) > scale.high:
        return None
    x = scale.at(-log10(run.error_share))
    side, anchor = (-5, "end") if x > box.right - 80 else (5, "start")
    return tag("g", tag("rect", x=x, y=box.top, width=box.right - x, height=box.bottom - box.top, cls="beyond"),
               tag("line", x1=x, x2=x, y1=box.top, y2=box.bottom, cls="limit"),
               tag("text", f"{amounts.share(run.error_share)} failed", x=x + side, y=box.bottom - 8 - 13 * order,
                   text_anchor=anchor, cls="limit-word"))


def over_time(runs: Sequence[tuple[Measured, Timeline]], title: str, span_s: float, unit: Unit,
              lines: Sequence[Line]) -> Markup:
    """Lines over the run's time."""
    box = Box(height=190)
    across = Scale(0.0, span_s, box.left, box.right)
    up = unit.scale([value for _, timeline in runs for line in lines for value in line.read(timeline)], box.bottom, box.top)
    series: list[Series] = []
    for order, (run, timeline) in enumerate(runs):
        heads = [f"from {instant(round(number * timeline.bin_s, 4))}" for number in range(len(timeline.rate))]
        x = pixels(across, ((number + 0.5) * timeline.bin_s for number in range(len(timeline.rate))))
        for line in lines:
            name = f"{run.result.label}: {line.name}" if len(runs) > 1 else line.name
            values = line.read(timeline)
            series.append(Series(name, order, x, pixels(up, values), heads, [unit.show(value) for value in values],
                                 is_faint=line.is_faint, is_bad=line.is_bad))
    grid = axes(box, [(across.at(at_s), instant(at_s)) for at_s in time_ticks(span_s)], _up(up, unit, 4))
    note = f"By the intended start, in bins of {' and '.join(dict.fromkeys(instant(line.bin_s) for _, line in runs))}."
    return card(title, note, legend(series), drawing(box, title, grid, *(curve(one, box) for one in series)),
                hover_lines(box, series))


def against_load(runs: Sequence[Measured], title: str, unit: Unit,
                 lines: Sequence[tuple[str, Callable[[Measured], float]]]) -> Markup:
    """One point a run of a sweep: across, the load; lines by name."""
    box = Box(height=230)
    ordered = sorted(runs, key=load_of)
    loads, labels = [load_of(run) for run in ordered], [run.result.label for run in ordered]
    across = log_scale(loads, box.left, box.right)
    found = [(name, [read(run) for run in ordered]) for name, read in lines]
    up = unit.scale([value for _, values in found for value in values], box.bottom, box.top)
    series = [Series(name, order, pixels(across, loads), pixels(up, values), labels, [unit.show(value) for value in values])
              for order, (name, values) in enumerate(found)]
    dots = [tag("circle", cx=x, cy=y, r=3.5, cls=f"f{one.colour}") for one in series
            for x, y in zip(one.x, one.y, strict=True) if isfinite(y)]
    grid = axes(box, [(across.at(load), round_count(load)) for load in loads], _up(up, unit))
    return card(title, None, legend(series), drawing(box, title, grid, *(curve(one, box) for one in series), *dots),
                hover_lines(box, series))


def slo_of(runs: Sequence[Measured], names: Sequence[str]) -> dict[str, float]:
    """The bounds on the metrics `names`, by name, in seconds."""
    return {name: bound_s for run in runs for name, bound_s in run.result.slo.bounds().items() if name in names}


def load_of(run: Measured) -> float:
    """What a sweep varies: the number of concurrent requests, or the offered rate."""
    return float(run.result.n_concurrent or run.result.offered_rps)


def _up(scale: Scale, unit: Unit, most: int = 6) -> list[tuple[float, str]]:
    return [(scale.at(value), unit.tick(value)) for value in ticks(scale, most)]
