"""A rule before it is text, the pieces of PromQL that rules are made of, and the thresholds of alerts.

Thresholds are of symptoms and causes; promises to users (`slo`) are another matter. Plain alerts look at percentiles
and counts over 5 minutes, by route.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.slo import DAY_S, HOUR_S, Severity

FAILED = "5..|429"  # what a request may end with that its user must not have to see: ours, or the upstreams'
ANSWERED = 'outcome=~"ok|degraded"'  # the requests whose times count; failures are counted by status, and never as quick
COUNTED = "[235]..|429"  # other 4xx, and 499, are the client's own doing: neither good nor bad


def span(seconds: int) -> str:
    """A duration as Prometheus writes it: 5m, 6h, 30d."""
    for unit, letter in ((DAY_S, "d"), (HOUR_S, "h"), (60, "m")):
        if seconds % unit == 0:
            return f"{seconds // unit}{letter}"
    return f"{seconds}s"


def quoted(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


def number(value: float) -> str:
    """A number in a query: short, and never rounded by more than a millionth."""
    return f"{value:.7g}"


def bound(under_s: float) -> str:
    """A histogram's `le` for this bound, as the exposition writes it."""
    return quoted(repr(float(under_s)))


def or_none(query: str) -> str:
    """0 where there is no series yet: a failure that never happened has none."""
    return f"({query} or vector(0))"


def percent(share: float) -> str:
    """A share for people: 14.4 %."""
    return f"{share * 100:.3g} %"


def rate_by(label: str, metric: str, matchers: str = "", window: str = "5m") -> str:
    """A counter's rate, summed by one label."""
    return f"sum by ({label}) (rate({metric}{matchers}[{window}]))"


@dataclass(frozen=True, slots=True)
class Recording:
    """A query whose answer is kept under a name of its own."""

    name: str
    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        labels = {"labels": dict(self.labels)} if self.labels else {}
        return {"record": self.name, "expr": self.expr, **labels}


class Condition(NamedTuple):
    """`value` beyond `limit`. The value alone can be asked for, to see that it has data."""

    value: str
    limit: float
    sign: str = ">"

    def __str__(self) -> str:
        return f"{self.value} {self.sign} {number(self.limit)}"


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that somebody must hear of: all `conditions` at once, for `for_s` seconds.

    `on` names the labels by which the conditions belong together; None: all of them.
    """

    name: str
    severity: Severity
    conditions: tuple[Condition, ...]
    summary: str
    action: str  # what to do, in a sentence or two
    for_s: int = 300
    on: tuple[str, ...] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def expr(self) -> str:
        joint = "\nand " if self.on is None else f"\nand on ({', '.join(self.on)}) "
        return joint.join(map(str, self.conditions))

    def document(self, runbook: str) -> dict[str, Any]:
        wait = {"for": span(self.for_s)} if self.for_s else {}
        return {
            "alert": self.name, "expr": self.expr, **wait, "labels": {"severity": self.severity, **self.labels},
            "annotations": {"summary": self.summary, "description": self.action,
                            "runbook_url": f"{runbook}#{self.name.lower()}"},
        }


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated together, one after another."""

    name: str
    rules: tuple[Recording | Alert, ...]
    every_s: int | None = None  # None: as Prometheus is told for all

    def document(self, runbook: str) -> dict[str, Any]:
        every = {"interval": span(self.every_s)} if self.every_s else {}
        rules = [rule.document() if isinstance(rule, Recording) else rule.document(runbook) for rule in self.rules]
        return {"name": self.name, **every, "rules": rules}


METRICS = ("ttft", "usable", "e2e", "tpot")
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def percentile(metric: str, quantile: str) -> str:
    """The name under which a percentile over 5 minutes is recorded."""
    return f"stayfast:{metric}_seconds:{quantile}_5m"


REQUESTS_5M = "stayfast:requests:increase5m"  # by route
ATTEMPTS_5M = "stayfast:attempts:increase5m"  # by upstream


def latency() -> Group:
    """The group of recording rules."""
    return Group("stayfast-latency", tuple(_recordings()))


def _recordings() -> Iterator[Recording]:
    for metric in METRICS:
        for quantile, q in QUANTILES.items():
            buckets = f"sum by (route, le) (rate(stayfast_{metric}_seconds_bucket{{{ANSWERED}}}[5m]))"
            yield Recording(percentile(metric, quantile), f"histogram_quantile({q}, {buckets})")
    yield Recording(REQUESTS_5M, f'sum by (route) (increase(stayfast_requests_total{{status=~"{COUNTED}"}}[5m]))')
    yield Recording(ATTEMPTS_5M, "sum by (upstream) (increase(stayfast_attempts_total[5m]))")


def _line(doc: str) -> SettingDoc:
    return SettingDoc(doc, more_than=0)


def _ratio(doc: str) -> SettingDoc:
    return SettingDoc(doc, more_than=0, maximum=0.99999)


@dataclass(frozen=True, slots=True)
class AlertsConfig:
    """Thresholds. Latencies in seconds over 5 minutes; null: no such alert. Ratios are shares of 1."""

    ttft_p95_s: Annotated[float | None, _line("p95 of the time to the first token, by route; null: no such alert.")] = 2.0
    ttft_p99_s: Annotated[float | None, _line("The same for p99.")] = 5.0
    usable_p95_s: Annotated[float | None, _line("p95 of the time to a usable answer; null: no such alert.")] = 2.0
    usable_p99_s: Annotated[float | None, _line("The same for p99.")] = 5.0
    e2e_p95_s: Annotated[float | None, _line(
        "p95 of the whole time; null: no such alert, as long answers take long.")] = None
    e2e_p99_s: Annotated[float | None, _line("The same for p99.")] = None
    min_requests: Annotated[int, SettingDoc("Fewest requests in the long window for a burn-rate alert.", minimum=1)] = 100
    # so many bad requests are no accident
    min_bad: Annotated[int, SettingDoc("Fewest bad requests for a burn-rate alert.", minimum=1)] = 5
    min_requests_5m: Annotated[int, SettingDoc(
        "Fewest requests in 5 minutes for percentiles and ratios; five times as many for p99.", minimum=1)] = 20
    cache_hit_ratio_min: Annotated[float, _ratio("Lowest share of cache hits over 30 minutes.")] = 0.2
    prefix_read_ratio_min: Annotated[float, _ratio(
        "Lowest share of input read from providers' prompt caches over 30 minutes.")] = 0.4
    queue_depth: Annotated[int, SettingDoc("Most waiting requests.", minimum=1)] = 1000
    truncated_ratio: Annotated[float, _ratio(
        "Share of an upstream's streams that break off after their first token.")] = 0.01
    degraded_ratio: Annotated[float, _ratio("Share of a route's answers by fallback, template or in part.")] = 0.1
    stalled_ratio: Annotated[float, _ratio("Stalls per request of an upstream.")] = 0.05
    rate_limited_ratio: Annotated[float, _ratio("Share of an upstream's attempts answered 429 or 529.")] = 0.05
    failed_attempts_ratio: Annotated[float, _ratio("Share of an upstream's attempts that fail.")] = 0.1
    retry_amplification: Annotated[float, SettingDoc("Attempts per request, by route.", more_than=1)] = 1.2
    spike_factor: Annotated[float, _line("p99 over p50 of the time to the first token, by route.")] = 8.0
    loop_lag_s: Annotated[float, _line("Lateness of the gateway's event loop (p95).")] = 0.05
    queue_wait_p95_s: Annotated[float, _line("p95 of the wait between accept and the start of processing.")] = 0.1
    handshake_p95_s: Annotated[float, _line("p95 of TCP and TLS for new connections to an upstream.")] = 1.0
    job: Annotated[str, SettingDoc(
        "Job name of the gateway in Prometheus's scrape_configs.",
        pattern=r"[A-Za-z0-9_./-]+", form="letters, digits and _ . / -")] = "stayfast"
    runbook: Annotated[str, SettingDoc(
        "Address of docs/alerts.md for on-call engineers; each alert appends its heading.")] = "docs/alerts.md"

    def __post_init__(self) -> None:
        check_bounds(self)
