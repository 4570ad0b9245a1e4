"""grafana.json: a valid dashboard whose queries use existing metrics."""

from itertools import pairwise
from typing import Any

import pytest

from stayfast.observe.alerts.files import all_groups
from stayfast.observe.alerts.rules import AlertsConfig, Recording
from stayfast.policy.slo import Latency, Slo
from tests.unit.observe.queries import BOARD, labels, labels_by_metric, names

UNITS = {"s", "reqps", "cps", "percentunit", "none", "currencyUSD"}
EVERYTHING = Slo(0.999, Latency(), Latency(), Latency(), Latency())
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def test_dashboard_has_fields_required_by_grafana() -> None:
    """What Grafana's import asks for: a uid, a schema, unique ids, variables that exist."""
    assert (BOARD["uid"], BOARD["id"], BOARD["schemaVersion"]) == ("stayfast", None, 39)
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    used = {word for panel in PANELS for target in panel["targets"] for word in ("job", "route", "upstream")
            if f'"${word}"' in target["expr"]}
    assert used <= variables
    assert "datasource" in variables


def test_dashboard_panels_do_not_overlap() -> None:
    """Inside 24 columns, none over another, rows in their order."""
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    rows = [panel["gridPos"]["y"] for panel in BOARD["panels"] if panel["type"] == "row"]
    assert all(above < below for above, below in pairwise(rows))


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_dashboard_panels_have_unit_description_legend(panel: dict[str, Any]) -> None:
    """A unit that Grafana knows, words behind the i, a legend where there is more than one line."""
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert len(panel["description"]) > 15
    assert panel["type"] == "stat" or all(target["legendFormat"] for target in panel["targets"])
    assert [target["refId"] for target in panel["targets"]] == [chr(65 + n) for n in range(len(panel["targets"]))]


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_dashboard_queries_use_existing_metrics_and_labels(panel: dict[str, Any]) -> None:
    """Metrics with their labels, and series that the rules record."""
    recorded = {rule.name for group in all_groups({"m": EVERYTHING}, AlertsConfig()) for rule in group.rules
                if isinstance(rule, Recording)}
    known = labels_by_metric()
    for target in panel["targets"]:
        assert names(target["expr"]) <= recorded | known.keys()
        assert names(target["expr"])
        assert [found for found in labels(target["expr"]) if found[1] not in known.get(found[0], {found[1]})] == []
