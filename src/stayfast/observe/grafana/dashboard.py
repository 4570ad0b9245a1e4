"""The board as Grafana's JSON: rows of panels laid out from the left, variables, firing alerts as annotations."""

import json
from typing import Any

from stayfast.observe.grafana.rows import COLUMNS, SOURCE, rows

UID = "stayfast"
FIRING = 'ALERTS{alertname=~"Stayfast.*",alertstate="firing"}'


def board() -> dict[str, Any]:
    """The whole board, ready for import (schema of Grafana 10.4 and later)."""
    return {
        "uid": UID, "title": "Stayfast", "description": "An LLM gateway: what its users feel, and what is behind it.",
        "tags": ["stayfast", "llm"], "schemaVersion": 39, "version": 1, "id": None, "editable": True, "graphTooltip": 1,
        "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser", "links": [],
        "templating": {"list": _variables()}, "annotations": {"list": [_alerts()]}, "panels": _panels(),
    }


def text() -> str:
    """The board as a file."""
    return json.dumps(board(), indent=1) + "\n"


def _panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    y = 0
    for title, panels in rows():
        made.append({"id": len(made) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                     "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}})
        x, y, height = 0, y + 1, 0
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + height
            made.append(panel.document(len(made) + 1, x, y))
            x, height = x + panel.width, panel.height
        y += height
    return made


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus", "refresh": 1},
        _choice("job", "label_values(stayfast_build_info, job)"),
        _choice("route", "label_values(stayfast_requests_total, route)"),
        _choice("upstream", "label_values(stayfast_attempts_total, upstream)"),
    ]


def _choice(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "type": "query", "label": name, "datasource": SOURCE, "definition": query, "sort": 1, "refresh": 2,
        "query": {"query": query, "refId": name}, "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _alerts() -> dict[str, Any]:
    return {
        "name": "Firing alerts", "datasource": SOURCE, "enable": True, "iconColor": "red", "expr": FIRING, "step": "30s",
        "titleFormat": "{{alertname}}", "textFormat": "{{route}}{{upstream}} {{severity}}",
    }
