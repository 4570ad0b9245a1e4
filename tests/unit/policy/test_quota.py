"""policy.admission.quota: buckets, and the quotas of a tenant."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.admission.quota import NOTHING, Bucket, QuotaConfig, TenantQuota


def test_tenant_quota_reserves_all_limits_or_none() -> None:
    """A refusal by tokens takes no request, and names the limit with the longest wait."""
    quota = TenantQuota(QuotaConfig(requests_per_minute=2, tokens_per_minute=600, tokens_per_day=864_000), 0.0)
    assert quota.reserve((1, 500, 0), 0.0) is None
    refusal = quota.reserve((1, 500, 0), 0.0)
    assert refusal is not None
    assert (refusal.limit, refusal.level, refusal.wanted, refusal.wait_s) == ("tokens_per_minute", 100, 500, 40.0)
    assert quota.reserve((1, 100, 0), 0.0) is None
    refusal = quota.reserve((1, 1, 0), 0.0)
    assert refusal is not None
    assert (refusal.limit, refusal.wait_s) == ("requests_per_minute", 30.0)


def test_tenant_quota_without_limits_admits_all() -> None:
    """Without limits all requests pass, and no allowance is reported."""
    quota = TenantQuota(QuotaConfig(), 0.0)
    assert quota.reserve((1, 1e12, 1e12), 0.0) is None
    assert quota.allowances(0.0) == ()


def test_tenant_quota_reconcile_charges_real_cost() -> None:
    """Reserved at nothing, charged in full: the debt keeps the next ones out until it is paid off."""
    quota = TenantQuota(QuotaConfig(cost_per_minute=0.6), 0.0)
    free = (1, 10, 0.0)
    assert quota.reserve(free, 0.0) is None
    quota.reconcile(free, (1, 10, 0.9), 0.0)
    refusal = quota.reserve(free, 0.0)
    assert refusal is not None
    assert refusal.wait_s == pytest.approx(30.0)
    assert quota.reserve(free, 30.1) is None


def test_tenant_quota_oversized_estimate_waits_for_full_bucket() -> None:
    """It is not refused for ever, and what it used is charged in full."""
    quota = TenantQuota(QuotaConfig(tokens_per_minute=600), 0.0)
    huge = (1, 100_000, 0)
    assert quota.reserve(huge, 0.0) is None
    quota.reconcile(huge, (1, 1200, 0), 0.0)
    refusal = quota.reserve(huge, 0.0)
    assert refusal is not None
    assert refusal.wait_s == pytest.approx(120.0)


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000), st.floats(0, 5)), max_size=60))
def test_tenant_quota_books_match_usage(requests: list[tuple[int, int, float]]) -> None:
    """At every instant: level = capacity + refill - used, while it was never full; and what is abandoned comes back."""
    quota, now, used, at_start = TenantQuota(QuotaConfig(tokens_per_day=10_000_000), 0.0), 0.0, 0, 1_000_000
    quota.reconcile(NOTHING, (0, at_start, 0), 0.0)  # room, so that no refill is lost above the capacity
    for wanted, actual, wait_s in requests:
        now += wait_s
        reserved = (1, wanted, 0)
        assert quota.reserve(reserved, now) is None
        quota.reconcile(reserved, (1, actual, 0), now)
        abandoned = (1, actual, 0)
        assert quota.reserve(abandoned, now) is None
        quota.reconcile(abandoned, NOTHING, now)
        used += actual
    level = quota.bucket_for("tokens_per_day").level(now)
    assert level == pytest.approx(10_000_000 - at_start - used + now * 10_000_000 / 86_400, abs=1e-3)


def test_tenant_quota_allowances_show_tightest_limit() -> None:
    """Of two limits of one kind the tighter one is shown, in whole units, never below 0; cost is not shown."""
    quota = TenantQuota(QuotaConfig(requests_per_minute=10, requests_per_day=20, tokens_per_minute=100, cost_per_day=1), 0.0)
    quota.reconcile(NOTHING, (5, 130, 0.5), 0.0)
    requests, tokens = quota.allowances(0.0)
    assert (requests.kind, requests.limit, requests.remaining, requests.full_in_s) == ("requests", 10, 5, 30.0)
    assert (tokens.kind, tokens.limit, tokens.remaining) == ("tokens", 100, 0)
    assert tokens.full_in_s == pytest.approx(78.0)


@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_day", "cost_per_minute"])
def test_quota_config_out_of_bounds_is_rejected(name: str) -> None:
    """A limit of 0 would be unusable: leave the tenant's key out instead."""
    with pytest.raises(ValueError, match=rf"^{name} must be from"):
        replace(QuotaConfig(), **dict[str, Any]({name: 0}))


def test_tenant_quota_unchanged_limit_keeps_its_bucket() -> None:
    """Another limit of the same tenant is set anew: what was used of this one stays used."""
    before = TenantQuota(QuotaConfig(tokens_per_day=1000, requests_per_minute=100), 0.0)
    assert before.reserve((1, 1000, 0), 0.0) is None
    after = TenantQuota(QuotaConfig(tokens_per_day=1000, requests_per_minute=99), 0.0, before=before)
    refusal = after.reserve((1, 10, 0), 0.0)
    assert refusal is not None
    assert refusal.limit == "tokens_per_day"
    assert after.bucket_for("requests_per_minute").level(0.0) == 98


@pytest.mark.parametrize(("limit", "left"), [(4000, 2500), (1800, 300), (1000, 0), (2000, 500)])
def test_tenant_quota_raised_limit_adds_difference(limit: int, left: int) -> None:
    """1500 of 2000 are used: raised, the difference comes on top; lowered, it goes, but what was legal is no debt."""
    before = TenantQuota(QuotaConfig(tokens_per_day=2000), 0.0)
    assert before.reserve((1, 1500, 0), 0.0) is None
    assert TenantQuota(QuotaConfig(tokens_per_day=limit), 0.0, before=before).bucket_for("tokens_per_day").level(0.0) == left


def test_tenant_quota_debt_survives_a_reload() -> None:
    """Under a lower limit, too, and no larger one."""
    before = TenantQuota(QuotaConfig(tokens_per_day=2000), 0.0)
    before.reconcile(NOTHING, (1, 2100, 0), 0.0)
    assert TenantQuota(QuotaConfig(tokens_per_day=1000), 0.0, before=before).bucket_for("tokens_per_day").level(0.0) == -100


class Slow(Bucket):
    """A bucket of a subclass, as shared by several processes."""

    __slots__ = ()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9000), st.integers(0, 9000), st.integers(0, 400)), max_size=40))
def test_tenant_quota_agrees_with_its_buckets(steps: list[tuple[int, int, int, int]]) -> None:
    """The same is refused, charged and left as by `take` and `charge`; instants and rates are exact in binary."""
    config, now = QuotaConfig(requests_per_minute=60, tokens_per_minute=6000, cost_per_minute=60), 0.0
    quick, slow = TenantQuota(config, now), TenantQuota(config, now, lambda _, capacity, per_s, at: Slow(capacity, per_s,
                                                                                                         at))
    for n, reserved, used, quarters in steps:
        now += quarters / 4
        amount = (float(n), float(reserved), float(n))
        refusal = quick.reserve(amount, now)
        assert refusal == slow.reserve(amount, now)
        now += 0.25  # instants never go back
        if refusal is None:
            for quota in (quick, slow):
                quota.reconcile(amount, (1.0, float(used), 2.0), now)
        assert quick.levels(now) == slow.levels(now)
        assert quick.allowances(now) == slow.allowances(now)


def test_bucket_refills_evenly_to_capacity() -> None:
    """What was taken comes back at the rate, and no more than fits."""
    bucket = Bucket(10, 2, now=0)
    assert bucket.take(10, 0)
    assert not bucket.take(1, 0.4)
    assert bucket.take(1, 0.5)
    assert bucket.level(100) == 10


def test_bucket_refused_take_changes_nothing() -> None:
    """A refused request does not delay others."""
    bucket = Bucket(10, 1, now=0)
    assert not bucket.take(11, 0)
    assert bucket.take(10, 0)


def test_bucket_wait_s_is_exact() -> None:
    """After the wait it is there, a moment earlier it is not; above the capacity it never will be."""
    bucket = Bucket(10, 4, now=0)
    bucket.take(10, 0)
    wait_s = bucket.wait_s(6, 0)
    assert wait_s == 1.5
    assert not bucket.has_room(6, 1.499)
    assert bucket.has_room(6, 1.5)
    assert bucket.wait_s(11, 0) is None
    assert bucket.full_in_s(1.5) == 1.0


def test_bucket_charge_may_leave_debt() -> None:
    """An estimate that was too low is charged in full; one that was too high comes back, but not above the capacity."""
    bucket = Bucket(10, 1, now=0)
    bucket.take(5, 0)
    bucket.charge(20, 0)
    assert bucket.level(0) == -15
    assert bucket.wait_s(1, 0) == 16
    bucket.charge(-100, 0)
    assert bucket.level(0) == 10


@pytest.mark.parametrize(("capacity", "per_s"), [(0, 1), (1, 0), (-1, 1), (float("nan"), 1)])
def test_bucket_invalid_limits_are_rejected(capacity: float, per_s: float) -> None:
    """A bucket that holds nothing or never refills is a mistake."""
    with pytest.raises(ValueError, match="more than 0"):
        Bucket(capacity, per_s, 0)


@given(capacity=st.floats(1, 1000), per_s=st.floats(0.1, 100),
       asks=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 500)), max_size=60))
def test_bucket_never_admits_more_than_its_bound(capacity: float, per_s: float, asks: list[tuple[float, float]]) -> None:
    """In every window of t seconds at most capacity + t * per_s passes, for any sequence of requests."""
    bucket, now = Bucket(capacity, per_s, 0), 0.0
    admitted: list[tuple[float, float]] = []
    for wait_s, cost in asks:
        now += wait_s
        if bucket.take(cost, now):
            admitted.append((now, cost))
    for first, (since, _) in enumerate(admitted):
        total = 0.0
        for at, cost in admitted[first:]:
            total += cost
            assert total <= capacity + (at - since) * per_s + 1e-6


@given(st.floats(1, 1000), st.floats(0.1, 100), st.floats(0, 1000), st.floats(0, 1000))
def test_bucket_after_wait_s_take_succeeds(capacity: float, per_s: float, taken: float, wanted: float) -> None:
    """`wait_s` never tells too short a time."""
    bucket = Bucket(capacity, per_s, 0)
    bucket.take(taken, 0)
    wait_s = bucket.wait_s(wanted, 0)
    assert (wait_s is None) == (wanted > capacity)
    if wait_s is not None:
        assert bucket.level(wait_s + 1e-6) >= wanted - 1e-6 * per_s
