"""From merged counts to the rows of a snapshot."""

from collections.abc import Iterable, Iterator
from typing import Any

from stayfast.core.snapshot import WINDOWS_S, TrafficRow
from stayfast.observe.snapshot.parts import (
    DETAIL_TIMES,
    NUMBERS,
    TABLES,
    SeriesKey,
    TrafficPart,
    bucket_at,
    merge_parts,
    spread_of,
    stages_near,
)

Sums = tuple[TrafficPart, ...]  # of WINDOWS_S
_ROW_TIMES = ("ttft_s", "e2e_s", *(name for name in DETAIL_TIMES if name != "attempt_s"))


def make_row(route: str, upstream: str, window_s: float, part: TrafficPart) -> TrafficRow:
    fields: dict[str, Any] = {name: getattr(part, name) for name in NUMBERS}
    fields |= {name: dict(getattr(part, name)) for name in TABLES}
    fields |= {name: spread_of(getattr(part, name)) for name in _ROW_TIMES}
    return TrafficRow(
        route, upstream, window_s, **fields,
        stages_s={stage: spread_of(counts) for stage, counts in part.stages_s.items()},
        stages_at_p99_s=stages_near(part.by_ttft, bucket_at(part.ttft_s, 0.99)),
        stages_at_p50_s=stages_near(part.by_ttft, bucket_at(part.ttft_s, 0.5)))


def rows_in_steps(series: Iterable[tuple[SeriesKey, Sums]], rows: list[TrafficRow]) -> Iterator[None]:
    """Append the rows of all routes and their upstreams, with a step after each window of each route. Windows without
    requests have no row.
    """
    by_route: dict[str, list[tuple[str, Sums]]] = {}
    for (route, upstream), sums in series:
        by_route.setdefault(route, []).append((upstream, sums))
    for route, upstreams in by_route.items():
        for number, window_s in enumerate(WINDOWS_S):
            parts = [(upstream, sums[number]) for upstream, sums in upstreams if not is_empty(sums[number])]
            if parts:
                rows.append(make_row(route, "", window_s, merge_parts(part for _, part in parts)))
                rows += [make_row(route, upstream, window_s, part) for upstream, part in parts if upstream]
            yield


def is_empty(part: TrafficPart) -> bool:
    return not (part.n or part.n_attempts or part.n_hedges_refused)
