"""When requests should start: instants fixed before the run, so that a slow target cannot slow the load down.

Each process is a pure function of its parameters and an rng. All but `Constant` are random; their mean rate is exact in
the long run only, as real traffic's is. Sources: gamma and its `shape` are vLLM's burstiness, without its rescaling of
the last arrival; stages are inverted through the integral of the rate, so that a Poisson process keeps its dispersion.
Wrong when arrivals depend on answers (agents, chat turns): those are sessions (`schedule`) or a closed loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import sqrt
from random import Random
from typing import Protocol

from stayfast.core.units import said, seconds_in

MAX_RATE_RPS = 1e6


class Arrivals(Protocol):
    """A process of arrivals."""

    def instants(self, rng: Random) -> Iterator[float]:
        """Seconds from the start, never falling; endless, but for stages and traces."""
        ...

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Equal distances: kinder than any traffic."""

    rate_rps: float

    def __post_init__(self) -> None:
        _check_rate(self.rate_rps)

    def instants(self, rng: Random) -> Iterator[float]:
        """See `Arrivals`."""
        return (n / self.rate_rps for n in count())

    def __str__(self) -> str:
        return f"constant, {self.rate_rps:g}/s"


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma distances with the given shape: 1 is Poisson, below 1 comes in bursts, above 1 evens out.

    The coefficient of variation of the distances is 1/sqrt(shape): Azure's chat traffic has 1.09, its code traffic 13.
    """

    rate_rps: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        _check_rate(self.rate_rps)
        if not 0.001 <= self.shape <= 1000:
            raise ValueError(f"the gamma shape must be 0.001 to 1000, not {self.shape:g}")

    def instants(self, rng: Random) -> Iterator[float]:
        """See `Arrivals`."""
        at_s = 0.0
        scale_s = 1 / (self.rate_rps * self.shape)
        while True:
            at_s += rng.expovariate(self.rate_rps) if self.shape == 1 else rng.gammavariate(self.shape, scale_s)
            yield at_s

    def __str__(self) -> str:
        if self.shape == 1:
            return f"Poisson, {self.rate_rps:g}/s"
        return f"gamma, shape {self.shape:g} (CV {1 / sqrt(self.shape):.2g}), {self.rate_rps:g}/s"


@dataclass(frozen=True, slots=True)
class Stage:
    """The rate goes from one value to another, in a straight line."""

    seconds: float
    from_rps: float
    to_rps: float

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError("a stage must last more than 0 s")
        for rate_rps in (self.from_rps, self.to_rps):
            if not 0 <= rate_rps <= MAX_RATE_RPS:
                raise ValueError(f"a stage's rate must be 0 to {MAX_RATE_RPS:g} requests a second, not {rate_rps:g}")

    @property
    def n_expected(self) -> float:
        """The mean number of arrivals."""
        return self.seconds * (self.from_rps + self.to_rps) / 2

    def reached_at(self, n: float) -> float:
        """Seconds into the stage by which `n` arrivals are expected, 0 <= n <= n_expected."""
        slope = (self.to_rps - self.from_rps) / self.seconds
        if abs(slope) < 1e-12:
            return n / self.from_rps
        return min(self.seconds, 2 * n / (self.from_rps + sqrt(max(0.0, self.from_rps**2 + 2 * slope * n))))


@dataclass(frozen=True, slots=True)
class Ramp:
    """A Poisson process whose rate follows stages, one after the other. Ends with the last."""

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not self.stages or self.n_expected <= 0:
            raise ValueError("a ramp needs a stage with a rate above 0")

    @property
    def seconds(self) -> float:
        """How long all stages take."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def n_expected(self) -> float:
        """The mean number of arrivals."""
        return sum(stage.n_expected for stage in self.stages)

    def instants(self, rng: Random) -> Iterator[float]:
        """See `Arrivals`."""
        began_s = n_before = 0.0
        n = rng.expovariate(1.0)
        for stage in self.stages:
            while n - n_before < stage.n_expected:
                yield began_s + stage.reached_at(n - n_before)
                n += rng.expovariate(1.0)
            began_s += stage.seconds
            n_before += stage.n_expected

    def __str__(self) -> str:
        return "Poisson in stages: " + ", ".join(
            f"{stage.from_rps:g}/s" + ("" if stage.from_rps == stage.to_rps else f" to {stage.to_rps:g}/s")
            + f" for {said(stage.seconds)}" for stage in self.stages)


@dataclass(frozen=True, slots=True)
class Mmpp:
    """A Poisson process that jumps between two rates, staying in each for an exponential time: calm and storm."""

    calm_rps: float
    storm_rps: float
    calm_s: float  # mean stay
    storm_s: float

    def __post_init__(self) -> None:
        _check_rate(self.calm_rps)
        _check_rate(self.storm_rps)
        if not (self.calm_s > 0 and self.storm_s > 0):
            raise ValueError("the mean stays must be more than 0 s")

    def instants(self, rng: Random) -> Iterator[float]:
        """See `Arrivals`."""
        at_s = 0.0
        is_storm = False
        until_s = rng.expovariate(1 / self.calm_s)
        while True:
            next_s = at_s + rng.expovariate(self.storm_rps if is_storm else self.calm_rps)
            if next_s < until_s:
                at_s = next_s
                yield at_s
            else:  # exponential distances have no memory: draw anew from the jump on
                at_s = until_s
                is_storm = not is_storm
                until_s = at_s + rng.expovariate(1 / (self.storm_s if is_storm else self.calm_s))

    def __str__(self) -> str:
        return (f"MMPP, {self.calm_rps:g}/s for {said(self.calm_s)} and {self.storm_rps:g}/s for {said(self.storm_s)} "
                "on average")


def parse_arrivals(text: str, rate_rps: float | None) -> Arrivals:
    """Read poisson, constant, gamma:SHAPE (all need a rate), ramp:FROM..TO:TIME,RATE:TIME or mmpp:RATE:TIME,RATE:TIME.

    Raises ValueError saying what is wrong and what is expected.
    """
    kind, _, rest = text.partition(":")
    if kind in ("ramp", "mmpp"):
        if rate_rps is not None:
            raise ValueError(f"--rate has no meaning with --arrivals {kind}, whose stages say the rates")
        stages = tuple(_stage(part) for part in rest.split(","))
        return Ramp(stages) if kind == "ramp" else _mmpp(stages)
    if kind not in ("poisson", "constant", "gamma"):
        raise ValueError(f"--arrivals {text}: unknown; known are poisson, constant, gamma:SHAPE, ramp:FROM..TO:TIME,..., "
                         "mmpp:RATE:TIME,RATE:TIME, trace:FILE")
    if rate_rps is None:
        raise ValueError(f"--arrivals {kind} needs --rate")
    if kind == "gamma":
        return Gamma(rate_rps, _number(rest, "gamma:SHAPE"))
    if rest:
        raise ValueError(f"--arrivals {kind} takes nothing after a colon")
    return Constant(rate_rps) if kind == "constant" else Gamma(rate_rps)


def _stage(text: str) -> Stage:
    rates, has_time, seconds = text.partition(":")
    if not has_time:
        raise ValueError(f"stage {text!r}: write RATE:TIME or FROM..TO:TIME, such as 10..100:60s")
    first, _, last = rates.partition("..")
    from_rps = _number(first, "a stage's rate")
    return Stage(seconds_in(seconds), from_rps, _number(last, "a stage's rate") if last else from_rps)


def _mmpp(stages: tuple[Stage, ...]) -> Mmpp:
    if len(stages) != 2 or any(stage.from_rps != stage.to_rps for stage in stages):
        raise ValueError("--arrivals mmpp: takes two states, calm and storm: mmpp:RATE:TIME,RATE:TIME")
    calm, storm = stages
    return Mmpp(calm.from_rps, storm.from_rps, calm.seconds, storm.seconds)


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{what}: {text!r} is not a number") from None


def _check_rate(rate_rps: float) -> None:
    if not 0 < rate_rps <= MAX_RATE_RPS:
        raise ValueError(f"the rate must be above 0 and at most {MAX_RATE_RPS:g} requests a second, not {rate_rps:g}")
