"""Provider and engine prompt caches that serve less than they could.

Problem: a prefix that is computed anew costs most of the time to the first token, and nothing fails. Rule: compare what
prompts have in common with what is read from the cache.

    rarely read   prompts share most of their beginning, and less than 60 % of the input is read from the cache
    differs       prompts have long instructions and share almost nothing: something near the beginning changes
    dropped       the share of the last 5 minutes is less than half of the hour's, at the same upstream

Source: 60 % is the limit at which "LLM Latency Optimization: How We Cut P99 from 12s to 1.8s" alerts; 60 to 80 % less time
to the first token for a hit is that of "LLM Latency in Production: What Actually Moves the Needle". When wrong: many
applications behind one route share no beginning with each other, although each has a stable one of its own; so a route
whose input is read from the cache is never reported.
"""

from collections.abc import Iterable

from stayfast.core.findings import Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot
from stayfast.core.units import format_seconds, format_share
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.patches import change_settings
from stayfast.policy.findings.rows import HOUR_S, NOW_S, observe, route_row, share_of, upstreams_of

MIN_REQUESTS = 100
MIN_NOW = 50
MIN_PROMPTS = 50
COLD = 0.6  # of the input: the alert's limit
SHARED = 0.6  # of the prompt equal to the request before; what is shared may be read from a cache
CACHED_TOKENS = 1024.0  # shortest prefix that providers cache (OpenAI, most of Anthropic's models)
HIT_SAVES = 0.6  # of the time to the first token, the lower end of 60 to 80 %
UNSHARED = 0.1  # prompts of ten applications at random still share a tenth on average
NEVER_READ = 0.2
LONG_SYSTEM_TOKENS = 1000.0  # with such instructions most of a short prompt should be shared
DROP = 0.5  # half of the hour's share: beyond the change of a usual mix
WORTH_DROP = 0.3  # of the input in the hour; from less there is little to lose
SOURCE = 'stayfast_prefix_cache_tokens_total{kind="read"}'


def find_rarely_read(snapshot: Snapshot) -> Iterable[Finding]:
    """Prompts that share their beginning, on routes whose input is hardly read from the cache."""
    for row in snapshot.prompts:
        shared, usual = row.shared_prefix_ratio, row.input_tokens.p50 or 0.0
        traffic = route_row(snapshot, row.route, HOUR_S)
        if row.n < MIN_PROMPTS or shared is None or shared < SHARED or traffic.n < MIN_REQUESTS:
            continue
        cached = share_of(traffic.n_cached_tokens, traffic.n_input_tokens)
        if shared * usual < CACHED_TOKENS or cached >= COLD or cached >= shared * COLD:
            continue
        p50_s = traffic.ttft_s.p50
        saves_s = HIT_SAVES * (shared - cached) * p50_s if p50_s else None
        brings = f" About {format_seconds(saves_s)} less at the p50 of the first token." if saves_s else ""
        is_auto = snapshot.setting("routes", row.route, "prefix", "mode") == "auto"
        change = (change_settings("Requests with the same beginning go to the upstream that has it in its cache." + brings,
                                  {"routes": {row.route: {"affinity": {"mode": "prefix"}}}}) if is_auto else
                  change_settings("Static parts come first and their end is marked for the provider's cache." + brings,
                                  {"routes": {row.route: {"prefix": {"mode": "auto"}}}}))
        yield Finding(
            "prompt.cache_rarely_read", "warn", FindingSite(route=row.route),
            f"{format_share(shared)} of a prompt equals the one before, but only {format_share(cached)} of the input is "
            "read from the provider's cache.",
            "The prefix is not marked, expires between requests, or requests go to upstreams that do not have it.",
            evidence=(observe("shared_prefix_ratio", shared, "ratio", HOUR_S),
                      observe("cached input", cached, "ratio", HOUR_S,
                                                                                       SOURCE),
                      observe("input_tokens p50", usual, "tokens", HOUR_S), observe("requests", traffic.n, "", HOUR_S)),
            do=(change,), verify=f"{SOURCE} of route {row.route} rises over 60 % of all kinds; `stayfast prove prefix`")


def find_differing_prefix(snapshot: Snapshot) -> Iterable[Finding]:
    """Long instructions of which nothing is shared between requests."""
    for row in snapshot.prompts:
        shared, system = row.shared_prefix_ratio, row.system_tokens.p50 or 0.0
        traffic = route_row(snapshot, row.route, HOUR_S)
        cached = share_of(traffic.n_cached_tokens, traffic.n_input_tokens)
        if row.n < MIN_PROMPTS or shared is None or shared > UNSHARED or system < LONG_SYSTEM_TOKENS or cached > NEVER_READ:
            continue
        if traffic.n < MIN_REQUESTS or share_of(system, row.input_tokens.p50 or 0.0) < SHARED:
            continue
        yield Finding(
            "prompt.prefix_differs", "warn", FindingSite(route=row.route),
            f"Instructions have {system:.0f} tokens (p50), but only {format_share(shared)} of a prompt equals the one "
            "before.",
            "Something near the beginning changes with each request: a date, a user, an id, or the order of tools.",
            evidence=(observe("shared_prefix_ratio", shared, "ratio", HOUR_S), observe("system_tokens p50", system, "tokens",
                                                                                       HOUR_S),
                      observe("cached input", cached, "ratio", HOUR_S, SOURCE)),
            do=(change_settings("Blocks with a date, UUID or timestamp move behind the constant ones, which are then "
                                "cached.",
                                {"routes": {row.route: {"prefix": {"mode": "auto", "move_volatile": True}}}}),
                SettingsChange("In the application: constant instructions first, what changes last.")),
            verify=f"/debug/state names the block that changes; {SOURCE} of route {row.route} rises")


def find_dropped_share(snapshot: Snapshot) -> Iterable[Finding]:
    """A cache that served much of the hour's input, and little of the last minutes', by upstream."""
    before = {(row.route, row.upstream): row for row in snapshot.rows_by_upstream(HOUR_S)}
    for row in snapshot.rows_by_upstream(NOW_S):
        hour = before.get((row.route, row.upstream))
        if hour is None or row.n < MIN_NOW or hour.n < 2 * row.n:
            continue
        usual = share_of(hour.n_cached_tokens - row.n_cached_tokens, hour.n_input_tokens - row.n_input_tokens)
        now = share_of(row.n_cached_tokens, row.n_input_tokens)
        if usual < WORTH_DROP or now >= DROP * usual:
            continue
        yield Finding(
            "prompt.cache_dropped", "warn", FindingSite(route=row.route, upstream=row.upstream),
            f"{format_share(now)} of the input is read from the cache of {row.upstream}; before it was "
            f"{format_share(usual)}.",
            "The beginning of the prompts changed (a new release, a date), or the provider dropped its cache.",
            evidence=(observe("cached input now", now, "ratio", NOW_S, SOURCE),
                      observe("cached input before", usual, "ratio", HOUR_S, SOURCE), observe("requests", row.n, "", NOW_S)),
            do=(change_settings("Blocks with a date, UUID or timestamp move behind the constant ones.",
                                {"routes": {row.route: {"prefix": {"mode": "auto", "move_volatile": True}}}}),),
            verify=f"{SOURCE} of route {row.route} returns to {format_share(usual)}; /debug/state names the block")


def find_cold_engine_cache(snapshot: Snapshot) -> Iterable[Finding]:
    """Self-hosted engines whose prefix cache serves less than 60 %, although prompts share their beginning."""
    for row in snapshot.prompts:
        shared = row.shared_prefix_ratio
        if row.n < MIN_PROMPTS or shared is None or shared < SHARED:
            continue
        engines = upstreams_of(snapshot, row.route)
        for upstream in engines:
            hit = upstream.engine.get("kv_hit_ratio")
            if hit is None or hit >= COLD or hit >= shared * COLD or upstream.n_attempts < MIN_NOW:
                continue
            change = (change_settings("Requests with the same beginning go to the same engine, which then has it in memory.",
                                      {"routes": {row.route: {"affinity": {"mode": "prefix"}}}}) if len(engines) > 1 else
                      SettingsChange("At the engine: enable its prefix cache, or give it more memory for the KV cache."))
            yield Finding(
                "engine.kv_hit_low", "warn", FindingSite(route=row.route, upstream=upstream.name),
                f"{format_share(hit)} of the tokens looked up in the prefix cache of {upstream.name} are found, while "
                f"{format_share(shared)} of a prompt equals the one before.",
                "The prefix cache is off, too small, or its prompts are spread over several engines.",
                evidence=(observe("kv_hit_ratio", hit, "ratio", NOW_S),
                          observe("shared_prefix_ratio", shared, "ratio", HOUR_S)),
                do=(change,), verify=f"/admin/snapshot upstreams: kv_hit_ratio of {upstream.name} rises over 60 %")


CHECKS = (
    Check("prompt.cache_rarely_read", "prompts share their beginning, and the provider's cache is hardly read",
          find_rarely_read, ("prompt.long_system", "prompt.tools_dominate", "prompt.history_growth", "waits.prefill_bound")),
    Check("prompt.prefix_differs", "long instructions begin differently in each request", find_differing_prefix,
          ("prompt.long_system", "prompt.cache_rarely_read")),
    Check("prompt.cache_dropped", "the provider's cache serves much less than in the hour before", find_dropped_share,
          ("prompt.cache_rarely_read", "prompt.long_system", "latency.all_slow")),
    Check("engine.kv_hit_low", "the prefix cache of an engine finds little of prompts that share their beginning",
          find_cold_engine_cache),
)
