"""A claim, the figures that it is judged by, the verdict, and both as text and as JSON."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite, isnan, nan
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

import msgspec

from stayfast.lab.report.table import Ink

T = TypeVar("T")


class Sense(StrEnum):
    """Which side of its goal a figure must be on."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


class Figure(msgspec.Struct, frozen=True):
    """One measured number. `low` and `high`: its spread over the rounds of the run. Without a goal it only informs."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    sense: Sense = Sense.AT_MOST
    low: float | None = None
    high: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the value is on the right side of the goal; a figure that could not be taken (NaN) is not."""
        if self.goal is None:
            return True
        if isnan(self.value):
            return False
        return self.value <= self.goal if self.sense is Sense.AT_MOST else self.value >= self.goal


class Finding(msgspec.Struct, frozen=True):
    """What one run of a proof found. `spoiled` says why the run proves nothing; then the finding never holds."""

    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    spoiled: str | None = None

    @property
    def holds(self) -> bool:
        """Whether there are goals, and every figure is on the right side of its own."""
        has_goals = any(figure.goal is not None for figure in self.figures)
        return self.spoiled is None and has_goals and all(figure.holds for figure in self.figures)


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a run; a claim uses the fields that it needs. `slack` widens the goals of runs with few samples."""

    n: int = 0  # requests, answers, turns or vectors
    real_s: float = 0.0  # seconds of load over sockets; 0: none
    virtual_s: float = 0.0  # seconds of load in virtual time
    n_rounds: int = 1
    warmup_s: float = 0.0
    slack: float = 1.0
    virtual_slack: float = 1.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """How to run. `report_progress` reports progress. data: a folder of data sets that the project does not ship."""

    is_quick: bool = False
    seed: int = 1
    report_progress: Callable[[str], None] = lambda _: None
    data: Path | None = None

    def choose(self, full: T, quick: T) -> T:
        """The size of this run."""
        return quick if self.is_quick else full


class Claim(Protocol):
    """One claim. `name` is what `stayfast prove` takes; `says` is the sentence that README or docs make."""

    @property
    def name(self) -> str: ...

    @property
    def says(self) -> str: ...

    async def run(self, conditions: Conditions) -> Finding:
        """Set up everything, measure, tear down. Raises SetUpFailed where nothing could be measured, NeedsData where
        `conditions.data` is missing.
        """


class SetUpFailed(Exception):
    """A server of the proof did not come up, or the machine cannot run it. The message says which and why."""


class NeedsData(SetUpFailed):
    """The proof needs a folder of data, and none was named. A run of all proofs skips it."""


def over(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, lowest and highest of a figure's rounds; NaN where there are none or one of them could not be taken."""
    if not values or any(isnan(value) for value in values):
        return nan, nan, nan
    return median(values), min(values), max(values)


def figure_of_rounds(name: str, rounds: Sequence[float], unit: str, goal: float | None = None,
                     sense: Sense = Sense.AT_MOST) -> Figure:
    """The median of the rounds, with their spread."""
    value, low, high = over(rounds)
    return Figure(name, value, unit, goal, sense, low, high)


def ratio(value: float, n: float) -> float:
    """NaN of nothing."""
    return value / n if n else nan


MAX_NAME = 76  # characters; longer names take a second line
LEAST_NAME = 24
MAX_LINE = 150


def as_text(claim: Claim, finding: Finding, conditions: Conditions, machine: Mapping[str, str], ink: Ink) -> str:
    """The claim, its figures in columns, and the verdict."""
    lines = ["", *ink.painted(ink.bold, claim.says), *_table(finding.figures, ink)]
    for note in finding.notes:
        lines += _indented(note, ink)
    if finding.spoiled is not None:
        lines += [f"  {ink.red('proves nothing')}:", *_indented(finding.spoiled, ink)]
    lines += _indented(", ".join(f"{name} {value}" for name, value in machine.items()), ink)
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
    """A line a figure; columns as wide as they must be, and the names as wide as what these leave of the line."""
    cells = [(_number(figure.value), figure.unit, _spread(figure), _goal(figure)) for figure in figures]
    value, unit, spread, goal = (max((len(row[column]) for row in cells), default=0) for column in range(4))
    taken = 2 + 2 + value + 1 + unit + 2 + spread + 2 + goal + 2 + len("falls short")
    room = MAX_NAME if ink.width is None else min(MAX_NAME, ink.width - taken)
    stands_alone = room < LEAST_NAME  # the name, in lines above its figures
    names = [textwrap.wrap(figure.name, MAX_NAME if stands_alone else room) for figure in figures]
    width = 2 if stands_alone else max((len(line) for name in names for line in name), default=0)
    lines = []
    for figure, name, row in zip(figures, names, cells, strict=True):
        mark = "" if figure.goal is None else _verdict(ink, holds=figure.holds)
        above, last = (name, "") if stands_alone else (name[:-1], name[-1])
        lines += [f"  {line}" for line in above]
        lines.append(f"  {last:{width}}  {row[0]:>{value}} {row[1]:{unit}}  {row[2]:{spread}}  {row[3]:{goal}}  {mark}"
                     .rstrip())
    return lines


def _indented(text: str, ink: Ink) -> list[str]:
    """In lines that fit; line breaks stay."""
    room = MAX_LINE if ink.width is None else min(MAX_LINE, max(40, ink.width - 2))
    return [f"  {part}" for line in text.splitlines() for part in textwrap.wrap(line, room)]


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
