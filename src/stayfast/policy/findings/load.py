"""Queues: too long, without lanes, near the limit, and refused requests.

Problem: a queue hides an overload until it is as long as the users' patience. Rule:

    long queue   1,000 requests wait (of all workers)
    no lanes     prompts differ tenfold, requests wait for a place, and all wait in one queue
    near limit   an upstream's calls are at 90 % of its limit, and others wait for it
    shedding     5 % of the requests are refused

Source: "Queue depth > 1000" as an alert, and load shedding as the last means: "Building for the Jagged Edges of LLM
Latency"; "use separate queues for short and long requests": "LLM Latency Optimization". When wrong: one snapshot shows one
moment; a burst of a second looks like an overload.
"""

from collections.abc import Iterable

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot, TrafficRow
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.figures import (
    HOUR_S,
    MIN_FOR_P95,
    MIN_REQUESTS,
    NOW_S,
    is_more_than,
    number,
    percentiles,
    prompts_of,
    share_evidence,
    text_s,
    text_share,
)
from stayfast.policy.findings.patches import change_settings

LONG_QUEUE = 1000
MANY_SHED = 0.05
NEAR = 0.9  # of the limit
MIN_WAITING = 3
WIDE = 10.0  # p99 prompt over p50 prompt
MIN_PROMPTS = 30  # of the sample: ten times another size needs few
WAIT_S, WAIT_SHARE = 0.1, 0.3  # of the median wait for a first token
TIER_SHARE = 0.8  # of the refused requests are of one tenant: its own quota
QUEUE = "stayfast_queue_depth"


def find_long_queue(snapshot: Snapshot) -> Iterable[Finding]:
    """A thousand requests wait."""
    if snapshot.n_waiting < LONG_QUEUE:
        return
    longest = number(snapshot, "admission", "max_queue", default=1000.0)
    yield Finding(
        "load.long_queue", "act", FindingSite(), f"{snapshot.n_waiting:,} requests wait for a place.",
        "More requests arrive than are answered. Most of them will be answered after their users have left.",
        (Evidence("waiting", snapshot.n_waiting, "", None, QUEUE), Evidence("max_queue", longest, "", None, "settings")),
        (change_settings("Requests that would wait over 2 s are refused at once; the others are answered in time.",
                         {"admission": {"max_queue": min(200, round(longest)), "max_wait_s": 2.0, "target_wait_s": 0.1}}),
         SettingsChange("More replicas. `stayfast plan` computes how many.", confidence="unknown")),
        f"{QUEUE} falls below 1000")


def _wait(row: TrafficRow) -> float:
    """p95 of the wait for a place, in seconds."""
    spread = row.stages_s.get("admit")
    return spread.p95 or 0.0 if spread is not None and spread.n >= MIN_FOR_P95 else 0.0


def find_no_lanes(snapshot: Snapshot) -> Iterable[Finding]:
    """Short requests wait behind long ones."""
    if snapshot.setting("admission", "lanes") is not None or not snapshot.setting("admission", "max_in_flight"):
        return
    prompts = prompts_of(snapshot)
    waiting = [row for row in snapshot.rows(NOW_S) if _wait(row) > WAIT_S]
    rows = [prompts[row.route] for row in snapshot.rows(NOW_S)
            if row.route in prompts and prompts[row.route].n >= MIN_PROMPTS]
    sizes = [(row.input_tokens.p50, row.input_tokens.p99) for row in rows if row.input_tokens.p50 and row.input_tokens.p99]
    if not waiting or not sizes:
        return
    shortest, longest = min(p50 for p50, _ in sizes), max(p99 for _, p99 in sizes)
    worst = max(waiting, key=_wait)
    if longest < WIDE * shortest or _wait(worst) < WAIT_SHARE * (worst.ttft_s.p50 or 0.0):
        return
    limit = max(1, round((longest * shortest) ** 0.5))
    yield Finding(
        "load.no_lanes", "warn", FindingSite(),
        f"Requests wait up to {text_s(_wait(worst))} (p95) for a place, and prompts of {shortest:,.0f} and "
        f"{longest:,.0f} tokens "
        "share one queue.",
        "One long request keeps a place as long as many short ones, so the short ones wait.",
        (*percentiles("wait for a place", worst.stages_s["admit"], "stayfast_stage_seconds"),
         Evidence("input tokens, shortest p50", shortest, "tokens", HOUR_S, "/admin/snapshot"),
         Evidence("input tokens, longest p99", longest, "tokens", HOUR_S, "/admin/snapshot")),
        (change_settings(f"Prompts over {limit:,} tokens get a quarter of the places; short requests no longer wait for "
                         "them.",
                         {"admission": {"lanes": {"long_input_tokens": limit}}}, saves_s=_wait(worst) / 2),),
        'stayfast_stage_seconds{stage="admit"}: p95 falls; stayfast prove lanes')


def find_near_limit(snapshot: Snapshot) -> Iterable[Finding]:
    """An upstream is at its concurrency limit, and requests wait for it."""
    for row in snapshot.upstreams:
        if not row.limit or row.in_flight < NEAR * row.limit or row.waiting < MIN_WAITING or row.n_attempts < MIN_REQUESTS:
            continue
        is_fixed = snapshot.setting("upstreams", row.name, "limit", "mode") == "fixed"
        do = [SettingsChange("Another replica, or a second upstream for its routes.", confidence="unknown")]
        if is_fixed:
            do.insert(0, change_settings("A limit that follows the waits, instead of a constant.",
                                         {"upstreams": {row.name: {"limit": {"mode": "gradient"}}}}, "unknown"))
        yield Finding(
            "load.near_limit", "warn", FindingSite(upstream=row.name),
            f"{row.name} runs {row.in_flight} of {row.limit:.0f} calls, and {row.waiting} wait.",
            f"The limit is {'constant' if is_fixed else row.limit_why or 'found by its waits'}. Beyond it each new call "
            "waits "
            "for one that ends.",
            (Evidence("in flight", row.in_flight, "", None, "stayfast_in_flight"),
             Evidence("limit", row.limit, "", None, "stayfast_limit"), Evidence("waiting", row.waiting, "", None, QUEUE)),
            tuple(do), f'{QUEUE}{{upstream="{row.name}"}} falls')


def find_shedding(snapshot: Snapshot) -> Iterable[Finding]:
    """Requests are refused for load."""
    n_shed = sum(row.n_shed for row in snapshot.tenants)
    most = max(snapshot.tenants, key=lambda row: row.n_shed, default=None)
    if most is not None and n_shed and most.n_shed > TIER_SHARE * n_shed and most.left and len(snapshot.tenants) > 1:
        return  # without a limit of its own, the largest tenant is refused for the load
    for row in snapshot.rows(NOW_S):
        if not is_more_than(MANY_SHED, row.n_shed, row.n):
            continue
        places = number(snapshot, "admission", "max_in_flight", default=0.0)
        do = change_settings(f"{round(1.5 * places)} places, if the upstreams can serve them.",
                             {"admission": {"max_in_flight": round(1.5 * places)}}, "unknown") if places else SettingsChange(
            "More capacity, or a fallback with a smaller model.", confidence="unknown")
        yield Finding(
            "load.shedding", "act", FindingSite(route=row.route),
            f"{text_share(row.n_shed / row.n)} of the requests are refused at once.",
            "The places and the queue are full, or quotas are used up.",
            (*share_evidence("refused", row.n_shed, row.n, "stayfast_sheds_total"),
             Evidence("waiting", snapshot.n_waiting, "", None, QUEUE)),
            (do,), f"stayfast_sheds_total of route {row.route} falls")


CHECKS = (
    Check("load.long_queue", "1,000 requests wait", find_long_queue,
          ("load.shedding", "load.no_lanes", "time.stage_dominates", "latency.promise_missed", "retries.retry_after",
           "gateway.overhead", "waits.queue_bound")),
    Check("load.no_lanes", "short requests wait behind long ones in one queue", find_no_lanes,
          ("time.stage_dominates", "latency.promise_missed", "load.shedding", "latency.tail", "hedging.off",
           "waits.queue_bound")),
    Check("load.near_limit", "an upstream is at its limit, and requests wait for it", find_near_limit,
          ("latency.promise_missed", "load.shedding", "time.stage_dominates", "gateway.overhead", "waits.queue_bound",
           "waits.provider_bound")),
    Check("load.shedding", "5 % of the requests are refused", find_shedding,
          ("time.stage_dominates", "latency.promise_missed", "waits.queue_bound")),
)
