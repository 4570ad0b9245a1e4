"""The slices of all limits of one tenant, at the leader."""

from collections.abc import Iterator
from typing import NamedTuple

from stayfast.policy.admission.leased_bucket import LeasedBucket
from stayfast.policy.fleet.slices import US, CallPace, Lease
from stayfast.stores.fleet.quota_calls import QuotaCall, QuotaReply


class LeaseState(NamedTuple):
    """One limit, for reports. Amounts are in the limit's unit. `slack`: what this gateway may admit without another call."""

    tenant: str
    limit: str
    stock: float
    slack: float
    is_exact: bool
    demand_per_s: float


class _HeldLimit:
    __slots__ = ("bucket", "lease", "share")

    def __init__(self, bucket: LeasedBucket, now: float) -> None:
        self.bucket = bucket
        self.lease = Lease(bucket.capacity, bucket.per_s, now, spent=bucket.spent, stock=bucket.stock)
        self.share = 0.0  # of the limit, without the store; 0: the store is there


class TenantLeases:
    """Belongs to the leader's loop. Instants are monotonic seconds."""

    __slots__ = ("_epoch", "_limits", "_observed_at", "_pace", "is_alone", "tenant")

    def __init__(self, tenant: str, now: float) -> None:
        self.tenant = tenant
        self.is_alone = False  # continues without the store
        self._limits: dict[str, _HeldLimit] = {}
        self._pace = CallPace()
        self._epoch = ""
        self._observed_at = now

    def add_limit(self, limit: str, bucket: LeasedBucket, now: float) -> None:
        """Add a limit, or replace one."""
        self._limits[limit] = _HeldLimit(bucket, now)

    def has_limit(self, limit: str, bucket: LeasedBucket) -> bool:
        held = self._limits.get(limit)
        return held is not None and held.bucket is bucket

    def observe(self, now: float) -> None:
        """Observe the demand, and release what is pending or, without the store, refilled."""
        before, self._observed_at = self._observed_at, now
        for held in self._limits.values():
            bucket, lease = held.bucket, held.lease
            lease.demand.observe(bucket.used, now)
            if lease.pending:
                bucket.add_grant(lease.release(before, now))
            if held.share:
                bucket.add_grant(lease.refill_alone(bucket.stock, held.share, now - before))

    def is_due(self, now: float) -> bool:
        return any(held.lease.is_due(held.bucket.stock, held.bucket.needed, self._pace, now)
                   for held in self._limits.values())

    def is_settled(self, now: float) -> bool:
        """Whether there is no demand, nothing to give back, and no call that counts for the pace."""
        return self._pace.is_rested(now) and all(held.lease.demand.is_idle(now) and held.lease.is_settled(held.bucket.stock)
                                                 for held in self._limits.values())

    def end(self) -> None:
        """There will be no demand any more."""
        for held in self._limits.values():
            held.lease.demand.end()

    def forget_rooms(self) -> None:
        """The shared levels are no longer known."""
        for held in self._limits.values():
            held.bucket.forget_room()

    def make_call(self, number: int, now: float) -> QuotaCall:
        """number: more than in any earlier call of this gateway for this tenant."""
        self._pace.note_call(now)
        reports = {}
        for name, held in self._limits.items():
            bucket = held.bucket
            report, more = held.lease.make_report(bucket.spent, bucket.stock, bucket.needed, now)
            bucket.reset_needed()
            if more:
                bucket.add_grant(more)
            reports[f"{name}@{bucket.capacity!r}"] = report
        return QuotaCall(self.tenant, number, self._epoch, reports)

    def take_reply(self, reply: QuotaReply, now: float) -> None:
        self._epoch, self.is_alone = reply.epoch, False
        for name, held in self._limits.items():
            bucket, lease = held.bucket, held.lease
            grant = reply.limits.get(f"{name}@{bucket.capacity!r}")
            if grant is not None:
                held.share = 0.0
                bucket.add_grant(lease.take_grant(grant, now))
                bucket.set_room(0.0 if lease.is_exact else max(0.0, grant.level_us / US * bucket.per_s), now)

    def continue_alone(self, n_gateways: int, now: float) -> None:
        """The store is lost: take the own part of the last known level, and of the refill from now on."""
        self.is_alone = True
        for held in self._limits.values():
            held.bucket.set_room(0.0, now)
            if held.bucket.on_loss == "local" and not held.share:
                held.share = held.lease.entitlement(n_gateways, now)
                held.bucket.add_grant(held.lease.level_alone(n_gateways, now))

    @property
    def n_gateways(self) -> int:
        """As of the last reply; 0: unknown."""
        grants = (held.lease.grant for held in self._limits.values())
        return max((grant.n_gateways for grant in grants if grant is not None), default=0)

    def states(self, n_gateways: int, now: float) -> Iterator[LeaseState]:
        for name, held in self._limits.items():
            lease, stock = held.lease, held.bucket.stock
            alone = lease.level_alone(n_gateways, now) if held.bucket.on_loss == "local" and not held.share else 0.0
            yield LeaseState(self.tenant, name, stock, max(0.0, stock + lease.pending) + alone, lease.is_exact,
                             lease.demand.per_s)

    def __repr__(self) -> str:
        return f"<TenantLeases of {self.tenant!r}: {[held.lease for held in self._limits.values()]}>"
