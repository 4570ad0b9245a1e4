"""Durable jobs and batches: late, unserved, dead, uneven, or in the way of live requests.

Problem: no user waits for a job, so it goes unnoticed that none runs. Rule:

    overdue    a queued job is past its deadline
    unserved   jobs wait, none runs, and the route has no window of hours
    deep       more jobs than the alert's bound, and at the pace of the last hour they take over a day
    dead       jobs used up their attempts
    uneven     completion times of whole batches vary by more than half of their mean: single stragglers decide

Source: "monitor batch completion time variance, not just average" ("LLM Latency Optimization: How We Cut P99 from 12s to
1.8s"). When wrong: batches of different sizes have different times without a straggler.
"""

from collections.abc import Iterable

from stayfast.core.findings import Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import JobRow, Snapshot
from stayfast.core.units import format_duration, format_seconds, format_share
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.patches import change_settings
from stayfast.policy.findings.rows import HOUR_S, NOW_S, observe, route_row, share_of, upstreams_of

UNSERVED_S = 600.0  # without any running job; a claim takes seconds
DEPTH = 1000  # the default of alerts.job_depth
DAY_S = 86_400.0
DEAD_SHARE = 0.01  # of ended jobs; single ones have a bad request
MIN_DEAD = 3
MIN_BATCHES = 5
UNEVEN = 0.5  # standard deviation over mean
MIN_LIVE = 100
SLOWER = 1.5  # live first tokens against the hour before
MOST_IN_FLIGHT = 0.5  # of the upstream's calls are jobs
SOURCE = "/admin/snapshot jobs"


def _has_window(snapshot: Snapshot, row: JobRow) -> bool:
    return bool(snapshot.setting("jobs", "windows", row.route))


def find_overdue(snapshot: Snapshot) -> Iterable[Finding]:
    """Jobs past their deadline."""
    for row in snapshot.jobs:
        if row.overdue_s <= 0:
            continue
        yield Finding(
            "jobs.overdue", "act", FindingSite(route=row.route),
            f"A queued job is {format_duration(round(row.overdue_s))} past its deadline; {row.queued} are queued.",
            "It will end as expired. " + ("None runs: no process runs jobs of this route." if row.running == 0 else
                                         "There are more jobs than the route's upstreams finish in time."),
            evidence=(observe("overdue_s", row.overdue_s, "s", None, SOURCE),
                      observe("queued", row.queued, "", None, SOURCE),
                      observe("running", row.running, "", None, SOURCE)),
            do=(SettingsChange("More upstreams for the route, or more processes: `stayfast work`."),
                change_settings("More jobs at a time in each process.", {"jobs": {"concurrency": 128}})),
            verify="stayfast_jobs_overdue_seconds is 0")


def find_unserved(snapshot: Snapshot) -> Iterable[Finding]:
    """Jobs that wait while none runs."""
    for row in snapshot.jobs:
        if row.queued == 0 or row.running > 0 or row.oldest_s < UNSERVED_S or _has_window(snapshot, row):
            continue
        if any(state != "dead" and n for state, n in row.n_ended.items()) and row.oldest_s < HOUR_S:
            continue  # some ended in this hour: they give way to live requests
        is_none = snapshot.setting("jobs", "workers") == "none"
        yield Finding(
            "jobs.unserved", "act", FindingSite(route=row.route),
            f"{row.queued} jobs wait and none runs; the oldest has waited {format_duration(round(row.oldest_s))}.",
            "This gateway only accepts jobs, and no `stayfast work` runs them." if is_none else
            "Live requests leave them no room, or their upstream refuses.",
            evidence=(observe("queued", row.queued, "", None, SOURCE), observe("oldest_s", row.oldest_s, "s", None, SOURCE),
                      observe("running", row.running, "", None, SOURCE)),
            do=(change_settings("This gateway runs them, too.", {"jobs": {"workers": "inside"}}) if is_none else
                SettingsChange("See stayfast_jobs_allowed and the breakers of the route's upstreams."),),
            verify='stayfast_jobs{state="running"} rises')


def find_deep_queue(snapshot: Snapshot) -> Iterable[Finding]:
    """More queued jobs than a day's work."""
    bound = snapshot.setting("alerts", "job_depth")
    for row in snapshot.jobs:
        per_hour = sum(row.n_ended.values())
        needs_s = row.queued / per_hour * HOUR_S if per_hour else float("inf")
        if row.queued <= (bound if isinstance(bound, int | float) else DEPTH) or needs_s < DAY_S or not per_hour:
            continue
        yield Finding(
            "jobs.queue_deep", "warn", FindingSite(route=row.route),
            f"{row.queued} jobs are queued; {per_hour} ended in the last hour, so they take {needs_s / DAY_S:.1f} days.",
            "More jobs arrive than the route's upstreams finish while they serve live ones.",
            evidence=(observe("queued", row.queued, "", None, SOURCE), observe("ended", per_hour, "", HOUR_S, SOURCE)),
            do=(SettingsChange("More upstreams for this route, or its provider's own batch service."),
                change_settings("Jobs run at night, when live requests leave room.",
                                {"jobs": {"windows": {row.route: "20:00-07:00 UTC"}}}, "unknown")),
            verify='stayfast_jobs{state="queued"} falls')


def find_dead(snapshot: Snapshot) -> Iterable[Finding]:
    """Jobs whose attempts are used up."""
    for row in snapshot.jobs:
        n, ended = row.n_ended.get("dead", 0), sum(row.n_ended.values())
        if n < MIN_DEAD or share_of(n, ended) < DEAD_SHARE:
            continue
        yield Finding(
            "jobs.dead", "warn", FindingSite(route=row.route), f"{n} of {ended} jobs of the last hour died.",
            "Their attempts are used up, or their workers died with them.",
            evidence=(observe("dead", n, "", HOUR_S, SOURCE), observe("ended", ended, "", HOUR_S, SOURCE)),
            do=(SettingsChange("`stayfast jobs dead` lists them with reasons; `stayfast jobs retry ID` runs one again.",
                               confidence="measured"),
                change_settings("If their upstream was away for long: more attempts, with growing pauses.",
                                {"jobs": {"max_attempts": 16}}, "unknown")),
            verify='stayfast_jobs_ended_total{state="dead"} does not rise')


def find_uneven_batches(snapshot: Snapshot) -> Iterable[Finding]:
    """Batches whose completion times vary widely."""
    for row in snapshot.jobs:
        spread = row.batch_deviation or 0.0
        if row.batch_s.n < MIN_BATCHES or spread <= UNEVEN:
            continue
        p50_s, most_s = row.batch_s.p50 or 0.0, row.batch_s.most or 0.0
        yield Finding(
            "jobs.uneven_batches", "warn", FindingSite(route=row.route),
            f"Batches take {format_seconds(p50_s)} at the p50 and up to {format_seconds(most_s)}; their deviation is "
            f"{format_share(spread)} of the mean.",
            "A batch ends with its slowest request: one long prompt or answer decides.",
            evidence=(observe("deviation over mean", spread, "ratio", HOUR_S, SOURCE),
                      observe("batch p50", p50_s, "s", HOUR_S, SOURCE),
                      observe("batches", row.batch_s.n, "", HOUR_S, SOURCE)),
            do=(SettingsChange("Group requests by length: long documents in a batch of their own."),
                change_settings("No answer of a batch may run for longer than four usual ones.",
                                {"routes": {row.route: {"timeouts": {"total_s": max(1.0, 4 * (row.run_s.p99 or 150.0))}}}},
                                "unknown")),
            verify=f"{SOURCE}: batch_deviation of route {row.route} falls under {UNEVEN:g}")


def find_disturbance(snapshot: Snapshot) -> Iterable[Finding]:
    """Jobs that have most of an upstream while live requests of the route become slower."""
    for row in snapshot.jobs:
        now, hour = route_row(snapshot, row.route, NOW_S), route_row(snapshot, row.route, HOUR_S)
        p95_s, usual_s = now.ttft_s.p95 or 0.0, hour.ttft_s.p50 and hour.ttft_s.p95
        in_flight = sum(upstream.in_flight for upstream in upstreams_of(snapshot, row.route))
        if now.ttft_s.n < MIN_LIVE or not usual_s or p95_s < SLOWER * usual_s or hour.n < 2 * now.n:
            continue
        if row.running == 0 or share_of(row.running, max(in_flight, row.running)) < MOST_IN_FLIGHT:
            continue
        yield Finding(
            "jobs.disturb_live", "warn", FindingSite(route=row.route),
            f"{row.running} jobs run, and the p95 of live first tokens is {format_seconds(p95_s)}, in the hour "
            f"{format_seconds(usual_s)}.",
            "Most calls at the route's upstreams are jobs.",
            evidence=(observe("running jobs", row.running, "", None, SOURCE), observe("in flight", in_flight),
                      observe("ttft p95", p95_s, "s", NOW_S, "stayfast_ttft_seconds"),
                      observe("ttft p95 of the hour", usual_s, "s", HOUR_S, "stayfast_ttft_seconds")),
            do=(change_settings("Half as many jobs at a time.", {"jobs": {"concurrency": max(1, row.running // 2)}}),
                change_settings("Or only at night.", {"jobs": {"windows": {row.route: "20:00-07:00 UTC"}}})),
            verify="stayfast_ttft_seconds p95 falls; `stayfast prove job-interference`")


CHECKS = (
    Check("jobs.overdue", "queued jobs are past their deadline", find_overdue),
    Check("jobs.unserved", "jobs wait, and none runs", find_unserved, ("jobs.overdue", "jobs.queue_deep")),
    Check("jobs.queue_deep", "more jobs are queued than a day's work", find_deep_queue, ("jobs.overdue",)),
    Check("jobs.dead", "jobs used up their attempts", find_dead),
    Check("jobs.uneven_batches", "completion times of batches vary widely", find_uneven_batches),
    Check("jobs.disturb_live", "jobs make live requests slower", find_disturbance,
          ("latency.all_slow", "latency.promise_missed", "waits.queue_bound", "load.near_limit")),
)
