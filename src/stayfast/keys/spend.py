"""What requests cost, by day, tenant, key, route and model: summed in memory, and added to the store every few seconds.

Problem: a write for each request costs more than the request, and a figure only in memory is lost with the process. Rule:

    row[day, tenant, key, route, model] += requests, tokens, cost     with each request's end, in memory
    every FLUSH_S: all rows, under the next number of this writer, in one transaction that a repetition does not change

Costs are whole billionths of a USD, so sums of workers and gateways are exact. A process that is killed loses at most what
ended in the last FLUSH_S and the time of one write. While the store is unavailable, rows wait; beyond MAX_ROWS rows models,
then routes become OTHER, so that memory is bounded and sums by tenant and key stay exact.
"""

from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex

from stayfast.core.events import UNPRICED, AttemptDone, RequestDone
from stayfast.core.keys import DAY_S, NANO, SpendRow
from stayfast.core.units import make_printable
from stayfast.policy.admission.price import TABLE_PRICE
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.keys import KeyStore

FLUSH_S = 2.0
MAX_ROWS = 10_000
MAX_MODEL = 128
OTHER = "(other)"
CACHED = "(cache)"
NO_ROUTE = "(none)"
SpendKey = tuple[int, str, str, str, str]
HITS = frozenset(("hit", "semantic", "stale", "coalesced"))


class SpendTally:
    """The sums since the last `take`. A listener of facts; `is_on`: without a store nothing is summed."""

    __slots__ = ("_rows", "is_on")

    def __init__(self) -> None:
        self._rows: dict[SpendKey, list[int]] = {}
        self.is_on = False

    @property
    def handlers(self) -> Mapping[type[RequestDone], Callable[[list[RequestDone]], None]]:
        return {RequestDone: self._count_all}

    def _count_all(self, facts: Sequence[RequestDone]) -> None:
        if self.is_on:
            for fact in facts:
                if fact.attempts or fact.cache in HITS:
                    self._count(fact)

    def take(self) -> list[SpendRow]:
        """All rows, which are then gone from here."""
        rows, self._rows = self._rows, {}
        return [SpendRow(*key, *counts) for key, counts in rows.items()]

    def _count(self, fact: RequestDone) -> None:
        day, tenant, route = int(fact.wall_at // DAY_S), fact.tenant or "", fact.route or NO_ROUTE
        served = CACHED
        for attempt in fact.attempts:
            served = attempt.model or fact.model
            usage = attempt.usage
            if usage is not None or attempt.cost_usd:
                self._add_attempt(self._find(day, tenant, fact.key_id, route, served), attempt)
        self._find(day, tenant, fact.key_id, route, served)[0] += 1

    def _add_attempt(self, row: list[int], attempt: AttemptDone) -> None:
        usage = attempt.usage
        if usage is not None:
            row[1] += usage.input_total
            row[2] += usage.cached_read
            row[3] += usage.output
        if attempt.cost_usd is not None:
            nano_usd = round(attempt.cost_usd * NANO)
            row[4] += nano_usd
            if attempt.price == TABLE_PRICE:
                row[5] += nano_usd
        row[6] += attempt.price == UNPRICED

    def _find(self, day: int, tenant: str, key_id: str, route: str, model: str) -> list[int]:
        if len(model) > MAX_MODEL or not model.isprintable():
            model = make_printable(model[:MAX_MODEL])
        key = (day, tenant, key_id, route, model)
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= MAX_ROWS:
                key = (day, tenant, key_id, OTHER, OTHER)
            row = self._rows.setdefault(key, [0] * 7)
        return row

    def __repr__(self) -> str:
        return f"<SpendTally: {len(self._rows)} rows>"


class SpendWriter:
    """Adds the rows of a tally to a store. One call runs at a time. boot: of this process, unique."""

    def __init__(self, tally: SpendTally, store: KeyStore, boot: str | None = None) -> None:
        self._tally = tally
        self._store = store
        self._boot = boot or token_hex(12)
        self._n = 0
        self._pending: list[SpendRow] = []  # of the number `_n`; not confirmed

    async def flush(self) -> bool:
        """Add what there is; False: the store is unavailable, and nothing is lost."""
        if not self._pending:
            self._pending = self._tally.take()
            self._n += bool(self._pending)
        if self._pending:
            try:
                await self._store.add_spend(self._boot, self._n, self._pending)
            except StoreUnavailable:
                return False
            self._pending = []
        return True
