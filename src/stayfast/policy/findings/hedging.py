"""Second attempts: off where they would help, sent where they never win.

Problem: a hedge is worth its price only if slow calls are slow by chance. Rule: predict the p99 with a second attempt after
the p95 (`figures.hedged_p99`) where hedges are off; count how many of the sent ones won.

    off     p99 / p50 > 3 and the predicted p99 is 20 % lower (whole answers: 50 %), as in `policy.resilience.hedge`
    waste   fewer than 15 % of the hedges brought the first token

Source: Dean, Barroso, "The Tail at Scale" (CACM 2013). When wrong: calls to one provider are not independent when all of it
is slow.
"""

from collections.abc import Iterable

from stayfast.core.findings import Evidence, Finding, FindingSite
from stayfast.core.snapshot import Snapshot
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.figures import (
    NOW_S,
    called_rows,
    hedged_p99,
    hour_of,
    is_more_than,
    percentiles,
    share_evidence,
    text_s,
    text_share,
)
from stayfast.policy.findings.latency import TTFT, has_tail, slower_than_before
from stayfast.policy.findings.patches import change_settings

SPREAD_FACTOR = 3.0
LEAST_GAIN, LEAST_GAIN_WHOLE = 0.2, 0.5  # of policy.resilience.hedge
MOST_LOST = 0.85  # share of hedges without effect
LEAST_HEDGED = 0.01  # of the requests; fewer cost nothing


def find_hedging_off(snapshot: Snapshot) -> Iterable[Finding]:
    """A route with `hedge.mode: off` whose tail a second attempt would cut."""
    before = hour_of(snapshot)
    for row in called_rows(snapshot, NOW_S):
        mode = snapshot.setting("routes", row.route, "hedge", "mode") or snapshot.setting("defaults", "hedge", "mode")
        if mode != "off" or not has_tail(row.ttft_s, SPREAD_FACTOR) or slower_than_before(row, before) is not None:
            continue
        hedged_s, p99_s, p50_s = hedged_p99(row.ttft_s), row.ttft_s.p99 or 0.0, row.ttft_s.p50 or 0.0
        least_gain = LEAST_GAIN if 2 * row.n_streamed >= row.n else LEAST_GAIN_WHOLE
        if hedged_s is None or p99_s - hedged_s < least_gain * p99_s:
            continue
        yield Finding(
            "hedging.off", "warn", FindingSite(route=row.route),
            f"The p99 of the first token is {p99_s / p50_s:.0f} times the p50 ({text_s(p99_s)} against {text_s(p50_s)}), "
            "and "
            "nothing hedges.",
            "Few calls are slow while the median is as before, so a second attempt would mostly be fast.",
            percentiles("first token", row.ttft_s, TTFT),
            (change_settings(f"A second attempt after the p95 cuts the p99 from {text_s(p99_s)} to about "
                             f"{text_s(hedged_s)}, "
                             "for about 5 % more calls.", {"routes": {row.route: {"hedge": {"mode": "auto"}}}},
                             saves_s=p99_s - hedged_s),),
            f'{TTFT} of route {row.route}: p99 falls; stayfast_hedges_total{{result="won"}} rises')


def find_hedge_waste(snapshot: Snapshot) -> Iterable[Finding]:
    """Hedges that do not win: they cost calls and do not shorten waits."""
    for row in snapshot.rows(NOW_S):
        n_lost = row.n_hedges - row.n_hedges_won
        if not row.n or row.n_hedges < LEAST_HEDGED * row.n or not is_more_than(MOST_LOST, n_lost, row.n_hedges):
            continue
        mode = snapshot.setting("routes", row.route, "hedge", "mode")
        patch = {"mode": "auto"} if mode == "race" else {"budget": 0.02}
        usd = row.cost_usd.get("hedge", 0.0)
        yield Finding(
            "hedging.waste", "warn", FindingSite(route=row.route),
            f"{text_share(1 - row.n_hedges_won / row.n_hedges)} of {row.n_hedges} second attempts changed nothing.",
            "They start while the first attempt is about to answer." if mode == "race" else
            "Slow calls are slow for their prompt or for the whole provider, so the second attempt is as slow.",
            (*share_evidence("hedges that won", row.n_hedges_won, row.n_hedges, "stayfast_hedges_total"),
             Evidence("hedges a request", row.n_hedges / row.n, "ratio", NOW_S, "stayfast_hedges_total"),
             *((Evidence("cost of hedges", usd, "USD", NOW_S, "stayfast_cost_usd_total"),) if usd else ())),
            (change_settings(f"Up to {text_share(row.n_hedges / row.n)} fewer calls, and the same p99.",
                             {"routes": {row.route: {"hedge": patch}}}),),
            f'stayfast_hedges_total{{result="lost"}} of route {row.route} falls')


CHECKS = (
    Check("hedging.off", "hedges are off where they would cut the p99 by a fifth", find_hedging_off,
          ("latency.tail", "latency.promise_missed", "latency.uneven_upstreams")),
    Check("hedging.waste", "fewer than 15 % of the second attempts win", find_hedge_waste, ("hedge.cost",)),
)
