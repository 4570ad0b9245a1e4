"""The plain alerts: percentiles over a line, and what usually is behind them. None of them should wake anybody up, but
`StayfastDown`: what users feel is told by the budgets (`budget.py`), these say where to look.
"""

from collections.abc import Iterator

from stayfast.observe.alerts.rule import (
    ATTEMPTS_5M,
    METRICS,
    REQUESTS_5M,
    Alert,
    AlertsConfig,
    Condition,
    Group,
    percentile,
    quoted,
    rate_by,
)

WHO = {"ttft": "the first token", "usable": "a usable answer", "e2e": "the whole answer"}
TIMES_FOR_P99 = 5  # what is one in twenty for a p95 is one in a hundred for a p99: of fewer, it is their maximum


def causes(config: AlertsConfig) -> list[Group]:
    return [
        Group("stayfast-percentiles", tuple(_percentiles(config))),
        Group("stayfast-upstreams", tuple(_upstreams(config))),
        Group("stayfast-overload", tuple(_overload(config))),
        Group("stayfast-gateway", tuple(_gateway(config))),
    ]


def _percentiles(config: AlertsConfig) -> Iterator[Alert]:
    for metric in (metric for metric in METRICS if metric in WHO):
        for quantile in ("p95", "p99"):
            limit_s: float | None = getattr(config, f"{metric}_{quantile}_s")
            if limit_s is None:
                continue
            yield Alert(
                f"Stayfast{metric.capitalize()}{quantile.upper()}High", "ticket",
                (Condition(percentile(metric, quantile), limit_s),
                 Condition(REQUESTS_5M, config.min_requests_5m * (TIMES_FOR_P99 if quantile == "p99" else 1))),
                f"Route {{{{ $labels.route }}}}: {quantile} of {WHO[metric]} is over {limit_s:g} s",
                "{{ $value | humanizeDuration }} over the last 5 minutes. Compare upstreams on the board: one slow, "
                "or all? One: take it out of the route or put it behind another. All: prompts, load, or the gateway itself.",
                on=("route",))
    yield Alert(
        "StayfastSpikes", "ticket",
        (Condition("max by (route) (stayfast_spike_factor)", config.spike_factor),
         Condition(REQUESTS_5M, config.min_requests_5m * TIMES_FOR_P99)),
        "Route {{ $labels.route }}: p99 of the first token is {{ $value | humanize }} times p50",
        "Most requests are quick and a few are not: the tail of one upstream, not load. Look at its heat map, and give the "
        "route a second upstream or a shorter first_token_s.", for_s=600, on=("route",))
    yield Alert(
        "StayfastDegraded", "ticket",
        (Condition(f"{rate_by('route', 'stayfast_degraded_total')} / {rate_by('route', 'stayfast_requests_total')}",
                   config.degraded_ratio), Condition(REQUESTS_5M, config.min_requests_5m)),
        "Route {{ $labels.route }}: {{ $value | humanizePercentage }} of its answers are makeshifts",
        "Its own upstreams fail or are too slow, and fallbacks, templates or parts of answers stand in. Which: "
        "stayfast_degraded_total by kind.", on=("route",))
    yield Alert(
        "StayfastRetriesAmplify", "ticket",
        (Condition(f"1 + {rate_by('route', 'stayfast_retries_total')} / "
                   f"{rate_by('route', 'stayfast_requests_total')}", config.retry_amplification),
         Condition(REQUESTS_5M, config.min_requests_5m)),
        "Route {{ $labels.route }}: {{ $value | humanize }} attempts for each request",
        "Retries add load to upstreams that may already have too much. Lower retry.max_attempts until the failing "
        "upstream is well again.", on=("route",))


def _upstreams(config: AlertsConfig) -> Iterator[Alert]:
    attempts = rate_by("upstream", "stayfast_attempts_total")

    def share(metric: str, matchers: str, limit: float) -> tuple[Condition, ...]:
        return (Condition(f"{rate_by('upstream', metric, matchers)} / {attempts}", limit),
                Condition(ATTEMPTS_5M, config.min_requests_5m))

    yield Alert(
        "StayfastUpstreamFailing", "ticket",
        share("stayfast_attempts_total", '{outcome="dropped"}', config.failed_attempts_ratio),
        "Upstream {{ $labels.upstream }}: {{ $value | humanizePercentage }} of its attempts fail",
        "stayfast_attempts_total by fault says how. Take it out of its routes if another one can carry the load.",
        on=("upstream",))
    yield Alert(
        "StayfastUpstreamRateLimited", "ticket",
        share("stayfast_attempts_total", '{status=~"429|529"}', config.rate_limited_ratio),
        "Upstream {{ $labels.upstream }} turns {{ $value | humanizePercentage }} of our requests away (429, 529)",
        "Its limit is used up: raise it with the provider, add a key or an upstream, or send less.", on=("upstream",))
    yield Alert(
        "StayfastStreamsTruncated", "ticket", share("stayfast_truncated_streams_total", "", config.truncated_ratio),
        "Upstream {{ $labels.upstream }}: {{ $value | humanizePercentage }} of its streams end without their end",
        "Something between here and there cuts answers: a proxy's time-out, a crashing engine. Users see half answers.",
        on=("upstream",))
    yield Alert(
        "StayfastStreamsStall", "ticket", share("stayfast_stalls_total", "", config.stalled_ratio),
        "Upstream {{ $labels.upstream }}: {{ $value | humanizePercentage }} stalls for each answer",
        "Answers halt midway. Look at the gaps by upstream; a shorter idle_s ends the worst of them.", on=("upstream",))
    yield Alert(
        "StayfastHandshakesSlow", "ticket", (Condition(_p95("upstream", "handshake"), config.handshake_p95_s),),
        "Upstream {{ $labels.upstream }}: p95 of new connections takes {{ $value | humanizeDuration }}",
        "The network, TLS or DNS on the way, or a full accept queue there. Fewer new connections help: is "
        "upstreams.NAME.keepalive_s longer than the pauses between requests?")


def _overload(config: AlertsConfig) -> Iterator[Alert]:
    hits, lookups = (rate_by("route", "stayfast_cache_requests_total", f'{{result=~"{results}"}}', "30m")
                       for results in ("hit|semantic", "hit|semantic|coalesced|miss"))
    yield Alert(
        "StayfastCacheHitsLow", "ticket",
        (Condition(f"{hits} / {lookups}", config.cache_hit_ratio_min, "<"),
         Condition(REQUESTS_5M, config.min_requests_5m)),
        "Route {{ $labels.route }}: only {{ $value | humanizePercentage }} of look-ups hit the cache",
        "Did prompts begin to differ (a date, an id in the system prompt), or was the cache emptied or its key changed?",
        for_s=1800, on=("route",))
    ill, lookups = (rate_by("store", "stayfast_cache_store_requests_total", f'{{op="get",result{results}}}')
                      for results in ('=~"timeout|unavailable|suspended|full"', '!="local_hit"'))
    yield Alert(
        "StayfastCacheStoreIll", "ticket", (Condition(f"{ill} / {lookups}", 0.5),),
        "Store {{ $labels.store }}: {{ $value | humanizePercentage }} of its look-ups get no answer",
        "The log's cache_store lines say why. Requests do not fail by it: each makes its own call, and pays for it.",
        on=("store",))
    yield from _prefix_caches(config)
    yield Alert(
        "StayfastBreakerOpen", "ticket", (Condition("max by (upstream) (stayfast_breaker_state)", 1.0),),
        "Upstream {{ $labels.upstream }}: its breaker has been open for 5 minutes",
        "It failed so often that it gets no requests. Its provider's status page, then stayfast_attempts_total by fault.")
    yield Alert(
        "StayfastQueueDeep", "ticket", (Condition("sum by (upstream) (stayfast_queue_depth)", config.queue_depth),),
        "{{ $value | humanize }} requests wait for upstream {{ $labels.upstream }}",
        "More comes in than it can answer. Add replicas or upstreams, or let less in: waiting requests only become late.",
        for_s=60)


def _prefix_caches(config: AlertsConfig) -> Iterator[Alert]:
    read, whole = (rate_by("route", "stayfast_prefix_cache_tokens_total", kind, "30m") for kind in ('{kind="read"}', ""))
    yield Alert(
        "StayfastPrefixCacheCold", "ticket",
        (Condition(f"{read} / {whole}", config.prefix_read_ratio_min, "<"), Condition(REQUESTS_5M, config.min_requests_5m)),
        "Route {{ $labels.route }}: only {{ $value | humanizePercentage }} of its input is read from its provider's cache",
        "What do prompts begin with that is not the same each time? /debug/state names it where it was found; else they are "
        "too short, too rare, or have marks of their own.", for_s=1800, on=("route",))
    yield Alert(
        "StayfastPrefixMoves", "ticket",
        (Condition("max by (route, upstream) (stayfast_prefix_moving_tokens)", 0),),
        "Route {{ $labels.route }}: {{ $value | humanize }} tokens of each prompt are computed anew for a block that moves",
        "/debug/state and the log line prefix_cache say which block, at which byte, and what it costs. Put what changes "
        "behind what does not, or set routes.X.prefix.move_volatile.", for_s=600)


def _gateway(config: AlertsConfig) -> Iterator[Alert]:
    job = f"{{job={quoted(config.job)}}}"
    yield Alert(
        "StayfastDown", "page", (Condition(f"(count(up{job} == 1) or vector(0))", 1, "<"),),
        "No gateway answers its scrape",
        "Every instance is down, or Prometheus cannot reach them: is there a job of this name? Then the process: its exit "
        "status and standard error.", for_s=120)
    yield Alert(
        "StayfastInstanceDown", "ticket", (Condition(f"up{job}", 1, "<"),),
        "{{ $labels.instance }} does not answer its scrape",
        "Its process, its port, its key for /metrics. The other instances carry its load.")
    yield Alert(
        "StayfastWorkersMissing", "ticket", (Condition('stayfast_workers{state="silent"}', 0),),
        "{{ $labels.instance }}: {{ $value }} of its workers do not answer",
        "A worker is starting, stuck or crashing over and over: standard error of its parent says which. Until it "
        "answers again, what it last said stands for it in all figures.")
    yield Alert(
        "StayfastLoopLag", "ticket", (Condition(_p95("instance", "loop_lag"), config.loop_lag_s),),
        "{{ $labels.instance }}: its event loop runs {{ $value | humanizeDuration }} late (p95)",
        "The gateway itself is what is slow: more --workers or instances, a core of its own, less on the same machine.")
    yield Alert(
        "StayfastQueueWait", "ticket", (Condition(_p95("instance", "queue_wait"), config.queue_wait_p95_s),),
        "{{ $labels.instance }}: requests wait {{ $value | humanizeDuration }} (p95) before anybody looks at them",
        "Connections are accepted faster than they are served: more --workers or instances.")


def _p95(by: str, metric: str) -> str:
    return f"histogram_quantile(0.95, {rate_by(f'{by}, le', f'stayfast_{metric}_seconds_bucket')})"
