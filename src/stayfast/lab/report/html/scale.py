"""From values to pixels, and round ticks with their words."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10, nan
from typing import Final

from stayfast.core import units as amounts

_LEAST: Final = 1e-9  # what is less is nothing
_TIME_STEPS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200,
                        1800, 3600, 7200, 14400, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low` to the pixel `start` and `high` to `end`; logarithmic where `is_log`, and then `low` is above 0."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __post_init__(self) -> None:
        if not self.high > self.low or (self.is_log and not self.low > 0):
            raise ValueError(f"no scale from {self.low} to {self.high}")

    def at(self, value: float) -> float:
        """The pixel; values outside are drawn at the edge."""
        value = min(self.high, max(self.low, value))
        part = (log10(value / self.low) / log10(self.high / self.low) if self.is_log
                else (value - self.low) / (self.high - self.low))
        return self.start + part * (self.end - self.start)


def log_scale(values: "list[float]", start: float, end: float) -> Scale:
    """A logarithmic scale that holds the positive finite values, with room, over at least half a decade."""
    held = [value for value in values if isfinite(value) and value > _LEAST] or [0.01, 1.0]
    low, high = min(held) / 1.12, max(held) * 1.12
    if high / low < 3:
        middle = (low * high) ** 0.5
        low, high = middle / 3 ** 0.5, middle * 3 ** 0.5
    return Scale(low, high, start, end, is_log=True)


def from_zero(values: "list[float]", start: float, end: float) -> Scale:
    """A linear scale from 0 that holds the finite values, with room."""
    high = max((value for value in values if isfinite(value)), default=1.0)
    return Scale(0.0, high * 1.08 if high > _LEAST else 1.0, start, end)


@dataclass(frozen=True, slots=True)
class Unit:
    """How one kind of quantity is scaled, and said in full and on an axis."""

    scale: Callable[[list[float], float, float], Scale]
    show: Callable[[float], str]
    tick: Callable[[float], str]


def pixels(scale: Scale, values: Iterable[float]) -> list[float]:
    """Where the values stand; NaN for what is missing or infinite."""
    return [scale.at(value) if isfinite(value) else nan for value in values]


def ticks(scale: Scale, most: int = 6) -> list[float]:
    """Round values within the scale."""
    if not scale.is_log:
        step = _round_up((scale.high - scale.low) / most)
        return [number * step for number in range(ceil(scale.low / step), floor(scale.high / step + 1e-9) + 1)]
    for marks in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        found = [mark * 10.0 ** power for power in range(floor(log10(scale.low)), ceil(log10(scale.high)) + 1)
                 for mark in marks if scale.low <= mark * 10.0 ** power <= scale.high]
        if len(found) <= most + 1:
            return found
    return found[::ceil(len(found) / most)]


def time_ticks(span_s: float, most: int = 8) -> list[float]:
    """Round instants of a run."""
    step = next((step for step in _TIME_STEPS_S if span_s / step <= most), _round_up(span_s / most))
    return [number * step for number in range(floor(span_s / step + 1e-9) + 1)]


def instant(at_s: float) -> str:
    """90 -> "1:30", 5400 -> "1:30 h", 12 -> "12 s"."""
    if at_s >= 3600:
        return f"{int(at_s // 3600)}:{int(at_s % 3600 // 60):02d} h"
    if at_s >= 60:
        return f"{int(at_s // 60)}:{int(at_s % 60):02d}"
    return f"{at_s:g} s" if at_s else "0"


def round_seconds(value_s: float) -> str:
    """A tick's words: without digits that say nothing."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value_s >= size * 0.9999:
            return f"{value_s / size:.4g} {unit}"
    return "0"


def round_count(value: float) -> str:
    """A tick's words: 12000 -> "12k"."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def _round_up(step: float) -> float:
    power = 10.0 ** floor(log10(step))
    return next(mark * power for mark in (1, 2, 5, 10) if mark * power >= step * 0.999)




SECONDS: Final = Unit(log_scale, amounts.seconds, round_seconds)
COUNTS: Final = Unit(from_zero, amounts.three, round_count)
RATES: Final = Unit(from_zero, amounts.rate, round_count)
