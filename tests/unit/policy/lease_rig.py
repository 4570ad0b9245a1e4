"""Several gateways on one limit, without a server: the script's algorithm in Python, and gateways with real leases."""

from dataclasses import dataclass, field
from typing import NamedTuple

from stayfast.policy.admission.leased_bucket import LeaseCells, LeasedBucket
from stayfast.policy.fleet.config import OnLoss
from stayfast.policy.fleet.slices import RECENT_S, TTL_S, US, CallPace, Lease, LeaseGrant, LeaseReport

LOST = 0
CELLS = LeaseCells(LOST, *range(1, 7))


@dataclass
class StoredLease:
    """What the store knows of one gateway."""

    expires_us: int
    number: int
    spent_us: int
    held_us: int
    demand_ppm: int
    entitled_ppm: int


@dataclass
class ModelStore:
    """One limit. The reference of the Lua script."""

    full_at_us: int | None = None
    epoch: str = ""
    at_us: int = 0
    credit_us: int = 0
    credit_until_us: int = 0
    gateways: dict[str, StoredLease] = field(default_factory=dict)

    def lose_data(self) -> None:
        self.full_at_us, self.epoch, self.at_us, self.credit_us = None, "", 0, 0
        self.gateways.clear()

    def call(self, gateway: str, number: int, epoch: str, report: LeaseReport, now_us: int) -> tuple[str, LeaseGrant] | None:
        own = self.gateways.pop(gateway, None)
        if own is not None and own.number >= number:
            self.gateways[gateway] = own
            return None
        self.gateways = {name: lease for name, lease in self.gateways.items() if lease.expires_us > now_us}
        others = list(self.gateways.values())
        self.epoch = self.epoch or str(now_us)
        full = now_us if self.full_at_us is None else self.full_at_us
        if epoch and epoch != self.epoch:
            full = max(full, min(report.full_at_us, now_us + 2 * report.capacity_us))
        spent, held = (own.spent_us, own.held_us) if own is not None else (report.base_spent_us, report.base_held_us)
        recent_us, returned = round(RECENT_S * US), held - (report.spent_us - spent) - report.held_us
        silent_us = now_us - (self.at_us or now_us)
        overflow = min(silent_us, now_us - full)
        if overflow > 0 and silent_us > recent_us:
            self.credit_us, self.credit_until_us = overflow, now_us + recent_us
        credit = self.credit_us if self.credit_until_us >= now_us else 0
        forgiven = max(0, min(report.alone_us, -returned, credit))
        self.credit_us, self.at_us = credit - forgiven, now_us
        full = max(now_us, full) - returned - forgiven
        full = max(now_us + sum(lease.held_us for lease in others) + report.held_us, full)
        level = now_us + report.capacity_us - full
        n, total = len(others) + 1, report.demand_ppm + sum(
            lease.demand_ppm for lease in others if lease.expires_us - round((TTL_S - RECENT_S) * US) > now_us)
        share = report.demand_ppm / total if total else 1 / n
        granted = 0
        if level > 0 and report.wanted_us > 0 and level >= report.needed_us:
            granted = min(report.wanted_us, level, max(report.needed_us, int(max(share, 1 / (2 * n)) * level)))
        part = max(0, min(int(share * US), US - sum(lease.entitled_ppm for lease in others)))
        self.full_at_us = full + granted
        self.gateways[gateway] = StoredLease(now_us + round(TTL_S * US), number, report.spent_us, report.held_us + granted,
                                             report.demand_ppm, part)
        return self.epoch, LeaseGrant(granted, level - granted, self.full_at_us, part, total, n)


class SentCall(NamedTuple):
    number: int
    epoch: str
    report: LeaseReport


class ModelGateway:
    """One gateway with one limit. `admitted`: in total."""

    def __init__(self, name: str, capacity: float, per_s: float, now: float, on_loss: OnLoss = "local") -> None:
        self.name = name
        self.cells = [0.0] * 7
        self.bucket = LeasedBucket(capacity, per_s, now, self.cells, CELLS, on_loss=on_loss, wake=self._wake)
        self.lease = Lease(capacity, per_s, now)
        self.pace = CallPace()
        self.admitted = 0.0
        self.n_woken = 0
        self.epoch, self.number, self.share, self.observed_at = "", 0, 0.0, now

    def _wake(self) -> None:
        self.n_woken += 1

    def spend(self, cost: float, now: float) -> bool:
        """A request."""
        if self.bucket.take(cost, now):
            self.admitted += cost
            return True
        return False

    def tick(self, now: float) -> None:
        self.lease.demand.observe(self.bucket.used, now)
        self.bucket.add_grant(self.lease.release(self.observed_at, now))
        if self.share:
            self.bucket.add_grant(self.lease.refill_alone(self.bucket.stock, self.share, now - self.observed_at))
        self.observed_at = now

    def is_due(self, now: float) -> bool:
        return self.lease.is_due(self.bucket.stock, self.bucket.needed, self.pace, now)

    def send(self, now: float) -> SentCall:
        self.number += 1
        self.pace.note_call(now)
        report, more = self.lease.make_report(self.bucket.spent, self.bucket.stock, self.bucket.needed, now)
        self.bucket.reset_needed()
        self.bucket.add_grant(more)
        return SentCall(self.number, self.epoch, report)

    def receive(self, reply: tuple[str, LeaseGrant] | None, now: float) -> None:
        if reply is not None:
            self.epoch, self.share, self.cells[LOST] = reply[0], 0.0, 0.0
            self.bucket.add_grant(self.lease.take_grant(reply[1], now))
            self.bucket.set_room(0.0 if self.lease.is_exact else reply[1].level_us / US * self.bucket.per_s, now)

    def lose_store(self, n_gateways: int, now: float) -> None:
        self.cells[LOST] = 1.0
        self.bucket.set_room(0.0, now)
        if self.bucket.on_loss == "local" and not self.share:
            self.share = self.lease.entitlement(n_gateways, now)
            self.bucket.add_grant(self.lease.level_alone(n_gateways, now))

    @property
    def slack(self) -> float:
        return max(0.0, self.bucket.stock + self.lease.pending)
