"""docs/reference/metrics.md names every metric, with its labels, and none that does not exist."""

import re
from pathlib import Path

from stayfast.observe.metrics import Metrics

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (counter|histogram|gauge) \| ([\w, ]+) \|", re.MULTILINE)


def test_page_and_code_agree() -> None:
    """A new metric without a row fails here, and so does a row without a metric."""
    written = {(name, kind, tuple(labels.split(", "))) for name, kind, labels in ROW.findall(PAGE.read_text())}
    metrics = Metrics()
    real = {(f"{name}_total", "counter", tuple(labels)) for name, _, labels, _ in metrics._counters()}
    real |= {(name, "histogram", tuple(labels)) for name, _, labels, _ in metrics._histograms()}
    real |= {(family.name, "gauge", ("upstream",)) for family in metrics.collect() if family.type == "gauge"}
    assert written == real
