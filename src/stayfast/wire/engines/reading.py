"""What one page of a self-hosted engine shows, and the figures of two of them.

Each figure has several names (`alias_tables`); a missing one stays unknown and never becomes 0. Rates and ratios are of the
counters between two pages; where an engine shows a ratio as a gauge only, that one counts. GPU memory: the names of NVIDIA's
DCGM and nvidia_gpu exporters, for pages that contain them.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final

import msgspec

from stayfast.core.engine_signals import EngineSignals
from stayfast.wire.engines.alias_tables import TABLES, AliasTable, EngineKind, Names
from stayfast.wire.engines.page import MEMORY, STARTED, MetricsPage

_INNER: Final = frozenset(("kv_blocks", "kv_used_blocks", "n_awake"))  # make up other figures


class EngineReading(msgspec.Struct, frozen=True):
    """One page. gauges: states of now, shares (0 to 1) and lengths; counters since the engine's start; buckets: of each
    histogram, requests up to each bound in seconds. version: of the table that its names are in.
    """

    kind: EngineKind
    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    memory_bytes: float | None = None  # of all GPUs on the page
    started_at: float | None = None  # seconds since the epoch
    version: str = ""


def parse_engine_metrics(text: str, kind: EngineKind | None = None) -> EngineReading | None:
    """The figures of a page; None: it is of no known engine. kind: None: the engine is recognised by its names."""
    page = MetricsPage()
    page.add(text)
    return read_page(page, kind)


def read_page(page: MetricsPage, kind: EngineKind | None = None, tables: Sequence[AliasTable] = TABLES
              ) -> EngineReading | None:
    """As `parse_engine_metrics`, of a page that was read in pieces."""
    table = _choose_table(page, kind, tables)
    if table is None:
        return None
    gauges = {**_pick(page, table.gauges, sum), **_pick(page, table.shares, _mean)}
    buckets = {figure: found for figure, names in table.histograms.items()
               if (found := next((one for name in names if (one := page.buckets(name))), {}))}
    counters = _pick(page, table.counters, sum)
    if not gauges and not buckets and not counters:
        return None
    memory = next((sum(page.values(name)) * unit for name, unit in MEMORY if name in page), None)
    return EngineReading(table.kind, _complete(gauges), counters, buckets, memory, max(page.values(STARTED), default=None),
                         table.version)


def _choose_table(page: MetricsPage, kind: EngineKind | None, tables: Sequence[AliasTable]) -> AliasTable | None:
    own = [table for table in tables if kind in (None, table.kind)]
    marked = (table for table in own if any(name in page for name in table.marks))
    named = (table for table in own if any(name in page for name in table.all_names))
    return next(marked, None) or next(named, None)


def _pick(page: MetricsPage, names: Names, add_up: Callable[[Sequence[float]], float]) -> dict[str, float]:
    return {figure: add_up(values) for figure, forms in names.items()
            if (values := next((found for form in forms if (found := page.values(form))), []))}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _complete(gauges: dict[str, float]) -> dict[str, float]:
    """Figures that follow from others."""
    blocks, used, size = gauges.get("kv_blocks"), gauges.get("kv_used_blocks"), gauges.get("block_tokens")
    if blocks and used is not None:
        gauges.setdefault("kv_used_ratio", used / blocks)
    if blocks and size:
        gauges.setdefault("kv_tokens", blocks * size)
    if "n_awake" in gauges:
        gauges["is_sleeping"] = float(gauges["n_awake"] == 0)
    if gauges.get("kv_hit_ratio", 0.0) > 1.0:
        del gauges["kv_hit_ratio"]  # not the share that its documentation promises
    return gauges


def compare_readings(before: EngineReading, after: EngineReading, seconds: float) -> dict[str, float]:
    """The figures of `core.snapshot.ENGINE_FIGURES` that two pages show, `seconds` apart. Counters that fell mean a restart:
    then only the states of now are known.
    """
    figures = {name: value for name, value in after.gauges.items() if name not in _INNER}
    if seconds <= 0 or before.kind != after.kind or any(after.counters.get(name, count) < count
                                                        for name, count in before.counters.items()):
        return figures
    grown = {name: count - before.counters[name] for name, count in after.counters.items() if name in before.counters}
    figures |= _ratios(grown) | _rates(grown, seconds)
    for name, buckets in after.buckets.items():
        p95_s = bucket_quantile(buckets, before.buckets.get(name, {}), 0.95)
        if p95_s is not None:
            figures[f"{name}_p95_s"] = p95_s
    return figures


def _ratios(grown: Mapping[str, float]) -> dict[str, float]:
    """Shares and lengths. Of several ways to a figure the last one that is possible counts."""
    found: dict[str, float] = {}
    known = {**grown, "n_blocks": grown.get("n_block_hits", 0.0) + grown.get("n_block_misses", 0.0),
             "n_all_tokens": grown.get("n_cached_tokens", 0.0) + grown.get("n_computed_tokens", 0.0)}
    for figure, part, whole in (("kv_hit_ratio", "n_block_hits", "n_blocks"),
                                ("kv_hit_ratio", "n_cached_tokens", "n_all_tokens"),
                                ("kv_hit_ratio", "n_cached_tokens", "n_prompt_tokens"),
                                ("kv_hit_ratio", "n_prefix_hits", "n_prefix_tokens"),
                                ("spec_accepted_ratio", "n_accepted", "n_draft_tokens")):
        if known.get(whole) and part in known:
            found[figure] = min(1.0, known[part] / known[whole])
    if grown.get("n_drafts") and "n_accepted" in grown:
        found["spec_accepted_length"] = 1.0 + grown["n_accepted"] / grown["n_drafts"]
    if grown.get("n_skipped_tokens") and grown.get("n_output_tokens", 0.0) > grown["n_skipped_tokens"]:
        found["spec_accepted_length"] = grown["n_output_tokens"] / (grown["n_output_tokens"] - grown["n_skipped_tokens"])
    if grown.get("n_token_gaps") and "token_gaps_s" in grown:
        found["inter_token_s"] = grown["token_gaps_s"] / grown["n_token_gaps"]
    return found


def _rates(grown: Mapping[str, float], seconds: float) -> dict[str, float]:
    found: dict[str, float] = {}
    computed = grown.get("n_computed_tokens")
    if computed is None and "n_prompt_tokens" in grown:
        n_cached = grown.get("n_cached_tokens", grown.get("n_prefix_hits", 0.0))
        computed = max(0.0, grown["n_prompt_tokens"] - n_cached)
    if computed and grown.get("prefill_s"):
        found["prefill_tokens_per_s"] = computed / grown["prefill_s"]
    if "n_output_tokens" in grown:
        found["decode_tokens_per_s"] = grown["n_output_tokens"] / seconds
    if "n_preempted" in grown:
        found["preemptions_per_s"] = grown["n_preempted"] / seconds
    return found


def bucket_quantile(after: Mapping[float, float], before: Mapping[float, float], q: float) -> float | None:
    """The quantile of the requests between two pages, interpolated in its bucket as Prometheus does; None without requests.
    Of the last bucket, its lower bound.
    """
    grown = [(bound, max(0.0, n - before.get(bound, 0.0))) for bound, n in sorted(after.items())]
    n_all = max([n for _, n in grown], default=0.0)
    if not n_all:
        return None
    rank, low, n_below = q * n_all, 0.0, 0.0
    for bound, n in grown:
        if n >= rank:
            if bound == inf:
                return low
            return low + (bound - low) * (rank - n_below) / (n - n_below) if n > n_below else bound
        low, n_below = bound, n
    return low


def make_signals(reading: EngineReading, figures: Mapping[str, float], read_at: float) -> EngineSignals:
    """The newest page as signals. figures: of `compare_readings` with an older page; absent ones are unknown."""
    known: dict[str, Any] = {name: figures[name] for name in _SIGNALS if name in figures}
    if "is_sleeping" in known:
        known["is_sleeping"] = bool(known["is_sleeping"])
    return EngineSignals(read_at, reading.kind, reading.version, prefix_hit_ratio=figures.get("kv_hit_ratio"), **known)


_SIGNALS: Final = tuple(name for name in EngineSignals.__struct_fields__
                        if name not in ("read_at", "kind", "version", "prefix_hit_ratio"))
