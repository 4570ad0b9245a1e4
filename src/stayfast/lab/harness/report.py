"""Findings for people and for programs."""

import textwrap
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec

from stayfast.lab.harness.claim import Claim, Conditions, Figure, Finding
from stayfast.lab.report.table import Ink

MAX_NAME = 76  # characters; longer names take a second line
MAX_LINE = 150


def as_text(claim: Claim, finding: Finding, conditions: Conditions, machine: Mapping[str, str], ink: Ink) -> str:
    """The claim, its figures in columns, and the verdict."""
    lines = ["", ink.bold(claim.says), *_table(finding.figures, ink)]
    for note in finding.notes:
        lines += _indented(note)
    if finding.spoiled is not None:
        lines += [f"  {ink.red('proves nothing')}:", *_indented(finding.spoiled)]
    lines += _indented(", ".join(f"{name} {value}" for name, value in machine.items()))
    extent = "quick run, " if conditions.is_quick else ""
    lines.append(f"{claim.name}: {_verdict(ink, holds=finding.holds)} ({extent}seed {conditions.seed})")
    return "\n".join(lines) + "\n"


def as_json(claim: Claim, finding: Finding, conditions: Conditions, machine: Mapping[str, str],
            at_wall: float) -> dict[str, Any]:
    """The same for a program. `at_wall`: Unix seconds. A figure that could not be taken is null."""
    return {"name": claim.name, "says": claim.says, "holds": finding.holds, "quick": conditions.is_quick,
            "seed": conditions.seed, "at": at_wall, "machine": dict(machine), "spoiled": finding.spoiled,
            "figures": [{**msgspec.structs.asdict(figure), "holds": figure.holds} for figure in finding.figures],
            "notes": finding.notes}


def _table(figures: Sequence[Figure], ink: Ink) -> list[str]:
    """A line a figure; columns as wide as they must be."""
    rows = [(textwrap.wrap(figure.name, MAX_NAME), _number(figure.value), figure.unit, _spread(figure), _goal(figure))
            for figure in figures]
    width = max((len(line) for name, *_ in rows for line in name), default=0)
    value, unit, spread, goal = (max((len(row[column]) for row in rows), default=0) for column in (1, 2, 3, 4))
    lines = []
    for figure, (name, *row) in zip(figures, rows, strict=True):
        mark = "" if figure.goal is None else _verdict(ink, holds=figure.holds)
        lines += [f"  {line}" for line in name[:-1]]
        lines.append(f"  {name[-1]:{width}}  {row[0]:>{value}} {row[1]:{unit}}  {row[2]:{spread}}  {row[3]:{goal}}  {mark}"
                     .rstrip())
    return lines


def _indented(text: str) -> list[str]:
    """In lines that fit; line breaks stay."""
    return [f"  {part}" for line in text.splitlines() for part in textwrap.wrap(line, MAX_LINE)]


def _verdict(ink: Ink, *, holds: bool) -> str:
    return ink.green("holds") if holds else ink.red("falls short")


def _goal(figure: Figure) -> str:
    return "" if figure.goal is None else f"goal {figure.sense} {_number(figure.goal)}"


def _spread(figure: Figure) -> str:
    if figure.low is None and figure.high is None:
        return ""
    low, high = (_number(figure.value if end is None else end) for end in (figure.low, figure.high))
    return f"({low} to {high})"


def _number(value: float) -> str:
    if not isfinite(value) or value == int(value) or abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.2g}"
