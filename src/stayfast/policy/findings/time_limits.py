"""Time limits that do not fit the waits: of calls, of requests, and of the clients' SDKs.

Problem: a constant time-out fits one distribution, and prompts vary a hundredfold. Rule: compare each limit with the live
percentiles, and only where requests ran into it.

    first token too short   time-outs, and the p95 of what remains is over half of the limit: usual calls are cut off
    first token too long    time-outs, and the limit is 20 times the p95: each costs a user the whole limit
    deadline                over 40 % of the requests end at it: it lies below the median
    client too short        requests end early, and the clients' read time-out is under three times the p95
    client too long         the SDK waits ten times as long as the gateway's deadline

Source: gRPC deadlines; SDK defaults of 600 s (openai-python, anthropic-sdk-python); static time-outs as an anti-pattern of
"Building for the Jagged Edges of LLM Latency". When wrong: clients may leave for their own reasons at the same time.
"""

from collections.abc import Iterable

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot, TrafficRow
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.figures import (
    MIN_REQUESTS,
    NOW_S,
    called_rows,
    deadline_s,
    is_more_than,
    number_of_route,
    percentiles,
    prompts_of,
    share_evidence,
    text_s,
    text_share,
)
from stayfast.policy.findings.patches import change_settings

MANY_TIMEOUTS, FEW_TIMEOUTS = 0.02, 0.002  # of the attempts
TOO_SHORT_SHARE = 0.5  # p95 of the answers over the limit
TOO_LONG_FACTOR = 20.0  # limit over p95
LEAST_LIMIT_S = 1.0
MOST_AT_DEADLINE = 0.4
MANY_LEFT = 0.01
LONG_CLIENT_FACTOR = 10.0
DEADLINES = "stayfast_deadline_exceeded_total"
TTFT = "stayfast_ttft_seconds"


def find_first_token_too_short(snapshot: Snapshot) -> Iterable[Finding]:
    """`first_token_s` cuts off usual calls."""
    for row in called_rows(snapshot, NOW_S):
        limit_s, p95_s = _first_token_s(snapshot, row), row.ttft_s.p95
        n = row.faults.get("timeout", 0)
        if p95_s is None or p95_s < TOO_SHORT_SHARE * limit_s or not is_more_than(MANY_TIMEOUTS, n, row.n_attempts):
            continue
        if limit_s >= deadline_s(snapshot, row.route):
            continue
        better_s = min(3 * limit_s, deadline_s(snapshot, row.route))
        yield Finding(
            "timeouts.first_token_too_short", "act", FindingSite(route=row.route),
            f"{text_share(n / row.n_attempts)} of the calls end at first_token_s ({limit_s:g} s), which is close to the "
            "usual "
            f"wait (p95 {text_s(p95_s)}).",
            "Calls that would have answered are cut off and made again, which also loads the provider.",
            (*share_evidence("time-outs of calls", n, row.n_attempts, "stayfast_attempts_total"),
             Evidence("first_token_s", limit_s, "s", None, "settings"), *percentiles("first token", row.ttft_s, TTFT)),
            (change_settings(f"At {text_s(better_s)} these calls answer; hedges cover the slow ones.",
                             {"routes": {row.route: {"timeouts": {"first_token_s": round(better_s, 2)}}}}),),
            f'stayfast_attempts_total{{fault="timeout"}} of route {row.route} falls')


def find_first_token_too_long(snapshot: Snapshot) -> Iterable[Finding]:
    """Calls hang, and `first_token_s` ends them far too late."""
    for row in called_rows(snapshot, NOW_S):
        limit_s, p95_s = _first_token_s(snapshot, row), row.ttft_s.p95
        n = row.faults.get("timeout", 0)
        if not p95_s or limit_s < TOO_LONG_FACTOR * p95_s or not is_more_than(FEW_TIMEOUTS, n, row.n_attempts):
            continue
        if (row.e2e_s.most or 0.0) < limit_s:
            continue  # another limit ended these calls
        better_s = max(LEAST_LIMIT_S, round(5 * p95_s, 1))
        yield Finding(
            "timeouts.first_token_too_long", "warn", FindingSite(route=row.route),
            f"{n} calls hung until first_token_s ({limit_s:g} s), {limit_s / p95_s:.0f} times the p95 of {text_s(p95_s)}.",
            "The time-out is a constant that was not chosen for this route's waits.",
            (*share_evidence("time-outs of calls", n, row.n_attempts, "stayfast_attempts_total"),
             Evidence("first_token_s", limit_s, "s", None, "settings"), *percentiles("first token", row.ttft_s, TTFT)),
            (change_settings(f"Hanging calls are retried after {text_s(better_s)} instead of {limit_s:g} s.",
                             {"routes": {row.route: {"timeouts": {"first_token_s": better_s}}}},
                             saves_s=limit_s - better_s),),
            f"{TTFT} of route {row.route}: p99 falls")


def _first_token_s(snapshot: Snapshot, row: TrafficRow) -> float:
    return number_of_route(snapshot, row.route, "timeouts", "first_token_s", default=120.0)


def find_deadline_below_median(snapshot: Snapshot) -> Iterable[Finding]:
    """The route's deadline is shorter than its usual answer."""
    for row in snapshot.rows(NOW_S):
        limit_s = deadline_s(snapshot, row.route)
        if not is_more_than(MOST_AT_DEADLINE, row.n_deadline, row.n):
            continue
        yield Finding(
            "timeouts.deadline_below_median", "act", FindingSite(route=row.route),
            f"{text_share(row.n_deadline / row.n)} of the requests end at the deadline of {limit_s:g} s.",
            "The deadline lies below the time of a usual answer, so most work is thrown away.",
            (*share_evidence("ended by a time limit", row.n_deadline, row.n, DEADLINES),
             Evidence("deadline", limit_s, "s", None, "settings"),
             *percentiles("whole request", row.e2e_s, "stayfast_e2e_seconds")),
            (change_settings("Answers become whole. If users cannot wait longer: a smaller model, or `on_overrun.partial`.",
                             {"routes": {row.route: {"deadline": round(3 * limit_s, 2)}}}, "unknown"),),
            f"{DEADLINES} of route {row.route} falls")


def find_client_too_short(snapshot: Snapshot) -> Iterable[Finding]:
    """Clients give up at about the p99, before the gateway does."""
    prompts = prompts_of(snapshot)
    for row in snapshot.rows(NOW_S):
        prompt, wait = prompts.get(row.route), row.ttft_s if 2 * row.n_streamed >= row.n else row.e2e_s
        client_s = prompt.client_timeout_s.p50 if prompt is not None and prompt.client_timeout_s.n >= MIN_REQUESTS else None
        p95_s, limit_s = wait.p95, deadline_s(snapshot, row.route)
        if not client_s or not p95_s or client_s >= limit_s or client_s > 3 * p95_s:
            continue
        n_ended = min(row.n, row.n_left + row.n_deadline)
        if not is_more_than(MANY_LEFT, n_ended, row.n):
            continue
        yield Finding(
            "timeouts.client_too_short", "warn", FindingSite(route=row.route),
            f"{text_share(n_ended / row.n)} of the requests end before their answer; the clients wait "
            f"{text_s(client_s)}, the "
            f"route up to {limit_s:g} s.",
            "The client's read time-out is about the p95 of the answers, and its SDK then sends the request again.",
            (*share_evidence("left, or ended by a time limit", n_ended, row.n, "stayfast_client_left_total"),
             Evidence("time-out of clients, p50", client_s, "s", 3600.0, "x-stainless-read-timeout"),
             *percentiles("wait", wait, TTFT)),
            (SettingsChange(f"In the client: a time-out of {text_s(max(5 * p95_s, 10.0))}."),
             change_settings("Until then a part of the answer is better than none.",
                             {"routes": {row.route: {"on_overrun": {"partial": True}}}}, "unknown")),
            f"stayfast_client_left_total and {DEADLINES} of route {row.route} fall")


def find_client_too_long(snapshot: Snapshot) -> Iterable[Finding]:
    """The SDK's read time-out is far beyond the deadline: a lost connection is noticed minutes later."""
    for route, prompt in prompts_of(snapshot).items():
        client_s, limit_s = prompt.client_timeout_s.p50, deadline_s(snapshot, route)
        if not client_s or prompt.client_timeout_s.n < MIN_REQUESTS or client_s < LONG_CLIENT_FACTOR * limit_s:
            continue
        yield Finding(
            "timeouts.client_too_long", "info", FindingSite(route=route),
            f"Clients wait {text_s(client_s)} for data, {client_s / limit_s:.0f} times the route's deadline of "
            f"{limit_s:g} s.",
            "If a connection is lost, the user waits that long for the error. 600 s is the default of the SDKs.",
            (Evidence("time-out of clients, p50", client_s, "s", 3600.0, "x-stainless-read-timeout"),
             Evidence("deadline", limit_s, "s", None, "settings")),
            (SettingsChange(f"In the client: a time-out of {limit_s + 5:g} s.", confidence="measured"),),
            "client_timeout_s of this route in /admin/snapshot falls")


_SLOW = ("latency.promise_missed", "latency.tail", "latency.uneven_upstreams")
CHECKS = (
    Check("timeouts.first_token_too_short", "`first_token_s` cuts off usual calls", find_first_token_too_short, _SLOW),
    Check("timeouts.first_token_too_long", "calls hang until a `first_token_s` of 20 times the p95",
          find_first_token_too_long, (*_SLOW, "hedging.off")),
    Check("timeouts.deadline_below_median", "over 40 % of the requests end at the deadline", find_deadline_below_median,
          ("latency.promise_missed", "timeouts.client_too_long", "answers.long", "streams.truncated", "budget.overruns")),
    Check("timeouts.client_too_short", "requests end at a read time-out of the client below the "
                                       "deadline", find_client_too_short,
          ("hedging.waste", "streams.truncated")),
    Check("timeouts.client_too_long", "the SDK waits ten times as long as the deadline", find_client_too_long),
)
