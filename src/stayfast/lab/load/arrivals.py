"""Arrival processes: the intended start times of requests. They are fixed before the run, so a slow target cannot slow the
load down.

Each process is a pure function of its parameters and an rng. All except `ConstantArrivals` are random: their mean rate is
only exact in the long run, as in real traffic. Sources: gamma with `shape` is vLLM's burstiness, without its rescaling of
the last arrival; stages invert the integral of the rate, so a Poisson process keeps its dispersion. Wrong for arrivals that
depend on answers (agents, chat turns): use conversations (`schedule`) or a closed loop.

Traces of recorded traffic also hold lengths, but no text. Formats: CSV `TIMESTAMP,ContextTokens,GeneratedTokens` (Azure 2023
and 2024), CSV `arrival_s,input_tokens,output_tokens`, with `reusable_prefix_tokens` for Mooncake; JSONL
`{timestamp (ms), input_length, output_length, hash_ids}` (Mooncake). Mooncake's timestamps are rounded to about 3 s, which
would make artificial bursts: each batch of equal times is spread evenly up to the next timestamp.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, groupby, pairwise
from math import sqrt
from random import Random
from statistics import median
from typing import Protocol

import msgspec

from stayfast.core.units import format_duration, parse_duration

MAX_RATE_RPS = 1e6


class Arrivals(Protocol):
    def instants(self, rng: Random) -> Iterator[float]:
        """Seconds from the start, non-decreasing; endless, except for `Ramp`."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ConstantArrivals:
    """Equal distances; easier on a target than any real traffic."""

    rate_rps: float

    def __post_init__(self) -> None:
        _check_rate(self.rate_rps)

    def instants(self, rng: Random) -> Iterator[float]:
        return (n / self.rate_rps for n in count())

    def __str__(self) -> str:
        return f"constant, {self.rate_rps:g}/s"


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma distances with the given shape: 1 is Poisson, below 1 is bursty, above 1 is smoother. Their coefficient of
    variation is 1/sqrt(shape); 1.09 in Azure's chat traffic, 13 in its code traffic."""

    rate_rps: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        _check_rate(self.rate_rps)
        if not 0.001 <= self.shape <= 1000:
            raise ValueError(f"the gamma shape must be 0.001 to 1000, not {self.shape:g}")

    def instants(self, rng: Random) -> Iterator[float]:
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
class RateStage:
    """The rate changes linearly from one value to another."""

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
        return self.seconds * (self.from_rps + self.to_rps) / 2

    def time_of_arrival(self, n: float) -> float:
        """Seconds into the stage by which `n` arrivals are expected, 0 <= n <= n_expected."""
        slope = (self.to_rps - self.from_rps) / self.seconds
        if abs(slope) < 1e-12:
            return n / self.from_rps
        return min(self.seconds, 2 * n / (self.from_rps + sqrt(max(0.0, self.from_rps**2 + 2 * slope * n))))


@dataclass(frozen=True, slots=True)
class Ramp:
    """A Poisson process whose rate follows stages in order, and which ends with the last."""

    stages: tuple[RateStage, ...]

    def __post_init__(self) -> None:
        if not self.stages or self.n_expected <= 0:
            raise ValueError("a ramp needs a stage with a rate above 0")

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def n_expected(self) -> float:
        return sum(stage.n_expected for stage in self.stages)

    def instants(self, rng: Random) -> Iterator[float]:
        began_s = n_before = 0.0
        n = rng.expovariate(1.0)
        for stage in self.stages:
            while n - n_before < stage.n_expected:
                yield began_s + stage.time_of_arrival(n - n_before)
                n += rng.expovariate(1.0)
            began_s += stage.seconds
            n_before += stage.n_expected

    def __str__(self) -> str:
        return "Poisson in stages: " + ", ".join(
            f"{stage.from_rps:g}/s" + ("" if stage.from_rps == stage.to_rps else f" to {stage.to_rps:g}/s")
            + f" for {format_duration(stage.seconds)}" for stage in self.stages)


@dataclass(frozen=True, slots=True)
class Mmpp:
    """A Poisson process that alternates between two rates, calm and storm, for exponentially distributed times."""

    calm_rps: float
    storm_rps: float
    calm_s: float  # mean duration
    storm_s: float

    def __post_init__(self) -> None:
        _check_rate(self.calm_rps)
        _check_rate(self.storm_rps)
        if not (self.calm_s > 0 and self.storm_s > 0):
            raise ValueError("the mean durations of calm and storm must be more than 0 s")

    def instants(self, rng: Random) -> Iterator[float]:
        at_s = 0.0
        is_storm = False
        until_s = rng.expovariate(1 / self.calm_s)
        while True:
            next_s = at_s + rng.expovariate(self.storm_rps if is_storm else self.calm_rps)
            if next_s < until_s:
                at_s = next_s
                yield at_s
            else:  # exponential distances have no memory: draw a new one from here
                at_s = until_s
                is_storm = not is_storm
                until_s = at_s + rng.expovariate(1 / (self.storm_s if is_storm else self.calm_s))

    def __str__(self) -> str:
        return (f"MMPP, {self.calm_rps:g}/s for {format_duration(self.calm_s)} and {self.storm_rps:g}/s for "
                f"{format_duration(self.storm_s)} on average")


def parse_arrivals(text: str, rate_rps: float | None) -> Arrivals:
    """Read poisson, constant, gamma:SHAPE (all need a rate), ramp:FROM..TO:TIME,RATE:TIME or mmpp:RATE:TIME,RATE:TIME.
    Raises ValueError with the mistake and the expected form."""
    kind, _, rest = text.partition(":")
    if kind in ("ramp", "mmpp"):
        if rate_rps is not None:
            raise ValueError(f"--rate has no meaning with --arrivals {kind}, whose stages contain the rates")
        stages = tuple(_parse_stage(part) for part in rest.split(","))
        if kind == "ramp":
            return Ramp(stages)
        if len(stages) != 2 or any(stage.from_rps != stage.to_rps for stage in stages):
            raise ValueError("--arrivals mmpp: takes two states, calm and storm: mmpp:RATE:TIME,RATE:TIME")
        calm, storm = stages
        return Mmpp(calm.from_rps, storm.from_rps, calm.seconds, storm.seconds)
    if kind not in ("poisson", "constant", "gamma"):
        raise ValueError(f"--arrivals {text}: unknown; known are poisson, constant, gamma:SHAPE, ramp:FROM..TO:TIME,..., "
                         "mmpp:RATE:TIME,RATE:TIME, trace:FILE")
    if rate_rps is None:
        raise ValueError(f"--arrivals {kind} needs --rate")
    if kind == "gamma":
        return Gamma(rate_rps, _parse_number(rest, "gamma:SHAPE"))
    if rest:
        raise ValueError(f"--arrivals {kind} takes nothing after a colon")
    return ConstantArrivals(rate_rps) if kind == "constant" else Gamma(rate_rps)


def _parse_stage(text: str) -> RateStage:
    rates, has_time, seconds = text.partition(":")
    if not has_time:
        raise ValueError(f"stage {text!r}: write RATE:TIME or FROM..TO:TIME, such as 10..100:60s")
    first, _, last = rates.partition("..")
    from_rps = _parse_number(first, "a stage's rate")
    return RateStage(parse_duration(seconds), from_rps, _parse_number(last, "a stage's rate") if last else from_rps)


def _parse_number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{what}: {text!r} is not a number") from None


def _check_rate(rate_rps: float) -> None:
    if not 0 < rate_rps <= MAX_RATE_RPS:
        raise ValueError(f"the rate must be above 0 and at most {MAX_RATE_RPS:g} requests a second, not {rate_rps:g}")


class TraceRequest(msgspec.Struct, frozen=True, gc=False):
    """One request of a trace."""

    at_s: float  # from the first request of the trace
    n_input: int
    n_output: int
    n_shared: int = 0  # leading tokens shared with other requests
    blocks: tuple[int, ...] = ()  # identities of the leading blocks of 512 tokens


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


_MOONCAKE = msgspec.json.Decoder(_Mooncake)
_COLUMNS = ("a trace is CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens or "
            "arrival_s,input_tokens,output_tokens, or JSONL with timestamp, input_length and output_length")


def read_trace(lines: Iterable[str], time_scale: float = 1.0) -> list[TraceRequest]:
    """The requests of a trace in order of time. `time_scale` multiplies its times: 0.1 replays ten times as fast. Raises
    ValueError that names the wrong line."""
    if not 1e-6 <= time_scale <= 1e6:
        raise ValueError(f"the time scale must be 0.000001 to 1000000, not {time_scale:g}")
    walk = iter(lines)
    head = next(walk, "").strip().removeprefix("\ufeff")
    is_rounded = True
    if head.startswith("{"):
        found = list(_read_jsonl(head, walk))
    else:
        columns = [name.strip() for name in head.split(",")]
        is_rounded = "reusable_prefix_tokens" in columns
        found = list(_read_csv(columns, walk))
    if not found:
        raise ValueError("the trace holds no requests")
    found.sort(key=lambda row: row.at_s)
    times_s = [row.at_s for row in found]
    if is_rounded:
        times_s = _spread_batches(times_s)
    first_s = times_s[0]
    return [msgspec.structs.replace(row, at_s=(at_s - first_s) * time_scale)
            for row, at_s in zip(found, times_s, strict=True)]


def _read_jsonl(head: str, lines: Iterator[str]) -> Iterator[TraceRequest]:
    for number, line in enumerate((head, *lines), 1):
        if not line.strip():
            continue
        try:
            row = _MOONCAKE.decode(line)
        except (msgspec.DecodeError, UnicodeError) as why:
            raise ValueError(f"line {number} of the trace: {why}") from None
        yield _check_row(number, TraceRequest(row.timestamp / 1e3, row.input_length, row.output_length, blocks=row.hash_ids))


def _read_csv(columns: Sequence[str], lines: Iterator[str]) -> Iterator[TraceRequest]:
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(columns):
        names = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    elif {"arrival_s", "input_tokens", "output_tokens"} <= set(columns):
        names = ("arrival_s", "input_tokens", "output_tokens")
    else:
        raise ValueError(_COLUMNS)
    at, n_in, n_out = (columns.index(name) for name in names)
    shared = columns.index("reusable_prefix_tokens") if "reusable_prefix_tokens" in columns else None
    to_seconds = _parse_timestamp if names[0] == "TIMESTAMP" else float
    for number, row in enumerate(csv.reader(lines), 2):
        if not row:
            continue
        try:
            n_shared = int(row[shared]) if shared is not None else 0
            found = TraceRequest(to_seconds(row[at]), int(row[n_in]), int(row[n_out]), n_shared)
        except (ValueError, IndexError) as why:
            raise ValueError(f"line {number} of the trace: {why}") from None
        yield _check_row(number, found)


def _parse_timestamp(text: str) -> float:
    instant = datetime.fromisoformat(text)
    return (instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)).timestamp()


def _check_row(number: int, row: TraceRequest) -> TraceRequest:
    if not (abs(row.at_s) < 1e12 and 0 <= row.n_shared <= row.n_input < 1e9 and 0 <= row.n_output < 1e9):
        raise ValueError(f"line {number} of the trace: a time or a number of tokens is out of range")
    return row


def _spread_batches(times_s: Sequence[float]) -> list[float]:
    """Spread each batch of equal times evenly up to the next time; the last batch over the median distance."""
    batches = [(at_s, sum(1 for _ in same)) for at_s, same in groupby(times_s)]
    starts_s = [at_s for at_s, _ in batches]
    median_s = median(b - a for a, b in pairwise(starts_s)) if len(batches) > 1 else 0.0
    spread: list[float] = []
    for (at_s, n), next_s in zip(batches, (*starts_s[1:], starts_s[-1] + median_s), strict=True):
        spread += [at_s + (next_s - at_s) * i / n for i in range(n)]
    return spread
