"""Rules for SLOs: the share of bad requests, the remaining error budget, and burn-rate alerts (`policy.slo`).

Names and labels are sloth's, so its dashboards work. The share is bad / all over a window. It is exact: `compose` makes each
`under_s` a bucket of the histogram. Latencies come from answered requests; failed ones are added to both sides of the
fraction, so fast failures do not count as fast.
"""

from collections.abc import Iterator, Mapping
from re import sub
from zlib import crc32

from stayfast.observe.alerts.rules import (
    ANSWERED,
    COUNTED,
    FAILED,
    Alert,
    AlertsConfig,
    Condition,
    Group,
    Recording,
    bucket_label,
    format_duration,
    format_number,
    format_percent,
    or_zero,
    quote,
)
from stayfast.policy.slo import BURNS, DAY_S, Burn, Objective, Slo

_WITHOUT_TEMPLATES = ("ttft", "usable")  # these histograms hold no template answers, which count as bad
SLOW_FROM_S = DAY_S  # longer windows change slowly and are expensive to query
SLOW_EVERY_S = 120  # below the 5 minutes after which Prometheus considers a series stale
_WINDOWS_S = tuple(sorted({window_s for burn in BURNS for window_s in (burn.short_s, burn.long_s)}))


class SloRules:
    """The rules of one objective of one route."""

    def __init__(self, route: str, objective: Objective, config: AlertsConfig) -> None:
        self.route = route
        self.objective = objective
        self._config = config
        self.name = f"{_sloth_name(route)}-{objective.name}"
        self.labels = {"sloth_service": "stayfast", "sloth_slo": self.name, "sloth_id": f"stayfast-{self.name}",
                       "route": route, "slo": objective.name}
        self._which = f"{{sloth_id={quote(self.labels['sloth_id'])}}}"

    def bad_rate(self, window: str) -> str:
        late = ""
        if self.objective.under_s is not None:
            late = f"{or_zero(self._answered_rate('count', window))} - {or_zero(self._answered_rate('bucket', window))}"
        templates = or_zero(self._template_rate(window)) if self.objective.metric in _WITHOUT_TEMPLATES else ""
        return " + ".join(filter(None, (late, or_zero(self._requests_rate(FAILED, window)), templates)))

    def counted_rate(self, window: str) -> str:
        if self.objective.metric is None:
            return self._requests_rate(COUNTED, window)
        counted = f"{or_zero(self._answered_rate('count', window))} + {or_zero(self._requests_rate(FAILED, window))}"
        if self.objective.metric in _WITHOUT_TEMPLATES:
            counted += f" + {or_zero(self._template_rate(window))}"
        return counted

    def bad_ratio(self, window: str) -> str:
        return f"{_parenthesize(self.bad_rate(window))}\n/\n{_parenthesize(self.counted_rate(window))}"

    def groups(self) -> Iterator[Group]:
        """The bad shares over short and long windows, the budget, and the alerts."""
        quick = [window_s for window_s in _WINDOWS_S if window_s < SLOW_FROM_S]
        slow = [window_s for window_s in _WINDOWS_S if window_s >= SLOW_FROM_S] + [self.objective.window_days * DAY_S]
        yield Group(f"stayfast-slo-shares-{self.name}", tuple(self._share_recordings(quick)))
        yield Group(f"stayfast-slo-slow-shares-{self.name}", tuple(self._share_recordings(slow)), SLOW_EVERY_S)
        yield Group(f"stayfast-slo-budget-{self.name}", tuple(self._budget_recordings()))
        yield Group(f"stayfast-slo-alerts-{self.name}", tuple(map(self._alert, self.objective.alerts)))

    def _answered_rate(self, part: str, window: str) -> str:
        under_s = self.objective.under_s
        under = f",le={bucket_label(under_s)}" if part == "bucket" and under_s is not None else ""
        which = f"route={quote(self.route)},{ANSWERED}{under}"
        return f"sum(rate(stayfast_{self.objective.metric}_seconds_{part}{{{which}}}[{window}]))"

    def _template_rate(self, window: str) -> str:
        """Requests per second answered by a template; their times are not in the histograms."""
        return f'sum(rate(stayfast_degraded_total{{route={quote(self.route)},kind="template"}}[{window}]))'

    def _requests_rate(self, status: str, window: str) -> str:
        return f'sum(rate(stayfast_requests_total{{route={quote(self.route)},status=~"{status}"}}[{window}]))'

    def _share_recordings(self, windows_s: list[int]) -> Iterator[Recording]:
        long_windows_s = {burn.long_s for burn in BURNS}
        for window_s in windows_s:
            window = format_duration(window_s)
            labels = {**self.labels, "sloth_window": window}
            yield Recording(f"slo:sli_error:ratio_rate{window}", self.bad_ratio(window), labels)
            if window_s in long_windows_s:
                counted = f"{_parenthesize(self.counted_rate(window))} * {window_s}"
                yield Recording(f"stayfast:slo_events:increase{window}", counted, self.labels)

    def _budget_recordings(self) -> Iterator[Recording]:
        objective = self.objective
        window = format_duration(objective.window_days * DAY_S)
        yield Recording("sloth_slo_info", "vector(1)", {
            **self.labels, "sloth_objective": format_number(objective.share * 100), "sloth_spec": "prometheus/v1"})
        yield Recording("slo:objective:ratio", f"vector({format_number(objective.share)})", self.labels)
        yield Recording("slo:error_budget:ratio", f"vector({format_number(objective.budget)})", self.labels)
        yield Recording("slo:time_period:days", f"vector({objective.window_days})", self.labels)
        if objective.under_s is not None:
            yield Recording("stayfast:slo_under:seconds", f"vector({format_number(objective.under_s)})", self.labels)
        budget = f"on (sloth_id) slo:error_budget:ratio{self._which}"
        yield Recording("slo:current_burn_rate:ratio", f"slo:sli_error:ratio_rate5m{self._which} / {budget}", self.labels)
        yield Recording("slo:period_burn_rate:ratio", f"slo:sli_error:ratio_rate{window}{self._which} / {budget}",
                        self.labels)
        yield Recording("slo:period_error_budget_remaining:ratio", f"1 - slo:period_burn_rate:ratio{self._which}",
                        self.labels)

    def _alert(self, burn: Burn) -> Alert:
        objective, config = self.objective, self._config
        long, short = format_duration(burn.long_s), format_duration(burn.short_s)
        limit = objective.bad_share(burn)
        n_needed = objective.n_requests_needed(burn, config.min_requests, config.min_bad)
        what = ("fail" if objective.under_s is None
                else f"fail or have a {objective.name} over {format_number(objective.under_s)} s")
        return Alert(
            f"StayfastBudgetBurn{burn.severity.title()}", burn.severity,
            (Condition(f"slo:sli_error:ratio_rate{long}{self._which}", limit),
             Condition(f"slo:sli_error:ratio_rate{short}{self._which}", limit),
             Condition(f"stayfast:slo_events:increase{long}{self._which}", n_needed)),
            f"Route {self.route}: the {objective.name} budget burns {format_number(burn.factor(objective.window_days))} "
            f"times "
            "too fast",
            f"More than {format_percent(limit)} of its requests {what}, over {long} and still over {short}; "
            f"{format_percent(objective.budget)} may over {objective.window_days} days. "
            "Now: {{ $value | humanizePercentage }}. Which upstream or stage changed on the dashboard?",
            for_s=0, on=("sloth_id",), labels={**self.labels, "long_window": long})


def _parenthesize(sum_of: str) -> str:
    return f"({sum_of})" if " + " in sum_of else sum_of


def _sloth_name(route: str) -> str:
    """The route's name in sloth's characters; a checksum keeps changed names unique."""
    plain = sub(r"[^A-Za-z0-9._-]+", "-", route).strip("._-")
    return plain if plain == route else f"{plain}-{crc32(route.encode()):08x}".lstrip("-")


def slo_rules(slos: Mapping[str, Slo], config: AlertsConfig) -> list[SloRules]:
    """All objectives of all routes, in the order of the settings."""
    return [SloRules(route, objective, config) for route, slo in slos.items() for objective in slo.objectives()]
