"""Where the time before the first token goes: a stage that dominates the p99, one beyond its part, the gateway itself.

Problem: a model is made faster while the retrieval takes 900 ms of the 1.6 s. Rule: compare the stages of the requests near
the p99, and count the requests whose stages exceeded their part of the budget.

    dominates   a stage other than the call takes 40 % of the time to the first token at the p99, and 0.1 s at least
    overruns    5 % of the requests exceeded the part of one stage
    late start  the p95 between accept and the start of processing is over 0.1 s: the event loop is busy
    overhead    the p95 of the gateway's own time is 0.1 s and a quarter of the median wait, or 0.25 s

Source: a latency budget by stage, with retrieval of 900 ms as its example: "Designing LLM Systems That Stay Fast Under "
                                                                            "Load";
the time before the handler, which other gateways do not log: LiteLLM's latency guide. When wrong: a stage of 0.1 s may be
what the operator wants (a slow but exact cache look-up).
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot, TrafficRow
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.figures import (
    MIN_FOR_P95,
    MIN_FOR_P99,
    NOW_S,
    deadline_s,
    is_more_than,
    number,
    percentiles,
    share_evidence,
    text_s,
    text_share,
)
from stayfast.policy.findings.patches import PatchTree, change_settings

DOMINATES, LEAST_STAGE_S = 0.4, 0.1
AFTER_FIRST_TOKEN = frozenset({"relay", "settle"})
MANY_OVERRUNS = 0.05
LATE_START_S, LAG_S = 0.1, 0.05  # the alerts `queue_wait_p95_s` and `loop_lag_s`
OWN_S, OWN_SHARE, MOST_OWN_S = 0.1, 0.25, 0.25
STAGE_METRIC = "stayfast_stage_seconds"
PARTS: Mapping[str, str] = MappingProxyType({"call": "model", "settle": "post"})  # names in `budget`
RETRIEVAL = ("retriev", "search", "vector", "rag", "embed", "document")
ADVICE: Mapping[str, str] = MappingProxyType({
    "admit": "Requests wait for a place: more capacity, lanes for short requests, or quotas for the largest tenant.",
    "cache": "Look-ups in the cache are slow: a nearer store, or a shorter time-out for it.",
    "context": "Fitting the prompt is slow: shorter prompts.",
    "route": "Choosing the upstream takes this long: requests wait for one that is busy or suspended.",
})


def find_dominating_stage(snapshot: Snapshot) -> Iterable[Finding]:
    """Most of the p99 is not the model's."""
    for row in snapshot.rows(NOW_S):
        stages = {stage: spent_s for stage, spent_s in row.stages_at_p99_s.items() if stage not in AFTER_FIRST_TOKEN}
        others = {stage: spent_s for stage, spent_s in stages.items() if stage != "call"}
        if not others or row.ttft_s.n < MIN_FOR_P99:
            continue
        whole_s = sum(spent_s for stage, spent_s in stages.items() if ":" not in stage)  # steps are parts of the call
        stage, spent_s = max(others.items(), key=lambda item: item[1])
        if spent_s < LEAST_STAGE_S or spent_s < DOMINATES * whole_s:
            continue
        yield Finding(
            "time.stage_dominates", "warn", FindingSite(route=row.route),
            f"{stage} takes {text_s(spent_s)} of the {text_s(whole_s)} to the first token at the p99.",
            _because(stage),
            (*(Evidence(f"{one} at p99", value, "s", NOW_S, STAGE_METRIC) for one, value in sorted(stages.items())),
             *(Evidence(f"{stage} at p50", row.stages_at_p50_s[stage], "s", NOW_S, STAGE_METRIC)
               for _ in range(stage in row.stages_at_p50_s))),
            _changes(snapshot, row, stage, spent_s),
            f'{STAGE_METRIC}{{stage="{stage}"}} of route {row.route} falls')


def _because(stage: str) -> str:
    if any(word in stage.lower() for word in RETRIEVAL):
        return "Retrieval, not the model: larger models or more replicas change nothing."
    return ADVICE.get(stage, "This step of the request, not the model, decides the slowest requests.")


def _changes(snapshot: Snapshot, row: TrafficRow, stage: str, spent_s: float) -> tuple[SettingsChange, ...]:
    saved_s = spent_s / 2
    if any(word in stage.lower() for word in RETRIEVAL):
        return (SettingsChange("Smaller chunks and fewer documents; retrieve in parallel with other steps; an external "
                               "vector "
                               f"store with an index. Half of it is {text_s(saved_s)}.", saves_s=saved_s),)
    if stage == "cache":
        limit_s = max(0.01, round(row.stages_at_p50_s.get("cache", 0.01) * 2, 3))
        return (change_settings(f"Slower look-ups count as misses: at most {text_s(limit_s)}.",
                                {"routes": {row.route: {"budget": {"cache": limit_s}}}}, saves_s=spent_s - limit_s),)
    if stage == "admit" and snapshot.setting("admission", "max_in_flight"):
        places = round(number(snapshot, "admission", "max_in_flight", default=0) * 1.5)
        return (change_settings(f"{places} places instead of two thirds of that, if the upstreams can serve them.",
                                {"admission": {"max_in_flight": places}}, "unknown"),)
    return (SettingsChange(f"Half of this stage is {text_s(saved_s)}.", saves_s=saved_s),)


def find_overruns(snapshot: Snapshot) -> Iterable[Finding]:
    """Requests in which one stage used more than its part."""
    for row in snapshot.rows(NOW_S):
        stage, n = max(row.over_stages.items(), key=lambda item: item[1], default=("", 0))
        part = snapshot.setting("routes", row.route, "budget", PARTS.get(stage, stage))
        if not part or not is_more_than(MANY_OVERRUNS, n, row.n):
            continue
        spread = row.stages_s.get(stage)
        yield Finding(
            "budget.overruns", "warn", FindingSite(route=row.route),
            f"{stage} exceeds its part of the budget in {text_share(n / row.n)} of the requests.",
            f"Its part is {part}, and what is beyond it is cut off or comes from the others.",
            (*share_evidence(f"{stage} over its part", n, row.n, "stayfast_stage_overruns_total"),
             *(percentiles(stage, spread, STAGE_METRIC) if spread is not None else ())),
            _larger_part(snapshot, row, stage),
            f'stayfast_stage_overruns_total{{stage="{stage}"}} of route {row.route} falls')


def _larger_part(snapshot: Snapshot, row: TrafficRow, stage: str) -> tuple[SettingsChange, ...]:
    """A part of 1.2 times the stage's p95, if the deadline has room for it."""
    whole_s, spread = deadline_s(snapshot, row.route), row.stages_s.get(stage)
    if spread is None or not spread.p95:
        return (SettingsChange("A faster stage, or a fallback for it.", confidence="unknown"),)
    budget = snapshot.setting("routes", row.route, "budget")
    others_s = sum(_part_s(part, whole_s) for name, part in budget.items() if name != PARTS.get(stage, stage)) if isinstance(
        budget, dict) else 0.0
    needed_s = round(1.2 * spread.p95, 3)
    if needed_s + others_s >= whole_s:
        return (SettingsChange("The deadline has no room for a larger part: a faster stage, or a fallback.",
                               confidence="unknown"),)
    tree: PatchTree = {"routes": {row.route: {"budget": {PARTS.get(stage, stage): needed_s}}}}
    return (change_settings("A part that 95 % of the requests fit in.", tree),)


def _part_s(part: object, whole_s: float) -> float:
    """Seconds of `0.3` or `20%`; 0 for none."""
    text = str(part)
    try:
        return float(text.removesuffix("%")) * (whole_s / 100 if text.endswith("%") else 1.0)
    except ValueError:
        return 0.0


def find_late_start(snapshot: Snapshot) -> Iterable[Finding]:
    """Requests wait before they are processed at all."""
    lag_s = max((row.loop_lag_s.p99 or 0.0 for row in snapshot.machines), default=0.0)
    rows = [row for row in snapshot.rows(NOW_S) if row.queue_s.n >= MIN_FOR_P95 and (row.queue_s.p95 or 0.0) > LATE_START_S]
    if not rows:
        return
    worst = max(rows, key=lambda row: row.queue_s.p95 or 0.0)
    p95_s = worst.queue_s.p95 or 0.0
    n_cpus = min((row.n_cpus for row in snapshot.machines if row.n_cpus), default=0.0)
    more = change_settings(f"{snapshot.n_workers + 1} workers share the load.", {"workers": snapshot.n_workers + 1},
                           saves_s=p95_s) if n_cpus > snapshot.n_workers else SettingsChange(
        "More cores, or another gateway: each worker needs one.", confidence="unknown")
    yield Finding(
        "gateway.late_start", "act", FindingSite(),
        f"Requests wait {text_s(p95_s)} (p95) between accept and the start of their processing.",
        f"The event loop is late by up to {text_s(lag_s)}: too much work in one process." if lag_s > LAG_S else
        "The gateway's process got too little of the processor, or reads large bodies.",
        (*percentiles("accept to start", worst.queue_s, "stayfast_queue_wait_seconds"),
         Evidence("loop lag p99", lag_s, "s", NOW_S, "stayfast_loop_lag_seconds"),
         Evidence("workers", snapshot.n_workers, "", None, "settings"),
         Evidence("cores", n_cpus, "", None, "/admin/snapshot")),
        (more,), "stayfast_queue_wait_seconds: p95 falls; stayfast_loop_lag_seconds falls")


def find_overhead(snapshot: Snapshot) -> Iterable[Finding]:
    """The gateway's own time before the first token, waits for a place aside."""
    for row in snapshot.rows(NOW_S):
        p95_s, p50_s = row.own_s.p95, row.ttft_s.p50
        waited_s = (row.stages_s["admit"].p95 or 0.0) if "admit" in row.stages_s else 0.0
        if not p95_s or not p50_s or row.own_s.n < MIN_FOR_P95 or waited_s > p95_s / 2 or row.n_retries > 0.02 * row.n:
            continue
        if p95_s < OWN_S or p95_s < min(OWN_SHARE * p50_s, MOST_OWN_S):
            continue
        is_debug = any(machine.log_level == "debug" for machine in snapshot.machines)
        yield Finding(
            "gateway.overhead", "warn", FindingSite(route=row.route),
            f"The gateway itself takes {text_s(p95_s)} (p95) before the first token, of {text_s(p50_s)} in the median.",
            "Debug logging is on." if is_debug else "No attempt runs in that time: look-ups, large bodies, or a busy "
                                                    "process.",
            (*percentiles("own time", row.own_s, "stayfast_overhead_seconds"),
             *(Evidence(f"{stage} at p99", spent_s, "s", NOW_S, STAGE_METRIC)
               for stage, spent_s in sorted(row.stages_at_p99_s.items()) if stage not in AFTER_FIRST_TOKEN)),
            ((change_settings("Fewer lines to format.", {"log": {"level": "info"}}, "unknown"),) if is_debug else
             (SettingsChange("The stages of one such request show where: stayfast explain "
                             "--slowest.", confidence="unknown"),)),
            f"stayfast_overhead_seconds of route {row.route}: p95 falls")


CHECKS = (
    Check("time.stage_dominates", "a stage other than the call takes 40 % of the p99", find_dominating_stage,
          ("latency.promise_missed", "latency.tail", "hedging.off", "gateway.overhead")),
    Check("budget.overruns", "a stage exceeds its part in 5 % of the requests", find_overruns,
          ("latency.promise_missed",)),
    Check("gateway.late_start", "requests wait 0.1 s before they are processed", find_late_start,
          ("gateway.overhead", "latency.promise_missed", "time.stage_dominates")),
    Check("gateway.overhead", "the gateway's own time is 0.1 s and a quarter of the wait", find_overhead),
)
