"""Service level objectives of a route, and the burn rates that trigger alerts.

Problem: an alert on p99 wakes people for three slow requests at night and misses a week of slow degradation. Rule: an
objective is a share of good requests over a window; the rest is the error budget. Alerts watch how fast it is spent, over a
long window (it matters) and a short one (it is still going on):

    burn = share of bad requests / (1 - promised share)          1: the budget lasts exactly as long as the window
    fires if burn > factor over both,  factor = spent * window / long,  short = long / 12

So an alert means that at least `spent` of the budget is gone. With 30 days the factors are 14.4, 6, 3 and 1.
Source: "The Site Reliability Workbook" (2018), chapter 5; the table is that of sloth and pyrra.
When wrong: with few requests one failure is a large share; hence `n_requests_needed`. With a modest objective
(budget * factor >= 1) even a total outage cannot burn that fast; `alerts` omits such an alert.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Literal, NamedTuple, cast, get_args

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.snapshot import Spread

HOUR_S = 3600
DAY_S = 24 * HOUR_S
LOWEST_SHARE = 0.5

Severity = Literal["page", "ticket"]
Metric = Literal["ttft", "e2e", "tpot", "usable"]
Quantile = Literal["p50", "p95", "p99"]


class Burn(NamedTuple):
    """A rate of spending that triggers an alert: `spent` of the budget within `long_s`."""

    severity: Severity
    spent: float
    long_s: int

    @property
    def short_s(self) -> int:
        """The window, in seconds, that shows whether it is still going on."""
        return self.long_s // 12

    def factor(self, window_days: int) -> float:
        return self.spent * window_days * DAY_S / self.long_s


BURNS = (
    Burn("page", 0.02, HOUR_S),
    Burn("page", 0.05, 6 * HOUR_S),
    Burn("ticket", 0.10, DAY_S),
    Burn("ticket", 0.10, 3 * DAY_S),
)


@dataclass(frozen=True, slots=True)
class Latency:
    """`share` of the requests take at most `under_s` seconds. Failed requests count as too slow."""

    under_s: Annotated[float, SettingDoc("Latency bound; an exact bucket in /metrics.", minimum=0.001, maximum=3600)] = 2.0
    share: Annotated[float, SettingDoc(
        "Share of requests within it; failed ones are not.", minimum=LOWEST_SHARE, maximum=0.99999)] = 0.95

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class PercentileTargets:
    """Bounds of percentiles over 5 minutes, in seconds. null: none."""

    p50_s: Annotated[float | None, SettingDoc("Half of the requests take at most this.", more_than=0, maximum=86_400)] = None
    p95_s: Annotated[float | None, SettingDoc("95 of 100 take at most this.", more_than=0, maximum=86_400)] = None
    p99_s: Annotated[float | None, SettingDoc("99 of 100 take at most this.", more_than=0, maximum=86_400)] = None

    def __post_init__(self) -> None:
        check_bounds(self)
        given = [bound_s for _, bound_s in self.bounds()]
        if given != sorted(given):
            raise ValueError("p50_s must be at most p95_s, and that at most p99_s")

    def bounds(self) -> Iterator[tuple[Quantile, float]]:
        named: tuple[tuple[Quantile, float | None], ...] = (("p50", self.p50_s), ("p95", self.p95_s), ("p99", self.p99_s))
        return ((name, bound_s) for name, bound_s in named if bound_s is not None)


class MissedTarget(NamedTuple):
    """A percentile beyond its bound. what: ttft, usable, e2e, tpot, a stage or a step."""

    what: str
    quantile: Quantile
    measured_s: float
    target_s: float


def find_missed_targets(targets: Mapping[str, Mapping[str, float | None]], measured: Mapping[str, Spread]
                        ) -> list[MissedTarget]:
    """The targets (`p95_s` and such, by name) that the measured percentiles exceed, the worst first."""
    missed = []
    for what, bounds in targets.items():
        spread = measured.get(what, Spread())
        for quantile, value_s in (("p50", spread.p50), ("p95", spread.p95), ("p99", spread.p99)):
            bound_s = bounds.get(f"{quantile}_s")
            if value_s is not None and bound_s is not None and value_s > bound_s:
                missed.append(MissedTarget(what, cast("Quantile", quantile), value_s, bound_s))
    return sorted(missed, key=lambda one: one.target_s / one.measured_s)


class Objective(NamedTuple):
    """One objective of one route. For availability, `metric` and `under_s` are None."""

    name: str
    share: float
    window_days: int
    metric: Metric | None = None
    under_s: float | None = None

    @property
    def budget(self) -> float:
        return 1.0 - self.share

    @property
    def alerts(self) -> tuple[Burn, ...]:
        """The burns that are possible: a total outage burns at 1 / budget, and nothing burns faster."""
        return tuple(burn for burn in BURNS if self.bad_share(burn) < 1.0)

    def bad_share(self, burn: Burn) -> float:
        """The share of bad requests above which `burn` fires."""
        return burn.factor(self.window_days) * self.budget

    def n_requests_needed(self, burn: Burn, min_requests: int, min_bad: int) -> int:
        """The least requests in the long window for `burn` to fire, so that it takes at least `min_bad` bad ones."""
        return max(min_requests, ceil(min_bad / self.bad_share(burn)))


@dataclass(frozen=True, slots=True)
class Slo:
    """The objectives of one route over `window_days`. null: none of this kind."""

    availability: Annotated[float | None, SettingDoc(
        "Share of requests answered without 5xx, 429 or a cut stream. null: none.",
        minimum=LOWEST_SHARE, maximum=0.99999)] = 0.99
    ttft: Annotated[Latency | None, SettingDoc("Accept to first content token. null: none.")] = Latency()
    usable: Annotated[Latency | None, SettingDoc(
        "Accept to the first token of a stream or the end of a whole answer.")] = None
    e2e: Annotated[Latency | None, SettingDoc("Accept to last byte.")] = None
    tpot: Annotated[Latency | None, SettingDoc("Time per token after the first.")] = None
    window_days: Annotated[int, SettingDoc(
        "Period of the objectives; Prometheus must keep its data as long.", minimum=28, maximum=92)] = 30

    percentiles: Annotated[Mapping[str, PercentileTargets], SettingDoc(
        "Bounds of percentiles of ttft, usable, e2e or tpot, besides the objectives.")] = field(default_factory=dict)
    stages: Annotated[Mapping[str, PercentileTargets], SettingDoc(
        "The same by stage (admit, cache, context, route, call, relay, settle), or by step of a served turn, such as "
        "retrieve.")] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in self.percentiles:
            if name not in get_args(Metric):
                raise ValueError(f"percentiles.{name} is none of {', '.join(get_args(Metric))}")

    def targets(self) -> Iterator[tuple[str, str, Quantile, float]]:
        """Bounds of percentiles: `percentiles` or `stages`, the name in it, the percentile and the bound in seconds."""
        for where, named in (("percentiles", self.percentiles), ("stages", self.stages)):
            for name, target in named.items():
                for quantile, bound_s in target.bounds():
                    yield where, name, quantile, bound_s

    def objectives(self) -> Iterator[Objective]:
        if self.availability is not None:
            yield Objective("availability", self.availability, self.window_days)
        for metric, latency in self.latencies():
            yield Objective(metric, latency.share, self.window_days, metric, latency.under_s)

    def latencies(self) -> Iterator[tuple[Metric, Latency]]:
        """The objectives about time; each `under_s` must be a bucket bound of that metric's histogram."""
        given: tuple[tuple[Metric, Latency | None], ...] = (
            ("ttft", self.ttft), ("usable", self.usable), ("e2e", self.e2e), ("tpot", self.tpot))
        for metric, latency in given:
            if latency is not None:
                yield metric, latency
