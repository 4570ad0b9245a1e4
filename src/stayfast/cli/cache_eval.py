"""`stayfast cache eval`: the hit rate and error rate of a semantic cache on a file of questions, as text, JSON and HTML."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stayfast.cli import print_message
from stayfast.cli.terminal import style_of_output
from stayfast.core import units as amounts
from stayfast.lab.report.html.frame import (
    WIDE,
    AxisScale,
    Box,
    Series,
    card,
    document,
    draw_axes,
    draw_curve,
    drawing,
    legend,
    to_pixels,
)
from stayfast.lab.report.html.markup import Markup, tag
from stayfast.lab.report.table import TerminalStyle
from stayfast.lab.semantic_eval.evaluate import Evaluation, EvaluationRow, Unreadable, evaluate, of_classes, of_pairs
from stayfast.policy.cache.calibration import LEAST_LABELS
from stayfast.policy.cache.eligibility import EligibleConfig
from stayfast.policy.cache.similarity import MOST_LABELS
from stayfast.settings import read_environment
from stayfast.settings.environment import cache_directory
from stayfast.stores.embedder import EmbedderConfig, NoEmbedder
from stayfast.stores.onnx_embedder import load_encoder

EXIT_NOTHING = 1
EXIT_USAGE = 2
LEAST_QUESTIONS = 50
HEADS = ("answered", "wrong of those", "2nd half", "wrong of those", "stored")
_N_REASONS = 6
_MAX_ERROR = 0.16  # of the chart
_BOX = Box(height=460, right=WIDE - 22, room_below=48, width=WIDE)
_STYLE = """
.dot { stroke: var(--card); stroke-width: 1.5; } .dot.s0 { fill: var(--s0); } .dot.s1 { fill: var(--s1); }
.dot-word { font-size: 11px; fill: var(--ink); } .wide table { width: 100%; }
"""
_NOTE = ("Up and to the left is better. Dots: a cache that learns during the pass, blue with a bound on its errors, orange "
         "with a fixed threshold of the cosine. Lines: the best possible, with all labels known in advance.")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate. Exit status: 0 done, 1 unreadable file or no embedder, 2 wrong options."""
    try:
        max_errors = [_parse_share(part) for part in arguments.max_error.split(",")]
        eligible = EligibleConfig(allow_personal=arguments.personal, min_content_words=arguments.words,
                                  volatile_ttl_s=86_400.0 if arguments.volatile else 0.0)
        if not LEAST_LABELS <= arguments.min_labels <= MOST_LABELS:
            raise ValueError(f"--min-labels must be from {LEAST_LABELS} to {MOST_LABELS}, not {arguments.min_labels}")
    except ValueError as wrong:
        print_message(f"stayfast cache eval: {wrong}")
        return EXIT_USAGE
    try:
        found = _evaluate_file(arguments, eligible, max_errors)
        if arguments.html is not None:
            _write_page(found, arguments.html)
    except (Unreadable, NoEmbedder) as why:
        print_message(f"stayfast cache eval: {why}")
        return EXIT_NOTHING
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        sys.stdout.write(format_text(found, style_of_output()))
    return 0


def _parse_share(text: str) -> float:
    """Read 1%, 0.5 % or 0.01."""
    bare = text.strip()
    try:
        value = float(bare.removesuffix("%")) / (100 if bare.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"--max-error takes shares such as 1%,5%, not {text!r}") from None
    if not 0.0001 <= value <= 0.5:
        raise ValueError(f"--max-error must be from 0.01% to 50%, not {text!r}")
    return value


def _evaluate_file(arguments: argparse.Namespace, eligible: EligibleConfig, max_errors: Sequence[float]) -> Evaluation:
    """Raises Unreadable, NoEmbedder."""
    path = Path(arguments.pairs or arguments.classes)
    questions = of_pairs(path) if arguments.pairs else of_classes(path)
    if len(questions.texts) < LEAST_QUESTIONS:
        raise Unreadable(f"{path} has {len(questions.texts)} questions; at least {LEAST_QUESTIONS} are needed")
    encoder = load_encoder(EmbedderConfig(model=arguments.model or ""), str(cache_directory(read_environment())))
    print_message(f"embedding {len(questions.texts):,} questions")
    vectors = encoder.embed_all(questions.texts)
    return evaluate(questions, vectors, eligible, name=path.name, embedder=encoder.id, seed=arguments.seed,
                    max_errors=max_errors, min_labels=arguments.min_labels, report_progress=print_message)


def _write_page(found: Evaluation, path: str) -> None:
    try:
        Path(path).write_text(render_page(found), "utf-8")
    except OSError as why:
        raise Unreadable(f"{path} cannot be written: {why.strerror}") from None


def format_text(found: Evaluation, ink: TerminalStyle) -> str:
    """One line a pass, and why questions were not answered."""
    lines = [ink.bold(f"{amounts.make_printable(found.name)}: {found.n_questions:,} questions, {found.n_answers:,} answers"),
             *ink.paint_lines(ink.dim, f"one pass each in random order (seed {found.seed}), empty cache at first, no "
                                       f"answers "
                                   f"before {found.min_labels} labels; {found.embedder}")]
    if found.n_torn:
        lines += ink.paint_lines(ink.red, f"careful: {found.n_torn} pairs are labelled different, but other pairs join them")
    lines += ["", *_format_passes("at most wrong", found.calibrated, ink), "",
              *_format_passes("fixed threshold", found.fixed, ink), ""]
    others = [f"{why} {n:,}" for why, n in found.calibrated[0].why.items() if why != "hit"]
    lines += ink.wrap(f"not answered, in the first pass: {', '.join(others[:_N_REASONS])}")
    if not any(row.n_hits for row in found.calibrated):
        lines += ink.wrap("no answer was proven safe: too few questions, or too few that repeat in other words")
    return "\n".join(lines) + "\n"


def _format_passes(name: str, rows: Sequence[EvaluationRow], ink: TerminalStyle) -> list[str]:
    head = ink.dim(f"{name:>16}" + "".join(f"{word.removesuffix(' of those'):>12}" for word in HEADS))
    lines = [(row, "".join(f"{cell:>{12 if n else 16}}" for n, cell in enumerate(_format_row(row)))) for row in rows]
    return [head, *(line if row.holds else ink.red(line) for row, line in lines)]


def _format_rule(row: EvaluationRow) -> str:
    return f"{row.threshold:.2f}" if row.max_error is None else f"{row.max_error * 100:.3g} %"


def _format_row(row: EvaluationRow) -> tuple[str, ...]:
    """The rule, then its figures in the order of HEADS."""
    errors = [amounts.format_share(error) if row.n_hits else "-" for error in (row.error, row.second_half_error)]
    return (_format_rule(row), amounts.format_share(row.hit_rate), errors[0], amounts.format_share(row.second_half_hit_rate),
            errors[1],
            f"{row.n_stored:,}")


def render_page(found: Evaluation) -> str:
    """The report as one HTML file without scripts or network access."""
    lead = (f"{found.n_questions:,} questions, {found.n_answers:,} answers; one pass each in random order "
            f"(seed {found.seed}), empty cache at first; {found.embedder}")
    main = tag("main", tag("header", tag("p", "stayfast cache eval", cls="brand"), tag("h1", found.name),
                           tag("p", lead, cls="lead")),
               tag("div", _draw_chart(found), _make_table("Calibrated, by the share that may be wrong", found.calibrated),
                   _make_table("A fixed threshold of the cosine", found.fixed), cls="grid"))
    return document(f"{found.name} - stayfast cache eval", main, more_style=_STYLE)


def _draw_chart(found: Evaluation) -> Markup:
    across = AxisScale(0.0, _MAX_ERROR, _BOX.left, _BOX.right)
    up = AxisScale(0.0, 1.0, _BOX.bottom, _BOX.top)
    lines = [_make_line("all features, in hindsight", 0, found.by_features, across, up),
             _make_line("cosine alone, in hindsight", 1, found.by_cosine, across, up)]
    xs = [(across.pixel(share / 100), f"{share} %") for share in range(0, 17, 2)]
    ys = [(up.pixel(share / 100), f"{share} %") for share in range(0, 101, 20)]
    label = tag("text", "wrong answers as a share of the answers from the cache", x=(_BOX.left + _BOX.right) / 2,
                y=_BOX.height - 8, text_anchor="middle", cls="tick")
    return card("Answered from the cache", _NOTE, legend(lines), drawing(
        _BOX, "hit rate over the error per hit", draw_axes(_BOX, xs, ys), label, *(draw_curve(line, _BOX) for line in lines),
        _draw_dots(found.fixed, 1, across, up), _draw_dots(found.calibrated, 0, across, up)), wide=True)


def _make_line(name: str, colour: int, points: Sequence[tuple[float, float]], across: AxisScale, up: AxisScale) -> Series:
    shown = [(error, rate) for error, rate in points if error <= _MAX_ERROR]
    x, y = to_pixels(across, [error for error, _ in shown]), to_pixels(up, [rate for _, rate in shown])
    return Series(name, colour, x, y, (), (), is_faint=True)


def _draw_dots(rows: Sequence[EvaluationRow], colour: int, across: AxisScale, up: AxisScale) -> Markup:
    offset = 16.0 if colour else -7.0  # labels of the two colours must not overlap
    shown = [row for row in rows if row.n_hits and row.error <= _MAX_ERROR]
    return tag("g", *(
        tag("g", tag("circle", cx=across.pixel(row.error), cy=up.pixel(row.hit_rate), r=5.0, cls=f"dot s{colour}"),
            tag("text", _format_rule(row), x=across.pixel(row.error) + 8, y=up.pixel(row.hit_rate) + offset, cls="dot-word"))
        for row in shown))


def _make_table(title: str, rows: Sequence[EvaluationRow]) -> Markup:
    head = tag("tr", tag("th", "rule"), *(tag("th", word) for word in HEADS))
    body = [tag("tr", *(tag("td", cell) for cell in _format_row(row))) for row in rows]
    return card(title, None, tag("table", tag("thead", head), tag("tbody", *body)))
