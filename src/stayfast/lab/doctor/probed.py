"""Rows that the gateway's own probes make of the facts of a virtual run: prompts, tenants, caches, and what they add to
upstreams.
"""

from collections import Counter, defaultdict

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.events import Fact, RequestDone
from stayfast.core.samples import PromptSampled, QuotaReported
from stayfast.core.snapshot import CacheRow, PromptRow, Snapshot
from stayfast.observe.snapshot.prompt_shapes import PromptShapes, merge_prompts
from stayfast.observe.snapshot.tenant_traffic import TenantTraffic, merge_tenants
from stayfast.observe.snapshot.upstream_observations import UpstreamObservations, complete_upstreams

# What the probes add to the rows of prompts that `FactSnapshot` makes of all requests.
SAMPLED = ("system_tokens", "tool_tokens", "history_tokens", "retrieved_tokens", "n_messages", "growth_tokens",
           "n_logit_bias", "n_logit_biases", "shared_prefix_ratio")


class ProbedFacts:
    """A sink with the probes of one worker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shapes, self._tenants, self._upstreams = PromptShapes(), TenantTraffic(), UpstreamObservations()
        self._cached: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def emit(self, fact: Fact) -> None:
        if isinstance(fact, RequestDone) and not fact.role:
            self._tenants.consume([fact])
            self._upstreams.note_attempts(fact.attempts)
            if fact.cache is not None and fact.route is not None:
                self._cached[fact.route][fact.cache] += 1
        elif isinstance(fact, PromptSampled):
            self._shapes.consume([fact])
        elif isinstance(fact, QuotaReported):
            self._upstreams.note_quota(fact)

    def complete(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with these rows."""
        now = self._clock.now()
        sampled = {row.route: row for row in merge_prompts([self._shapes.collect(now)])}
        changes = {row.name: row.n_breaker_changes_1h for row in snapshot.upstreams}
        upstreams = complete_upstreams(snapshot.upstreams, [self._upstreams.collect(now)])
        return msgspec.structs.replace(
            snapshot, prompts=tuple(_add_sample(row, sampled.get(row.route)) for row in snapshot.prompts),
            upstreams=tuple(msgspec.structs.replace(row, n_breaker_changes_1h=changes[row.name]) for row in upstreams),
            tenants=merge_tenants([self._tenants.collect(now)]),
            caches=tuple(_cache_row(route, counts) for route, counts in sorted(self._cached.items())))


def _add_sample(row: PromptRow, sampled: PromptRow | None) -> PromptRow:
    if sampled is None:
        return row
    n_repeated = round((sampled.n_repeated or 0) * row.n / max(1, sampled.n))
    return msgspec.structs.replace(row, n_repeated=n_repeated, **{name: getattr(sampled, name) for name in SAMPLED})


def _cache_row(route: str, counts: Counter[str]) -> CacheRow:
    n_lookups = counts.total() - counts["bypass"]
    return CacheRow(route, "exact", n_lookups, counts["hit"] + counts["stale"], counts["semantic"], counts["coalesced"],
                    counts["bypass"])
