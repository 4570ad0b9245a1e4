"""Samples of a page in Prometheus's text format: only those that a figure needs, read in pieces. Tolerant: lines that are no
samples are skipped, and values that are negative, infinite or no numbers are unknown (vLLM 0.6 shows -1 for "no cache").
"""

import re
from collections.abc import Iterator, Mapping
from math import inf, isfinite
from typing import Final

from stayfast.wire.engines.alias_tables import TABLES

MAX_SERIES: Final = 20_000
PIECE_CHARS: Final = 32 * 1024
STARTED: Final = "process_start_time_seconds"
_MIB: Final = float(1 << 20)
MEMORY: Final = (("DCGM_FI_DEV_FB_USED", _MIB), ("nvidia_smi_memory_used_bytes", 1.0), ("nvidia_gpu_memory_used_bytes", 1.0))
_SAMPLE: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?[0-9.]+)?(?:\s+#.*)?")
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_BOUND: Final = re.compile(r'(?:^|,)\s*le\s*=\s*"([^"]*)"')  # a third of the time of reading all labels
_COPIES: Final = ("tp_rank", "pp_rank", "moe_ep_rank")  # ranks of one engine process show the same figure
_LISTED: Final = frozenset((STARTED, *[name for name, _ in MEMORY], *[name for table in TABLES for name in table.all_names]))
# names as they may be on a page, and as the tables list them
_WANTED: Final[Mapping[str, str]] = {**{name.removesuffix("_total"): name for name in _LISTED}, **{name: name for name in
                                                                                                  _LISTED}}


def split_page(text: str) -> Iterator[str]:
    """Pieces of whole lines, of PIECE_CHARS or a little more."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE_CHARS)
        end = len(text) if end < 0 else end + 1
        yield text[start:end]
        start = end


class MetricsPage:
    """The samples of one page, by name."""

    __slots__ = ("_n", "_series")

    def __init__(self) -> None:
        self._series: dict[str, list[tuple[str, float]]] = {}  # (labels, value)
        self._n = 0

    def add(self, piece: str) -> None:
        """Lines of the page. A piece of PIECE_CHARS takes less than a millisecond."""
        for line in piece.splitlines():
            listed = _WANTED.get(line.partition("{")[0].partition(" ")[0])
            if listed is None or self._n >= MAX_SERIES:
                continue
            found = _SAMPLE.fullmatch(line.strip())
            value = _parse_number(found[3]) if found is not None else None
            if found is not None and value is not None:
                self._n += 1
                self._series.setdefault(listed, []).append((found[2] or "", value))

    def __contains__(self, name: str) -> bool:
        return name in self._series

    def values(self, form: str) -> list[float]:
        """Of a name in one of the forms of `alias_tables`, a value for each engine process; empty: it is not on the page."""
        name, _, rest = form.partition("{")
        if rest:
            label, _, wanted = rest.removesuffix("}").partition("=")
            return _join_copies([(labels, value) for labels, value in self._series.get(name, ())
                                 if _read_labels(labels).get(label) == wanted])
        name, _, rest = form.partition("[")
        if rest:
            texts = [(labels, _parse_number(_read_labels(labels).get(rest.removesuffix("]"), "")))
                     for labels, _ in self._series.get(name, ())]
            return _join_copies([(labels, value) for labels, value in texts if value is not None])
        return _join_copies(self._series.get(name, []))

    def buckets(self, name: str) -> dict[float, float]:
        """Of a histogram, counts up to each bound, over all series."""
        found: dict[float, float] = {}
        for labels, value in self._series.get(f"{name}_bucket", ()):
            matched = _BOUND.search(labels)
            bound = _parse_bound(matched[1]) if matched is not None else None
            if bound is not None:
                found[bound] = found.get(bound, 0.0) + value
        return found


def _join_copies(series: list[tuple[str, float]]) -> list[float]:
    """One value for each engine process: the ranks of one process show the same figure."""
    if len(series) < 2 or not any(name in series[0][0] for name in _COPIES):
        return [value for _, value in series]
    joined: dict[tuple[tuple[str, str], ...], float] = {}
    for labels, value in series:
        own = tuple(sorted((name, text) for name, text in _read_labels(labels).items() if name not in _COPIES))
        joined[own] = max(value, joined.get(own, 0.0))
    return list(joined.values())


def _read_labels(labels: str) -> dict[str, str]:
    return dict(_LABEL.findall(labels))


def _parse_number(text: str) -> float | None:
    try:
        value = float(text) if "_" not in text else inf
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def _parse_bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound == bound else None  # not NaN
