"""`--assert "ttft.p99<0.5"`: a run's figures against bounds, for a build to fail on.

A request that failed has no latency, and a target that answers only its easy half must not pass: in a quantile, and in
`max`, failures count as slower than every answer. So `ttft.p99<500ms` fails as soon as 1 % of what was offered failed. An
invalid run (the client was the bottleneck) holds no assertion, and neither does a quantile of so few values that it is only
their maximum.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from math import ceil, inf, isfinite, isnan, nan
from types import MappingProxyType
from typing import Final

import msgspec

from stayfast.lab.load.result import Error
from stayfast.lab.load.stats import LATENCIES, Measured, of_offered

SHARES: Final = ("goodput", "errors", *(str(error) for error in Error if error))
_RATES: Final = ("rps", "goodput_rps", "output_tokens_per_s")
_FACTORS: Final = ("spike",)
_STATISTICS: Final = "p50, p95, p99, p99.9 (any pNN), mean, min, max"
KNOWN: Final = (*LATENCIES, *SHARES, *_RATES, *_FACTORS)
_UNITS: Final[Mapping[str, float]] = MappingProxyType({"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "%": 1e-2})
_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = MappingProxyType(
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge})
LONG_S: Final = 60.0
_NAME = re.compile(r"\s*([a-z][a-z0-9_]*)(?:\.([a-z]+(?:[0-9]+(?:\.[0-9]+)?)?))?\s*", re.IGNORECASE)
_OPERATOR = re.compile(r"[<>]=?")
_BOUND = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e-?[0-9]+)?|\.[0-9]+)\s*([a-z%]*)\s*", re.IGNORECASE)


class Assertion(msgspec.Struct, frozen=True):
    """One bound: of seconds for latencies, of shares (0 to 1), of a second for rates."""

    text: str
    metric: str
    statistic: str  # "p99", "mean", ...; empty where the metric is one figure
    operator: str
    bound: float
    unit: str = ""  # of the bound, as given

    @property
    def read_as(self) -> str:
        """The text with the unit that it was read with."""
        return f"{self.text} s" if self.metric in LATENCIES and not self.unit else self.text

    @property
    def is_doubtful(self) -> bool:
        """Whether milliseconds may be meant: seconds by default, and many of them."""
        return self.metric in LATENCIES and not self.unit and self.bound > LONG_S


class Checked(msgspec.Struct, frozen=True):
    """What became of an assertion. `actual` is infinite where too many failed to have the quantile; NaN: not measured."""

    assertion: Assertion
    actual: float
    holds: bool
    why: str = ""  # where it does not hold for another reason than its figure


def parse_assertion(text: str) -> Assertion:
    """Read one. Raises ValueError that names the column (from 1) and what is expected there."""
    name = _NAME.match(text)
    if name is None:
        raise _wrong(text, 0, "a metric such as ttft.p99 or goodput")
    metric, statistic = name[1].lower(), (name[2] or "").lower()
    if metric not in KNOWN:
        raise _wrong(text, name.start(1), f"a metric; {name[1]!r} is none of: {', '.join(KNOWN)}")
    if metric in LATENCIES:
        if not _is_statistic(statistic):
            raise _wrong(text, name.end(1), f".STATISTIC after {metric}: one of {_STATISTICS}")
    elif statistic:
        raise _wrong(text, name.end(1), f"an operator: {metric} is one figure and has no .{statistic}")
    sign = _OPERATOR.match(text, name.end())
    if sign is None:
        raise _wrong(text, name.end(), "an operator: < <= > >=")
    bound = _BOUND.fullmatch(text, sign.end())
    if bound is None:
        raise _wrong(text, sign.end(), "a number, with a unit if you like (0.5, 500ms, 99%)")
    unit = bound[2].lower()
    units = ("", "s", "ms", "us") if metric in LATENCIES else ("", "%") if metric in SHARES else ("",)
    if unit not in units:
        raise _wrong(text, bound.start(2), f"a unit of {metric}: {' '.join(units).strip() or 'none'}")
    return Assertion(text.strip(), metric, statistic, sign[0], float(bound[1]) * _UNITS[unit], unit)


def check(assertions: Iterable[Assertion], run: Measured) -> tuple[Checked, ...]:
    return tuple(_checked(assertion, run) for assertion in assertions)


def _checked(assertion: Assertion, run: Measured) -> Checked:
    actual = figure(run, assertion.metric, assertion.statistic)
    holds = not isnan(actual) and _OPERATORS[assertion.operator](actual, assertion.bound)
    if not run.result.health.is_valid:
        return Checked(assertion, actual, holds=False, why="the run is invalid")
    if isnan(actual):
        return Checked(assertion, actual, holds=False, why="not measured in this run")
    if actual == inf and assertion.metric in LATENCIES:
        return Checked(assertion, actual, holds, f"{run.error_share:.1%} of the offered failed and have none")
    metric = assertion.metric
    n_values = run.spreads[metric].n + run.n_without(metric) if metric in LATENCIES else 0
    n_needed = (  # of a quantile
        ceil(1 / (1 - float(assertion.statistic[1:]) / 100) - 0.01) if assertion.statistic[:1] == "p" else 0)
    if n_values < n_needed:
        return Checked(assertion, actual, holds=False, why=f"{n_values} values have no {assertion.statistic} but their "
                       f"maximum: {n_needed} are needed")
    return Checked(assertion, actual, holds)


def figure(run: Measured, metric: str, statistic: str) -> float:
    """A run's figure; quantiles and `max` count failures as slower than any answer."""
    if metric in LATENCIES:
        if statistic == "mean":
            return run.spreads[metric].mean_s
        share = {"min": 0.0, "max": 1.0}.get(statistic)
        return of_offered(run.spreads[metric], run.n_without(metric), float(statistic[1:]) / 100 if share is None else share)
    rates = {"rps": run.n_whole, "goodput_rps": run.goodput.n_good, "output_tokens_per_s": run.n_output}
    if metric in rates:
        return run.rate(rates[metric])
    if metric == "spike":
        return run.spike_factor()
    if metric == "goodput":
        return run.goodput.share
    if metric == "errors":
        return run.error_share
    return run.errors[metric] / run.n_offered if run.n_offered else nan


def _is_statistic(text: str) -> bool:
    if text in {"mean", "min", "max"}:
        return True
    return bool(re.fullmatch(r"p[0-9]+(\.[0-9]+)?", text)) and isfinite(float(text[1:])) and 0 < float(text[1:]) < 100


def _wrong(text: str, column: int, expected: str) -> ValueError:
    return ValueError(f"assertion {text!r}, column {column + 1}: expected {expected}")
