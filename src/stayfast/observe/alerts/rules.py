"""Rules as objects, helpers for PromQL, and the thresholds of symptom alerts.

Symptom alerts use percentiles and counts over 5 minutes, by route. SLO alerts are in `slo_alerts`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.slo import DAY_S, HOUR_S, Severity

FAILED = "5..|429"  # statuses of failed requests
ANSWERED = 'outcome=~"ok|degraded"'  # requests whose times count; failures count by status
COUNTED = "[235]..|429"  # other 4xx, and 499, are client errors: neither good nor bad


def format_duration(seconds: int) -> str:
    """A duration in Prometheus syntax: 5m, 6h, 30d."""
    for unit, letter in ((DAY_S, "d"), (HOUR_S, "h"), (60, "m")):
        if seconds % unit == 0:
            return f"{seconds // unit}{letter}"
    return f"{seconds}s"


def quote(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


def format_number(value: float) -> str:
    return f"{value:.7g}"


def bucket_label(under_s: float) -> str:
    """The value of a histogram's `le` label for this bound."""
    return quote(repr(float(under_s)))


def or_zero(query: str) -> str:
    """0 if the series does not exist yet."""
    return f"({query} or vector(0))"


def format_percent(share: float) -> str:
    """For example 14.4 %."""
    return f"{share * 100:.3g} %"


def rate_by(label: str, metric: str, matchers: str = "", window: str = "5m") -> str:
    return f"sum by ({label}) (rate({metric}{matchers}[{window}]))"


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording rule."""

    name: str
    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def to_yaml_dict(self) -> dict[str, Any]:
        labels = {"labels": dict(self.labels)} if self.labels else {}
        return {"record": self.name, "expr": self.expr, **labels}


class Condition(NamedTuple):
    """`value` beyond `limit`. Tests query the value alone."""

    value: str
    limit: float
    sign: str = ">"

    def __str__(self) -> str:
        return f"{self.value} {self.sign} {format_number(self.limit)}"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert: all `conditions` hold for `for_s` seconds. `on`: the labels that join them; None: all labels."""

    name: str
    severity: Severity
    conditions: tuple[Condition, ...]
    summary: str
    action: str  # what to do, in one or two sentences
    for_s: int = 300
    on: tuple[str, ...] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def expr(self) -> str:
        joint = "\nand " if self.on is None else f"\nand on ({', '.join(self.on)}) "
        return joint.join(map(str, self.conditions))

    def to_yaml_dict(self, runbook: str) -> dict[str, Any]:
        wait = {"for": format_duration(self.for_s)} if self.for_s else {}
        return {
            "alert": self.name, "expr": self.expr, **wait, "labels": {"severity": self.severity, **self.labels},
            "annotations": {"summary": self.summary, "description": self.action,
                            "runbook_url": f"{runbook}#{self.name.lower()}"},
        }


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated in sequence."""

    name: str
    rules: tuple[Recording | Alert, ...]
    every_s: int | None = None  # None: Prometheus's default interval

    def to_yaml_dict(self, runbook: str) -> dict[str, Any]:
        every = {"interval": format_duration(self.every_s)} if self.every_s else {}
        rules = [rule.to_yaml_dict() if isinstance(rule, Recording) else rule.to_yaml_dict(runbook) for rule in self.rules]
        return {"name": self.name, **every, "rules": rules}


METRICS = ("ttft", "usable", "e2e", "tpot")
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def percentile_name(metric: str, quantile: str) -> str:
    """The name of a recorded percentile over 5 minutes."""
    return f"stayfast:{metric}_seconds:{quantile}_5m"


REQUESTS_5M = "stayfast:requests:increase5m"  # by route
ATTEMPTS_5M = "stayfast:attempts:increase5m"  # by upstream


def latency_group() -> Group:
    return Group("stayfast-latency", tuple(_recordings()))


def _recordings() -> Iterator[Recording]:
    for metric in METRICS:
        for quantile, q in QUANTILES.items():
            buckets = f"sum by (route, le) (rate(stayfast_{metric}_seconds_bucket{{{ANSWERED}}}[5m]))"
            yield Recording(percentile_name(metric, quantile), f"histogram_quantile({q}, {buckets})")
    yield Recording(REQUESTS_5M, f'sum by (route) (increase(stayfast_requests_total{{status=~"{COUNTED}"}}[5m]))')
    yield Recording(ATTEMPTS_5M, "sum by (upstream) (increase(stayfast_attempts_total[5m]))")


def _positive(doc: str) -> SettingDoc:
    return SettingDoc(doc, more_than=0)


def _ratio(doc: str) -> SettingDoc:
    return SettingDoc(doc, more_than=0, maximum=0.99999)


@dataclass(frozen=True, slots=True)
class AlertsConfig:
    """Thresholds of symptom alerts. Ratios are shares of 1."""

    ttft_p95_s: Annotated[float | None, _positive(
        "p95 of the time to the first token, by route; null: no such alert.")] = 2.0
    ttft_p99_s: Annotated[float | None, _positive("The same for p99.")] = 5.0
    usable_p95_s: Annotated[float | None, _positive("p95 of the time to a usable answer; null: no such alert.")] = 2.0
    usable_p99_s: Annotated[float | None, _positive("The same for p99.")] = 5.0
    e2e_p95_s: Annotated[float | None, _positive(
        "p95 of the whole time; null: no such alert, as long answers take long.")] = None
    e2e_p99_s: Annotated[float | None, _positive("The same for p99.")] = None
    min_requests: Annotated[int, SettingDoc("Fewest requests in the long window for a burn-rate alert.", minimum=1)] = 100
    min_bad: Annotated[int, SettingDoc("Fewest bad requests for a burn-rate alert.", minimum=1)] = 5
    min_requests_5m: Annotated[int, SettingDoc(
        "Fewest requests in 5 minutes for percentiles and ratios; five times as many for p99.", minimum=1)] = 20
    cache_hit_ratio_min: Annotated[float, _ratio("Lowest share of cache hits over 30 minutes.")] = 0.2
    prefix_read_ratio_min: Annotated[float, _ratio(
        "Lowest share of input read from providers' prompt caches over 30 minutes.")] = 0.4
    queue_depth: Annotated[int, SettingDoc("Most waiting requests.", minimum=1)] = 1000
    job_depth: Annotated[int, SettingDoc("Most queued jobs of a route.", minimum=1)] = 1000
    truncated_ratio: Annotated[float, _ratio(
        "Share of an upstream's streams that break off after their first token.")] = 0.01
    degraded_ratio: Annotated[float, _ratio("Share of a route's answers by fallback, template or in part.")] = 0.1
    stalled_ratio: Annotated[float, _ratio("Stalls per request of an upstream.")] = 0.05
    rate_limited_ratio: Annotated[float, _ratio("Share of an upstream's attempts answered 429 or 529.")] = 0.05
    failed_attempts_ratio: Annotated[float, _ratio("Share of an upstream's attempts that fail.")] = 0.1
    retry_amplification: Annotated[float, SettingDoc("Attempts per request, by route.", more_than=1)] = 1.2
    spike_factor: Annotated[float, _positive("p99 over p50 of the time to the first token, by route.")] = 8.0
    loop_lag_s: Annotated[float, _positive("Lateness of the gateway's event loop (p95).")] = 0.05
    queue_wait_p95_s: Annotated[float, _positive("p95 of the wait between accept and the start of processing.")] = 0.1
    handshake_p95_s: Annotated[float, _positive("p95 of TCP and TLS for new connections to an upstream.")] = 1.0
    job: Annotated[str, SettingDoc(
        "Job name of the gateway in Prometheus's scrape_configs.",
        pattern=r"[A-Za-z0-9_./-]+", form="letters, digits and _ . / -")] = "stayfast"
    runbook: Annotated[str, SettingDoc(
        "Address of docs/alerts.md for on-call engineers; each alert appends its heading.")] = "docs/alerts.md"

    def __post_init__(self) -> None:
        check_bounds(self)
