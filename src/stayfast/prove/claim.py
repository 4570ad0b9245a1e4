"""What a proof is: a named claim, the figures that it was judged by, and the verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isnan, nan
from pathlib import Path
from statistics import median
from typing import Protocol

import msgspec


class Sense(StrEnum):
    """Which side of its goal a figure must be on."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


class Figure(msgspec.Struct, frozen=True):
    """One number as it came out. `low` and `high`: its spread over the rounds of the run. Without a goal it only informs."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    sense: Sense = Sense.AT_MOST
    low: float | None = None
    high: float | None = None

    @property
    def holds(self) -> bool:
        """Whether it is on the right side; a figure that could not be taken (NaN) is not."""
        if self.goal is None:
            return True
        if isnan(self.value):
            return False
        return self.value <= self.goal if self.sense is Sense.AT_MOST else self.value >= self.goal


class Finding(msgspec.Struct, frozen=True):
    """What one run of a proof found. `spoiled` says why it proves nothing; then it holds in no case."""

    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    spoiled: str | None = None

    @property
    def holds(self) -> bool:
        """Whether there are goals, and every figure is on the right side of its own."""
        has_goals = any(figure.goal is not None for figure in self.figures)
        return self.spoiled is None and has_goals and all(figure.holds for figure in self.figures)


@dataclass(frozen=True, slots=True)
class Conditions:
    """How to run. `say` is told of progress. data: a folder of what a proof needs and the project does not have."""

    is_quick: bool = False
    seed: int = 1
    say: Callable[[str], None] = lambda _: None
    data: Path | None = None


class Claim(Protocol):
    """One claim. `name` is what `stayfast prove` takes; `says` is the sentence that README or docs make."""

    @property
    def name(self) -> str: ...

    @property
    def says(self) -> str: ...

    async def run(self, conditions: Conditions) -> Finding:
        """Set up everything, measure, tear down. Raises SetUpFailed where nothing could be measured, NeedsData for want of
        `conditions.data`.
        """
        ...


class SetUpFailed(Exception):
    """A server of the proof did not come up, or the machine cannot run it. The message says which and why."""


class NeedsData(SetUpFailed):
    """It needs a folder of data, and none was named. Of a run of all proofs it is left out."""


def over(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, lowest and highest of a figure's rounds; NaN where there are none or one of them could not be taken."""
    if not values or any(isnan(value) for value in values):
        return nan, nan, nan
    return median(values), min(values), max(values)
