"""Percentiles beyond their targets (`slo.percentiles`, `slo.stages`).

Problem: an objective on the first token holds while one stage, or the time of whole answers, is slower than agreed. Rule:
compare the percentiles of five minutes with the bounds of the settings; a percentile counts from as many requests as it
needs, 50, 100 and 200 for p50, p95 and p99. One finding a route, with the worst target first.

Source: targets by stage are the latency budget of "Building for the Jagged Edges of LLM Latency". When wrong: steps of
served turns are not in a snapshot by route, so their targets are alerts only (`StayfastTargetMissed`).
"""

from collections.abc import Iterable, Mapping

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot, Spread, TrafficRow
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.figures import MIN_FOR_P95, MIN_FOR_P99, MIN_REQUESTS, NOW_S, text_s
from stayfast.policy.slo import find_missed_targets

TARGET_MISSED = "latency.target_missed"
_LEAST = (("p50", MIN_REQUESTS), ("p95", MIN_FOR_P95), ("p99", MIN_FOR_P99))
_STAGE = "stayfast_stage_seconds"


def find_missed(snapshot: Snapshot) -> Iterable[Finding]:
    """Percentiles of a route that exceed their targets."""
    for row in snapshot.rows(NOW_S):
        percentiles, stages = _bounds(snapshot, row.route, "percentiles"), _bounds(snapshot, row.route, "stages")
        missed = [*find_missed_targets(percentiles, _enough(_whole(row))),
                  *find_missed_targets(stages, _enough(row.stages_s))]
        if not missed:
            continue
        worst = max(missed, key=lambda one: one.measured_s / one.target_s)
        yield Finding(
            TARGET_MISSED, "warn", FindingSite(route=row.route),
            f"The {worst.quantile} of {worst.what} is {text_s(worst.measured_s)}; the target is {text_s(worst.target_s)}"
            + (f". {len(missed)} targets are missed." if len(missed) > 1 else "."),
            "No other finding explains it: this part takes longer than the settings promise.",
            tuple(Evidence(f"{one.what} {one.quantile}, target {text_s(one.target_s)}", one.measured_s, "s", NOW_S,
                           _STAGE if one.what in stages else f"stayfast_{one.what}_seconds") for one in missed),
            (SettingsChange("`stayfast explain --slowest` shows what the slowest requests wait for. If nobody needs this "
                            "bound, drop it from slo.", confidence="unknown"),),
            f"the {worst.quantile} of {worst.what} of route {row.route} falls below {text_s(worst.target_s)}")


def _whole(row: TrafficRow) -> dict[str, Spread]:
    return {"ttft": row.ttft_s, "usable": row.usable_s, "e2e": row.e2e_s, "tpot": row.tpot_s}


def _enough(measured: Mapping[str, Spread]) -> dict[str, Spread]:
    """The percentiles that enough requests stand for."""
    return {what: Spread(spread.n, *(getattr(spread, name) if spread.n >= least else None for name, least in _LEAST))
            for what, spread in measured.items()}


def _bounds(snapshot: Snapshot, route: str, section: str) -> dict[str, dict[str, float | None]]:
    """Targets by name, of the route, else of `defaults`."""
    found = snapshot.setting("routes", route, "slo", section)
    found = snapshot.setting("defaults", "slo", section) if found is None else found
    return {name: {key: bound_s for key, bound_s in bounds.items() if isinstance(bound_s, int | float) and bound_s > 0}
            for name, bounds in found.items() if isinstance(bounds, dict)} if isinstance(found, dict) else {}


CHECKS = (
    Check(TARGET_MISSED, "a percentile of a stage or a whole request exceeds its target (`slo.stages`, `slo.percentiles`)",
          find_missed),
)
