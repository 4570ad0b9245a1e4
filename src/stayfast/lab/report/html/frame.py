"""What all charts share: the plot's box, its axes, its card on the page and what the page's script reads for hovering."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

from stayfast.lab.report.html.markup import Child, Markup, data, join, number, tag

WIDTH: Final = 640.0
WIDE: Final = 1280.0  # a drawing across the page, so that its words are as large as the others'
COLOURS: Final = 6


@dataclass(frozen=True, slots=True)
class Box:
    """A plot's place in its drawing; the drawing is WIDTH wide unless said otherwise."""

    height: float = 250.0
    left: float = 58.0
    right: float = WIDTH - 22
    top: float = 14.0
    room_below: float = 30.0
    width: float = WIDTH

    @property
    def bottom(self) -> float:
        """Where the plot ends and its words begin."""
        return self.height - self.room_below


@dataclass(frozen=True, slots=True)
class Series:
    """One line: pixels across, values, and the words that a hover shows for each point."""

    name: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]  # pixels; NaN breaks the line
    heads: Sequence[str] = field(repr=False)
    words: Sequence[str] = field(repr=False)
    is_dashed: bool = False
    is_faint: bool = False
    is_bad: bool = False  # drawn in the colour of failures, as an area

    @property
    def style(self) -> str:
        """Its CSS classes."""
        if self.is_bad:
            return "line bad"
        return f"line s{self.colour % COLOURS}" + " dashed" * self.is_dashed + " faint" * self.is_faint


def card(title: str, note: Child, *inside: Child, wide: bool = False, cls: str = "") -> Markup:
    """A titled box on the page."""
    words = tag("p", note, cls="note") if note else None
    return tag("figure", tag("figcaption", tag("h3", title), words), *inside, cls=f"card {'wide ' * wide}{cls}".strip())


def drawing(box: Box, name: str, *inside: Child) -> Markup:
    """The SVG element; `name` is what a screen reader says."""
    size = f"0 0 {number(box.width)} {number(box.height)}"
    return tag("svg", *inside, viewBox=size, role="img", aria_label=name, cls="chart")


def axes(box: Box, across: Sequence[tuple[float, str]], up: Sequence[tuple[float, str]]) -> Markup:
    """Grid lines and their words: (pixel, text) along both."""
    rules = [tag("line", x1=box.left, x2=box.right, y1=y, y2=y, cls="grid") for y, _ in up]
    rules += [tag("line", x1=x, x2=x, y1=box.top, y2=box.bottom, cls="grid") for x, _ in across]
    words = [tag("text", text, x=box.left - 7, y=y + 3.5, text_anchor="end", cls="tick") for y, text in up]
    words += [tag("text", text, x=x, y=box.bottom + 17, text_anchor="middle", cls="tick") for x, text in across]
    base = tag("line", x1=box.left, x2=box.right, y1=box.bottom, y2=box.bottom, cls="axis")
    return tag("g", *rules, base, *words)


def curve(series: Series, box: Box) -> Markup:
    """A line, broken where a value is missing; of failures, the area below it."""
    parts: list[str] = []
    is_down = False
    for x, y in zip(series.x, series.y, strict=True):
        if not isfinite(y):
            is_down = False
            continue
        parts.append(f"{'L' if is_down else 'M'}{number(x)} {number(y)}")
        is_down = True
    drawn = tag("path", d="".join(parts), cls=series.style)
    if not series.is_bad or not parts:
        return drawn
    area = f"M{number(series.x[0])} {number(box.bottom)}L" + "".join(parts)[1:].replace("M", "L") \
        + f"L{number(series.x[-1])} {number(box.bottom)}Z"
    return join(tag("path", d=area, cls="area"), drawn)


def legend(series: Sequence[Series]) -> Markup:
    """Names beside the strokes they are drawn with."""
    strokes = [tag("svg", tag("line", x1=0, x2=20, y1=5, y2=5, cls=one.style), viewBox="0 0 20 10", cls="key")
               for one in series]
    keys = [tag("span", stroke, one.name) for stroke, one in zip(strokes, series, strict=True)]
    return tag("div", *keys, cls="legend")


def hover_lines(box: Box, series: Sequence[Series]) -> Markup:
    """What the script needs to name the values under the pointer."""
    return data({"kind": "line", "box": [box.left, box.top, box.right, box.bottom], "width": box.width, "series": [
        {"name": one.name, "style": one.style, "x": [round(x, 1) for x in one.x], "heads": one.heads, "words": one.words}
        for one in series]})


def limit(box: Box, y: float, text: str) -> Markup:
    """A bound across the plot."""
    return tag("g", tag("line", x1=box.left, x2=box.right, y1=y, y2=y, cls="limit"),
               tag("text", text, x=box.right - 4, y=y - 4, text_anchor="end", cls="limit-word"))
