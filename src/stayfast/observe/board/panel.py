"""A panel, before it is Grafana's JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stayfast.observe.rules.promql import AWAITED, is_awaited

COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
PROMISED = "promised"  # series whose legend begins so are lines to stay under

Kind = Literal["stat", "timeseries", "heatmap", "bargauge"]
Step = tuple[float | None, str]  # from this value on, this colour


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL with the board's variables, and what its series are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. `unit` is Grafana's id for it; `about` stands behind the little i."""

    title: str
    about: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 12
    height: int = 8
    is_stacked: bool = False
    steps: tuple[Step, ...] = ((None, "green"),)
    extra: Mapping[str, Any] = field(default_factory=dict)  # more of fieldConfig.defaults

    def document(self, n: int, x: int, y: int) -> dict[str, Any]:
        """As Grafana stores it; `n` is its id on the board."""
        waiting = [name for name in AWAITED if any(name in query.expr for query in self.queries)]
        note = f" Empty until the gateway has {' and '.join(waiting)}." if waiting else ""
        return {
            "id": n, "type": self.kind, "title": self.title, "description": self.about + note, "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [self._target(n_query, query) for n_query, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": _OVERRIDES},
            "options": _OPTIONS[self.kind],
        }

    @property
    def is_awaited(self) -> bool:
        """Whether one of its queries cannot have data yet."""
        return any(is_awaited(query.expr) for query in self.queries)

    def _target(self, n_query: int, query: Query) -> dict[str, Any]:
        return {
            "refId": chr(ord("A") + n_query), "datasource": SOURCE, "expr": query.expr, "legendFormat": query.legend,
            "format": "heatmap" if self.kind == "heatmap" else "time_series", "range": True,
        }

    def _defaults(self) -> dict[str, Any]:
        steps = [{"value": value, "color": colour} for value, colour in self.steps]
        drawn: dict[str, Any] = {}
        if self.kind == "timeseries":
            drawn = {"custom": {
                "drawStyle": "line", "lineInterpolation": "linear", "lineWidth": 1, "showPoints": "never",
                "spanNulls": 60_000, "fillOpacity": 35 if self.is_stacked else 8,
                "stacking": {"mode": "normal" if self.is_stacked else "none"},
            }}
        return {"unit": self.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}, **drawn, **self.extra}


_OVERRIDES = [
    *({"matcher": {"id": "byRegexp", "options": f"/^{quantile}( |$)/"},
       "properties": [{"id": "color", "value": {"mode": "shades", "fixedColor": colour}}]}
      for quantile, colour in (("p50", "green"), ("p95", "orange"), ("p99", "red"))),
    {"matcher": {"id": "byRegexp", "options": f"/^{PROMISED}/"},
     "properties": [
         {"id": "color", "value": {"mode": "fixed", "fixedColor": "text"}},
         {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
         {"id": "custom.fillOpacity", "value": 0},
     ]},
]
_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: Mapping[Kind, Mapping[str, Any]] = {
    "stat": {"reduceOptions": _LAST, "colorMode": "value", "graphMode": "area", "textMode": "value",
             "justifyMode": "center"},
    "bargauge": {"reduceOptions": _LAST, "displayMode": "lcd", "orientation": "horizontal", "showUnfilled": True},
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "heatmap": {
        "calculate": False, "cellGap": 1, "color": {"mode": "scheme", "scheme": "Turbo", "steps": 64, "scale": "exponential",
                                                    "exponent": 0.5, "fill": "dark-blue", "reverse": False},
        "yAxis": {"unit": "s", "axisPlacement": "left"}, "filterValues": {"le": 1e-9}, "rowsFrame": {"layout": "auto"},
        "legend": {"show": True}, "tooltip": {"mode": "single", "yHistogram": True}, "exemplars": {"color": "white"},
    },
}
