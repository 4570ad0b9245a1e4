"""Frames: what the page and `stayfast top` get every second, as JSON of at most MAX_FRAME_BYTES.

The busiest MAX_ROWS routes and upstreams have rows, the others are summed as `(other)`. If names and reasons are long, there
are fewer rows, until the frame is small enough. Figures are rounded to 3 significant digits.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import msgspec

from stayfast.core.snapshot import HEAT_BOUNDS_S, LiveEngine, LiveFrame, LiveRoute, LiveUpstream, Spread
from stayfast.observe.snapshot.parts import OTHER, Counts, SeriesKey, TrafficPart, add_counts, merge_shown, spread_of
from stayfast.observe.snapshot.worker_part import PrefixGauges, UpstreamGauges
from stayfast.policy.histogram import middle_of

MAX_FRAME_BYTES = 20_000
MAX_ROWS = 24
MAX_FINDINGS = 10
_MAX_TEXT_CHARS = 160  # of a reason or a finding
_HIT_RESULTS = ("hit", "stale", "semantic", "coalesced")
_HEAT_ROW = tuple(bisect_left(HEAT_BOUNDS_S, middle_of(bucket)) for bucket in range(1600))  # by bucket: up to 2e6 s


class Span(msgspec.Struct):
    """The traffic that one frame shows. parts: of `seconds`; heat and n: of the last `tick_s` of them."""

    seconds: float
    parts: Mapping[SeriesKey, TrafficPart]
    heat: Mapping[SeriesKey, Counts]
    n: Mapping[SeriesKey, int]
    tick_s: float = 1.0


Promises = Callable[[str], tuple[float, float] | None]  # by route: seconds to the first token, and the promised share


def live_routes(span: Span, promises: Promises) -> list[LiveRoute]:
    """All routes, the busiest first."""
    by_route: dict[str, list[SeriesKey]] = {}
    for key in (*span.parts, *(key for key in span.n if key not in span.parts)):
        by_route.setdefault(key[0], []).append(key)
    rows = []
    for route, keys in by_route.items():
        part = merge_shown([span.parts[key] for key in keys if key in span.parts])
        n = sum(span.n.get(key, 0) for key in keys)
        if part.n or n:
            heat = _add_up(span.heat.get(key, {}) for key in keys)
            rows.append(_make_route(route, part, span.seconds, n=n, heat=heat, promise=promises(route)))
    return sorted(rows, key=lambda row: (-row.rps, row.route))


def live_upstreams(span: Span, states: Iterable[UpstreamGauges], quota_left: Mapping[str, float],
                   bounds: Mapping[str, str], engines: Mapping[str, Mapping[str, float]]) -> list[LiveUpstream]:
    """All upstreams of the settings, the busiest first. bounds: what engines are bound by. engines: their figures, by the
    names of `core.snapshot.ENGINE_FIGURES`.
    """
    by_upstream: dict[str, list[SeriesKey]] = {}
    for key in {**span.parts, **span.n}:
        by_upstream.setdefault(key[1], []).append(key)
    rows = []
    for state in states:
        keys = by_upstream.get(state.name, [])
        part = merge_shown([span.parts[key] for key in keys if key in span.parts])
        n_faults = sum(part.faults.values())
        rows.append(LiveUpstream(
            state.name, rps=part.n_attempts / span.seconds, in_flight=state.in_flight, waiting=state.waiting,
            limit=state.limit, limit_why=shorten(state.limit_why), breaker=state.breaker,
            why=shorten(state.suspended_why or (state.breaker_why if state.breaker != "closed" else "")
                        or (state.phase_why if state.phase != "ready" else "")),
            bound_by=bounds.get(state.name, ""), suspended_s=state.suspended_s, phase=state.phase,
            failed_ratio=_share(n_faults, part.n_attempts),
            ttft_s=spread_of(part.attempt_s), quota_left=quota_left.get(state.name),
            stalls_per_min=part.n_stalls * 60 / span.seconds,
            heat=_heat_rows(_add_up(span.heat.get(key, {}) for key in keys)),
            engine=_make_engine(engines[state.name], state.prefix) if state.name in engines else None))
    return sorted(rows, key=lambda row: (-row.rps, -row.in_flight, row.name))


def _make_engine(figures: Mapping[str, float], prefix: PrefixGauges) -> LiveEngine:
    by_usage = prefix.n_cached / prefix.n_input if prefix.n_cached is not None and prefix.n_input else None
    return LiveEngine(figures.get("running"), figures.get("max_running"), figures.get("kv_hit_ratio", by_usage),
                      figures.get("kv_used_ratio"), figures.get("decode_tokens_per_s"), figures.get("prefill_tokens_per_s"),
                      figures.get("age_s", 0.0))


def encode_frame_json(frame: LiveFrame) -> bytes:
    """The frame with as many rows as fit into MAX_FRAME_BYTES."""
    n_rows, routes, upstreams = MAX_ROWS, frame.routes, frame.upstreams
    frame = msgspec.structs.replace(frame, findings=frame.findings[:MAX_FINDINGS])
    while True:
        fitted = msgspec.structs.replace(frame, routes=_fold_routes(routes, n_rows),
                                         upstreams=_fold_upstreams(upstreams, n_rows))
        data = msgspec.json.encode(_without_zeros(round_figures(msgspec.to_builtins(fitted))))
        if len(data) <= MAX_FRAME_BYTES or not n_rows:
            return data
        n_rows = min(n_rows - 1, n_rows * MAX_FRAME_BYTES // len(data))


def round_figures(value: Any) -> Any:
    """The same tree with floats of 3 significant digits; those of instants (above 1e8) have 3 decimals."""
    if isinstance(value, float):
        return round(value, 3) if abs(value) > 1e8 else float(f"{value:.3g}")
    if isinstance(value, dict):
        return {name: round_figures(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [round_figures(one) for one in value]
    return value


_ZERO = frozenset(field.name for kind in (LiveRoute, LiveUpstream) for field in msgspec.structs.fields(kind)
                  if field.default == 0.0)


def _without_zeros(frame: dict[str, Any]) -> dict[str, Any]:
    """The same without figures of rows that are 0, their default: half of the bytes of a quiet frame."""
    for name in ("routes", "upstreams"):
        if name in frame:
            frame[name] = [{key: value for key, value in row.items() if value or key not in _ZERO} for row in frame[name]]
    return frame


def _make_route(route: str, part: TrafficPart, seconds: float, *, n: int, heat: Counts,
                promise: tuple[float, float] | None) -> LiveRoute:
    all_n = part.n or 1
    promise_s, share = promise or (None, None)
    n_hits = sum(part.cache.get(result, 0) for result in _HIT_RESULTS)
    return LiveRoute(
        route, n=n, rps=part.n / seconds, failed_ratio=_share(part.n_failed, all_n),
        shed_ratio=_share(part.n_shed, all_n), degraded_ratio=_share(part.n_degraded, all_n),
        late_ratio=_share(part.n_late, all_n), hedged_ratio=_share(part.n_hedges, all_n), cached_ratio=_share(n_hits, all_n),
        ttft_s=spread_of(part.ttft_s), e2e_s=spread_of(part.e2e_s), output_tokens_per_s=part.n_output_tokens / seconds,
        usd_per_h=sum(part.cost_usd.values()) * 3600 / seconds, promise_s=promise_s, promise_share=share,
        heat=_heat_rows(heat), n_heat_failed=max(0, n - sum(heat.values())))


def _fold_routes(rows: Sequence[LiveRoute], n: int) -> tuple[LiveRoute, ...]:
    """The first n rows, and the sum of the others."""
    if len(rows) <= n + 1:
        return tuple(rows) if n else ()
    rest, rps = rows[n:], sum(row.rps for row in rows[n:])
    mean = {name: _mean(rest, name, rps) for name in (
        "failed_ratio", "shed_ratio", "degraded_ratio", "late_ratio", "hedged_ratio", "cached_ratio")}
    other = LiveRoute(OTHER, n=sum(row.n for row in rest), rps=rps, **mean, ttft_s=_worst(row.ttft_s for row in rest),
                      e2e_s=_worst(row.e2e_s for row in rest),
                      output_tokens_per_s=sum(row.output_tokens_per_s for row in rest),
                      usd_per_h=sum(row.usd_per_h for row in rest), heat=_add_heat(row.heat for row in rest),
                      n_heat_failed=sum(row.n_heat_failed for row in rest))
    return (*rows[:n], other)


def _fold_upstreams(rows: Sequence[LiveUpstream], n: int) -> tuple[LiveUpstream, ...]:
    if len(rows) <= n + 1:
        return tuple(rows) if n else ()
    rest, rps = rows[n:], sum(row.rps for row in rows[n:])
    n_open = sum(row.breaker == "open" for row in rest)
    other = LiveUpstream(OTHER, rps=rps, in_flight=sum(row.in_flight for row in rest),
                         waiting=sum(row.waiting for row in rest), breaker="open" if n_open else "closed",
                         why=f"{n_open} of {len(rest)} breakers are open" if n_open else "",
                         failed_ratio=_mean(rest, "failed_ratio", rps), ttft_s=_worst(row.ttft_s for row in rest),
                         stalls_per_min=sum(row.stalls_per_min for row in rest), heat=_add_heat(row.heat for row in rest))
    return (*rows[:n], other)


def _mean(rows: Sequence[LiveRoute | LiveUpstream], name: str, rps: float) -> float:
    """A ratio of several rows, by their rates."""
    return sum(getattr(row, name) * row.rps for row in rows) / rps if rps else 0.0


def _worst(spreads: Iterable[Spread]) -> Spread:
    """The spread with the largest p99: an upper bound."""
    return max(spreads, key=lambda spread: spread.p99 or 0.0, default=Spread())


def _add_up(counts: Iterable[Counts]) -> Counts:
    return reduce(add_counts, counts, {})


def _add_heat(heats: Iterable[Sequence[tuple[int, int]]]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(_add_up(dict(heat) for heat in heats).items()))


def _heat_rows(counts: Counts) -> tuple[tuple[int, int], ...]:
    """(row of HEAT_BOUNDS_S, requests), ascending."""
    rows: Counts = {}
    for bucket, n in counts.items():
        row = _HEAT_ROW[min(bucket, len(_HEAT_ROW) - 1)]
        rows[row] = rows.get(row, 0) + n
    return tuple(sorted(rows.items()))


def _share(n: int, n_all: int) -> float:
    return n / n_all if n_all else 0.0


def shorten(text: str) -> str:
    """At most _MAX_TEXT_CHARS characters."""
    return text if len(text) <= _MAX_TEXT_CHARS else text[: _MAX_TEXT_CHARS - 3] + "..."


