"""`--assert "ttft.p99<0.5"`: bounds on a run's figures, for a build to fail on.

A failed request has no latency, and a target that answers only its easy half must not pass: in quantiles and `max`, failures
count as infinitely slow. So `ttft.p99<500ms` fails as soon as 1 % of the offered requests failed. No assertion holds in an
invalid run (the client was the bottleneck), or for a quantile of so few values that it is their maximum.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from math import ceil, inf, isfinite, isnan, nan
from types import MappingProxyType
from typing import Final

import msgspec

from stayfast.lab.load.result import Error
from stayfast.lab.load.stats import LATENCIES, MeasuredRun, quantile_of_offered

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
    """One bound, in seconds for latencies, 0 to 1 for shares, per second for rates."""

    text: str
    metric: str
    statistic: str  # "p99", "mean", ...; empty for metrics with one figure
    operator: str
    bound: float
    unit: str = ""  # of the bound, as written

    @property
    def read_as(self) -> str:
        """The text with its unit."""
        return f"{self.text} s" if self.metric in LATENCIES and not self.unit else self.text

    @property
    def is_doubtful(self) -> bool:
        """Whether milliseconds may be meant: many seconds without a unit."""
        return self.metric in LATENCIES and not self.unit and self.bound > LONG_S


class AssertionResult(msgspec.Struct, frozen=True):
    """The result of an assertion. `actual`: infinite if the quantile falls among failed requests; NaN if not measured."""

    assertion: Assertion
    actual: float
    holds: bool
    why: str = ""  # the reason, if it is not the figure


def parse_assertion(text: str) -> Assertion:
    """Read one. Raises ValueError with the column (from 1) and the expected form."""
    name = _NAME.match(text)
    if name is None:
        raise _expected(text, 0, "a metric such as ttft.p99 or goodput")
    metric, statistic = name[1].lower(), (name[2] or "").lower()
    if metric not in KNOWN:
        raise _expected(text, name.start(1), f"a metric; {name[1]!r} is none of: {', '.join(KNOWN)}")
    if metric in LATENCIES:
        if not _is_statistic(statistic):
            raise _expected(text, name.end(1), f".STATISTIC after {metric}: one of {_STATISTICS}")
    elif statistic:
        raise _expected(text, name.end(1), f"an operator: {metric} is one figure and has no .{statistic}")
    sign = _OPERATOR.match(text, name.end())
    if sign is None:
        raise _expected(text, name.end(), "an operator: < <= > >=")
    bound = _BOUND.fullmatch(text, sign.end())
    if bound is None:
        raise _expected(text, sign.end(), "a number, with a unit if you like (0.5, 500ms, 99%)")
    unit = bound[2].lower()
    units = ("", "s", "ms", "us") if metric in LATENCIES else ("", "%") if metric in SHARES else ("",)
    if unit not in units:
        raise _expected(text, bound.start(2), f"a unit of {metric}: {' '.join(units).strip() or 'none'}")
    return Assertion(text.strip(), metric, statistic, sign[0], float(bound[1]) * _UNITS[unit], unit)


def check_assertions(assertions: Iterable[Assertion], run: MeasuredRun) -> tuple[AssertionResult, ...]:
    return tuple(_check_one(assertion, run) for assertion in assertions)


def _check_one(assertion: Assertion, run: MeasuredRun) -> AssertionResult:
    actual = read_figure(run, assertion.metric, assertion.statistic)
    holds = not isnan(actual) and _OPERATORS[assertion.operator](actual, assertion.bound)
    if not run.result.health.is_valid:
        return AssertionResult(assertion, actual, holds=False, why="the run is invalid")
    if isnan(actual):
        return AssertionResult(assertion, actual, holds=False, why="not measured in this run")
    if actual == inf and assertion.metric in LATENCIES:
        return AssertionResult(assertion, actual, holds, f"{run.error_share:.1%} of the offered requests failed")
    metric, statistic = assertion.metric, assertion.statistic
    if statistic[:1] == "p":
        n_values = run.distributions[metric].n + run.n_missing(metric)
        n_needed = ceil(1 / (1 - float(statistic[1:]) / 100) - 0.01)
        if n_values < n_needed:
            return AssertionResult(assertion, actual, holds=False, why=f"{statistic} needs {n_needed} values, not "
                                                                       f"{n_values}")
    return AssertionResult(assertion, actual, holds)


def read_figure(run: MeasuredRun, metric: str, statistic: str) -> float:
    """A run's figure; in quantiles and `max`, failures count as infinitely slow."""
    if metric in LATENCIES:
        if statistic == "mean":
            return run.distributions[metric].mean_s
        share = {"min": 0.0, "max": 1.0}.get(statistic)
        return quantile_of_offered(run.distributions[metric], run.n_missing(metric), float(statistic[1:]) / 100
                                   if share is None else share)
    rates = {"rps": run.n_succeeded, "goodput_rps": run.goodput.n_good, "output_tokens_per_s": run.n_output}
    if metric in rates:
        return run.per_second(rates[metric])
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


def _expected(text: str, column: int, expected: str) -> ValueError:
    return ValueError(f"assertion {text!r}, column {column + 1}: expected {expected}")
