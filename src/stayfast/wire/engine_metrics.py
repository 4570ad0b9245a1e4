"""The `/metrics` page of a self-hosted engine: vLLM, SGLang, llama.cpp. A tolerant parser of Prometheus's text format.

Names change between versions, so each figure has several, the newest first; a missing one stays unknown and never becomes 0.
Series of several engine processes (labels `engine`, `dp_rank`) are added, except shares, of which the mean counts. Other
metrics and lines that are no samples are skipped. Sources: vLLM's v1/metrics/loggers.py (0.33) and its older names,
SGLang's metrics collector (0.5), llama.cpp's server README; GPU memory: the names of NVIDIA's DCGM and nvidia_gpu exporters,
for pages that contain them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, isnan
from typing import Final, Literal, NamedTuple

import msgspec

EngineKind = Literal["vllm", "sglang", "llamacpp"]
MAX_SERIES: Final = 20_000
_SAMPLE: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?[0-9.]+)?(?:\s+#.*)?")
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_MIB: Final = float(1 << 20)


class _Names(NamedTuple):
    """The names of one engine, by field of `EngineReading`; the first that exists counts."""

    gauges: Mapping[str, Sequence[str]]
    shares: Mapping[str, Sequence[str]]
    counters: Mapping[str, Sequence[str]]
    histograms: Mapping[str, Sequence[str]]


_NAMES: Final[Mapping[EngineKind, _Names]] = {
    "vllm": _Names(
        {"running": ("vllm:num_requests_running",), "waiting": ("vllm:num_requests_waiting",)},
        {"kv_used_ratio": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")},
        {"n_prefix_tokens": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total",
                             "vllm:prefix_cache_queries"),
         "n_prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits"),
         "n_preempted": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
         "n_drafts": ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts"),
         "n_draft_tokens": ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens"),
         "n_accepted": ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens")},
        {"queue": ("vllm:request_queue_time_seconds",), "prefill": ("vllm:request_prefill_time_seconds",),
         "decode": ("vllm:request_decode_time_seconds",)}),
    "sglang": _Names(
        {"running": ("sglang:num_running_reqs",), "waiting": ("sglang:num_queue_reqs",)},
        {"kv_used_ratio": ("sglang:token_usage",), "kv_hit_ratio": ("sglang:cache_hit_rate",),
         "spec_accepted_ratio": ("sglang:spec_accept_rate",), "spec_accepted_length": ("sglang:spec_accept_length",)},
        {"n_prefix_tokens": ("sglang:prompt_tokens_total",), "n_prefix_hits": ("sglang:cached_tokens_total",),
         "n_preempted": ("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total")},
        {"queue": ("sglang:queue_time_seconds",)}),
    "llamacpp": _Names(
        {"running": ("llamacpp:requests_processing",), "waiting": ("llamacpp:requests_deferred",)},
        {"kv_used_ratio": ("llamacpp:kv_cache_usage_ratio",)},
        {"n_drafts": ("llamacpp:spec_decode_num_drafts_total",),
         "n_draft_tokens": ("llamacpp:spec_decode_num_draft_tokens_total",),
         "n_accepted": ("llamacpp:spec_decode_num_accepted_tokens_total",)},
        {}),
}
_MEMORY: Final = (("DCGM_FI_DEV_FB_USED", _MIB), ("nvidia_smi_memory_used_bytes", 1.0),
                  ("nvidia_gpu_memory_used_bytes", 1.0))
_STARTED: Final = "process_start_time_seconds"
_WANTED: Final = frozenset((
    _STARTED, *[name for name, _ in _MEMORY],
    *[metric for names in _NAMES.values() for fields in names[:3] for metrics in fields.values() for metric in metrics],
    *[f"{metric}_bucket" for names in _NAMES.values() for metrics in names.histograms.values() for metric in metrics]))


class EngineReading(msgspec.Struct, frozen=True):
    """One page. gauges: states of now; shares: 0 to 1, and lengths; counters since the engine's start; buckets: of each
    histogram, requests up to each bound in seconds.
    """

    kind: EngineKind
    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    memory_bytes: float | None = None  # of all GPUs on the page
    started_at: float | None = None  # seconds since the epoch


def parse_engine_metrics(text: str, kind: EngineKind | None = None) -> EngineReading | None:
    """The figures of a page; None: it is of no known engine. kind: None: the engine is recognised by its names."""
    samples = _group(_parse_samples(text))
    known = kind or next((name for name in _NAMES if any(metric.startswith(f"{name}:") for metric in samples)), None)
    if known is None:
        return None
    names = _NAMES[known]
    gauges = {field: sum(values) for field, values in _pick(samples, names.gauges)}
    gauges |= {field: sum(values) / len(values) for field, values in _pick(samples, names.shares)}
    buckets = {field: found for field, metrics in names.histograms.items()
               if (found := next((one for metric in metrics if (one := _buckets(samples.get(f"{metric}_bucket", ())))), {}))}
    memory = next((sum(value for _, value in samples[name]) * unit for name, unit in _MEMORY if name in samples), None)
    started = [value for _, value in samples.get(_STARTED, ())]
    if not gauges and not buckets:
        return None
    return EngineReading(known, gauges, {field: sum(values) for field, values in _pick(samples, names.counters)}, buckets,
                         memory, max(started, default=None))


_Samples = Mapping[str, Sequence[tuple[str, float]]]  # (labels, value), by name


def _parse_samples(text: str) -> Iterable[tuple[str, str, float]]:
    """Name, labels and value of each sample that a figure needs."""
    n = 0
    for line in text.splitlines():
        if line.partition("{")[0].partition(" ")[0] not in _WANTED:
            continue
        found = _SAMPLE.fullmatch(line.strip())
        value = _number(found[3]) if found is not None else None
        if found is None or value is None:
            continue
        n += 1
        if n > MAX_SERIES:
            return
        yield found[1], found[2] or "", value


def _group(samples: Iterable[tuple[str, str, float]]) -> _Samples:
    grouped: dict[str, list[tuple[str, float]]] = {}
    for name, labels, value in samples:
        grouped.setdefault(name, []).append((labels, value))
    return grouped


def _number(text: str) -> float | None:
    try:
        value = float(text) if "_" not in text else inf
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def _pick(samples: _Samples, names: Mapping[str, Sequence[str]]) -> Iterable[tuple[str, list[float]]]:
    for field, metrics in names.items():
        name = next((metric for metric in metrics if metric in samples), None)
        if name is not None:
            yield field, [value for _, value in samples[name]]


def _buckets(samples: Sequence[tuple[str, float]]) -> dict[float, float]:
    """Requests up to each bound, over all series."""
    found: dict[float, float] = {}
    for labels, value in samples:
        bound = _bound(dict(_LABEL.findall(labels)).get("le", ""))
        if bound is not None:
            found[bound] = found.get(bound, 0.0) + value
    return found


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if isnan(bound) else bound


def compare_readings(before: EngineReading, after: EngineReading, seconds: float) -> dict[str, float]:
    """The figures of `core.snapshot.ENGINE_FIGURES` that two pages show, `seconds` apart. Counters that fell mean a restart:
    then only the states of now are known.
    """
    figures = dict(after.gauges)
    if seconds <= 0 or before.kind != after.kind or any(after.counters.get(name, 0.0) < count
                                                        for name, count in before.counters.items()):
        return figures
    grown = {name: count - before.counters[name] for name, count in after.counters.items() if name in before.counters}
    for figure, part, whole in (("kv_hit_ratio", "n_prefix_hits", "n_prefix_tokens"),
                                ("spec_accepted_ratio", "n_accepted", "n_draft_tokens")):
        if grown.get(whole) and part in grown:
            figures[figure] = min(1.0, grown[part] / grown[whole])
    if grown.get("n_drafts") and "n_accepted" in grown:
        figures["spec_accepted_length"] = 1.0 + grown["n_accepted"] / grown["n_drafts"]
    if "n_preempted" in grown:
        figures["preemptions_per_s"] = grown["n_preempted"] / seconds
    for name, buckets in after.buckets.items():
        p95_s = bucket_quantile(buckets, before.buckets.get(name, {}), 0.95)
        if p95_s is not None:
            figures[f"{name}_p95_s"] = p95_s
    return figures


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
