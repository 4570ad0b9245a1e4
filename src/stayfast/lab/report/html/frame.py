"""Parts that all charts share: scales and ticks, the plot box and axes, cards, and the data for the page's script."""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from math import ceil, floor, isfinite, log10, nan
from typing import Final

from stayfast.core import units as amounts
from stayfast.lab.report.html.markup import Child, Markup, format_number, join, json_data, tag

WIDTH: Final = 640.0
WIDE: Final = 1280.0  # of a drawing across the page, so that its text has the same size
COLOURS: Final = 6


@dataclass(frozen=True, slots=True)
class Box:
    """The position of a plot in its drawing."""

    height: float = 250.0
    left: float = 58.0
    right: float = WIDTH - 22
    top: float = 14.0
    room_below: float = 30.0
    width: float = WIDTH

    @property
    def bottom(self) -> float:
        return self.height - self.room_below


@dataclass(frozen=True, slots=True)
class Series:
    """One line, with the texts that a hover shows for each point."""

    name: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]  # pixels; NaN breaks the line
    heads: Sequence[str] = field(repr=False)
    words: Sequence[str] = field(repr=False)
    is_dashed: bool = False
    is_faint: bool = False
    is_bad: bool = False  # an area in the colour of failures

    @property
    def style(self) -> str:
        if self.is_bad:
            return "line bad"
        return f"line s{self.colour % COLOURS}" + " dashed" * self.is_dashed + " faint" * self.is_faint


def document(title: str, *body: Child, has_script: bool = False, more_style: str = "", cls: str | None = None) -> str:
    """A complete file. Its policy forbids network access, and all scripts but the report's own."""
    folder = files("stayfast.lab.report.html")
    style, script = (folder.joinpath(name).read_text("utf-8") for name in ("report.css", "report.js"))
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    own_script = f"script-src 'sha256-{digest}'; " * has_script
    policy = f"default-src 'none'; style-src 'unsafe-inline'; {own_script}base-uri 'none'; form-action 'none'"
    head = tag("head", Markup('<meta charset="utf-8">'), tag("meta", http_equiv="Content-Security-Policy", content=policy),
               tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
               tag("meta", name="color-scheme", content="light dark"), tag("title", title),
               tag("style", Markup(style + more_style)))
    inside = tag("body", *body, tag("script", Markup(script)) if has_script else None)
    return "<!doctype html>\n" + tag("html", head, inside, lang="en", cls=cls) + "\n"


def card(title: str, note: Child, *inside: Child, wide: bool = False, cls: str = "") -> Markup:
    words = tag("p", note, cls="note") if note else None
    return tag("figure", tag("figcaption", tag("h3", title), words), *inside, cls=f"card {'wide ' * wide}{cls}".strip())


def drawing(box: Box, name: str, *inside: Child) -> Markup:
    """The SVG element; `name` is for screen readers."""
    size = f"0 0 {format_number(box.width)} {format_number(box.height)}"
    return tag("svg", *inside, viewBox=size, role="img", aria_label=name, cls="chart")


def draw_axes(box: Box, across: Sequence[tuple[float, str]], up: Sequence[tuple[float, str]]) -> Markup:
    """Grid lines with labels: (pixel, text) on both axes."""
    rules = [tag("line", x1=box.left, x2=box.right, y1=y, y2=y, cls="grid") for y, _ in up]
    rules += [tag("line", x1=x, x2=x, y1=box.top, y2=box.bottom, cls="grid") for x, _ in across]
    words = [tag("text", text, x=box.left - 7, y=y + 3.5, text_anchor="end", cls="tick") for y, text in up]
    words += [tag("text", text, x=x, y=box.bottom + 17, text_anchor="middle", cls="tick") for x, text in across]
    base = tag("line", x1=box.left, x2=box.right, y1=box.bottom, y2=box.bottom, cls="axis")
    return tag("g", *rules, base, *words)


def draw_curve(series: Series, box: Box) -> Markup:
    """A line, interrupted at missing values; with its area if `is_bad`."""
    parts: list[str] = []
    is_connected = False
    for x, y in zip(series.x, series.y, strict=True):
        if not isfinite(y):
            is_connected = False
            continue
        parts.append(f"{'L' if is_connected else 'M'}{format_number(x)} {format_number(y)}")
        is_connected = True
    drawn = tag("path", d="".join(parts), cls=series.style)
    if not series.is_bad or not parts:
        return drawn
    area = f"M{format_number(series.x[0])} {format_number(box.bottom)}L" + "".join(parts)[1:].replace("M", "L") \
        + f"L{format_number(series.x[-1])} {format_number(box.bottom)}Z"
    return join(tag("path", d=area, cls="area"), drawn)


def legend(series: Sequence[Series]) -> Markup:
    """The names of the lines."""
    strokes = [tag("svg", tag("line", x1=0, x2=20, y1=5, y2=5, cls=line.style), viewBox="0 0 20 10", cls="key")
               for line in series]
    keys = [tag("span", stroke, line.name) for stroke, line in zip(strokes, series, strict=True)]
    return tag("div", *keys, cls="legend")


def hover_lines(box: Box, series: Sequence[Series]) -> Markup:
    """Data for the script, which shows the values under the pointer."""
    return json_data({"kind": "line", "box": [box.left, box.top, box.right, box.bottom], "width": box.width, "series": [
        {"name": line.name, "style": line.style, "x": [round(x, 1) for x in line.x], "heads": line.heads,
         "words": line.words} for line in series]})


def draw_limit(box: Box, y: float, text: str) -> Markup:
    return tag("g", tag("line", x1=box.left, x2=box.right, y1=y, y2=y, cls="limit"),
               tag("text", text, x=box.right - 4, y=y - 4, text_anchor="end", cls="limit-word"))


_LEAST: Final = 1e-9  # smaller values count as 0
_TIME_STEPS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200,
                        1800, 3600, 7200, 14400, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Maps `low` to the pixel `start` and `high` to `end`. Logarithmic if `is_log`; `low` is then above 0."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __post_init__(self) -> None:
        if not self.high > self.low or (self.is_log and not self.low > 0):
            raise ValueError(f"no scale from {self.low} to {self.high}")

    def pixel(self, value: float) -> float:
        """The pixel of a value; values outside are moved to the edge."""
        value = min(self.high, max(self.low, value))
        part = (log10(value / self.low) / log10(self.high / self.low) if self.is_log
                else (value - self.low) / (self.high - self.low))
        return self.start + part * (self.end - self.start)


def log_scale(values: "list[float]", start: float, end: float) -> AxisScale:
    """A logarithmic scale for the positive finite values, with a margin, over at least half a decade."""
    held = [value for value in values if isfinite(value) and value > _LEAST] or [0.01, 1.0]
    low, high = min(held) / 1.12, max(held) * 1.12
    if high / low < 3:
        middle = (low * high) ** 0.5
        low, high = middle / 3 ** 0.5, middle * 3 ** 0.5
    return AxisScale(low, high, start, end, is_log=True)


def linear_scale(values: "list[float]", start: float, end: float) -> AxisScale:
    """A linear scale from 0 for the finite values, with a margin."""
    high = max((value for value in values if isfinite(value)), default=1.0)
    return AxisScale(0.0, high * 1.08 if high > _LEAST else 1.0, start, end)


@dataclass(frozen=True, slots=True)
class Unit:
    """The scale of a quantity, and its formats in a text and on an axis."""

    scale: Callable[[list[float], float, float], AxisScale]
    show: Callable[[float], str]
    tick: Callable[[float], str]


def to_pixels(scale: AxisScale, values: Iterable[float]) -> list[float]:
    """The pixels of values; NaN for missing and infinite ones."""
    return [scale.pixel(value) if isfinite(value) else nan for value in values]


def make_ticks(scale: AxisScale, most: int = 6) -> list[float]:
    """Round values within the scale."""
    if not scale.is_log:
        step = _round_up_step((scale.high - scale.low) / most)
        return [number * step for number in range(ceil(scale.low / step), floor(scale.high / step + 1e-9) + 1)]
    for marks in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        found = [mark * 10.0 ** power for power in range(floor(log10(scale.low)), ceil(log10(scale.high)) + 1)
                 for mark in marks if scale.low <= mark * 10.0 ** power <= scale.high]
        if len(found) <= most + 1:
            return found
    return found[::ceil(len(found) / most)]


def make_time_ticks(span_s: float, most: int = 8) -> list[float]:
    step = next((step for step in _TIME_STEPS_S if span_s / step <= most), _round_up_step(span_s / most))
    return [number * step for number in range(floor(span_s / step + 1e-9) + 1)]


def format_instant(at_s: float) -> str:
    """90 -> "1:30", 5400 -> "1:30 h", 12 -> "12 s"."""
    if at_s >= 3600:
        return f"{int(at_s // 3600)}:{int(at_s % 3600 // 60):02d} h"
    if at_s >= 60:
        return f"{int(at_s // 60)}:{int(at_s % 60):02d}"
    return f"{at_s:g} s" if at_s else "0"


def format_tick_s(value_s: float) -> str:
    """A tick label: 0.005 -> "5 ms"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value_s >= size * 0.9999:
            return f"{value_s / size:.4g} {unit}"
    return "0"


def format_tick_count(value: float) -> str:
    """A tick label: 12000 -> "12k"."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def _round_up_step(step: float) -> float:
    power = 10.0 ** floor(log10(step))
    return next(mark * power for mark in (1, 2, 5, 10) if mark * power >= step * 0.999)


SECONDS: Final = Unit(log_scale, amounts.format_seconds, format_tick_s)
COUNTS: Final = Unit(linear_scale, amounts.format_digits, format_tick_count)
RATES: Final = Unit(linear_scale, amounts.format_rate, format_tick_count)
