"""grafana.json: a valid dashboard whose queries use existing metrics."""

from itertools import pairwise
from typing import Any

import pytest

from stayfast.observe.alerts.files import all_groups
from stayfast.observe.alerts.rules import AlertsConfig, Recording
from stayfast.policy.slo import Latency, Slo
from tests.unit.observe.queries import ALL_PANELS, BOARD, PANELS, labels, labels_by_metric, names

UNITS = {"s", "reqps", "cps", "percentunit", "none", "currencyUSD"}
EVERYTHING = Slo(0.999, Latency(), Latency(), Latency(), Latency())


def test_dashboard_has_fields_required_by_grafana() -> None:
    """What Grafana's import asks for: a uid, a schema, unique ids, variables that exist."""
    assert (BOARD["uid"], BOARD["id"], BOARD["schemaVersion"]) == ("stayfast", None, 39)
    ids = [panel["id"] for panel in ALL_PANELS]
    assert len(set(ids)) == len(ids)
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    used = {word for panel in PANELS for target in panel["targets"] for word in ("job", "route", "upstream")
            if f'"${word}"' in target["expr"]}
    assert used <= variables
    assert "datasource" in variables


def test_dashboard_panels_do_not_overlap() -> None:
    """Inside 24 columns, none over another, rows in their order; folded panels below their row."""
    for panels in (BOARD["panels"], *[row["panels"] for row in BOARD["panels"] if row.get("panels")]):
        check_places(panels)
    for row in BOARD["panels"]:
        assert all(panel["gridPos"]["y"] > row["gridPos"]["y"] for panel in row.get("panels", []))
    rows = [panel["gridPos"]["y"] for panel in BOARD["panels"] if panel["type"] == "row"]
    assert all(above < below for above, below in pairwise(rows))


def test_dashboard_begins_with_twelve_panels_and_folds_the_rest() -> None:
    """What fits one screen: is it fast, is it up, what does it cost, who suffers."""
    first, *others = [panel for panel in BOARD["panels"] if panel["type"] == "row"]
    shown = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
    assert (len(shown), first["collapsed"]) == (12, False)
    assert all(row["collapsed"] and row["panels"] for row in others)
    assert max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in shown) <= others[0]["gridPos"]["y"] == 13
    for question in ("Is it fast?", "Is it up?", "What does it cost?", "Who suffers?"):
        assert any(panel["title"].startswith(question) for panel in shown)


def check_places(panels: list[dict[str, Any]]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


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
