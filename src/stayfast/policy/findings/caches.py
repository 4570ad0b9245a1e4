"""The gateway's own response caches, and the stores that they share.

Problem: a cache that misses costs memory and a lookup, and seems to work. Rule: of a cache that hits too little, find out
why, by what it does with answers.

    evicts early   more evictions than half of the misses: it is too small
    expires early  no evictions, and a lifetime of minutes
    bypassed       most requests may not be cached
    hits low       none of these: under 30 % of lookups

Source: 30 % is the alert of "Building for the Jagged Edges of LLM Latency"; 60 %, and the lifetime of five minutes that cost
most hits, are of "LLM Latency Optimization: How We Cut P99 from 12s to 1.8s". When wrong: questions that never repeat have
no hits at any size.
"""

from collections.abc import Iterable, Iterator

from stayfast.core.findings import Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import CacheRow, PromptRow, Snapshot
from stayfast.core.units import format_duration, format_share
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.patches import change_settings
from stayfast.policy.findings.rows import HOUR_S, MIB, observe, route_row, share_of

MIN_LOOKUPS = 200  # a share of 30 % is then known within 6.5 %
WARM_S = 1800.0  # a cache that starts empty needs repeats before it hits
LOW_HITS = 0.3  # "cache hit rate < 30 %"
GOOD_HITS = 0.6  # "if below 60 %, your eviction policy is too aggressive"
EVICTS_EARLY = 0.5  # evictions per miss: every second answer is stored in vain
MINUTES_S = 900.0  # lifetimes of minutes; the source's was 300 s, users returned after 180 s
MOST_BYPASSED = 0.5
DAY_S = 86_400.0
MIN_PROMPTS = 100
LOST_REPEATS = 0.1  # of the sample: beyond its error, a larger or longer cache would answer them
SHADOW_LOOKUPS = 2000  # with 5 % audited and half of the questions with a neighbour, 300 labels come from 12,000 at most
MAX_ERROR = 0.01  # default of `cache.max_error`
STALE_SHARE = 0.3  # of answers from the cache: past their lifetime
SOURCE = "stayfast_cache_requests_total"


def _caches(snapshot: Snapshot) -> Iterator[tuple[CacheRow, float]]:
    """Warm caches with enough lookups, and their share of hits."""
    uptime_s = snapshot.at - snapshot.started_at if snapshot.started_at is not None else WARM_S
    for row in snapshot.caches:
        if row.mode != "off" and row.n_lookups >= MIN_LOOKUPS and uptime_s >= WARM_S:
            yield row, share_of(row.n_exact + row.n_semantic + row.n_coalesced, row.n_lookups)


def _cache_setting(snapshot: Snapshot, route: str, name: str) -> float | None:
    value = snapshot.setting("routes", route, "cache", name)
    return float(value) if isinstance(value, int | float) else None


def _expires_early(snapshot: Snapshot, row: CacheRow) -> bool:
    ttl_s = _cache_setting(snapshot, row.route, "ttl_s")
    return ttl_s is not None and ttl_s <= MINUTES_S


def _evicts_early(row: CacheRow, hits: float) -> bool:
    n_missed = row.n_lookups * (1 - hits)
    return row.n_evicted is not None and row.n_evicted > EVICTS_EARLY * n_missed


def _has_lost_repeats(snapshot: Snapshot, route: str, hits: float) -> bool:
    """Whether questions return that the cache does not answer. True if unknown: the sample has less than half of them."""
    row = _prompt_row(snapshot, route)
    return not _knows_repeats(snapshot, route) or share_of(row.n_repeated or 0, row.n) > hits + LOST_REPEATS


def _knows_repeats(snapshot: Snapshot, route: str) -> bool:
    row = _prompt_row(snapshot, route)
    return row.n_repeated is not None and row.n >= max(MIN_PROMPTS, 0.5 * route_row(snapshot, route, HOUR_S).n)


def _prompt_row(snapshot: Snapshot, route: str) -> PromptRow:
    return next((row for row in snapshot.prompts if row.route == route), PromptRow(route))


def find_low_hits(snapshot: Snapshot) -> Iterable[Finding]:
    """Caches that hit less than 30 % of lookups, for no visible reason."""
    for row, hits in _caches(snapshot):
        is_explained = _evicts_early(row, hits) or _expires_early(snapshot, row)
        if hits >= LOW_HITS or (is_explained and _has_lost_repeats(snapshot, row.route, hits)):
            continue
        is_returning = _knows_repeats(snapshot, row.route) and _has_lost_repeats(snapshot, row.route, hits)
        do = (change_settings("Questions with the same meaning share an answer, within a proven error bound.",
                              {"routes": {row.route: {"cache": {"mode": "semantic"}}}}) if row.mode == "exact" else
              SettingsChange("Send equal questions as equal texts: no date, id or user name in the prompt."))
        yield Finding(
            "cache.hits_low", "warn", FindingSite(route=row.route),
            f"{format_share(hits)} of {row.n_lookups} lookups hit the cache.",
            "Equal requests return, but their answers are not stored: cut at max_tokens, or too large." if is_returning else
            "Prompts differ in every request (a date or id in them), or questions hardly repeat.",
            evidence=(observe("hits", hits, "ratio", HOUR_S, SOURCE), observe("lookups", row.n_lookups, "", HOUR_S, SOURCE)),
            do=(do, change_settings("If questions do not repeat: no cache, and no lookup.",
                                    {"routes": {row.route: {"cache": {"mode": "off"}}}}, "unknown")),
            verify=f"{SOURCE} of route {row.route}: the share of hits rises over 30 %; `stayfast cache`")


def find_early_eviction(snapshot: Snapshot) -> Iterable[Finding]:
    """Caches that evict answers before their next use, by size."""
    for row, hits in _caches(snapshot):
        if hits >= GOOD_HITS or not _evicts_early(row, hits) or not _has_lost_repeats(snapshot, row.route, hits):
            continue
        store = snapshot.setting("routes", row.route, "cache", "store")
        owner = ("stores", str(store)) if store else ("routes", row.route)
        most = snapshot.setting(*owner, "max_bytes") if store else _cache_setting(snapshot, row.route, "max_bytes")
        larger = int(4 * (most or 64 * MIB))
        tree = {"stores": {owner[1]: {"max_bytes": larger}}} if store else {
            "routes": {row.route: {"cache": {"max_bytes": larger}}}}
        is_ours = not store or snapshot.setting("stores", str(store), "kind") != "redis"
        yield Finding(
            "cache.evicts_early", "warn", FindingSite(route=row.route),
            f"The cache evicted {row.n_evicted} answers in {row.n_lookups} lookups, and {format_share(hits)} hit.",
            "It is too small: answers are evicted before the question returns.",
            evidence=(observe("evicted", row.n_evicted or 0, "", HOUR_S), observe("hits", hits, "ratio", HOUR_S, SOURCE),
                      observe("lookups", row.n_lookups, "", HOUR_S, SOURCE)),
            do=(change_settings(f"Four times the room ({larger // MIB} MiB): what is evicted in vain now can hit.", tree)
                if is_ours else SettingsChange("Give the Redis server more memory (maxmemory)."),),
            verify=f"evictions in `stayfast cache` fall; {SOURCE} of route {row.route}: hits rise")


def find_early_expiry(snapshot: Snapshot) -> Iterable[Finding]:
    """Caches with a lifetime of minutes that hit little, although they have room."""
    for row, hits in _caches(snapshot):
        if hits >= GOOD_HITS or not _expires_early(snapshot, row) or _evicts_early(row, hits):
            continue
        if not _has_lost_repeats(snapshot, row.route, hits):
            continue
        ttl_s = _cache_setting(snapshot, row.route, "ttl_s") or 0.0
        yield Finding(
            "cache.expires_early", "warn", FindingSite(route=row.route),
            f"Answers expire after {format_duration(ttl_s)}, and {format_share(hits)} of lookups hit.",
            "Expiry by time removes answers whose question returns, while the cache has room: it evicts none by size.",
            evidence=(observe("ttl_s", ttl_s, "s"), observe("hits", hits, "ratio", HOUR_S, SOURCE),
                      observe("evicted", row.n_evicted or 0, "", HOUR_S)),
            do=(change_settings("Answers live for a day; the least used leave first when room ends. With such a change hits "
                                "rose from 20 to 80 % in the source's case.",
                                {"routes": {row.route: {"cache": {"ttl_s": DAY_S}}}}),
                change_settings("If answers must be fresh: expired ones are served while they are made anew.",
                                {"routes": {row.route: {"cache": {"stale_while_revalidate_s": DAY_S}}}})),
            verify=f"{SOURCE} of route {row.route}: hits rise")


def find_bypassed(snapshot: Snapshot) -> Iterable[Finding]:
    """Routes with a cache whose requests mostly may not use it."""
    for row in snapshot.caches:
        n = row.n_lookups + row.n_bypassed
        share = share_of(row.n_bypassed, n)
        if row.mode == "off" or n < MIN_LOOKUPS or share <= MOST_BYPASSED:
            continue
        highest = _cache_setting(snapshot, row.route, "max_temperature")
        limit = f" of at most {highest:g}" if highest is not None else ""
        yield Finding(
            "cache.bypassed", "warn", FindingSite(route=row.route),
            f"{format_share(share)} of {n} requests bypass the route's cache.",
            f"A request is cached only with a temperature{limit} or a seed; a missing temperature counts as 1.",
            evidence=(observe("bypassed", share, "ratio", HOUR_S, SOURCE), observe("requests", n, "", HOUR_S, SOURCE)),
            do=(SettingsChange("In the application: temperature 0 where answers need not vary."),
                change_settings("Requests of any temperature are cached: equal prompts then get equal answers.",
                                {"routes": {row.route: {"cache": {"max_temperature": 2}}}}, "unknown")),
            verify=f'{SOURCE}{{result="bypass"}} of route {row.route} falls')


def find_candidates(snapshot: Snapshot) -> Iterable[Finding]:
    """Routes without a cache whose deterministic prompts repeat."""
    for row in snapshot.prompts:
        share = share_of(row.n_repeated or 0, row.n)
        if row.n < MIN_PROMPTS or share < LOW_HITS or snapshot.setting("routes", row.route, "cache", "mode") != "off":
            continue
        traffic = route_row(snapshot, row.route, HOUR_S)
        usd = sum(traffic.cost_usd.values()) * share
        brings = f" It saves about ${usd:.2g} an hour." if usd > 0 else ""
        yield Finding(
            "cache.candidate", "warn", FindingSite(route=row.route),
            f"{format_share(share)} of {row.n} sampled prompts repeat an earlier one at a low temperature, and the route "
            "has no cache.",
            "Each repeat makes its own call and gets about the same answer.",
            evidence=(observe("repeated prompts", share, "ratio", HOUR_S), observe("prompts", row.n, "", HOUR_S)),
            do=(change_settings(f"Equal requests share one answer: at least {format_share(share)} of them answer at once."
                                f"{brings}", {"routes": {row.route: {"cache": {"mode": "exact"}}}}),),
            verify=f'{SOURCE}{{result="hit"}} of route {row.route}')


def find_shadow(snapshot: Snapshot) -> Iterable[Finding]:
    """Semantic caches that compare answers for long and serve none."""
    for row, _ in _caches(snapshot):
        if row.mode != "semantic" or row.semantic_state != "shadow" or row.n_lookups < SHADOW_LOOKUPS:
            continue
        yield Finding(
            "semantic.in_shadow", "warn", FindingSite(route=row.route),
            f"After {row.n_lookups} lookups in the hour, the semantic cache serves no answer to a different question.",
            "It has too few compared answers, or they do not prove the error bound: the judge fails, or similar questions "
            "have different answers.",
            evidence=(observe("lookups", row.n_lookups, "", HOUR_S, SOURCE),
                      observe("semantic hits", row.n_semantic, "", HOUR_S, "stayfast_semantic_requests_total")),
            do=(change_settings("More comparisons an hour.", {"routes": {row.route: {"cache": {"judge_share": 4}}}}),
                change_settings("If questions rarely share answers: the exact cache alone, without the cost of comparisons.",
                                {"routes": {row.route: {"cache": {"mode": "exact"}}}})),
            verify="stayfast_semantic_labels rises, stayfast_semantic_shadow becomes 0; `stayfast cache`")


def find_semantic_error(snapshot: Snapshot) -> Iterable[Finding]:
    """Semantic caches whose hits may be wrong more often than allowed."""
    for row in snapshot.caches:
        allowed = _parse_share(snapshot.setting("routes", row.route, "cache", "max_error"))
        if row.error_most is None or row.n_semantic == 0 or row.error_most <= allowed:
            continue
        is_fixed = row.semantic_state == "fixed"
        tree = {"threshold": None} if is_fixed else {"audit_share": 0.2}
        yield Finding(
            "semantic.error_over_bound", "act" if is_fixed else "warn", FindingSite(route=row.route),
            f"Up to {format_share(row.error_most)} of semantic hits may be wrong; {format_share(allowed)} are allowed.",
            "A fixed threshold serves answers without regard to errors." if is_fixed else
            "Too few audits prove the bound, or the meaning of questions drifts.",
            evidence=(observe("error, upper 95 % bound", row.error_most, "ratio", HOUR_S, "stayfast_semantic_error_ratio"),
                      observe("semantic hits", row.n_semantic, "", HOUR_S, "stayfast_semantic_requests_total")),
            do=(change_settings("The error bound decides which answers are served." if is_fixed else
                                "Four times as many hits are audited, which proves or refutes the bound sooner.",
                                {"routes": {row.route: {"cache": tree}}}),),
            verify='stayfast_semantic_error_ratio{bound="high"} falls under the bound; `stayfast cache eval`')


def _parse_share(value: object) -> float:
    """0.01 or "1%"; the default of `max_error` for anything else."""
    if isinstance(value, int | float):
        return float(value)
    text = value.strip() if isinstance(value, str) else ""
    digits = text.removesuffix("%").strip()
    if not digits.replace(".", "", 1).isdigit():
        return MAX_ERROR
    return float(digits) / (100 if text.endswith("%") else 1)


def find_stale_answers(snapshot: Snapshot) -> Iterable[Finding]:
    """Routes that serve many answers past their lifetime."""
    for row in snapshot.rows(HOUR_S):
        n_stale = row.cache.get("stale", 0)
        n_hits = n_stale + row.cache.get("hit", 0) + row.cache.get("semantic", 0)
        share = share_of(n_stale, n_hits)
        if n_hits < MIN_LOOKUPS or share <= STALE_SHARE:
            continue
        ttl_s = _cache_setting(snapshot, row.route, "ttl_s") or DAY_S
        yield Finding(
            "cache.stale", "info", FindingSite(route=row.route),
            f"{format_share(share)} of the answers from the cache are past their lifetime of {format_duration(ttl_s)}.",
            "Questions return less often than the lifetime, so each return finds an old answer; or the call that refreshes "
            "it fails.",
            evidence=(observe("stale answers", share, "ratio", HOUR_S, SOURCE), observe("hits", n_hits, "", HOUR_S, SOURCE)),
            do=(change_settings("If the answers may be as old: a lifetime that says so.",
                                {"routes": {row.route: {"cache": {"ttl_s": 4 * ttl_s}}}}),
                change_settings("If not: expired answers are not served.",
                                {"routes": {row.route: {"cache": {"stale_while_revalidate_s": 0}}}})),
            verify=f'{SOURCE}{{result="stale"}} of route {row.route} falls')


CHECKS = (
    Check("cache.hits_low", "a response cache hits less than 30 % of lookups", find_low_hits),
    Check("cache.evicts_early", "a response cache evicts answers before their next use", find_early_eviction),
    Check("cache.expires_early", "answers expire after minutes while the cache has room", find_early_expiry),
    Check("cache.bypassed", "most requests of a route with a cache may not use it", find_bypassed, ("cache.hits_low",)),
    Check("cache.candidate", "deterministic prompts repeat on a route without a cache", find_candidates),
    Check("semantic.in_shadow", "a semantic cache compares answers for long and serves none", find_shadow,
          ("cache.hits_low",)),
    Check("semantic.error_over_bound", "semantic hits may be wrong more often than allowed", find_semantic_error),
    Check("cache.stale", "many answers of a cache are past their lifetime", find_stale_answers),
)
