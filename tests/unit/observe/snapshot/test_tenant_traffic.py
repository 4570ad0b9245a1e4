"""Rows of tenants."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.events import RequestDone
from stayfast.core.stage_times import StageTimes
from stayfast.core.types import Api, Usage
from stayfast.observe.snapshot.tenant_traffic import (
    MAX_ROWS,
    TenantNow,
    TenantParts,
    TenantTraffic,
    merge_tenants,
)


def done(tenant: str | None, at: float = 100.0, status: int = 200, **fields: Any) -> RequestDone:
    return RequestDone("r", Api.CHAT, "chat", "m", True, status, at - 1.0, at, 0.0, StageTimes(0.0, (), 0.0), tenant=tenant,
                       **fields)


def parts_of(facts: list[RequestDone], now: dict[str, TenantNow] | None = None) -> TenantParts:
    traffic = TenantTraffic(lambda: now or {})
    traffic.consume(facts)
    return traffic.collect(max([fact.ended_at for fact in facts], default=0.0))


def test_tenant_rows_count_results_tokens_and_times() -> None:
    facts = [done("acme", usage=Usage(400, 100), ttft_s=0.5), done("acme", status=429, shed="quota", error="x"),
             done("acme", status=503, error="y"), done("acme", status=400, error="z"), done("small")]
    acme, small = merge_tenants([parts_of(facts)])
    assert (acme.name, acme.n, acme.n_shed, acme.n_failed, acme.n_tokens) == ("acme", 4, 1, 1, 500)
    assert acme.ttft_s.p50 == pytest.approx(0.5, rel=0.012)
    assert acme.input_tokens.p50 == pytest.approx(400, rel=0.012)
    assert (small.name, small.n) == ("small", 1)


def test_tenant_rows_without_tenants_are_none() -> None:
    assert merge_tenants([parts_of([done(None), done(None)])]) == ()


def test_tenant_rows_requests_without_a_key_count_among_tenants() -> None:
    rows = merge_tenants([parts_of([done("acme"), done(None)])])
    assert {row.name: row.n for row in rows} == {"acme": 1, "anonymous": 1}


def test_tenant_rows_are_the_largest() -> None:
    facts = [done(f"t{number}") for number in range(100) for _ in range(1 + (number == 7))]
    rows = merge_tenants([parts_of(facts)])
    assert len(rows) == MAX_ROWS
    assert rows[0].name == "t7"


def test_tenant_rows_of_workers_are_added_and_the_least_rest_counts() -> None:
    one = parts_of([done("acme")], {"acme": TenantNow("premium", 2, 1, {"tokens_per_minute": 0.5})})
    other = parts_of([done("acme")] * 3, {"acme": TenantNow("premium", 1, 0, {"tokens_per_minute": 0.4})})
    (row,) = merge_tenants([one, other])
    assert (row.tier, row.n, row.running, row.waiting, row.left) == ("premium", 4, 3, 1, {"tokens_per_minute": 0.4})


def test_tenant_rows_busy_tenant_details_are_a_sample() -> None:
    facts = [done("acme", at=100.0 + n / 1000, ttft_s=0.1) for n in range(1000)]
    (row,) = merge_tenants([parts_of(facts)])
    assert row.n == 1000
    assert 10 <= row.ttft_s.n <= 30


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([200, 400, 429, 500, 499]),
                          st.floats(1000, 1200)), max_size=40), st.integers(1, 3))
def test_merge_tenants_any_workers_counts_every_request_of_a_tenant(
        requests: list[tuple[str | None, int, float]], n_workers: int) -> None:
    facts = [done(tenant, at, status) for tenant, status, at in sorted(requests, key=lambda one: one[2])]
    rows = merge_tenants([parts_of(facts[worker::n_workers]) for worker in range(n_workers)])
    counted = {row.name: row.n for row in rows}
    for name in ("a", "b"):
        assert counted.get(name, 0) == sum(fact.tenant == name for fact in facts)
