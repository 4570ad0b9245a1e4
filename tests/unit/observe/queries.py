"""The names of metrics and labels in the text of a query."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from stayfast.observe.metrics.definitions import FAMILIES

BOARD: dict[str, Any] = json.loads(files("stayfast.observe").joinpath("grafana.json").read_text(encoding="utf-8"))
ALL_PANELS: list[dict[str, Any]] = [one for panel in BOARD["panels"] for one in (panel, *panel.get("panels", []))]
PANELS = [panel for panel in ALL_PANELS if panel["type"] != "row"]  # those of folded rows, too
SCRAPED = {"instance", "job"}  # what Prometheus adds
_NAME = re.compile(r"\b(stayfast_\w+|(?:stayfast|slo):[\w:]+|up\b)")
_SELECTOR = re.compile(rf"{_NAME.pattern}\{{([^}}]*)\}}")
_GROUPED = re.compile(rf"by \(([\w, ]+)\) \((?:rate|increase)?\(?{_NAME.pattern}")
_LABEL = re.compile(r"(\w+)=~?\"|(\w+)!=~?\"")


def labels_by_metric() -> dict[str, set[str]]:
    """Everything that /metrics may say, with the labels it has."""
    known: dict[str, set[str]] = {"up": set(SCRAPED)}
    for family in FAMILIES:
        parts = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        for part in parts:
            known[family.name + part] = {*family.labels, *SCRAPED, *({"le"} if part == "_bucket" else ())}
    return known


def names(query: str) -> set[str]:
    """The metrics and recorded series that it reads."""
    return set(_NAME.findall(query))


def labels(query: str) -> Iterator[tuple[str, str]]:
    """Each metric with each label that is asked of it."""
    for name, selector in _SELECTOR.findall(query):
        yield from ((name, first or second) for first, second in _LABEL.findall(selector))
    for grouped, name in _GROUPED.findall(query):
        yield from ((name, label.strip()) for label in grouped.split(","))
