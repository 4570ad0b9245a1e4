"""Rules for targets of percentiles (`slo.percentiles`, `slo.stages`): recorded percentiles by stage, and an alert for each.

An objective (`slo_alerts`) counts bad requests over a month; a target compares one percentile of 5 minutes with its bound.
It says which stage is late, and it pages nobody.
"""

from collections.abc import Iterator, Mapping

from stayfast.core.types import Stage
from stayfast.observe.alerts.rules import (
    QUANTILES,
    REQUESTS_5M,
    Alert,
    AlertsConfig,
    Condition,
    Group,
    Recording,
    percentile_name,
    quote,
)
from stayfast.policy.slo import Slo

STAGES = frozenset(stage.value for stage in Stage)
_P99_FACTOR = 5  # as many times the requests for a percentile of the rarest


def target_groups(slos: Mapping[str, Slo], config: AlertsConfig) -> Iterator[Group]:
    """No group where no route has targets."""
    named = {name for slo in slos.values() for name in slo.stages}
    recordings = [*(_stage_recordings() if named & STAGES else ()), *(_step_recordings() if named - STAGES else ())]
    if recordings:
        yield Group("stayfast-stages", tuple(recordings))
    alerts = [alert for route, slo in slos.items() for alert in _target_alerts(route, slo, config)]
    if alerts:
        yield Group("stayfast-targets", tuple(alerts))


def _stage_recordings() -> Iterator[Recording]:
    for name, quantile in QUANTILES.items():
        yield Recording(percentile_name("stage", name), f"histogram_quantile({quantile}, sum by (route, stage, le) "
                        "(rate(stayfast_stage_seconds_bucket[5m])))")


def _step_recordings() -> Iterator[Recording]:
    for name, quantile in QUANTILES.items():
        yield Recording(percentile_name("step", name), f"histogram_quantile({quantile}, sum by (step, le) "
                        "(rate(stayfast_turn_step_seconds_bucket[5m])))")


def _target_alerts(route: str, slo: Slo, config: AlertsConfig) -> Iterator[Alert]:
    for where, name, quantile, bound_s in slo.targets():
        if where == "percentiles":
            series = f"{percentile_name(name, quantile)}{{route={quote(route)}}}"
        elif name in STAGES:
            series = f"{percentile_name('stage', quantile)}{{route={quote(route)},stage={quote(name)}}}"
        else:
            series = f"{percentile_name('step', quantile)}{{step={quote(name)}}}"
        n_needed = config.min_requests_5m * (_P99_FACTOR if quantile == "p99" else 1)
        yield Alert(
            "StayfastTargetMissed", "ticket",
            (Condition(series, bound_s), Condition(f"{REQUESTS_5M}{{route={quote(route)}}}", n_needed, ">=")),
            f"Route {route}: {quantile} of {name} is {{{{ $value | humanizeDuration }}}}, promised {bound_s:g} s",
            "`stayfast explain --slowest` shows where its slow requests spend their time; the dashboard's row `Where the "
            "time goes` has all stages.", on=(), labels={"route": route, "what": name, "quantile": quantile})
