"""Where the alerts draw their lines. Promises to users (`slo`) are another matter: these are symptoms and causes."""

from dataclasses import dataclass, fields

_SHARES = ("cache_hit_ratio_min", "prefix_read_ratio_min", "truncated_ratio", "degraded_ratio", "stalled_ratio",
           "rate_limited_ratio", "failed_attempts_ratio")
_MOST = 0.99999


@dataclass(frozen=True, slots=True)
class AlertsConfig:
    """Thresholds. Latencies in seconds over 5 minutes; null: no such alert. Ratios are shares of 1."""

    ttft_p95_s: float | None = 2.0
    ttft_p99_s: float | None = 5.0
    usable_p95_s: float | None = 2.0
    usable_p99_s: float | None = 5.0
    e2e_p95_s: float | None = None  # a long answer takes long: only the operator knows what is too long
    e2e_p99_s: float | None = None
    min_requests: int = 100  # in a burn's long window
    min_bad: int = 5  # so many bad requests are no accident
    min_requests_5m: int = 20
    cache_hit_ratio_min: float = 0.2
    prefix_read_ratio_min: float = 0.4
    queue_depth: int = 1000
    truncated_ratio: float = 0.01
    degraded_ratio: float = 0.1
    stalled_ratio: float = 0.05
    rate_limited_ratio: float = 0.05
    failed_attempts_ratio: float = 0.1
    retry_amplification: float = 1.2
    spike_factor: float = 8.0
    loop_lag_s: float = 0.05
    queue_wait_p95_s: float = 0.1
    handshake_p95_s: float = 1.0
    job: str = "stayfast"
    runbook: str = "docs/alerts.md"

    def __post_init__(self) -> None:
        for name in _SHARES:
            if not 0 < getattr(self, name) <= _MOST:
                raise ValueError(f"{name} must be more than 0 and at most {_MOST}, not {getattr(self, name)}")
        if self.retry_amplification <= 1:
            raise ValueError(f"retry_amplification must be more than 1, not {self.retry_amplification}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value <= 0:
                raise ValueError(f"{field.name} must be more than 0, not {value}")
