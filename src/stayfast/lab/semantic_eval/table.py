"""An evaluation as lines for a terminal."""

from collections.abc import Sequence

from stayfast.core import units as amounts
from stayfast.lab.report.table import Ink
from stayfast.lab.semantic_eval.evaluate import Evaluation, Row

HEADS = ("answered", "wrong of those", "2nd half", "wrong of those", "kept")
_N_REASONS = 6


def as_text(found: Evaluation, ink: Ink) -> str:
    """A line a pass, and why questions were not answered."""
    lines = [ink.bold(f"{amounts.printable(found.name)}: {found.n_questions:,} questions, {found.n_answers:,} answers"),
             ink.dim(f"one pass each in random order (seed {found.seed}), the cache empty at first, nothing given before "
                     f"{found.min_labels} labels; {found.embedder}")]
    if found.n_torn:
        lines.append(ink.red(f"careful: {found.n_torn} pairs are called different, and the same by way of others"))
    lines += ["", *_table("at most wrong", found.calibrated, ink), "", *_table("fixed threshold", found.fixed, ink), ""]
    lines.append("not answered, at the first: " + _reasons(found.calibrated[0]))
    if not any(row.n_hits for row in found.calibrated):
        lines.append("nothing was proven safe to answer: too few questions, or too few that come again in other words")
    return "\n".join(lines) + "\n"


def _table(name: str, rows: Sequence[Row], ink: Ink) -> list[str]:
    head = ink.dim(f"{name:>16}" + "".join(f"{word:>16}" for word in HEADS))
    return [head, *(_line(row, ink) for row in rows)]


def _line(row: Row, ink: Ink) -> str:
    values = (amounts.share(row.hit_rate), error_of(row.n_hits, row.error), amounts.share(row.second_half_hit_rate),
              error_of(row.n_hits, row.second_half_error), f"{row.n_kept:,}")
    words = f"{rule_of(row):>16}" + "".join(f"{value:>16}" for value in values)
    return words if row.holds else ink.red(words)


def rule_of(row: Row) -> str:
    """What a pass promised, or its threshold."""
    return f"{row.threshold:.2f}" if row.max_error is None else f"{row.max_error * 100:.3g} %"


def error_of(n_hits: int, error: float) -> str:
    """The wrong ones' share, where there is one."""
    return amounts.share(error) if n_hits else "-"


def _reasons(row: Row) -> str:
    others = [f"{why} {n:,}" for why, n in row.why.items() if why != "hit"]
    return ", ".join(others[:_N_REASONS])
