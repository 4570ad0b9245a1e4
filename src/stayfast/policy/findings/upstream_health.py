"""Breakers, fallbacks, and streams that stop midway.

Problem: a breaker that opens and closes all night, a fallback that starts when the user has left, and answers that stop in
the middle do not show in percentiles of the first token. Rule: count changes of state, and compare the fallback's wait with
that of its route.

    open        a breaker is open now
    flapping    six changes of a breaker in an hour: three times open and closed (failed probes are no changes)
    fallback    answers of the fallback come three times as late as those of the route
    stalls      5 stalls in 100 streams
    truncated   1 stream in 100 breaks off

Source: breakers against cascading failures, "Circuit breaker open state" as an alert, and fallbacks for degraded answers in
"Building for the Jagged Edges of LLM Latency"; limits of the shipped alerts. When wrong: an upstream that is meant to be off
at night.
"""

from collections import defaultdict
from collections.abc import Iterable

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot, TrafficRow
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.figures import (
    HOUR_S,
    NOW_S,
    is_more_than,
    names,
    number,
    number_of_route,
    percentiles,
    share_evidence,
    text_s,
    text_share,
)
from stayfast.policy.findings.patches import change_settings

FLAPPING = 6  # changes an hour
MANY_STALLS, MANY_TRUNCATED = 0.05, 0.01  # the alerts `stalled_ratio` and `truncated_ratio`
LATE_FALLBACK = 3.0  # times the p50 of the route's own upstreams
MIN_FALLBACKS = 20
LEAST_LIMIT_S = 1.0
BREAKERS = "stayfast_breaker_state"
TTFT = "stayfast_ttft_seconds"


def find_open_breaker(snapshot: Snapshot) -> Iterable[Finding]:
    """An upstream gets no calls now."""
    states = {row.name: row.breaker for row in snapshot.upstreams}
    for row in snapshot.upstreams:
        if row.breaker != "open":
            continue
        routes = [(route, names(snapshot, "routes", route, "upstreams")) for route in _routes(snapshot)]
        mine = [(route, upstreams) for route, upstreams in routes if row.name in upstreams]
        alone = [route for route, upstreams in mine if all(states.get(one) == "open" for one in upstreams)]
        others = [name for name, state in states.items() if state == "closed" and row.kind == _kind(snapshot, name)]
        do = SettingsChange("Look for the cause at the provider: `stayfast check --live` calls it "
                            "once.", confidence="unknown")
        if alone and others and snapshot.setting("routes", alone[0], "on_overrun", "fallback") is None:
            do = change_settings(f"Requests of {alone[0]} are answered by {others[0]} while it "
                                 "lasts.", {"routes": {alone[0]: {
                "on_overrun": {"fallback": {"upstreams": [others[0]]}}}}})
        yield Finding(
            "breaker.open", "act" if alone else "warn", FindingSite(upstream=row.name),
            f"The breaker of {row.name} is open{_what_remains(snapshot, alone)}.",
            f"{row.breaker_why or 'Its calls failed'}. Calls start again after a probe that succeeds.",
            (Evidence("seconds until the next probe", row.suspended_s, "s", None, BREAKERS),
             Evidence("failed calls", row.n_failed, "", NOW_S, "stayfast_attempts_total"),
             Evidence("calls", row.n_attempts, "", NOW_S, "stayfast_attempts_total")),
            (do,), f'{BREAKERS}{{upstream="{row.name}"}} is 0')


def _what_remains(snapshot: Snapshot, alone: list[str]) -> str:
    """What is left to the routes all of whose breakers are open."""
    if not alone:
        return ""
    others = any(len(names(snapshot, "routes", route, "upstreams")) > 1 for route in alone)
    routes = ", ".join(alone)
    text = f", like those of all upstreams of {routes}" if others else f", and {routes} has no other upstream"
    has_fallback = all(snapshot.setting("routes", route, "on_overrun", "fallback") is not None for route in alone)
    return f"{text}; the fallback answers" if has_fallback else text


def _routes(snapshot: Snapshot) -> list[str]:
    routes = snapshot.setting("routes")
    return list(routes) if isinstance(routes, dict) else []


def _kind(snapshot: Snapshot, name: str) -> str:
    return next((row.kind for row in snapshot.upstreams if row.name == name), "")


def find_flapping_breaker(snapshot: Snapshot) -> Iterable[Finding]:
    """A breaker that opens and closes again and again."""
    for row in snapshot.upstreams:
        if row.n_breaker_changes_1h < FLAPPING:
            continue
        open_s = number(snapshot, "upstreams", row.name, "breaker", "open_s", default=60.0)
        calls = number(snapshot, "upstreams", row.name, "breaker", "min_calls", default=10.0)
        yield Finding(
            "breaker.flapping", "warn", FindingSite(upstream=row.name),
            f"The breaker of {row.name} changed {row.n_breaker_changes_1h} times in the last hour.",
            f"It recovers for a moment and fails again{': ' + row.breaker_why if row.breaker_why else ''}. Each time "
            "users wait "
            "for calls that fail.",
            (Evidence("changes", row.n_breaker_changes_1h, "", HOUR_S, BREAKERS),
             Evidence("open_s", open_s, "s", None, "settings"), Evidence("min_calls", calls, "", None, "settings")),
            (change_settings("Half as many changes: it stays open longer, and opens by more evidence.",
                             {"upstreams": {row.name: {"breaker": {"open_s": 2 * open_s, "min_calls": round(2 * calls),
                                                                   "n_calls": round(max(20, 2 * calls))}}}}),),
            f'changes of {BREAKERS}{{upstream="{row.name}"}} in an hour fall')


def find_late_fallback(snapshot: Snapshot) -> Iterable[Finding]:
    """The fallback answers, but only after the first choice used up the time."""
    by_route: defaultdict[str, list[TrafficRow]] = defaultdict(list)
    for row in snapshot.rows_by_upstream(NOW_S):
        by_route[row.route].append(row)
    for whole in snapshot.rows(NOW_S):
        route, own = whole.route, names(snapshot, "routes", whole.route, "upstreams")
        fallbacks = names(snapshot, "routes", route, "on_overrun", "fallback", "upstreams")
        for row in by_route[route]:
            usual_s = min((one.ttft_s.p50 for one in by_route[route] if one.upstream in own and one.ttft_s.p50),
                          default=None)
            if row.upstream not in fallbacks or row.upstream in own or row.ttft_s.n < MIN_FALLBACKS or not row.ttft_s.p50:
                continue
            if usual_s is None or row.ttft_s.p50 < max(LATE_FALLBACK * usual_s, LEAST_LIMIT_S):
                continue
            limit_s = number_of_route(snapshot, route, "timeouts", "first_token_s", default=120.0)
            better_s = max(LEAST_LIMIT_S, round(3 * usual_s, 1))
            change = change_settings(
                f"The fallback starts after {text_s(better_s)} instead of {limit_s:g} s.",
                {"routes": {route: {"timeouts": {"first_token_s": better_s}}}},
                saves_s=max(0.0, row.ttft_s.p50 - better_s - usual_s))
            yield Finding(
                "fallback.late", "warn", FindingSite(route=route, upstream=row.upstream),
                f"Answers of the fallback {row.upstream} come after {text_s(row.ttft_s.p50)}, "
                f"{row.ttft_s.p50 / usual_s:.0f} times the usual {text_s(usual_s)}.",
                "The first choice is given most of the time before the fallback starts.",
                (Evidence("requests of the fallback", row.ttft_s.n, "", NOW_S, "stayfast_degraded_total"),
                 *percentiles(row.upstream, row.ttft_s, TTFT), Evidence("usual p50", usual_s, "s", NOW_S, TTFT)),
                (change if better_s < limit_s else SettingsChange("A faster fallback.", confidence="unknown"),),
                f"{TTFT} of route {route} and upstream {row.upstream}: p50 falls")


def find_stalls(snapshot: Snapshot) -> Iterable[Finding]:
    """Streams that pause noticeably."""
    for row in snapshot.rows_by_upstream(NOW_S):
        if not is_more_than(MANY_STALLS, min(row.n_stalls, row.n_streamed), row.n_streamed):
            continue
        most_s, idle_s = row.gap_most_s.p99, number_of_route(snapshot, row.route, "timeouts", "idle_s", default=60.0)
        can_continue = any(snapshot.setting("upstreams", one, "supports_continuation")
                           for one in names(snapshot, "routes", row.route, "upstreams") if one != row.upstream)
        patch = {"on_stall": "rescue"} if can_continue else {"timeouts": {"idle_s": min(idle_s, 10.0)}}
        yield Finding(
            "streams.stalls", "warn", FindingSite(route=row.route, upstream=row.upstream),
            f"{row.n_stalls} stalls in {row.n_streamed} streams of {row.upstream}: gaps over 1 s in running answers.",
            "The answer pauses midway, where a second attempt is no longer possible.",
            (*share_evidence("stalls a stream", row.n_stalls, row.n_streamed, "stayfast_stalls_total"),
             *((Evidence("longest gap p99", most_s, "s", NOW_S, "stayfast_gap_seconds"),) if most_s is not None else ())),
            (change_settings("Another upstream continues a stalled answer." if can_continue else
                             f"An answer that pauses ends after {min(idle_s, 10.0):g} s instead of {idle_s:g} s.",
                             {"routes": {row.route: patch}}),),
            f"stayfast_stalls_total of upstream {row.upstream} falls")


def find_truncated_streams(snapshot: Snapshot) -> Iterable[Finding]:
    """Streams that break off."""
    for row in snapshot.rows_by_upstream(NOW_S):
        if not is_more_than(MANY_TRUNCATED, row.n_truncated, row.n_streamed):
            continue
        yield Finding(
            "streams.truncated", "act", FindingSite(route=row.route, upstream=row.upstream),
            f"{text_share(row.n_truncated / row.n_streamed)} of the streams of {row.upstream} break off midway.",
            "The connection ends without the protocol's end: a proxy with a time limit, or a crashing engine.",
            (*share_evidence("broken streams", row.n_truncated, row.n_streamed, "stayfast_truncated_streams_total"),
             *(Evidence(f"calls with {fault}", n, "", NOW_S, "stayfast_attempts_total")
               for fault, n in sorted(row.faults.items()))),
            (change_settings("Users get the part that was written, marked as cut, instead of an error.",
                             {"routes": {row.route: {"on_overrun": {"partial": True}}}}),),
            f"stayfast_truncated_streams_total of upstream {row.upstream} falls")


_SLOW = ("latency.promise_missed", "latency.tail", "hedging.off")
CHECKS = (
    Check("breaker.open", "a breaker is open now", find_open_breaker,
          ("fallback.late", "load.near_limit", "load.shedding", "time.stage_dominates", *_SLOW)),
    Check("breaker.flapping", "a breaker changes six times an hour", find_flapping_breaker, ("breaker.open", *_SLOW)),
    Check("fallback.late", "answers of the fallback come three times as late as usual", find_late_fallback, _SLOW),
    Check("streams.stalls", "5 stalls in 100 streams", find_stalls),
    Check("streams.truncated", "1 stream in 100 breaks off", find_truncated_streams),
)
