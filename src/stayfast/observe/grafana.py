"""The board for Grafana as its JSON: what users feel first, what may be behind it next.

Made by code, so that a test can put every one of its queries to a real Prometheus. Rows of panels are laid out from the
left; there are variables, and firing alerts as annotations.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stayfast.observe.alerts.rule import ANSWERED, AWAITED, COUNTED, FAILED, is_awaited

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


ROUTE = 'route=~"$route"'
BOTH = f'{ROUTE},upstream=~"$upstream"'
ANSWERS = f"{BOTH},{ANSWERED}"
UPSTREAM = 'upstream=~"$upstream"'
WINDOW = "[$__rate_interval]"

Row = tuple[str, tuple[Panel, ...]]


def _rate(by: str, metric: str, matchers: str) -> str:
    """A counter's rate; summed by `by`, or over all where that is empty."""
    which = f"{{{matchers}}}" if matchers else ""
    return f"sum {f'by ({by}) ' if by else ''}(rate({metric}{which}{WINDOW}))"


def _quantile(q: float, by: str, metric: str, matchers: str) -> str:
    buckets = _rate(f"{by}, le" if by else "le", f"stayfast_{metric}_seconds_bucket", matchers)
    return f"histogram_quantile({q}, {buckets})"


def _percentiles(by: str, metric: str, matchers: str, *quantiles: int) -> tuple[Query, ...]:
    return tuple(Query(_quantile(q / 100, by, metric, matchers), f"p{q} {{{{{by}}}}}") for q in quantiles)


def _promised(slo: str) -> Query:
    return Query(f'max by (route) (stayfast:slo_under:seconds{{slo="{slo}",{ROUTE}}})', f"{PROMISED} {{{{route}}}}")


def _share(part: str, whole: str) -> str:
    """`part` of `whole`; 0 for what has never happened, and so has no series yet."""
    return f"({part} or 0 * {whole}) / {whole}"


def _stat(title: str, about: str, unit: str, expr: str, *steps: tuple[float | None, str]) -> Panel:
    return Panel(title, about, unit, (Query(expr),), "stat", 3, 4, steps=steps or ((None, "blue"),))


def _now() -> Row:
    line = ((None, "green"), (2.0, "orange"), (5.0, "red"))
    failed = _share(_rate("", "stayfast_requests_total", f'{ROUTE},status=~"{FAILED}"'),
                    _rate("", "stayfast_requests_total", f'{ROUTE},status=~"{COUNTED}"'))
    return "Now", (
        _stat("Requests", "Requests that end, a second.", "reqps", _rate("", "stayfast_requests_total", ROUTE)),
        _stat("TTFT p50", "Half of all requests have their first token within this.", "s",
              _quantile(0.5, "", "ttft", ANSWERS), *line),
        _stat("TTFT p95", "One in twenty waits longer for its first token.", "s",
              _quantile(0.95, "", "ttft", ANSWERS), *line),
        _stat("TTFT p99", "One in a hundred waits longer for its first token.", "s",
              _quantile(0.99, "", "ttft", ANSWERS), *line),
        _stat("Failed", "Share of requests that end with 5xx, 429 or a cut stream; what clients did wrong does not count.",
              "percentunit", f"({failed}) / {_rate('', 'stayfast_requests_total', f'{ROUTE},status=~{COUNTED!r}')}",
              (None, "green"), (0.01, "orange"), (0.05, "red")),
        _stat("Spike factor", "p99 over p50 of the first token, the worst route: above 8 the tail has a cause of its own.",
              "none", f"max(stayfast_spike_factor{{{ROUTE}}})", (None, "green"), (5, "orange"), (8, "red")),
        _stat("In flight", "Requests that upstreams are working on at this moment.", "none",
              f"sum(stayfast_in_flight{{{UPSTREAM}}})"),
        _stat("Budget left", "What is left of the error budget that has least left. Needs the rules of `stayfast alerts`.",
              "percentunit", f"min(slo:period_error_budget_remaining:ratio{{{ROUTE}}})",
              (None, "red"), (0.0, "red"), (0.25, "orange"), (0.5, "green")),
    )


def _latency() -> Row:
    return "Latency over time", (
        Panel("Time to first token", "From accept, queueing included. The dashed line is the route's promise.", "s",
              (*_percentiles("route", "ttft", ANSWERS, 50, 95, 99), _promised("ttft"))),
        Panel("Time to a usable answer", "The first token of a stream, the end of a whole answer: what users wait for.", "s",
              _percentiles("route", "usable", ANSWERS, 50, 95, 99)),
        Panel("Whole answer", "From accept to the last byte.", "s", _percentiles("route", "e2e", ANSWERS, 50, 95, 99)),
        Panel("Pace", "Time for each output token after the first (TPOT), and the gaps between chunks.", "s",
              (*_percentiles("route", "tpot", ANSWERS, 50, 99),
               Query(_quantile(0.99, "route", "gap", BOTH), "gap p99 {{route}}"))),
    )


def _heat() -> Row:
    def heat(title: str, metric: str, about: str) -> Panel:
        buckets = f"sum by (le) (increase(stayfast_{metric}_seconds_bucket{{{ANSWERS}}}{WINDOW}))"
        return Panel(title, about, "s", (Query(buckets, "{{le}}"),), "heatmap", height=9)

    return "Heat maps", (
        heat("Time to first token", "ttft", "Two bands are two kinds of requests (a cache, a slow upstream): percentiles "
             "hide them."),
        heat("Whole answer", "e2e", "Mostly the length of answers; a band at a round number is a time-out."),
    )


def _stages() -> Row:
    mean = (f'{_rate("stage", "stayfast_stage_seconds_sum", "")} / ignoring (stage) group_left '
            f'{_rate("", "stayfast_requests_total", "")}')
    return "Where the time goes", (
        Panel("Time by stage, mean request", "Sums of stages over the number of requests: they add up to the mean request.",
              "s", (Query(mean, "{{stage}}"),), is_stacked=True),
        Panel("Time by stage, p99 of each", "Each stage's own p99; they do not add up.", "s",
              (Query(_quantile(0.99, "stage", "stage", ""), "{{stage}}"),)),
    )


def _upstreams() -> Row:
    dropped = _share(_rate("upstream", "stayfast_attempts_total", f'{UPSTREAM},outcome="dropped"'),
                     _rate("upstream", "stayfast_attempts_total", UPSTREAM))
    return "Upstreams", (
        Panel("First token by upstream", "The same requests as above, by who answered.", "s",
              _percentiles("upstream", "ttft", ANSWERS, 50, 95), width=8),
        Panel("Attempts", "Calls by outcome: dropped ones failed and count against the upstream, ignored ones do not.",
              "reqps", (Query(_rate("upstream, outcome", "stayfast_attempts_total", UPSTREAM),
                              "{{upstream}} {{outcome}}"),), width=8),
        Panel("Failed attempts", "Share of each upstream's attempts that were dropped.", "percentunit",
              (Query(dropped, "{{upstream}}"),), width=8),
        Panel("Faults", "What went wrong, by upstream.", "reqps",
              (Query(_rate("upstream, fault", "stayfast_attempts_total", f'{UPSTREAM},fault!=""'),
                     "{{upstream}} {{fault}}"),), width=8),
        Panel("Stalls and cut streams", "Halts in the middle of answers, and answers without their end.", "reqps",
              (Query(_rate("upstream", "stayfast_stalls_total", UPSTREAM), "stalls {{upstream}}"),
               Query(_rate("upstream", "stayfast_truncated_streams_total", UPSTREAM), "cut {{upstream}}")), width=8),
        Panel("In flight", "Requests that each upstream is working on.", "none",
              (Query(f"sum by (upstream) (stayfast_in_flight{{{UPSTREAM}}})", "{{upstream}}"),), width=8),
        Panel("Connections", "New ones cost a handshake, pooled ones do not.", "cps",
              (Query(_rate("upstream", "stayfast_connections_opened_total", UPSTREAM), "new {{upstream}}"),
               Query(_rate("upstream", "stayfast_connections_reused_total", UPSTREAM), "pooled {{upstream}}")), width=8),
        Panel("Handshakes, p95", "TCP and TLS of new connections.", "s",
              (Query(_quantile(0.95, "upstream", "handshake", UPSTREAM), "{{upstream}}"),), width=8),
        Panel("Breakers", "0 closed, 1 half-open, 2 open.", "none",
              (Query(f"max by (upstream) (stayfast_breaker_state{{{UPSTREAM}}})", "{{upstream}}"),), width=8),
    )


def _ends() -> Row:
    return "Errors, clients that left, deadlines", (
        Panel("Requests by status", "499 is a client that left first.", "reqps",
              (Query(_rate("status", "stayfast_requests_total", ROUTE), "{{status}}"),), width=8, is_stacked=True),
        Panel("Clients that left", "Before the first token: too slow for them. In mid-answer: seen enough, or stalled.",
              "reqps", (Query(_rate("route, when", "stayfast_client_left_total", ROUTE), "{{route}} {{when}}"),), width=8),
        Panel("Deadlines", "Requests that ran out of time, by the stage that had it.", "reqps",
              (Query(_rate("route, stage", "stayfast_deadline_exceeded_total", ROUTE), "{{route}} {{stage}}"),), width=8),
        Panel("Retries", "Second and further attempts, a second.", "reqps",
              (Query(_rate("route", "stayfast_retries_total", ROUTE), "{{route}}"),), width=8),
        Panel("Refused at the door", "Requests that the edge answered by itself: bad HTTP, no key, draining.", "reqps",
              (Query(_rate("code", "stayfast_refused_total", ""), "{{code}}"),), width=8),
        Panel("Hedges and sheds", "Second attempts in parallel, and requests turned away to protect the others.", "reqps",
              (Query(_rate("route, result", "stayfast_hedges_total", ROUTE), "hedge {{route}} {{result}}"),
               Query(_rate("route, result", "stayfast_rescues_total", ROUTE), "rescue {{route}} {{result}}"),
               Query(_rate("route, reason", "stayfast_sheds_total", ROUTE), "shed {{route}} {{reason}}")), width=8),
    )


def _tokens() -> Row:
    cost = _rate("route, upstream", "stayfast_cost_usd_total", BOTH)
    requests = _rate("route", "stayfast_requests_total", ROUTE)
    return "Tokens and cost", (
        Panel("Tokens", "As upstreams reported them; cached ones are a part of input.", "none",
              (Query(_rate("kind", "stayfast_tokens_total", ROUTE), "{{kind}} a second"),), width=6),
        Panel("Cost an hour", "By the prices in the settings.", "currencyUSD",
              (Query(f"{cost} * 3600", "{{route}} at {{upstream}}"),), width=6, is_stacked=True),
        Panel("Cost of a thousand requests", "Failed attempts included: they are paid for as well.", "currencyUSD",
              (Query(f"1000 * {_rate('route', 'stayfast_cost_usd_total', ROUTE)} / {requests}",
                     "{{route}}"),), width=6),
        Panel("Cache", "What became of requests on routes with a cache.", "percentunit",
              (Query(f"{_rate('route, result', 'stayfast_cache_requests_total', ROUTE)} / on (route) group_left "
                     f"{_rate('route', 'stayfast_cache_requests_total', ROUTE)}", "{{route}} {{result}}"),), width=6),
        Panel("Shared stores", "Look-ups a second by what came of them; slow, gone and left_alone are misses.", "reqps",
              (Query(_rate("store, op, result", "stayfast_cache_store_requests_total", ""), "{{store}} {{op}} {{result}}"),),
              width=12),
        Panel("Waits for shared stores", "Never more than the store's timeout_s.", "s",
              (Query(_quantile(0.99, "store", "cache_store", ""), "p99 {{store}}"),), width=12),
    )


def _caches() -> Row:
    asked, given = "stayfast_cache_requests_total", f'{ROUTE},result=~"hit|semantic|stale|coalesced"'
    of_input = "stayfast_prefix_cache_tokens_total"
    return "Caches", (
        Panel("Served without a call", "Hits, old answers and shared calls over all requests on routes with a cache.",
              "percentunit", (Query(f"{_rate('route', asked, given)} / {_rate('route', asked, ROUTE)}", "{{route}}"),),
              width=6),
        Panel("Waiting saved", "Seconds of waiting for a first token that hits saved, a second: what the route's median "
              "request would have waited.", "s",
              (Query(_rate("route, kind", "stayfast_cache_saved_seconds_total", ROUTE), "{{route}} {{kind}}"),), width=6),
        Panel("Money saved an hour", "What the answers of hits had cost, by the prices in the settings.", "currencyUSD",
              (Query(f"{_rate('route, kind', 'stayfast_cache_saved_usd_total', ROUTE)} * 3600", "{{route}} {{kind}}"),),
              width=6, is_stacked=True),
        Panel("Made again", "Old answers that were given at once and asked for again, a second.", "reqps",
              (Query(_rate("route, result", "stayfast_cache_renewals_total", ROUTE), "{{route}} {{result}}"),), width=6),
        Panel("Input read from providers' caches", "Of routes that see to them, over all of their input.", "percentunit",
              (Query(_share(_rate("route", of_input, f'{BOTH},kind="read"'), _rate("route", of_input, BOTH)), "{{route}}"),),
              width=12),
        Panel("Tokens that move", "Of each request, kept out of its provider's cache by a block that changes.", "none",
              (Query(f"stayfast_prefix_moving_tokens{{{BOTH}}}", "{{route}} {{upstream}}"),), width=12),
    )


def _budgets() -> Row:
    note = " Needs the rules of `stayfast alerts`."
    colours = ((None, "red"), (0.25, "orange"), (0.5, "green"))
    return "Promises and budgets", (
        Panel("Budget left", "Of the error budget of each promise, over its window." + note, "percentunit",
              (Query(f"slo:period_error_budget_remaining:ratio{{{ROUTE}}}", "{{route}} {{slo}}"),), "bargauge", 8,
              steps=colours, extra={"max": 1}),
        Panel("Burn rate", "1: the budget lasts exactly as long as its window. 14.4 for an hour pages." + note, "none",
              (Query(f"slo:current_burn_rate:ratio{{{ROUTE}}}", "{{route}} {{slo}}"),), width=8),
        Panel("Bad requests over an hour", "Share of requests that broke the promise." + note, "percentunit",
              (Query(f"slo:sli_error:ratio_rate1h{{{ROUTE}}}", "{{route}} {{slo}}"),), width=8),
    )


def _gateway() -> Row:
    return "The gateway itself", (
        Panel("Own time", "What the gateway adds to the time of upstreams.", "s",
              (Query(_quantile(0.5, "instance", "overhead", ""), "p50 {{instance}}"),
               Query(_quantile(0.99, "instance", "overhead", ""), "p99 {{instance}}")), width=8),
        Panel("Event loop", "How late it runs. Above 50 ms everything is late.", "s",
              (Query(_quantile(0.5, "instance", "loop_lag", ""), "p50 {{instance}}"),
               Query(_quantile(0.99, "instance", "loop_lag", ""), "p99 {{instance}}")), width=8),
        Panel("Wait before the handler, p95", "From accept to the first look at a request.", "s",
              (Query(_quantile(0.95, "instance", "queue_wait", ""), "{{instance}}"),), width=8),
        Panel("Workers", "Processes that answer, and those that do not.", "none",
              (Query("sum by (instance, state) (stayfast_workers)", "{{instance}} {{state}}"),), width=8),
        Panel("Instances", "Scrapes that are answered.", "none", (Query('up{job=~"$job"}', "{{instance}}"),), width=8),
        Panel("Queues and limits", "Requests that wait, and how many may run at a time.", "none",
              (Query("sum by (upstream) (stayfast_queue_depth)", "waiting for {{upstream}}"),
               Query("sum by (upstream, lane) (stayfast_limit)", "limit {{upstream}} {{lane}}")), width=8),
    )


def rows() -> tuple[Row, ...]:
    return (_now(), _latency(), _heat(), _stages(), _upstreams(), _ends(), _tokens(), _caches(), _budgets(),
            _gateway())


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
