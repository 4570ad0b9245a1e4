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

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Literal, NamedTuple

from stayfast.core.setting import SettingDoc, check_bounds

HOUR_S = 3600
DAY_S = 24 * HOUR_S
LOWEST_SHARE = 0.5

Severity = Literal["page", "ticket"]
Metric = Literal["ttft", "e2e", "tpot", "usable"]


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

    under_s: Annotated[float, SettingDoc(
        "The bound in seconds; the histogram in /metrics has it as a bucket.", minimum=0.001, maximum=3600)] = 2.0
    share: Annotated[float, SettingDoc(
        "The share of requests within the bound; a failed one is not.", minimum=LOWEST_SHARE, maximum=0.99999)] = 0.95

    def __post_init__(self) -> None:
        check_bounds(self)


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
        "The share of requests without 5xx, 429 or a cut stream. null: none.", minimum=LOWEST_SHARE, maximum=0.99999)] = 0.99
    ttft: Annotated[Latency | None, SettingDoc("From accept to the first token of content. null: no objective.")] = Latency()
    usable: Annotated[Latency | None, SettingDoc(
        "From accept to the first token of a stream, or to the end of a whole answer.")] = None
    e2e: Annotated[Latency | None, SettingDoc("From accept to the last byte.")] = None
    tpot: Annotated[Latency | None, SettingDoc("Time per token after the first.")] = None
    window_days: Annotated[int, SettingDoc(
        "The days of the objectives. Prometheus must store its data for as long.", minimum=28, maximum=92)] = 30

    def __post_init__(self) -> None:
        check_bounds(self)

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
