"""Slow first tokens: where the tail is long, where all requests are slow, and which promise is missed.

Problem: "p99 is 8 s" has several causes with opposite remedies. Rule: compare percentiles of five minutes with each other,
with the hour, and with those of the route's other upstreams.

    tail       p99 / p50 > 5 and the p50 is as before: single calls are unlucky, so a second attempt or a time-out helps
    all slow   the p50 is 1.8 times that of the hour: provider, region or prompts changed; hedges do not help
    one slow   the p50 of one upstream is 2.5 times that of the route's fastest
    uneven     two upstreams are as fast in the median, and the p99 of one is three times that of the other

Source: the jagged tail of "Building for the Jagged Edges of LLM Latency" (p50 200 ms, p99 8 s); consistency before speed:
"Designing LLM Systems That Stay Fast Under Load". When wrong: with traffic that changed in the same minutes.
"""

from collections.abc import Iterable, Mapping

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot, Spread, TrafficRow
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.figures import (
    MIN_FOR_P95,
    MIN_FOR_P99,
    MIN_REQUESTS,
    NOW_S,
    called_rows,
    hour_of,
    is_more_than,
    names,
    percentiles,
    promise_of,
    share_evidence,
    text_s,
    text_share,
)
from stayfast.policy.findings.patches import change_settings

TAIL_FACTOR = 5.0  # p99 over p50; the alert `spike_factor` is 8
LEAST_LIMIT_S = 0.1  # for a first token; a shorter one cuts off calls for a pause of a process or a lost packet
SLOWER_FACTOR = 1.8  # p50 now over p50 of the hour
HOUR_WEIGHT = 4  # the hour has at least so many times the requests of now, so it shows what was before
SLOW_UPSTREAM_FACTOR = 2.5  # eject.slow_factor is 3
UNEVEN_FACTOR = 3.0
SAME_MEDIAN = 1.5
BURN_ACT = 6.0  # times the allowed share: the page of six hours (SRE workbook)
TTFT = "stayfast_ttft_seconds"


def find_tail(snapshot: Snapshot) -> Iterable[Finding]:
    """A long tail over a stable median on a route that hedges: its budget is too small, or hedges do not help."""
    before = hour_of(snapshot)
    for row in called_rows(snapshot, NOW_S):
        if not has_tail(row.ttft_s, TAIL_FACTOR) or slower_than_before(row, before) is not None:
            continue
        p50_s, p95_s, p99_s = row.ttft_s.p50 or 0.0, row.ttft_s.p95 or 0.0, row.ttft_s.p99 or 0.0
        if row.n_hedges_refused > row.n_hedges:
            because = "Second attempts were due and refused, most of them for the budget or a busy upstream."
            do = change_settings("More second attempts: up to 15 % more calls.",
                                 {"routes": {row.route: {"hedge": {"budget": 0.15}}}}, "unknown")
        else:
            limit_s = max(2 * p95_s, 3 * p50_s, LEAST_LIMIT_S)
            because = "The median is as before, so single calls are slow, not all, and second attempts do not end that."
            do = change_settings(
                f"A call without a token after {text_s(limit_s)} is retried: the p99 falls to about "
                f"{text_s(limit_s + p50_s)}.",
                {"routes": {row.route: {"timeouts": {"first_token_s": round(limit_s, 2)}}}},
                saves_s=max(0.0, p99_s - limit_s - p50_s))
        yield Finding(
            "latency.tail", "warn", FindingSite(route=row.route),
            f"The p99 of the first token is {p99_s / p50_s:.0f} times the p50: {text_s(p99_s)} against {text_s(p50_s)}.",
            because, percentiles("first token", row.ttft_s, TTFT), (do,),
            f"stayfast_spike_factor of route {row.route} falls; stayfast explain --slowest")


def has_tail(spread: Spread, factor: float) -> bool:
    """Whether p99 / p50 is above `factor`, by enough requests."""
    return (spread.n >= MIN_FOR_P99 and spread.p50 is not None and spread.p99 is not None and spread.p95 is not None
            and 0 < factor * spread.p50 < spread.p99)


def slower_than_before(row: TrafficRow, before: Mapping[str, TrafficRow]) -> float | None:
    """p50 now over p50 of the hour if it is above SLOWER_FACTOR and the hour shows what was before."""
    hour = before.get(row.route)
    if hour is None or not hour.ttft_s.p50 or not row.ttft_s.p50 or hour.ttft_s.n < HOUR_WEIGHT * row.ttft_s.n:
        return None
    factor = row.ttft_s.p50 / hour.ttft_s.p50
    return factor if factor > SLOWER_FACTOR else None


def find_all_slow(snapshot: Snapshot) -> Iterable[Finding]:
    """All percentiles rose: no tail, but another provider, region or prompt."""
    before = hour_of(snapshot)
    for row in called_rows(snapshot, NOW_S):
        factor = slower_than_before(row, before)
        if factor is None or row.ttft_s.n < MIN_FOR_P95:
            continue
        hour = before[row.route]
        upstreams = [one for one in snapshot.rows_by_upstream(NOW_S) if one.route == row.route and one.ttft_s.p50]
        tokens, tokens_before = _tokens(row), _tokens(hour)
        because = ("Prompts are longer than before." if tokens > 1.5 * tokens_before > 0 else
                   "Prompts are as long as before, so the provider, its region or the path to it is slower.")
        yield Finding(
            "latency.all_slow", "warn", FindingSite(route=row.route),
            f"All requests are slower: the p50 of the first token is {factor:.1f} times that of the hour, "
            f"{text_s(row.ttft_s.p50 or 0.0)} against {text_s(hour.ttft_s.p50 or 0.0)}.", because,
            (*percentiles("first token", row.ttft_s, TTFT), *percentiles("first token, hour", hour.ttft_s, TTFT, 3600.0),
             Evidence("input tokens a request", tokens, "tokens", NOW_S, "stayfast_tokens_total"),
             *(Evidence(f"p50 of {one.upstream}", one.ttft_s.p50 or 0.0, "s", NOW_S, TTFT) for one in upstreams)),
            (SettingsChange("Hedges do not help when all calls are slow. Another provider or region for this route does; "
                            "`stayfast bench` compares them.", confidence="unknown"),),
            f"{TTFT} of route {row.route}: p50 falls")


def _tokens(row: TrafficRow) -> float:
    return row.n_input_tokens / row.n if row.n else 0.0


def _by_route(snapshot: Snapshot, least: int) -> dict[str, list[TrafficRow]]:
    """Rows of upstreams with at least `least` first tokens."""
    found: dict[str, list[TrafficRow]] = {}
    for row in snapshot.rows_by_upstream(NOW_S):
        own = names(snapshot, "routes", row.route, "upstreams")
        if row.upstream.startswith("(") or (own and row.upstream not in own):
            continue  # the cache, or a fallback
        if row.ttft_s.n >= least and row.ttft_s.p50 and row.ttft_s.p99:
            found.setdefault(row.route, []).append(row)
    return found


def find_slow_upstream(snapshot: Snapshot) -> Iterable[Finding]:
    """One upstream of a route is slower than its fastest, in the median."""
    for route, rows in _by_route(snapshot, MIN_REQUESTS).items():
        fastest = min(rows, key=lambda row: row.ttft_s.p50 or 0.0)
        least_s = fastest.ttft_s.p50 or 0.0
        for row in rows:
            p50_s = row.ttft_s.p50 or 0.0
            if p50_s < SLOW_UPSTREAM_FACTOR * least_s or snapshot.setting("routes", route, "eject", "enabled"):
                continue
            yield Finding(
                "latency.slow_upstream", "warn", FindingSite(route=route, upstream=row.upstream),
                f"{row.upstream} needs {p50_s / least_s:.1f} times as long as {fastest.upstream} for a first token: "
                f"{text_s(p50_s)} against {text_s(least_s)}.",
                "Both get requests of the same route, so it is the upstream, not the prompts.",
                (*percentiles(row.upstream, row.ttft_s, TTFT), *percentiles(fastest.upstream, fastest.ttft_s, TTFT)),
                (change_settings(f"Outliers are left out: its requests save {text_s(p50_s - least_s)} in the median.",
                                 {"routes": {route: {"eject": {"enabled": True}}}}, saves_s=p50_s - least_s),),
                f"stayfast_ejected of {row.upstream} is 1; {TTFT} of route {route}: p50 falls")


def find_uneven_upstreams(snapshot: Snapshot) -> Iterable[Finding]:
    """Two upstreams with the same median, one of which is steadier."""
    for route, rows in _by_route(snapshot, MIN_FOR_P99).items():
        steadiest = min(rows, key=lambda row: row.ttft_s.p99 or 0.0)
        best_s = steadiest.ttft_s.p99 or 0.0
        for row in rows:
            worst_s = row.ttft_s.p99 or 0.0
            is_as_fast = (steadiest.ttft_s.p50 or 0.0) <= SAME_MEDIAN * (row.ttft_s.p50 or 0.0)
            if not is_as_fast or worst_s < UNEVEN_FACTOR * best_s:
                continue
            yield Finding(
                "latency.uneven_upstreams", "info", FindingSite(route=route, upstream=row.upstream),
                f"{steadiest.upstream} is steadier than {row.upstream}: p99 {text_s(best_s)} against {text_s(worst_s)}, "
                "with "
                "much the same p50.",
                "Users notice the answers that take long, not the median: prefer the steadier one.",
                (*percentiles(row.upstream, row.ttft_s, TTFT), *percentiles(steadiest.upstream, steadiest.ttft_s, TTFT)),
                (change_settings(f"Four of five requests go to {steadiest.upstream}.",
                                 {"routes": {route: {"weights": {steadiest.upstream: 4.0}}}},
                                 saves_s=(worst_s - best_s) / 2),),
                f"{TTFT} of route {route}: p99 falls")


def find_promise_missed(snapshot: Snapshot) -> Iterable[Finding]:
    """The share of requests within the promised time to the first token is too small."""
    for row in snapshot.rows(NOW_S):
        promise = promise_of(snapshot, row.route)
        if promise is None or not is_more_than(1 - promise.share, row.n_late, row.n):
            continue
        under_s, share = promise
        if 2 * row.n_streamed < row.n and not _is_set(snapshot, row.route):
            continue  # the built-in promise is for streams
        late = row.n_late / row.n
        stages = sorted(row.stages_at_p99_s.items(), key=lambda item: -item[1])[:3]
        yield Finding(
            "latency.promise_missed", "act" if late > BURN_ACT * (1 - share) else "warn", FindingSite(route=row.route),
            f"{text_share(late)} of the requests get no first token within {under_s:g} s; {text_share(1 - share)} may.",
            f"The promise is {text_share(share)} within {under_s:g} s. Requests at the p99 spend their time in: "
            + (", ".join(f"{stage} {text_s(spent_s)}" for stage, spent_s in stages) or "unknown") + ".",
            (*share_evidence("late", row.n_late, row.n, TTFT), *percentiles("first token", row.ttft_s, TTFT)),
            (SettingsChange("Act on the other findings of this route first; the slowest requests show the rest.",
                            confidence="unknown"),),
            f"share of {TTFT} of route {row.route} within {under_s:g} s rises; stayfast explain --slowest")


def _is_set(snapshot: Snapshot, route: str) -> bool:
    """Whether somebody wrote the promise into the settings."""
    places = (f"routes.{route}.slo", "defaults.slo")
    return any(path.startswith(places) for path in snapshot.sources)


CHECKS = (
    Check("latency.tail", "p99 is over 5 times p50 while p50 is stable, although the route hedges", find_tail,
          ("latency.promise_missed", "latency.uneven_upstreams")),
    Check("latency.all_slow", "p50 is 1.8 times that of the hour", find_all_slow,
          ("latency.promise_missed", "waits.provider_bound")),
    Check("latency.slow_upstream", "one upstream of a route needs 2.5 times as long as another", find_slow_upstream,
          ("latency.promise_missed", "latency.tail", "latency.all_slow", "latency.uneven_upstreams")),
    Check("latency.uneven_upstreams", "an upstream with the same p50 has a third of the p99", find_uneven_upstreams),
    Check("latency.promise_missed", "too many first tokens come after the promised time (`slo.ttft`)", find_promise_missed),
)
