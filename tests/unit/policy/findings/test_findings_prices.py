"""Costs that are not counted, or too high."""

from typing import Any

import pytest

from stayfast.core.snapshot import Snapshot, TrafficRow, UpstreamRow
from tests.unit.policy.findings.check_rig import find, find_one, snapshot, traffic

COST = {"first": 2.0, "hedge": 0.06}


def costs(cost_usd: dict[str, float] | None = None, upstream: dict[str, Any] | None = None, age: float | None = 20.0,
          *, n: int = 1000, settings: dict[str, Any] | None = None, n_output_tokens: int = 100_000) -> Snapshot:
    rows: tuple[TrafficRow, ...] = (
        traffic(n=n, cost_usd=COST if cost_usd is None else cost_usd, n_hedges=100, n_hedges_won=20,
                n_output_tokens=n_output_tokens),
        traffic(n=n, upstream="north", **(upstream or {})))
    return snapshot(settings, traffic=rows, upstreams=(UpstreamRow("north", n_attempts=n, price_age_days=age),))


FAULTS = {
    "usage.missing": costs(upstream={"n_streamed": 900, "n_output_tokens": 12}),
    "price.missing": costs(upstream={"n_unpriced": 900}),
    "price.old": costs(age=200.0),
    "hedge.cost": costs({"first": 2.0, "hedge": 0.5}),
}


@pytest.mark.parametrize("check", FAULTS)
def test_cost_is_found(check: str) -> None:
    find_one(check, FAULTS[check])


@pytest.mark.parametrize(("check", "observed"), [
    ("usage.missing", costs(upstream={"n_streamed": 900, "n_output_tokens": 2000})),
    ("usage.missing", costs(upstream={"n_streamed": 20, "n_output_tokens": 0})),
    ("usage.missing", snapshot(traffic=(traffic(upstream="(cache)", n_streamed=900, n_output_tokens=0),))),
    ("price.missing", costs(upstream={"n_unpriced": 20})),
    ("price.missing", costs({}, upstream={"n_unpriced": 900})),  # nothing has a price, and no limit counts cost
    ("price.missing", costs(upstream={"n_unpriced": 20}, n=20)),
    ("price.old", costs(age=80.0)),
    ("price.old", costs(age=None)),  # set by the operator
    ("hedge.cost", costs()),
    ("hedge.cost", costs({"first": 2.0, "hedge": 0.5}, n_output_tokens=500)),  # streams without counts: no cost is known
    ("hedge.cost", costs({"first": 0.002, "hedge": 0.002})),  # fractions of a cent
    ("hedge.cost", costs({"first": 2.0, "hedge": 0.5}, settings={"routes": {"chat": {"hedge": {"budget": 0.3}}}})),
])
def test_look_alike_is_not_found(check: str, observed: Snapshot) -> None:
    assert find(check, observed) == []


def test_missing_price_matters_where_a_limit_counts_cost() -> None:
    observed = costs({}, {"n_unpriced": 900}, settings={"tenants": {"acme": {"quota": {"cost_per_day": 5.0}}}})
    assert find("price.missing", observed) != []


def test_missing_price_is_never_filled_with_zero() -> None:
    """Merged as it is, it would make all calls of a provider free, and silence the finding."""
    [change] = find_one("price.missing", FAULTS["price.missing"]).do
    assert change.patch == ""
    assert "upstreams.north.prices" in change.effect
