"""Prefix affinity that routes by a belief which the engines' answers do not confirm.

Problem: routing counts its own hits, so a wrong belief looks like success while prompts are computed again. Rule: compare
the share of input that routing believed to be cached with the share that usage reports as cached, over the same answers.

    belief wrong      belief - truth over 15 points: the cache is smaller than assumed, shared with others, or was emptied
    truth unknown     much is believed to be cached, and no answer has ever reported a cached token

Source: 15 points are this project's own bound; ordinary differences (a block's rounding, an eviction now and then) stay
within 5 in `stayfast prove affinity`. When wrong: an engine that reports only some of its caches (a host tier) has less
truth than it should.
"""

from collections.abc import Iterable

from stayfast.core.findings import Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot
from stayfast.core.units import format_share
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.rows import observe

MIN_ANSWERS = 100
APART = 0.15
MUCH = 0.3  # believed cached: from less there is little to check
SOURCE = "stayfast_prefix_checked_tokens_total"


def find_wrong_belief(snapshot: Snapshot) -> Iterable[Finding]:
    """Upstreams that have much less of their prompts in their caches than routing believes."""
    for row in snapshot.upstreams:
        truth, belief = row.prefix_hit_ratio, row.prefix_belief_ratio
        if row.n_prefix_answers < MIN_ANSWERS or truth is None or belief is None or belief - truth <= APART:
            continue
        yield Finding(
            "affinity.belief_wrong", "warn", FindingSite(upstream=row.name),
            f"Routing believed {format_share(belief)} of the input to be in the cache of {row.name}; its answers report "
            f"{format_share(truth)}.",
            "Its cache is smaller than `affinity.cache_tokens`, other clients fill it, or it drops prompts sooner than "
            "`affinity.ttl_s`.",
            evidence=(observe("believed", belief, "ratio", None, SOURCE), observe("reported", truth, "ratio", None, SOURCE),
                      observe("answers", row.n_prefix_answers, "", None)),
            do=(SettingsChange("Set `affinity.cache_tokens` to the tokens of the engine's KV memory (its log at the start "
                               "shows them), and `affinity.ttl_s` to how long it keeps an idle prompt."),),
            verify=f"{SOURCE}: kind believed of {row.name} falls to kind cached")


def find_unknown_truth(snapshot: Snapshot) -> Iterable[Finding]:
    """Upstreams that are believed to have much in their caches, and never report it."""
    for row in snapshot.upstreams:
        belief = row.prefix_belief_ratio
        if row.n_prefix_answers < MIN_ANSWERS or row.prefix_hit_ratio is not None or belief is None or belief < MUCH:
            continue
        yield Finding(
            "affinity.hits_unreported", "info", FindingSite(upstream=row.name),
            f"Routing believes {format_share(belief)} of the input to be in the cache of {row.name}, and no answer has "
            "reported a cached token.",
            "The engine does not report them, or its prefix cache is off.",
            evidence=(observe("believed", belief, "ratio", None, SOURCE),
                      observe("answers", row.n_prefix_answers, "", None)),
            do=(SettingsChange("At the engine: vLLM `--enable-prompt-tokens-details`, SGLang `--enable-cache-report`; and "
                               "check that its prefix cache is on."),),
            verify=f"{SOURCE}: {row.name} has the kind cached")


CHECKS = (
    Check("affinity.belief_wrong", "an engine's cache has much less of its prompts than routing believes",
          find_wrong_belief, ("engine.kv_hit_low",)),
    Check("affinity.hits_unreported", "an engine that should hit its cache never reports cached tokens", find_unknown_truth),
)
