"""A limit of which this gateway holds a slice."""

import pytest

from stayfast.policy.admission.leased_bucket import LeaseCells, LeasedBucket
from stayfast.policy.admission.quota import NOTHING, QuotaConfig, TenantQuota
from stayfast.policy.fleet.config import OnLoss

INDEX = LeaseCells(*range(7))


class Held:
    """A bucket of 60, refilled by 1 a second."""

    def __init__(self, on_loss: OnLoss = "local") -> None:
        self.cells = [0.0] * 7
        self.n_woken = 0
        self.bucket = LeasedBucket(60.0, 1.0, 0.0, self.cells, INDEX, on_loss=on_loss, wake=self.wake)

    def wake(self) -> None:
        self.n_woken += 1


def test_leased_bucket_spends_what_was_granted() -> None:
    held = Held()
    held.bucket.add_grant(3.0)
    assert held.bucket.take(2.0, 0.0)
    assert not held.bucket.take(2.0, 0.0)
    assert held.bucket.stock == 1.0
    assert (held.bucket.spent, held.bucket.used, held.bucket.needed) == (2.0, 4.0, 2.0)


def test_leased_bucket_refused_request_wakes_the_leader_unless_the_shared_bucket_is_empty() -> None:
    held = Held()
    assert not held.bucket.take(2.0, 0.0)
    held.bucket.set_room(5.0, 1.0)
    assert not held.bucket.take(1.0, 1.0)
    held.bucket.set_room(0.0, 2.0)
    assert not held.bucket.take(3.0, 2.0)
    assert held.n_woken == 2
    assert held.bucket.needed == 1.0  # the smallest
    held.bucket.reset_needed()
    assert held.bucket.needed == 0.0


def test_leased_bucket_level_is_the_stock_and_the_shared_room() -> None:
    """What a client reads as left: not its gateway's slice alone."""
    held = Held()
    assert held.bucket.level(0.0) == 60.0  # unknown
    held.bucket.add_grant(4.0)
    held.bucket.set_room(20.0, 10.0)
    assert held.bucket.level(13.0) == 27.0
    held.bucket.set_room(0.0, 14.0)
    assert held.bucket.level(20.0) == 4.0
    held.bucket.forget_room()
    assert held.bucket.room(21.0) == 60.0


@pytest.mark.parametrize(("on_loss", "is_admitted"), [("open", True), ("local", False), ("closed", False)])
def test_leased_bucket_lost_store_follows_the_setting(on_loss: OnLoss, is_admitted: bool) -> None:
    held = Held(on_loss)
    held.cells[INDEX.lost] = 1.0
    held.bucket.set_room(0.0, 1.0)
    assert held.bucket.take(5.0, 1.0) is is_admitted
    assert held.bucket.stock == (-5.0 if is_admitted else 0.0)  # charged when the store is back


def test_tenant_quota_of_leased_buckets_returns_what_another_limit_refused() -> None:
    held = {"requests_per_minute": Held(), "tokens_per_minute": Held()}
    quota = TenantQuota(QuotaConfig(requests_per_minute=60, tokens_per_minute=60), 0.0,
                        lambda name, *_: held[name].bucket)
    held["requests_per_minute"].bucket.add_grant(5.0)
    refusal = quota.reserve((1.0, 7.0, 0.0), 0.0)
    assert refusal is not None
    assert refusal.limit == "tokens_per_minute"  # both levels have room; this slice has too little
    assert refusal.wait_s > 0
    assert held["requests_per_minute"].bucket.stock == 5.0
    held["tokens_per_minute"].bucket.add_grant(10.0)
    assert quota.reserve((1.0, 7.0, 0.0), 0.0) is None
    quota.reconcile((1.0, 7.0, 0.0), NOTHING, 0.0)
    assert held["tokens_per_minute"].bucket.stock == 10.0


def test_tenant_quota_of_leased_buckets_refusal_notes_what_every_limit_needs() -> None:
    """One call for the first limit only, and another for the second, would leave none for a second."""
    held = {"requests_per_minute": Held(), "tokens_per_minute": Held()}
    quota = TenantQuota(QuotaConfig(requests_per_minute=60, tokens_per_minute=60), 0.0,
                        lambda name, *_: held[name].bucket)
    assert quota.reserve((1.0, 7.0, 0.0), 0.0) is not None
    assert [each.bucket.needed for each in held.values()] == [1.0, 7.0]
