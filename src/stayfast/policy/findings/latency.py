"""Slow first tokens: where the tail is long, where all requests are slow, and which promise is missed.

Problem: "p99 is 8 s" has several causes with opposite remedies. Rule: compare p50 and p99 of five minutes.

    tail      p99 / p50 > 5 and the p50 is as before: single calls are unlucky, so a second attempt helps
    all slow  p50 is at least twice that of the hour: the provider, the region or the prompts changed; hedging does not help

A hedge that starts at the p95 ends when the faster of two independent calls does. If F is the distribution of calls:

    P(answer > t) = (1 - F(t)) * (1 - F(t - p95))  for t > p95      so the p99 becomes about p95 + p80

Source: "The Tail at Scale" (Dean, Barroso 2013); p50 200 ms and p99 8 s as an example of the jagged tail in
"Building for the Jagged Edges of LLM Latency". When wrong: slow calls that depend on the prompt stay slow at the second
attempt.
"""

from collections.abc import Iterable

from stayfast.core.findings import Evidence, Finding, FindingSite
from stayfast.core.snapshot import Snapshot, TrafficRow
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.patches import change_settings

NOW_S, HOUR_S = 300.0, 3600.0
MIN_REQUESTS = 200  # for a p99: two requests beyond it
TAIL_FACTOR = 5.0  # p99 over p50; doctor list 8, alert at 8
STABLE_FACTOR = 1.5  # p50 now over p50 of the hour


def find_tail(snapshot: Snapshot) -> Iterable[Finding]:
    """A long tail over a stable median, on a route that does not hedge."""
    before = {row.route: row for row in snapshot.rows(HOUR_S)}
    for row in snapshot.rows(NOW_S):
        p50_s, p95_s, p99_s = row.ttft_s.p50, row.ttft_s.p95, row.ttft_s.p99
        if not p50_s or not p95_s or not p99_s or row.ttft_s.n < MIN_REQUESTS or p99_s < TAIL_FACTOR * p50_s:
            continue
        if snapshot.setting("routes", row.route, "hedge", "mode") != "off" or not _is_stable(row, before.get(row.route)):
            continue
        hedged_s = p95_s + p50_s
        yield Finding(
            "latency.tail", "warn", FindingSite(route=row.route),
            f"The p99 of the first token is {p99_s / p50_s:.0f} times the p50: {p99_s:.2g} s against {p50_s:.2g} s.",
            "The median is as before, so single calls are slow, not all. The route sends no second attempt.",
            evidence=(Evidence("p50", p50_s, "s", NOW_S, "stayfast_ttft_seconds"),
                      Evidence("p99", p99_s, "s", NOW_S, "stayfast_ttft_seconds"),
                      Evidence("requests", row.ttft_s.n, "", NOW_S, "stayfast_requests_total")),
            do=(change_settings(f"A second attempt after the p95 ({p95_s:.2g} s): the p99 falls to about {hedged_s:.2g} s.",
                                {"routes": {row.route: {"hedge": {"mode": "auto"}}}}, saves_s=p99_s - hedged_s),),
            verify=f'stayfast_ttft_seconds of route {row.route}: p99 falls; stayfast_hedges_total{{result="won"}} rises')


def _is_stable(row: TrafficRow, before: TrafficRow | None) -> bool:
    """Whether the median is close to that of the hour. True without an hour of data."""
    if before is None or before.ttft_s.n <= row.ttft_s.n or not before.ttft_s.p50 or not row.ttft_s.p50:
        return True
    return row.ttft_s.p50 < STABLE_FACTOR * before.ttft_s.p50


CHECKS = (
    Check("latency.tail", "p99 is over 5 times p50 while p50 is stable, and nothing hedges", find_tail),
)
