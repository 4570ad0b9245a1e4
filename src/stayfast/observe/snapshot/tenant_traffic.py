"""Traffic of each tenant in the last 5 minutes, and what admission has of it now.

Counts are exact. Times and prompt sizes are histograms of at most DETAILS_A_S requests a second of each worker, so that a
busy gateway does not pay for them. At most MAX_TENANTS tenants a slot are told apart; the row OTHER has the rest.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from stayfast.core.events import RequestDone
from stayfast.core.snapshot import TenantRow
from stayfast.observe.snapshot.tallies import PackedTally, RowTally, TallyWindow, merge_tallies

SPAN_S: Final = 300.0
SLOT_S: Final = 15.0
MAX_TENANTS: Final = 200
MAX_ROWS: Final = 50
DETAILS_A_S: Final = 20.0
ANONYMOUS: Final = "anonymous"


class TenantNow(msgspec.Struct, frozen=True, omit_defaults=True):
    """What admission has of a tenant. left: share of each limit."""

    tier: str = ""
    running: int = 0
    waiting: int = 0
    left: dict[str, float] = {}


class TenantParts(msgspec.Struct, frozen=True, omit_defaults=True):
    traffic: dict[str, PackedTally] = {}
    now: dict[str, TenantNow] = {}


class TenantTraffic:
    """For one event loop. Requests without a tenant are counted only if others have one, those of jobs never."""

    __slots__ = ("_detail_at", "_has_tenants", "_read_now", "_window")

    def __init__(self, read_now: Callable[[], Mapping[str, TenantNow]] = dict) -> None:
        self._read_now = read_now
        self._window = TallyWindow(SPAN_S, SLOT_S, MAX_TENANTS)
        self._detail_at = 0.0  # when the next request is counted with its times
        self._has_tenants = False

    def consume(self, requests: Sequence[RequestDone]) -> None:
        """Count requests of clients."""
        by_tenant: defaultdict[str | None, list[RequestDone]] = defaultdict(list)
        for fact in requests:
            if not fact.role:
                by_tenant[fact.tenant].append(fact)
        if not self._has_tenants:
            if not by_tenant.keys() - {None}:
                return
            self._has_tenants = True
        for tenant, facts in by_tenant.items():
            tally = self._window.at(tenant or ANONYMOUS, facts[-1].ended_at)
            _count(tally.counts, facts)
            for fact in facts:
                if fact.ended_at >= self._detail_at:
                    self._detail_at = fact.ended_at + 1.0 / DETAILS_A_S
                    _add_details(tally, fact)

    def collect(self, now: float) -> TenantParts:
        return TenantParts(self._window.collect(now), dict(self._read_now()))


def _count(counts: dict[str, float], facts: Sequence[RequestDone]) -> None:
    """Count requests of one tenant."""
    counts["n"] += len(facts)
    n_tokens, usd = 0, 0.0
    for fact in facts:
        usage = fact.usage
        if usage is not None:
            n_tokens += usage.input_total + usage.output
        for attempt in fact.attempts:
            if attempt.cost_usd:
                usd += attempt.cost_usd
        if fact.status >= 400:
            if fact.shed is not None:
                counts["n_shed"] += 1
            elif fact.status >= 500 or fact.status == 429:
                counts["n_failed"] += 1
    counts["n_tokens"] += n_tokens
    counts["cost_usd"] += usd


def _add_details(tally: RowTally, fact: RequestDone) -> None:
    if fact.ttft_s is not None:
        tally.histograms["ttft_s"].add(fact.ttft_s)
    if fact.usage is not None and fact.usage.input_total:
        tally.histograms["input_tokens"].add(fact.usage.input_total)


def merge_tenants(parts: Iterable[TenantParts]) -> tuple[TenantRow, ...]:
    """The rows of all workers' tenants, the largest first, at most MAX_ROWS. Requests that run and wait are added; the rest
    of a limit that each worker reports is of all workers, so the least counts.
    """
    known = list(parts)
    tallies = merge_tallies(part.traffic for part in known)
    names = dict.fromkeys([*tallies, *[name for part in known for name in part.now]])
    rows = [_tenant_row(name, tallies.get(name) or RowTally(), [part.now[name] for part in known if name in part.now])
            for name in names]
    return tuple(sorted(rows, key=lambda row: (-row.n, -row.running - row.waiting, row.name))[:MAX_ROWS])


def _tenant_row(name: str, tally: RowTally, states: Sequence[TenantNow]) -> TenantRow:
    left: dict[str, float] = {}
    for state in states:
        for limit, share in state.left.items():
            left[limit] = min(share, left.get(limit, share))
    return TenantRow(
        name, tier=next((state.tier for state in states if state.tier), ""), n=tally.n(), n_shed=tally.n("n_shed"),
        n_failed=tally.n("n_failed"), n_tokens=tally.n("n_tokens"), cost_usd=tally.counts["cost_usd"],
        running=sum(state.running for state in states), waiting=sum(state.waiting for state in states),
        ttft_s=tally.spread("ttft_s"), input_tokens=tally.spread("input_tokens"), left=left)
