"""The evidence about the smaller tiers of one route: for each tenant and tier its own, in memory.

A tenant's labels never count for another tenant, unless the route's settings share them. A restart of the process, and a
reload that changes the settings `enough`, start without evidence: the large tier answers until it is collected anew.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from stayfast.policy.tiers.enough import EnoughConfig
from stayfast.policy.tiers.evidence import (
    CASCADE_SCORE,
    K_NEAREST,
    EnoughOpinion,
    LabelledNeighbour,
    TierEvidence,
    score_neighbours,
)

if TYPE_CHECKING:
    from stayfast.stores.embedder import Floats

MAX_TENANTS = 256  # for each route; the tenant that was used least recently is forgotten


class OutcomeIndex(Protocol):
    """Questions with known outcomes: `stores.labelled_vectors`."""

    def add(self, vector: "Floats", *, is_enough: bool) -> None:
        """Add a question."""

    def nearest(self, vector: "Floats", n: int) -> list[LabelledNeighbour]:
        """At most n questions, nearest first."""

    def clear(self) -> None:
        """Forget all."""


class _TierRecord(Struct, gc=False):
    evidence: TierEvidence
    index: OutcomeIndex | None = None  # None: no vector was added


class TierEvidenceStats(Struct, frozen=True, gc=False):
    """The evidence about one tier, over all tenants. n_proven: tenants for which the tier may answer."""

    tier: str
    n_labels: int
    n_enough: int
    n_tenants: int
    n_proven: int
    n_restarts: int


class EvidenceBook:
    """The evidence of one route. Belongs to one loop; nothing here awaits."""

    __slots__ = ("_new_index", "_records", "config")

    def __init__(self, config: EnoughConfig, new_index: Callable[[int, int], OutcomeIndex] | None = None) -> None:
        """new_index: an index of so many dimensions, for so many vectors; None: no vectors are used."""
        self.config = config
        self._new_index = new_index
        self._records: dict[str, dict[str, _TierRecord]] = {}  # by tenant and tier, least recently used tenant first

    def judge(self, tenant: str | None, tier: str, row: "Floats | None", now: float) -> EnoughOpinion | None:
        """Whether the tier is enough for a question with this vector; None: it is not proven."""
        record = self._find(tenant, tier)
        if record is None or not record.evidence.is_proven:
            return None
        return record.evidence.judge(self._score(record, row), now)

    def is_dropped(self, tenant: str | None, tier: str) -> bool:
        """Whether audits of this tier rejected it before."""
        record = self._find(tenant, tier)
        return record is not None and record.evidence.n_restarts > 0 and not record.evidence.is_proven

    def note_answered(self, tenant: str | None, tier: str, now: float) -> None:
        """The tier answers a request of a client."""
        self._record_of(tenant, tier).evidence.note_answered(now)

    def learn(self, tenant: str | None, tier: str, row: "Floats | None", *, is_enough: bool, p_drawn: float,
              was_given: bool, miss_share: float) -> bool:
        """Add a label; returns whether it made audits reject the tier. Takes up to 2 ms: never while a client waits."""
        record = self._record_of(tenant, tier)
        evidence = record.evidence
        evidence.miss_share = miss_share
        has_dropped = evidence.record(self._score(record, row), is_enough=is_enough, p_drawn=p_drawn, was_given=was_given)
        if has_dropped and record.index is not None:
            record.index.clear()
        if row is not None and self._new_index is not None:
            if record.index is None:
                record.index = self._new_index(len(row), self.config.max_labels)
            record.index.add(row, is_enough=is_enough)
        return has_dropped

    def _score(self, record: _TierRecord, row: "Floats | None") -> float:
        if self.config.mode == "cascade":
            return CASCADE_SCORE
        if row is None or record.index is None:
            return record.evidence.base
        return score_neighbours(record.index.nearest(row, K_NEAREST), record.evidence.base)

    def _find(self, tenant: str | None, tier: str) -> _TierRecord | None:
        tiers = self._records.get(self._owner(tenant))
        return tiers.get(tier) if tiers is not None else None

    def _record_of(self, tenant: str | None, tier: str) -> _TierRecord:
        owner = self._owner(tenant)
        tiers = self._records.pop(owner, None)
        if tiers is None:
            tiers = {}
            if len(self._records) >= MAX_TENANTS:
                del self._records[next(iter(self._records))]
        self._records[owner] = tiers
        return tiers.setdefault(tier, _TierRecord(TierEvidence(self.config)))

    def _owner(self, tenant: str | None) -> str:
        return "" if self.config.shared_by_tenants or tenant is None else tenant

    def stats(self) -> list[TierEvidenceStats]:
        """By tier, in the order of their first label."""
        found: dict[str, list[TierEvidence]] = {}
        for tiers in self._records.values():
            for tier, record in tiers.items():
                found.setdefault(tier, []).append(record.evidence)
        return [TierEvidenceStats(tier, sum(one.n_labels for one in all_), sum(one.n_enough for one in all_), len(all_),
                                  sum(one.is_proven for one in all_), sum(one.n_restarts for one in all_))
                for tier, all_ in found.items()]

    def __repr__(self) -> str:
        return f"<EvidenceBook of {len(self._records)} tenants>"
