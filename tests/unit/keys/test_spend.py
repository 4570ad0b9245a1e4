"""Sums of what requests cost, and how they reach the store exactly once."""

import asyncio
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.keys import DAY_S, NANO, SpendRow
from stayfast.core.stage_times import StageTimes
from stayfast.core.types import Api, Outcome, Usage
from stayfast.keys.spend import CACHED, MAX_ROWS, OTHER, SpendTally, SpendWriter
from stayfast.observe.fact_batch import handle_facts
from stayfast.stores.base import StoreUnavailable
from tests.unit.keys.keys_rig import KeyServiceRig

WALL = 1_800_000_000.0
DAY = int(WALL // DAY_S)


def attempt(cost_usd: float | None = 0.001, model: str = "big", **fields: Any) -> AttemptDone:
    """A call with usage."""
    return AttemptDone("m", "up", 0.0, 1.0, Outcome.SUCCESS, model=model, cost_usd=cost_usd,
                       **{"usage": Usage(input_total=10, cached_read=4, output=5), "price": "own", **fields})


def done(*attempts: AttemptDone, **fields: Any) -> RequestDone:
    """A request of acme with key_1."""
    return RequestDone("r", Api.CHAT, "m", "m", stream=False, status=200, accepted_at=0.0, ended_at=1.0,
                       **{"wall_at": WALL, "times": StageTimes(0.0, (), 0.0), "tenant": "acme", "key_id": "key_1",
                          "attempts": attempts, **fields})


def tally(*facts: RequestDone) -> list[SpendRow]:
    """The rows of facts."""
    summed = SpendTally()
    summed.is_on = True
    handle_facts(summed, facts)
    return summed.take()


def test_tally_sums_requests_tokens_and_cost_by_model() -> None:
    rows = tally(done(attempt(price="table")), done(attempt(0.5, "small", price="own"), attempt(price="table")),
                 done(attempt(None, price="unpriced")), done(cache="hit"), done(cache="miss"))
    assert sorted(rows, key=lambda row: row.model) == [
        SpendRow(DAY, "acme", "key_1", "m", CACHED, 1),
        SpendRow(DAY, "acme", "key_1", "m", "big", 3, 30, 12, 15, 2_000_000, 2_000_000, 1),
        SpendRow(DAY, "acme", "key_1", "m", "small", 0, 10, 4, 5, NANO // 2, 0, 0)]


def test_tally_leaves_out_requests_without_a_call_and_what_comes_while_it_is_off() -> None:
    assert tally(done(), done(cache="bypass")) == []
    summed = SpendTally()
    handle_facts(summed, [done(attempt())])
    assert summed.take() == []


@given(st.lists(st.floats(0, 10), max_size=50), st.integers(1, 49))
def test_tally_costs_are_the_same_sum_however_they_are_divided(costs_usd: list[float], at: int) -> None:
    """Whole numbers: the order and the division among workers change nothing."""
    facts = [done(attempt(cost_usd)) for cost_usd in costs_usd]
    whole = sum(row.nano_usd for row in tally(*facts))
    parts = sum(row.nano_usd for part in (facts[:at], facts[at:][::-1]) for row in tally(*part))
    assert whole == parts == sum(round(cost_usd * NANO) for cost_usd in costs_usd)


def test_tally_with_too_many_models_sums_the_rest_by_tenant_and_key() -> None:
    rows = tally(*[done(attempt(model=f"model {n}\n")) for n in range(MAX_ROWS + 500)])
    (rest,) = [row for row in rows if row.model == OTHER]
    assert (rest.n_requests, rest.tenant, rest.key_id) == (500, "acme", "key_1")
    assert len(rows) == MAX_ROWS + 1
    assert all(row.model.isprintable() for row in rows)


class UnsureStore:
    """Adds the rows, and fails to say so when `is_unsure`."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.is_unsure = self.is_down = False

    async def add_spend(self, writer: str, n: int, rows: list[SpendRow]) -> None:
        """As a connection that breaks after the commit."""
        if self.is_down:
            raise StoreUnavailable("down")
        await self._store.add_spend(writer, n, rows)
        if self.is_unsure:
            raise StoreUnavailable("no reply")


def test_writer_adds_each_row_once_whatever_fails(tmp_path: Path) -> None:
    """A commit without a reply, a store that is down, and a second process."""
    async def main() -> None:
        rig = KeyServiceRig(tmp_path)
        unsure: Any = UnsureStore(rig.store)
        summed, other = SpendTally(), SpendTally()
        summed.is_on = other.is_on = True
        writer, second = SpendWriter(summed, unsure), SpendWriter(other, rig.store)
        for is_unsure, is_down in ((False, False), (True, False), (False, True), (True, False), (False, False)):
            unsure.is_unsure, unsure.is_down = is_unsure, is_down
            handle_facts(summed, [done(attempt())])
            handle_facts(other, [done(attempt())])
            assert await writer.flush() == (not is_unsure and not is_down)
            assert await second.flush()
        unsure.is_unsure = False
        assert await writer.flush()
        assert await writer.flush()
        (total,) = await rig.store.read_spend((), DAY, DAY, None)
        assert (total.n_requests, total.nano_usd) == (10, 10_000_000)

    asyncio.run(main())
