"""A claim, its measured figures, the verdict on them, and all as text and as JSON.

A verdict compares a figure's interval with its goal. An interval on one side of the goal is a result; an interval on both
sides only shows that the run was too short.
"""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite, isnan, nan
from pathlib import Path
from statistics import fmean, median
from typing import Any, Protocol, TypeVar

import msgspec

from stayfast.lab.harness.intervals import absolute_interval, mean_interval, quantile_interval, share_interval
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.report.table import TerminalStyle

T = TypeVar("T")


class Sense(StrEnum):
    """The side of its goal on which a figure must lie."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


class Verdict(StrEnum):
    """The judgement of a figure, or of a whole run."""

    HOLDS = "holds"
    FALLS_SHORT = "falls short"
    INCONCLUSIVE = "inconclusive"


class Figure(msgspec.Struct, frozen=True):
    """One measured number. A figure without a goal is for comparison, and has no verdict.

    low, high: its interval (95 % confidence, `intervals`). is_exact: it has no sampling error: a count, a maximum or a sum
    over this run. is_valid: false if the measurement was disturbed (`mark_invalid`).
    """

    name: str
    value: float
    unit: str
    goal: float | None = None
    sense: Sense = Sense.AT_MOST
    low: float | None = None
    high: float | None = None
    is_exact: bool = False
    is_valid: bool = True

    @classmethod
    def exact(cls, name: str, value: float, unit: str, goal: float | None = None, sense: Sense = Sense.AT_MOST) -> "Figure":
        """A value without sampling error."""
        return cls(name, value, unit, goal, sense, is_exact=True)

    @classmethod
    def count(cls, name: str, n: int, goal: float | None = 0.0, sense: Sense = Sense.AT_MOST) -> "Figure":
        """A number of things, by default with the goal that there are none."""
        return cls.exact(name, float(n), "", goal, sense)

    @classmethod
    def percent(cls, name: str, share: float, goal: float | None = None, sense: Sense = Sense.AT_MOST,
                interval: tuple[float, float] | None = None) -> "Figure":
        """A share, shown in percent. The goal and the interval are shares, too."""
        low, high = (None, None) if interval is None else (interval[0] * 100, interval[1] * 100)
        return cls(name, share * 100, "%", None if goal is None else goal * 100, sense, low, high)

    @classmethod
    def share(cls, name: str, x: int, n: int, goal: float | None = None, sense: Sense = Sense.AT_MOST) -> "Figure":
        """The share of x of n independent trials, with its interval."""
        return cls.percent(name, ratio(x, n), goal, sense, share_interval(x, n))

    @classmethod
    def quantile_s(cls, name: str, samples_s: Sequence[float], q: float, goal: float | None = None,
                   sense: Sense = Sense.AT_MOST) -> "Figure":
        """The quantile q of independent durations in seconds, with its interval."""
        low, high = quantile_interval(samples_s, q)
        return cls(name, ExactDistribution(samples_s).quantile(q), "s", goal, sense, low, high)

    @classmethod
    def mean(cls, name: str, batches: Sequence[float], unit: str, goal: float | None = None,
             sense: Sense = Sense.AT_MOST) -> "Figure":
        """The mean of independent trials or equal batches, with its interval. NaN if there are none."""
        low, high = mean_interval(batches)
        return cls(name, fmean(batches) if batches else nan, unit, goal, sense, low, high)

    @classmethod
    def mean_distance(cls, name: str, batches: Sequence[float], unit: str, goal: float | None = None) -> "Figure":
        """How far the mean of equal batches is from 0."""
        low, high = absolute_interval(*mean_interval(batches))
        return cls(name, abs(fmean(batches)) if batches else nan, unit, goal, low=low, high=high)

    @classmethod
    def of_rounds(cls, name: str, rounds: Sequence[float], unit: str, goal: float | None = None,
                  sense: Sense = Sense.AT_MOST) -> "Figure":
        """The median of the rounds, with its interval: unbounded for fewer than 6 rounds, their range for 6 to 8."""
        value, _, _ = median_and_range(rounds)
        low, high = quantile_interval(rounds, 0.5)
        return cls(name, value, unit, goal, sense, low, high)

    @property
    def verdict(self) -> Verdict | None:
        """Which side of its goal the figure is on. INCONCLUSIVE if its interval is on both, or it was not measured (NaN)."""
        if self.goal is None:
            return None
        ends = [self.value if end is None else end for end in (self.low, self.high)]
        if not self.is_valid or any(map(isnan, (self.value, *ends))):
            return Verdict.INCONCLUSIVE
        is_on_side = [end <= self.goal if self.sense is Sense.AT_MOST else end >= self.goal for end in ends]
        if all(is_on_side):
            return Verdict.HOLDS
        return Verdict.INCONCLUSIVE if any(is_on_side) else Verdict.FALLS_SHORT

    @property
    def holds(self) -> bool:
        """Whether the figure meets its goal, if it has one."""
        return self.verdict in {None, Verdict.HOLDS}


def mark_invalid(figures: Iterable[Figure], reason: str | None) -> tuple[Figure, ...]:
    """The same figures; inconclusive if there is a reason why their measurement was disturbed."""
    return tuple(figure if reason is None else msgspec.structs.replace(figure, is_valid=False) for figure in figures)


class ClaimResult(msgspec.Struct, frozen=True):
    """The result of one run. `spoiled` is the reason why the run, or a part of it, is invalid; such a run never holds."""

    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    spoiled: str | None = None

    @property
    def verdict(self) -> Verdict:
        """FALLS_SHORT if a figure does. HOLDS if at least one figure has a goal, all meet theirs, and the run is valid."""
        verdicts = {figure.verdict for figure in self.figures} - {None}
        if Verdict.FALLS_SHORT in verdicts:
            return Verdict.FALLS_SHORT
        return Verdict.HOLDS if verdicts == {Verdict.HOLDS} and self.spoiled is None else Verdict.INCONCLUSIVE

    @property
    def holds(self) -> bool:
        return self.verdict is Verdict.HOLDS


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a run. Each claim uses the fields that it needs."""

    n: int = 0  # requests, answers, turns or vectors
    real_s: float = 0.0  # seconds of load over sockets; 0: none
    virtual_s: float = 0.0  # seconds of load in virtual time
    n_rounds: int = 1
    warmup_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """How to run. data: a folder of public data sets, which the project does not ship."""

    is_quick: bool = False
    seed: int = 1
    report_progress: Callable[[str], None] = lambda _: None
    data: Path | None = None

    def choose(self, full: T, quick: T) -> T:
        return quick if self.is_quick else full


class Claim(Protocol):
    """One claim. `name` is the argument of `stayfast prove`; `statement` is the claim as README and docs state it."""

    @property
    def name(self) -> str: ...

    @property
    def statement(self) -> str: ...

    async def run(self, conditions: Conditions) -> ClaimResult:
        """Set up, measure, tear down. Raises SetUpFailed if nothing could be measured, NeedsData if `conditions.data`
        is required and missing.
        """


class SetUpFailed(Exception):
    """A server did not start, or the machine cannot run the proof. The message names the cause."""


class NeedsData(SetUpFailed):
    """The proof needs `--data`, which was not given. A run of all proofs skips it."""


def median_and_range(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, minimum and maximum. All are NaN if there are no values or one of them is NaN."""
    if not values or any(isnan(value) for value in values):
        return nan, nan, nan
    return median(values), min(values), max(values)


def ratio(value: float, n: float) -> float:
    """value / n, or NaN if n is 0."""
    return value / n if n else nan


MAX_NAME_WIDTH = 76  # characters; longer names wrap
MIN_NAME_WIDTH = 24
MAX_LINE_WIDTH = 150


def format_text(claim: Claim, finding: ClaimResult, conditions: Conditions, machine: Mapping[str, str],
                ink: TerminalStyle) -> str:
    """The claim, its figures in columns (name, value, unit, interval, goal, verdict), and the verdict."""
    lines = ["", *ink.paint_lines(ink.bold, claim.statement), *_format_table(finding.figures, ink)]
    for note in finding.notes:
        lines += _wrap_indented(note, ink)
    if finding.spoiled is not None:
        lines += [f"  {ink.yellow('proves nothing')}:", *_wrap_indented(finding.spoiled, ink)]
    lines += _wrap_indented(", ".join(f"{name} {value}" for name, value in machine.items()), ink)
    extent = "quick run, " if conditions.is_quick else ""
    lines.append(f"{claim.name}: {_format_verdict(ink, finding.verdict)} ({extent}seed {conditions.seed})")
    return "\n".join(lines) + "\n"


def to_json(claim: Claim, finding: ClaimResult, conditions: Conditions, machine: Mapping[str, str],
            at_wall: float) -> dict[str, Any]:
    """The same as JSON. `at_wall`: Unix seconds. The value of a figure that could not be measured is null."""
    return {"name": claim.name, "says": claim.statement, "verdict": finding.verdict,
            "holds": finding.holds, "quick": conditions.is_quick,
            "seed": conditions.seed, "at": at_wall, "machine": dict(machine), "spoiled": finding.spoiled,
            "figures": [{**msgspec.structs.asdict(figure), "verdict": figure.verdict, "holds": figure.holds}
                        for figure in finding.figures],
            "notes": finding.notes}


def _format_table(figures: Sequence[Figure], ink: TerminalStyle) -> list[str]:
    """One line per figure. Names get the width that the other columns leave, or a line of their own if it is too small."""
    cells = [(_format_number(figure.value), figure.unit, _format_interval(figure), _format_goal(figure))
             for figure in figures]
    value, unit, spread, goal = (max((len(row[column]) for row in cells), default=0) for column in range(4))
    n_used = 2 + 2 + value + 1 + unit + 2 + spread + 2 + goal + 2 + len(Verdict.INCONCLUSIVE)
    room = MAX_NAME_WIDTH if ink.width is None else min(MAX_NAME_WIDTH, ink.width - n_used)
    has_own_line = room < MIN_NAME_WIDTH
    names = [textwrap.wrap(figure.name, MAX_NAME_WIDTH if has_own_line else room) for figure in figures]
    width = 2 if has_own_line else max((len(line) for name in names for line in name), default=0)
    lines = []
    for figure, name, row in zip(figures, names, cells, strict=True):
        mark = "" if figure.verdict is None else _format_verdict(ink, figure.verdict)
        above, last = (name, "") if has_own_line else (name[:-1], name[-1])
        lines += [f"  {line}" for line in above]
        lines.append(f"  {last:{width}}  {row[0]:>{value}} {row[1]:{unit}}  {row[2]:{spread}}  {row[3]:{goal}}  {mark}"
                     .rstrip())
    return lines


def _wrap_indented(text: str, ink: TerminalStyle) -> list[str]:
    """Wrap to the terminal's width; line breaks are preserved."""
    room = MAX_LINE_WIDTH if ink.width is None else min(MAX_LINE_WIDTH, max(40, ink.width - 2))
    return [f"  {part}" for line in text.splitlines() for part in textwrap.wrap(line, room)]


def _format_verdict(ink: TerminalStyle, verdict: Verdict) -> str:
    paint = {Verdict.HOLDS: ink.green, Verdict.FALLS_SHORT: ink.red, Verdict.INCONCLUSIVE: ink.yellow}[verdict]
    return paint(verdict)


def _format_goal(figure: Figure) -> str:
    return "" if figure.goal is None else f"goal {figure.sense} {_format_number(figure.goal)}"


def _format_interval(figure: Figure) -> str:
    if figure.low is None and figure.high is None:
        return ""
    low, high = (_format_number(figure.value if end is None else end) for end in (figure.low, figure.high))
    return f"({low} to {high})"


def _format_number(value: float) -> str:
    if not isfinite(value) or value == int(value) or abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.2g}"
