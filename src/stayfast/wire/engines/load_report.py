"""What engines report beside their metrics, as JSON: SGLang's `/v1/loads`, which lists the load of each data-parallel rank,
and llama.cpp's `/props`. Figures of it count before those of the page: they are of now, where SGLang's gauges are of every
40th step. Fields that are missing or of another form are unknown.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from stayfast.wire.engines.alias_tables import EngineKind
from stayfast.wire.engines.reading import EngineReading

REPORT_PATHS: Final[Mapping[EngineKind, str]] = {"sglang": "/v1/loads?include=core", "llamacpp": "/props"}
_SUMS: Final = {"num_running_reqs": "running", "num_waiting_reqs": "waiting",
                "num_waiting_uncached_tokens": "waiting_tokens", "max_total_num_tokens": "kv_tokens",
                "max_running_requests": "max_running"}
_COUNTERS: Final = {"total_prefill_uncached_tokens": ("n_computed_tokens", 1.0),
                    "total_prefill_busy_us": ("prefill_s", 1e-6)}


def add_report(reading: EngineReading, body: bytes) -> EngineReading:
    """The reading with the report's figures; unchanged if it is none of its engine."""
    try:
        report = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return reading
    if not isinstance(report, dict):
        return reading
    return _add_loads(reading, report) if reading.kind == "sglang" else _add_props(reading, report)


def _add_loads(reading: EngineReading, report: Mapping[str, Any]) -> EngineReading:
    listed = report.get("loads")
    ranks = [rank for rank in listed if isinstance(rank, dict)] if isinstance(listed, list) else []
    if not ranks:
        return reading
    gauges, counters = dict(reading.gauges), dict(reading.counters)
    for field, figure in _SUMS.items():
        if (found := _sum_of(ranks, field)) is not None:
            gauges[figure] = found
    for field, (figure, unit) in _COUNTERS.items():
        if (found := _sum_of(ranks, field)) is not None:
            counters[figure] = found * unit
    version = report.get("version")
    return msgspec.structs.replace(reading, gauges=gauges, counters=counters,
                                   version=version if isinstance(version, str) and version else reading.version)


def _add_props(reading: EngineReading, report: Mapping[str, Any]) -> EngineReading:
    gauges = dict(reading.gauges)
    slots, defaults = _number(report.get("total_slots")), report.get("default_generation_settings")
    if slots is not None:
        gauges["max_running"] = slots
        n_ctx = _number(defaults.get("n_ctx")) if isinstance(defaults, dict) else None
        if n_ctx is not None:
            gauges["kv_tokens"] = slots * n_ctx
    if isinstance(report.get("is_sleeping"), bool):
        gauges["is_sleeping"] = float(report["is_sleeping"])
    return msgspec.structs.replace(reading, gauges=gauges)


def _sum_of(ranks: Iterable[Mapping[str, Any]], field: str) -> float | None:
    """None: a rank does not show it."""
    values = [_number(rank.get(field)) for rank in ranks]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18 else None
