"""An evaluation as lines for a terminal, and as one HTML file that asks the network for nothing and runs no script."""

from collections.abc import Sequence

from stayfast.core import units as amounts
from stayfast.lab.report.html.frame import WIDE, AxisScale, Box, Series, axes, card, curve, document, drawing, legend, pixels
from stayfast.lab.report.html.markup import Markup, tag
from stayfast.lab.report.table import Ink
from stayfast.lab.semantic_eval.evaluate import Evaluation, EvaluationRow

HEADS = ("answered", "wrong of those", "2nd half", "wrong of those", "kept")
_N_REASONS = 6


def as_text(found: Evaluation, ink: Ink) -> str:
    """A line a pass, and why questions were not answered."""
    lines = [ink.bold(f"{amounts.printable(found.name)}: {found.n_questions:,} questions, {found.n_answers:,} answers"),
             *ink.painted(ink.dim, f"one pass each in random order (seed {found.seed}), the cache empty at first, nothing "
                                   f"given before {found.min_labels} labels; {found.embedder}")]
    if found.n_torn:
        lines += ink.painted(ink.red, f"careful: {found.n_torn} pairs are called different, and the same by way of others")
    lines += ["", *_text_table("at most wrong", found.calibrated, ink), "",
              *_text_table("fixed threshold", found.fixed, ink), ""]
    others = [f"{why} {n:,}" for why, n in found.calibrated[0].why.items() if why != "hit"]
    lines += ink.wrap(f"not answered, at the first: {', '.join(others[:_N_REASONS])}")
    if not any(row.n_hits for row in found.calibrated):
        lines += ink.wrap("nothing was proven safe to answer: too few questions, or too few that come again in other words")
    return "\n".join(lines) + "\n"


def _text_table(name: str, rows: Sequence[EvaluationRow], ink: Ink) -> list[str]:
    head = ink.dim(f"{name:>16}" + "".join(f"{word.removesuffix(' of those'):>12}" for word in HEADS))
    lines = [(row, "".join(f"{cell:>{12 if n else 16}}" for n, cell in enumerate(_cells(row)))) for row in rows]
    return [head, *(line if row.holds else ink.red(line) for row, line in lines)]


def rule_of(row: EvaluationRow) -> str:
    """What a pass promised, or its threshold."""
    return f"{row.threshold:.2f}" if row.max_error is None else f"{row.max_error * 100:.3g} %"


def error_of(n_hits: int, error: float) -> str:
    return amounts.share(error) if n_hits else "-"


def _cells(row: EvaluationRow) -> tuple[str, ...]:
    """The rule, and its figures in the order of HEADS."""
    return (rule_of(row), amounts.share(row.hit_rate), error_of(row.n_hits, row.error),
            amounts.share(row.second_half_hit_rate), error_of(row.n_hits, row.second_half_error), f"{row.n_stored:,}")


_MOST_ERROR = 0.16  # of what is drawn
_BOX = Box(height=460, right=WIDE - 22, room_below=48, width=WIDE)
_STYLE = """
.dot { stroke: var(--card); stroke-width: 1.5; } .dot.s0 { fill: var(--s0); } .dot.s1 { fill: var(--s1); }
.dot-word { font-size: 11px; fill: var(--ink); } .wide table { width: 100%; }
"""
_NOTE = ("Up and to the left is better. The dots are what a cache gets that learns as it goes: blue with its error bounded "
         "at what is written beside, orange with a fixed threshold of the cosine. The lines are what one would get who had "
         "known before which answers are right.")


def page(found: Evaluation) -> str:
    lead = (f"{found.n_questions:,} questions, {found.n_answers:,} answers; one pass each in random order "
            f"(seed {found.seed}), the cache empty at first; {found.embedder}")
    main = tag("main", tag("header", tag("p", "stayfast cache eval", cls="brand"), tag("h1", found.name),
                           tag("p", lead, cls="lead")),
               tag("div", chart(found), _table("Calibrated, by the share that may be wrong", found.calibrated),
                   _table("A fixed threshold of the cosine", found.fixed), cls="grid"))
    return document(f"{found.name} - stayfast cache eval", main, more_style=_STYLE)


def chart(found: Evaluation) -> Markup:
    across = AxisScale(0.0, _MOST_ERROR, _BOX.left, _BOX.right)
    up = AxisScale(0.0, 1.0, _BOX.bottom, _BOX.top)
    lines = [_line("all features, in hindsight", 0, found.by_features, across, up),
             _line("cosine alone, in hindsight", 1, found.by_cosine, across, up)]
    xs = [(across.at(share / 100), f"{share} %") for share in range(0, 17, 2)]
    ys = [(up.at(share / 100), f"{share} %") for share in range(0, 101, 20)]
    word = tag("text", "wrong answers of those given from the cache", x=(_BOX.left + _BOX.right) / 2, y=_BOX.height - 8,
               text_anchor="middle", cls="tick")
    return card("Answered from the cache", _NOTE, legend(lines), drawing(
        _BOX, "hit rate over the error per hit", axes(_BOX, xs, ys), word, *(curve(line, _BOX) for line in lines),
        _dots(found.fixed, 1, across, up), _dots(found.calibrated, 0, across, up)), wide=True)


def _line(name: str, colour: int, points: Sequence[tuple[float, float]], across: AxisScale, up: AxisScale) -> Series:
    shown = [(error, rate) for error, rate in points if error <= _MOST_ERROR]
    x, y = pixels(across, [error for error, _ in shown]), pixels(up, [rate for _, rate in shown])
    return Series(name, colour, x, y, (), (), is_faint=True)


def _dots(rows: Sequence[EvaluationRow], colour: int, across: AxisScale, up: AxisScale) -> Markup:
    below = 16.0 if colour else -7.0  # of the dot, the word: two colours stand side by side
    shown = [row for row in rows if row.n_hits and row.error <= _MOST_ERROR]
    return tag("g", *(
        tag("g", tag("circle", cx=across.at(row.error), cy=up.at(row.hit_rate), r=5.0, cls=f"dot s{colour}"),
            tag("text", rule_of(row), x=across.at(row.error) + 8, y=up.at(row.hit_rate) + below, cls="dot-word"))
        for row in shown))


def _table(title: str, rows: Sequence[EvaluationRow]) -> Markup:
    head = tag("tr", tag("th", "rule"), *(tag("th", word) for word in HEADS))
    body = [tag("tr", *(tag("td", cell) for cell in _cells(row))) for row in rows]
    return card(title, None, tag("table", tag("thead", head), tag("tbody", *body)))
