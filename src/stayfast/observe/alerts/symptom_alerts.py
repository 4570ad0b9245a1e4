"""Symptom alerts: thresholds on percentiles and their usual causes. All are tickets except `StayfastDown`: pages come from
the error budgets (`slo_alerts`).
"""

from collections.abc import Iterator

from stayfast.observe.alerts.rules import (
    ATTEMPTS_5M,
    METRICS,
    REQUESTS_5M,
    Alert,
    AlertsConfig,
    Condition,
    Group,
    or_zero,
    percentile_name,
    quote,
    rate_by,
)

DESCRIPTIONS = {"ttft": "the first token", "usable": "a usable answer", "e2e": "the whole answer"}
TIMES_FOR_P99 = 5  # a p99 needs five times the requests of a p95


def symptom_groups(config: AlertsConfig) -> list[Group]:
    return [
        Group("stayfast-percentiles", tuple(_percentile_alerts(config))),
        Group("stayfast-upstreams", tuple(_upstream_alerts(config))),
        Group("stayfast-overload", tuple(_overload_alerts(config))),
        Group("stayfast-jobs", tuple(_job_alerts(config))),
        Group("stayfast-gateway", tuple(_gateway_alerts(config))),
    ]


def _percentile_alerts(config: AlertsConfig) -> Iterator[Alert]:
    for metric in (metric for metric in METRICS if metric in DESCRIPTIONS):
        for quantile in ("p95", "p99"):
            limit_s: float | None = getattr(config, f"{metric}_{quantile}_s")
            if limit_s is None:
                continue
            yield Alert(
                f"Stayfast{metric.capitalize()}{quantile.upper()}High", "ticket",
                (Condition(percentile_name(metric, quantile), limit_s),
                 Condition(REQUESTS_5M, config.min_requests_5m * (TIMES_FOR_P99 if quantile == "p99" else 1))),
                f"Route {{{{ $labels.route }}}}: {quantile} of {DESCRIPTIONS[metric]} is over {limit_s:g} s",
                "{{ $value | humanizeDuration }} over the last 5 minutes. Compare upstreams on the dashboard. One slow: "
                "remove it from the route or list it later. All slow: prompts, load, or the gateway.",
                on=("route",))
    yield Alert(
        "StayfastSpikes", "ticket",
        (Condition("max by (route) (stayfast_spike_factor)", config.spike_factor),
         Condition(REQUESTS_5M, config.min_requests_5m * TIMES_FOR_P99)),
        "Route {{ $labels.route }}: p99 of the first token is {{ $value | humanize }} times p50",
        "A few requests are slow: usually the tail of one upstream, not load. See its heat map; add a second upstream or "
        "shorten first_token_s.", for_s=600, on=("route",))
    yield Alert(
        "StayfastDegraded", "ticket",
        (Condition(f"{rate_by('route', 'stayfast_degraded_total')} / {rate_by('route', 'stayfast_requests_total')}",
                   config.degraded_ratio), Condition(REQUESTS_5M, config.min_requests_5m)),
        "Route {{ $labels.route }}: {{ $value | humanizePercentage }} of its answers are degraded",
        "Its upstreams fail or are too slow, so fallbacks, templates or partial answers replace theirs. See "
        "stayfast_degraded_total by kind.", on=("route",))
    yield Alert(
        "StayfastRetriesAmplify", "ticket",
        (Condition(f"1 + {rate_by('route', 'stayfast_retries_total')} / "
                   f"{rate_by('route', 'stayfast_requests_total')}", config.retry_amplification),
         Condition(REQUESTS_5M, config.min_requests_5m)),
        "Route {{ $labels.route }}: {{ $value | humanize }} attempts for each request",
        "Retries add load to upstreams that may be overloaded. Lower retry.max_attempts until the failing upstream "
        "recovers.", on=("route",))


def _upstream_alerts(config: AlertsConfig) -> Iterator[Alert]:
    attempts = rate_by("upstream", "stayfast_attempts_total")

    def share(metric: str, matchers: str, limit: float) -> tuple[Condition, ...]:
        return (Condition(f"{rate_by('upstream', metric, matchers)} / {attempts}", limit),
                Condition(ATTEMPTS_5M, config.min_requests_5m))

    yield Alert(
        "StayfastUpstreamFailing", "ticket",
        share("stayfast_attempts_total", '{outcome="dropped"}', config.failed_attempts_ratio),
        "Upstream {{ $labels.upstream }}: {{ $value | humanizePercentage }} of its attempts fail",
        "See stayfast_attempts_total by fault. Remove it from its routes if others can carry the load.",
        on=("upstream",))
    yield Alert(
        "StayfastUpstreamRateLimited", "ticket",
        share("stayfast_attempts_total", '{status=~"429|529"}', config.rate_limited_ratio),
        "Upstream {{ $labels.upstream }} rejects {{ $value | humanizePercentage }} of attempts (429, 529)",
        "Its rate limit is used up: raise it with the provider, add a key or an upstream, or send less.", on=("upstream",))
    yield Alert(
        "StayfastStreamsTruncated", "ticket", share("stayfast_truncated_streams_total", "", config.truncated_ratio),
        "Upstream {{ $labels.upstream }}: {{ $value | humanizePercentage }} of its streams are truncated",
        "Answers are cut on the way, for example by a proxy's time-out or a crashing engine. Users see partial answers.",
        on=("upstream",))
    yield Alert(
        "StayfastStreamsStall", "ticket", share("stayfast_stalls_total", "", config.stalled_ratio),
        "Upstream {{ $labels.upstream }}: stalls in {{ $value | humanizePercentage }} of answers",
        "Answers pause midway. See the gaps by upstream; a shorter idle_s ends the worst of them.", on=("upstream",))
    yield Alert(
        "StayfastHandshakesSlow", "ticket", (Condition(_p95("upstream", "handshake"), config.handshake_p95_s),),
        "Upstream {{ $labels.upstream }}: p95 of new connections is {{ $value | humanizeDuration }}",
        "Check the network, TLS, DNS and its accept queue. For fewer new connections set upstreams.NAME.keepalive_s "
        "longer than the pauses between requests.")


def _overload_alerts(config: AlertsConfig) -> Iterator[Alert]:
    hits, lookups = (rate_by("route", "stayfast_cache_requests_total", f'{{result=~"{results}"}}', "30m")
                       for results in ("hit|semantic", "hit|semantic|coalesced|miss"))
    yield Alert(
        "StayfastCacheHitsLow", "ticket",
        (Condition(f"{hits} / {lookups}", config.cache_hit_ratio_min, "<"),
         Condition(REQUESTS_5M, config.min_requests_5m)),
        "Route {{ $labels.route }}: only {{ $value | humanizePercentage }} of lookups hit the cache",
        "Do prompts differ now (a date or id in the system prompt), or was the cache purged or its key changed?",
        for_s=1800, on=("route",))
    failed, lookups = (rate_by("store", "stayfast_cache_store_requests_total", f'{{op="get",result{results}}}')
                      for results in ('=~"timeout|unavailable|suspended|full"', '!="local_hit"'))
    yield Alert(
        "StayfastCacheStoreIll", "ticket", (Condition(f"{failed} / {lookups}", 0.5),),
        "Store {{ $labels.store }}: {{ $value | humanizePercentage }} of its lookups fail",
        "See the log's cache_store lines. Requests do not fail, but each makes its own call.",
        on=("store",))
    yield from _prompt_cache_alerts(config)
    yield Alert(
        "StayfastBreakerOpen", "ticket", (Condition("max by (upstream) (stayfast_breaker_state)", 1.0),),
        "Upstream {{ $labels.upstream }}: its breaker has been open for 5 minutes",
        "It failed too often and gets no requests. See its provider's status page and stayfast_attempts_total by fault.")
    yield Alert(
        "StayfastQueueDeep", "ticket", (Condition("sum by (upstream) (stayfast_queue_depth)", config.queue_depth),),
        "{{ $value | humanize }} requests are queued for upstream {{ $labels.upstream }}",
        "Load exceeds its capacity. Add replicas or upstreams, or admit less.",
        for_s=60)


def _prompt_cache_alerts(config: AlertsConfig) -> Iterator[Alert]:
    read, whole = (rate_by("route", "stayfast_prefix_cache_tokens_total", kind, "30m") for kind in ('{kind="read"}', ""))
    yield Alert(
        "StayfastPrefixCacheCold", "ticket",
        (Condition(f"{read} / {whole}", config.prefix_read_ratio_min, "<"), Condition(REQUESTS_5M, config.min_requests_5m)),
        "Route {{ $labels.route }}: only {{ $value | humanizePercentage }} of its input is read from its provider's cache",
        "Something at the beginning of the prompts changes. /debug/state names it if found; otherwise prompts are too "
        "short, too rare, or have their own cache breakpoints.", for_s=1800, on=("route",))
    yield Alert(
        "StayfastPrefixMoves", "ticket",
        (Condition("max by (route, upstream) (stayfast_prefix_moving_tokens)", 0),),
        "Route {{ $labels.route }}: {{ $value | humanize }} tokens of each prompt are not cached due to a changing block",
        "/debug/state and the log line prefix_cache name the block, the byte and the cost. Move it behind the constant "
        "part, or set routes.X.prefix.move_volatile.", for_s=600)


def _job_alerts(config: AlertsConfig) -> Iterator[Alert]:
    yield Alert(
        "StayfastJobsDeep", "ticket", (Condition('max by (route) (stayfast_jobs{state="queued"})', config.job_depth),),
        "{{ $value | humanize }} jobs of route {{ $labels.route }} are queued",
        "Fine for a nightly batch. Else its upstreams have no room: see stayfast_jobs_allowed and stayfast_job_run_seconds; "
        "add upstreams or `stayfast work`.", for_s=600)
    yield Alert(
        "StayfastJobsOverdue", "ticket", (Condition("max by (route) (stayfast_jobs_overdue_seconds)", 0),),
        "Route {{ $labels.route }}: a queued job is {{ $value | humanizeDuration }} past its deadline",
        "Jobs end as expired. Is any process running jobs of this route? Else there are too many for its upstreams.",
        for_s=60)
    dead = (or_zero('sum(increase(stayfast_jobs_ended_total{state="dead"}[15m]))'),
            or_zero('sum(increase(stayfast_jobs_swept_total{result="dead"}[15m]))'))
    yield Alert(
        "StayfastJobsDead", "ticket", (Condition(f"{dead[0]} + {dead[1]}", 0),),
        "{{ $value | humanize }} jobs died in 15 minutes",
        "Their attempts are used up, or workers died with them. `stayfast jobs dead` lists them with their reasons; "
        "`stayfast jobs retry ID` runs one again.", for_s=0)
    failed, calls = (f"sum(rate(stayfast_job_store_calls_total{which}[5m]))" for which in ('{result!="ok"}', ""))
    failed = or_zero(failed)
    yield Alert(
        "StayfastJobStoreFails", "ticket", (Condition(f"{failed} / {calls}", 0.05),),
        "{{ $value | humanizePercentage }} of the calls to the store of jobs fail",
        "New jobs get 503; results wait in memory. full: free some disk space. unavailable: see the log's jobs_unavailable "
        "lines, and PostgreSQL if jobs.store is set.")


def _gateway_alerts(config: AlertsConfig) -> Iterator[Alert]:
    job = f"{{job={quote(config.job)}}}"
    yield Alert(
        "StayfastDown", "page", (Condition(f"(count(up{job} == 1) or vector(0))", 1, "<"),),
        "No gateway instance answers its scrape",
        "All instances are down, or Prometheus cannot reach them. Check the job's name, then the process: exit status and "
        "standard error.", for_s=120)
    yield Alert(
        "StayfastInstanceDown", "ticket", (Condition(f"up{job}", 1, "<"),),
        "{{ $labels.instance }} does not answer its scrape",
        "Check its process, port and key for /metrics. The other instances carry its load.")
    yield Alert(
        "StayfastWorkersMissing", "ticket", (Condition('stayfast_workers{state="silent"}', 0),),
        "{{ $labels.instance }}: {{ $value }} of its workers do not answer",
        "A worker is starting, stuck or crashing; see its parent's standard error. Until it answers, its last counts are "
        "used.")
    yield Alert(
        "StayfastLoopLag", "ticket", (Condition(_p95("instance", "loop_lag"), config.loop_lag_s),),
        "{{ $labels.instance }}: its event loop runs {{ $value | humanizeDuration }} late (p95)",
        "The gateway itself is slow: add --workers or instances, or give it a free core.")
    yield Alert(
        "StayfastQueueWait", "ticket", (Condition(_p95("instance", "queue_wait"), config.queue_wait_p95_s),),
        "{{ $labels.instance }}: requests wait {{ $value | humanizeDuration }} (p95) before processing starts",
        "Requests arrive faster than they are processed: add --workers or instances.")


def _p95(by: str, metric: str) -> str:
    return f"histogram_quantile(0.95, {rate_by(f'{by}, le', f'stayfast_{metric}_seconds_bucket')})"
