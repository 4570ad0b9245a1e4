"""What boards draw and plain alerts look at: percentiles and counts over 5 minutes, by route."""

from collections.abc import Iterator

from stayfast.observe.rules.promql import ANSWERED, COUNTED
from stayfast.observe.rules.rule import Group, Recording

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
