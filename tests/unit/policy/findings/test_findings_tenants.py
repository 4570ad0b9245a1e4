"""Tenants that slow down others, or are slowed down."""

from typing import Any

import pytest

from stayfast.core.snapshot import Snapshot, TenantRow
from tests.unit.policy.findings.check_rig import find, find_one, snapshot, spread


def tenant(name: str, **fields: Any) -> TenantRow:
    return TenantRow(name, **{"n": 100, "n_tokens": 50_000, "ttft_s": spread(0.4, 0.6), "input_tokens": spread(300, 600),
                              **fields})


def tenants(acme: dict[str, Any], beta: dict[str, Any] | None = None, **settings: Any) -> Snapshot:
    return snapshot(settings, tenants=(tenant("acme", **acme), tenant("beta", **(beta or {})), tenant("small")))


PLACES = {"admission": {"max_in_flight": 64}}
FAULTS = {
    "tenant.noisy": tenants({"n_tokens": 900_000, "n": 900}, {"n_shed": 20, "waiting": 9}),
    "tenant.long_prompts": tenants({"input_tokens": spread(6000, 12_000), "ttft_s": spread(2.0, 4.0)}, **PLACES),
    "tenant.at_quota": tenants({"left": {"tokens_per_minute": 0.0, "requests_per_minute": 0.6}, "n_shed": 30}),
    "tenant.starved": tenants({"n_shed": 50, "n_tokens": 20_000}),
}


@pytest.mark.parametrize("check", FAULTS)
def test_tenant_is_found(check: str) -> None:
    assert find_one(check, FAULTS[check]).where.tenant == "acme"


@pytest.mark.parametrize(("check", "observed"), [
    ("tenant.noisy", tenants({"n_tokens": 900_000, "n": 900})),  # large, and no other suffers
    ("tenant.noisy", tenants({"n_tokens": 900_000, "n": 900}, {"n_shed": 60, "left": {"requests_per_minute": 0.0}})),
    ("tenant.noisy", tenants({}, {"n_shed": 20, "waiting": 9})),  # all are alike: too much load, but no one's
    ("tenant.long_prompts", tenants({"ttft_s": spread(2.0, 4.0)})),  # slow, but not by its prompts
    ("tenant.long_prompts", tenants({"input_tokens": spread(6000, 12_000)})),  # long, but not slow
    ("tenant.at_quota", tenants({"left": {"tokens_per_minute": 0.3}, "n_shed": 30})),  # rejected for the load of all
    ("tenant.at_quota", tenants({"left": {"tokens_per_minute": 0.0}})),  # just used up, and no one was rejected
    ("tenant.starved", tenants({"n_shed": 50, "tier": "batch", "n_tokens": 20_000})),  # meant to be behind
    ("tenant.starved", tenants({"n_shed": 50, "n_tokens": 500_000})),  # over its share
    ("tenant.starved", tenants({"n_shed": 50, "n_tokens": 20_000}, {"n_shed": 50})),  # all are rejected alike
    ("tenant.starved", tenants({"n_shed": 50, "n_tokens": 20_000, "left": {"requests_per_minute": 0.0}})),
])
def test_look_alike_is_not_found(check: str, observed: Snapshot) -> None:
    assert find(check, observed) == []


def test_patch_of_a_quota_doubles_it() -> None:
    assert "tokens_per_minute: 200000" in find_one("tenant.at_quota", FAULTS["tenant.at_quota"]).do[0].patch


def test_tenant_without_a_key_gets_no_patch() -> None:
    observed = tenants({"n_tokens": 900_000, "n": 900}, {"n_shed": 20, "waiting": 9}, server={"keys": None})
    assert {change.patch for finding in find("tenant.noisy", observed) for change in finding.do} == {""}
