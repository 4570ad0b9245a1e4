"""Common names of serving metrics, for dashboards that know them. The figures are the gateway's and the engines' own.

    name                                  from
    llm_request_duration_seconds          stayfast_e2e_seconds
    cache_hits_total                      stayfast_cache_requests_total, results hit, semantic, stale and coalesced
    cache_misses_total                    the same, result miss
    batch_completion_time_avg             stayfast_batch_seconds: sum / count
    batch_size                            requests that run in a self-hosted engine
    kv_cache_hit_rate                     its prefix cache: hits / queries
    speculative_draft_acceptance_rate     accepted / proposed draft tokens
    spec_decode_draft_acceptance_length   accepted tokens of a draft

A series is absent where its figure is unknown; it is never 0 instead.
"""

from collections.abc import Iterator, Mapping

from stayfast.observe.metrics import definitions as known
from stayfast.observe.metrics.counters import Labels, Totals, format_family
from stayfast.observe.metrics.definitions import Family

_HITS = ("hit", "semantic", "stale", "coalesced")
DURATION = Family("llm_request_duration_seconds", "histogram", "Accept to last byte.", known.E2E.labels, known.E2E.bounds_s)
HITS = Family("cache_hits_total", "counter", "Requests answered from the cache.", ("route",))
MISSES = Family("cache_misses_total", "counter", "Requests that the cache had no answer for.", ("route",))
BATCH_TIME = Family("batch_completion_time_avg", "gauge", "Mean time of whole batches, seconds.", ("route",))
ENGINE_ALIASES = {
    "running": Family("batch_size", "gauge", "Requests that run in the engine now.", ("upstream",)),
    "kv_hit_ratio": Family("kv_cache_hit_rate", "gauge", "Share of prompt tokens found in its prefix cache.", ("upstream",)),
    "spec_accepted_ratio": Family("speculative_draft_acceptance_rate", "gauge", "Accepted share of proposed draft tokens.",
                                  ("upstream",)),
    "spec_accepted_length": Family("spec_decode_draft_acceptance_length", "gauge", "Accepted tokens of a draft, mean.",
                                   ("upstream",)),
}
ALIASES = (DURATION, HITS, MISSES, BATCH_TIME, *ENGINE_ALIASES.values())


def alias_lines(totals: Totals, engines: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Prometheus text. engines: figures of `core.snapshot.ENGINE_FIGURES` by upstream."""
    yield from format_family(DURATION, totals.histograms[known.E2E.name], {})
    requests = totals.counters[known.CACHE.name]
    yield from format_family(HITS, {}, _sum_by_route(requests, _HITS))
    yield from format_family(MISSES, {}, _sum_by_route(requests, ("miss",)))
    batches = totals.histograms[known.BATCH_SECONDS.name]
    yield from format_family(BATCH_TIME, {}, {labels: one.sum_s / sum(one.counts) for labels, one in batches.items()
                                              if any(one.counts)})
    for figure, family in ENGINE_ALIASES.items():
        rows: dict[Labels, float] = {(name,): figures[figure] for name, figures in engines.items() if figure in figures}
        if rows:
            yield from format_family(family, {}, rows)


def _sum_by_route(rows: Mapping[Labels, float], results: tuple[str, ...]) -> dict[Labels, float]:
    """Routes with a cache; 0 if it has answered, but never with one of these results."""
    summed: dict[Labels, float] = {}
    for (route, result), n in rows.items():
        summed[(route,)] = summed.get((route,), 0.0) + (n if result in results else 0.0)
    return summed
