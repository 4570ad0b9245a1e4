"""docs/reference/metrics.md and docs/telemetry.md name every metric, and none that does not exist."""

import re
from pathlib import Path

from stayfast.observe.metrics.definitions import FAMILIES

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| `(\w+)` \| (counter|histogram|gauge) \| ([\w, ]+) \|", re.MULTILINE)
NAME = re.compile(r"`((?:stayfast|gen_ai)_\w+)")


def test_metrics_page_matches_definitions() -> None:
    """A new metric without a row fails here, and so does a row without a metric: name, kind, labels."""
    text = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    written = [(name, kind, labels) for name, kind, labels in ROW.findall(text)]
    assert written == [(family.name, family.kind, ", ".join(family.labels) or "none") for family in FAMILIES]


def test_telemetry_page_names_every_metric() -> None:
    """docs/telemetry.md says of each what to look at it for."""
    text = (DOCS / "telemetry.md").read_text(encoding="utf-8").split("## Every metric")[1].split("\n## ")[0]
    assert set(NAME.findall(text)) == {family.name for family in FAMILIES}
