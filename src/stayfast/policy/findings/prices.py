"""Cost: answers without token counts, calls without a price, old prices, and second attempts that cost too much.

Problem: budgets, cost limits and advice count only what has a price. Rule:

    tokens    answers of an upstream have less than one counted token on average: OpenAI's streams count only on request
    missing   over 5 % of the attempts with tokens have no price
    old       a price is over 90 days old; providers change prices a few times a year
    hedges    second attempts cost over a tenth of all calls

Source: 5 to 10 % of cost for hedges is what "LLM Latency In Production: What Actually Works" expects. When wrong: an own
engine has no price per token; a price of 0 says so.
"""

from collections.abc import Iterable

from stayfast.core.findings import Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot
from stayfast.core.units import format_share
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.patches import change_settings
from stayfast.policy.findings.rows import HOUR_S, observe, share_of

MIN_ATTEMPTS = 50
MIN_STREAMS = 200  # over all routes; clients that leave early have no counts
UNPRICED = 0.05  # less is a rare model name
OLD_DAYS = 90.0
HEDGE_COST = 0.1  # "expect 5 to 10 percent cost"; also the upper end of the automatic budget
MIN_COST_USD = 0.01  # in an hour; below it nothing is to be saved


def find_uncounted(snapshot: Snapshot) -> Iterable[Finding]:
    """Upstreams whose streams carry no token counts, so that tokens and cost look like 0."""
    totals: dict[str, tuple[int, int]] = {}
    for row in snapshot.rows_by_upstream(HOUR_S):
        n_answers = row.n_streamed - row.n_failed - row.n_rejected - row.n_left
        answers, tokens = totals.get(row.upstream, (0, 0))
        totals[row.upstream] = answers + max(0, n_answers), tokens + row.n_output_tokens
    for name, (answers, tokens) in totals.items():
        requests_usage = snapshot.setting("upstreams", name, "request_usage")
        is_upstream = not name.startswith("(")  # else the cache, or the sum of others
        if answers < MIN_STREAMS or tokens >= answers or requests_usage is True or not is_upstream:
            continue
        effect = "Tokens, cost, token quotas and `stayfast plan` count the answers. Clients see no difference."
        yield Finding(
            "usage.missing", "warn", FindingSite(upstream=name),
            f"{answers} streamed answers of {name} had {tokens} counted tokens: tokens and cost are unknown, not 0.",
            "This upstream counts the tokens of a stream only if the request asks for it.",
            evidence=(observe("streamed answers", answers, "", HOUR_S, "stayfast_requests_total"),
                      observe("output tokens", tokens, "tokens", HOUR_S, "stayfast_tokens_total")),
            do=(SettingsChange(effect) if requests_usage is None else
                change_settings(effect, {"upstreams": {name: {"request_usage": True}}}, "measured"),),
            verify="stayfast_tokens_total{kind=\"output\"} rises with the answers")


def find_missing(snapshot: Snapshot) -> Iterable[Finding]:
    """Upstreams whose attempts have no price, where others have one."""
    by_upstream: dict[str, tuple[int, int]] = {}
    for row in snapshot.rows_by_upstream(HOUR_S):
        unpriced, attempts = by_upstream.get(row.upstream, (0, 0))
        by_upstream[row.upstream] = unpriced + row.n_unpriced, attempts + max(row.n_attempts, row.n)
    for name, (unpriced, attempts) in by_upstream.items():
        share = share_of(unpriced, attempts)
        if attempts < MIN_ATTEMPTS or share < UNPRICED or not _counts_cost(snapshot):
            continue
        yield Finding(
            "price.missing", "info", FindingSite(upstream=name),
            f"{format_share(share)} of {attempts} attempts at {name} have no price.",
            "Their model is not in the price table. They count as free in cost limits, reports and advice.",
            evidence=(observe("attempts without a price", share, "ratio", HOUR_S, "stayfast_cost_usd_total"),
                      observe("attempts", attempts, "", HOUR_S, "stayfast_attempts_total")),
            do=(SettingsChange(f"The provider's prices in dollars per million tokens: upstreams.{name}.prices, "
                               "input_per_mtok and output_per_mtok by model. For an own engine 0 is right.",
                               confidence="unknown"),),  # a patch with 0 would make a provider's calls free
            verify="/admin/snapshot traffic: n_unpriced is 0")


def _counts_cost(snapshot: Snapshot) -> bool:
    """Whether cost matters here: something has a price, or a limit counts cost."""
    if any(sum(row.cost_usd.values()) > 0 for row in snapshot.rows(HOUR_S)):
        return True
    owners = [*(snapshot.setting("tenants") or {}).values(), *(snapshot.setting("upstreams") or {}).values()]
    limits = [owner.get("quota") or owner.get("rate") for owner in owners if isinstance(owner, dict)]
    return any(isinstance(limit, dict) and (limit.get("cost_per_minute") or limit.get("cost_per_day")) for limit in limits)


def find_old(snapshot: Snapshot) -> Iterable[Finding]:
    """Upstreams with old prices."""
    for row in snapshot.upstreams:
        age = row.price_age_days
        if age is None or age <= OLD_DAYS or row.n_attempts == 0:
            continue
        yield Finding(
            "price.old", "info", FindingSite(upstream=row.name), f"The prices of {row.name} are {age:.0f} days old.",
            "The built-in table is dated; providers change their prices a few times a year.",
            evidence=(observe("price_age_days", age, "days", None, "/admin/snapshot upstreams"),),
            do=(SettingsChange("Compare with the provider's page, and set upstreams.NAME.prices, or install a newer "
                               "version."),),
            verify="/admin/snapshot upstreams: price_age_days falls")


def find_dear_hedges(snapshot: Snapshot) -> Iterable[Finding]:
    """Second attempts that cost more than a tenth of all calls."""
    for row in snapshot.rows(HOUR_S):
        total, hedges = sum(row.cost_usd.values()), row.cost_usd.get("hedge", 0.0)
        share = share_of(hedges, total)
        budget = snapshot.setting("routes", row.route, "hedge", "budget")
        most = max(HEDGE_COST, budget if isinstance(budget, int | float) else 0.0)
        has_counts = row.n_output_tokens >= row.n - row.n_failed - row.n_rejected  # else only lost attempts have a cost
        if row.n < MIN_ATTEMPTS or total < MIN_COST_USD or share <= most or not has_counts:
            continue
        won = share_of(row.n_hedges_won, row.n_hedges)
        yield Finding(
            "hedge.cost", "warn", FindingSite(route=row.route),
            f"Second attempts cost {format_share(share)} of the route (${hedges:.2g} an hour); {format_share(won)} of them "
            "won.",
            "They begin too early or too often for what they win: a race, or dear second upstreams.",
            evidence=(observe("cost of hedges", share, "ratio", HOUR_S, "stayfast_cost_usd_total"),
                      observe("hedges won", won, "ratio", HOUR_S, "stayfast_hedges_total"),
                      observe("hedges", row.n_hedges, "", HOUR_S, "stayfast_hedges_total")),
            do=(change_settings(f"At most 5 % of the cost: ${max(0.0, hedges - 0.05 * total):.2g} an hour less, by hedging "
                                "only the slowest.", {"routes": {row.route: {"hedge": {"mode": "auto", "budget": 0.05}}}}),),
            verify="stayfast_hedges_total falls; stayfast_ttft_seconds p99 does not rise")


CHECKS = (
    Check("usage.missing", "streams carry no token counts, so tokens and cost look like 0", find_uncounted,
          ("price.missing", "hedge.cost")),
    Check("price.missing", "attempts have no price", find_missing),
    Check("price.old", "prices are over 90 days old", find_old),
    Check("hedge.cost", "second attempts cost over a tenth of all calls", find_dear_hedges),
)
