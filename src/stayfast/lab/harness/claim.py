"""A claim, the figures that it is judged by, and the verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isnan, nan
from pathlib import Path
from statistics import median
from typing import Protocol, TypeVar

import msgspec

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
    """How to run. `say` reports progress. data: a folder of data sets that the project does not ship."""

    is_quick: bool = False
    seed: int = 1
    say: Callable[[str], None] = lambda _: None
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
        ...


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
