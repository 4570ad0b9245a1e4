"""From the parts of all workers to one snapshot."""

from collections.abc import Iterable, Mapping
from typing import Any

from stayfast.core.snapshot import CacheRow, JobRow, UpstreamRow
from stayfast.core.types import FROM_CACHE
from stayfast.observe.snapshot.parts import SeriesKey, TrafficPart, merge_parts, spread_of
from stayfast.observe.snapshot.rows import Sums, is_empty
from stayfast.observe.snapshot.windows import TrafficWindows
from stayfast.observe.snapshot.worker_part import UpstreamGauges

_FIVE, _HOUR = 1, 2  # indices in `Sums`
_HITS = ("hit", "stale", "semantic", "coalesced")


def sums_with_open(windows: TrafficWindows, open_parts: Mapping[SeriesKey, TrafficPart]) -> dict[SeriesKey, Sums]:
    """The windows of all series, the open slot included. Shares what has no open slot."""
    sums: dict[SeriesKey, Sums] = {key: series.sums for key, series in windows.series.items()}
    for key, part in open_parts.items():
        if not is_empty(part):
            before = sums.get(key, (TrafficPart(), TrafficPart(), TrafficPart()))
            sums[key] = tuple(merge_parts((whole, part)) for whole in before)
    return sums


def upstream_rows(states: Iterable[UpstreamGauges], sums: Mapping[SeriesKey, Sums],
                  kinds: Mapping[str, tuple[str, tuple[str, ...]]]) -> tuple[UpstreamRow, ...]:
    """The upstreams of the settings. kinds: kind and models of each."""
    by_upstream: dict[str, list[TrafficPart]] = {}
    for (_, upstream), parts in sums.items():
        by_upstream.setdefault(upstream, []).append(parts[_FIVE])
    rows = []
    for state in states:
        part = merge_parts(by_upstream.get(state.name, ()))
        kind, models = kinds.get(state.name, ("", ()))
        rows.append(UpstreamRow(
            state.name, kind, models, state.is_proven, state.in_flight, state.waiting, state.limit, state.limit_why,
            state.breaker, state.breaker_why or state.suspended_why, state.n_breaker_changes_1h, state.suspended_s,
            ttft_s=spread_of(part.attempt_s), n_attempts=part.n_attempts, n_failed=sum(part.faults.values()),
            phase=state.phase, phase_why=state.phase_why, cold_start_s=state.cold_start_s,
            n_prefix_answers=state.prefix.n_answers,
            prefix_hit_ratio=_ratio(state.prefix.n_cached, state.prefix.n_input),
            prefix_belief_ratio=_ratio(state.prefix.n_believed, state.prefix.n_input)))
    return tuple(rows)


def _ratio(n: float | None, whole: float) -> float | None:
    return n / whole if n is not None and whole else None


def cache_rows(caches: Iterable[Mapping[str, Any]], sums: Mapping[SeriesKey, Sums], modes: Mapping[str, str]
               ) -> tuple[CacheRow, ...]:
    """The caches of all routes. caches: entries of `GET /admin/cache`, whose sizes and states are of all workers.

    saved_s: hits times the difference of the medians without and with hits, an estimate.
    """
    rows = []
    for cache in caches:
        route = str(cache["route"])
        series = [(upstream, parts[_HOUR]) for (name, upstream), parts in sums.items() if name == route]
        counts: dict[str, int] = {}
        for _, part in series:
            for result, n in part.cache.items():
                counts[result] = counts.get(result, 0) + n
        n_hits = sum(counts.get(result, 0) for result in _HITS)
        usual_s = spread_of(merge_parts(part for upstream, part in series if upstream != FROM_CACHE).ttft_s).p50
        hit_s = spread_of(merge_parts(part for upstream, part in series if upstream == FROM_CACHE).ttft_s).p50
        store, semantic, error = cache.get("store") or {}, cache.get("semantic") or {}, cache.get("error") or {}
        rows.append(CacheRow(
            route, modes.get(route, ""), sum(n for result, n in counts.items() if result != "bypass"),
            counts.get("hit", 0) + counts.get("stale", 0), counts.get("semantic", 0), counts.get("coalesced", 0),
            counts.get("bypass", 0), store.get("n_entries"), store.get("n_bytes"), store.get("n_evicted"),
            sum(part.saved_usd for _, part in series),
            max(0.0, usual_s - hit_s) * n_hits if usual_s is not None and hit_s is not None else 0.0,
            str(semantic.get("state", "")), error.get("high")))
    return tuple(rows)


def job_rows(gauges: Mapping[str, Iterable[tuple[tuple[str, ...], float]]]) -> tuple[JobRow, ...]:
    """The queues by route, from the gauges of metrics."""
    states = {labels: int(n) for labels, n in gauges.get("stayfast_jobs", ())}
    oldest = dict(gauges.get("stayfast_jobs_oldest_age_seconds", ()))
    overdue = dict(gauges.get("stayfast_jobs_overdue_seconds", ()))
    return tuple(JobRow(route, states.get((route, "queued"), 0), states.get((route, "running"), 0),
                        states.get((route, "deferred"), 0), oldest.get((route,), 0.0), max(0.0, overdue.get((route,), 0.0)))
                 for route in sorted({route for route, _ in states}))
