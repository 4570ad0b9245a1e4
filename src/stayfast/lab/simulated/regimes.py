"""Bad minutes: a provider's weather, which all requests of the same time share.

Problem: independent draws make every retry a fresh chance, and a hedge to the same provider looks better than it is. Rule:
a Markov process in continuous time, with a seed of its own, moves between four regimes; a stay in each is exponential
around its mean. What a regime does holds for the requests that arrive in it. It does not depend on the requests.
Durations, factors and moves are assumed: no trustworthy public figures of incidents were found.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Annotated, Final

from stayfast.core.setting import About


class Weather(StrEnum):
    """The regimes."""

    NORMAL = "normal"
    DEGRADED = "degraded"
    BROWNOUT = "brownout"
    OUTAGE = "outage"


@dataclass(frozen=True, slots=True)
class Regime:
    """What one regime does. mean_s: of a stay. error_rate: share of requests answered as overloaded."""

    mean_s: Annotated[float, About("Mean length of a stay.", more_than=0, maximum=1000000000.0)] = 60.0
    ttft_factor: Annotated[float, About("The first token takes so many times as long.", more_than=0, maximum=1000)] = 1.0
    gap_factor: Annotated[float, About("Every gap is so many times as long.", more_than=0, maximum=1000)] = 1.0
    error_rate: Annotated[float, About("Share of requests answered as overloaded.", minimum=0, maximum=1)] = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.mean_s <= 1e9:
            raise ValueError(f"mean_s must be more than 0 and at most 1e9, not {self.mean_s}")
        for name in ("ttft_factor", "gap_factor"):
            if not 0 < getattr(self, name) <= 1000:
                raise ValueError(f"{name} must be more than 0 and at most 1000, not {getattr(self, name)}")
        if not 0 <= self.error_rate <= 1:
            raise ValueError(f"error_rate must be from 0 to 1, not {self.error_rate}")


@dataclass(frozen=True, slots=True)
class Regimes:
    """All four. Assumed."""

    normal: Annotated[Regime, About("The good times.")] = field(default_factory=lambda: Regime(600.0))
    degraded: Annotated[Regime, About("Slower times.")] = field(default_factory=lambda: Regime(60.0, 2.0, 1.5))
    brownout: Annotated[Regime, About(
        "Much slower, with errors.")] = field(default_factory=lambda: Regime(30.0, 5.0, 3.3, 0.05))
    outage: Annotated[Regime, About("Errors for everybody.")] = field(default_factory=lambda: Regime(20.0, error_rate=1.0))

    def of(self, weather: Weather) -> Regime:
        """The regime of one kind of weather."""
        found: Regime = getattr(self, weather.value)
        return found


# Where a stay leads, by probability: trouble comes and goes mostly by steps.
_MOVES: Final = {
    Weather.NORMAL: ((Weather.DEGRADED, 0.75), (Weather.BROWNOUT, 0.2), (Weather.OUTAGE, 0.05)),
    Weather.DEGRADED: ((Weather.NORMAL, 0.8), (Weather.BROWNOUT, 0.2)),
    Weather.BROWNOUT: ((Weather.DEGRADED, 0.5), (Weather.NORMAL, 0.35), (Weather.OUTAGE, 0.15)),
    Weather.OUTAGE: ((Weather.BROWNOUT, 0.5), (Weather.NORMAL, 0.5)),
}
CALM: Final = Regime()


class Forecast:
    """The weather at each second of a provider's life. Grown as far as it is asked for; the same for the same seed."""

    def __init__(self, regimes: Regimes, rng: Random) -> None:
        self._regimes = regimes
        self._rng = rng
        self._from_s = [0.0]
        self._weather = [Weather.NORMAL]
        self._until_s = self._stay_s(Weather.NORMAL)

    def at(self, age_s: float) -> Weather:
        """The weather `age_s` seconds into the provider's life."""
        while age_s >= self._until_s:
            self._move()
        return self._weather[bisect_right(self._from_s, max(age_s, 0.0)) - 1]

    def _stay_s(self, weather: Weather) -> float:
        return self._rng.expovariate(1 / self._regimes.of(weather).mean_s)

    def _move(self) -> None:
        targets, weights = zip(*_MOVES[self._weather[-1]], strict=True)
        weather = self._rng.choices(targets, weights)[0]
        self._from_s.append(self._until_s)
        self._weather.append(weather)
        self._until_s += self._stay_s(weather)
