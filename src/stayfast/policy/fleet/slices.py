"""Slices of a limit that several gateways share: how large, when to request the next one, and what to do without the store.

Problem: N gateways with a tenant's whole limit each admit N times as much; a shared counter costs every request a network
trip. Rule: one bucket per limit is in a shared store. A gateway takes a slice out of it, and admits from its slice without a
trip. What is taken is reserved first, so all gateways together never admit more than the bucket has given out:

    level      min(capacity, level + refill) - slices + what gateways give back
    request    at 30 % of the last slice, after EXACT_EVERY_S in exact mode, and for a request that finds too little; at most
               two calls in any second (`CallPace`)
    slice      min(max(demand * 2 s, 2 * rise), share * level), at least one refused request if the level has it
    rise       the most by which the use rose within a second: what is reserved may be far above what is spent in the end.
               Half of it a second later, and so on
    share      demand / (demand of all gateways), at least 1 / (2 n), by the store at the time of the call
    give back  what exceeds the next slice, with each call; all of it after IDLE_S without demand
    exact      if the level is less than the demand of all gateways for 2 s: no stock. A slice is the share of what there is,
               released evenly until the next call, so that no window counts a burst. A gateway whose part is too small for
               its smallest refused request gives it back and waits until the level has enough for a whole one

A call reports totals, not differences (`LeaseReport`): all that was ever spent, and what is still held. The store returns to
the bucket whatever it has given out and that was neither spent nor held, so a lost reply or a lost call changes nothing, and
an amount spent without a slice becomes a debt of the bucket.

Without the store (`on_loss`): `local` continues with the last entitlement: its part of the last known level at once, and of
the refill. The store gives out entitlements so that their sum is at most 1. `open` admits all, `closed` what is held. All of
it is charged when the store is back, except the part of the refill that a full bucket could not take meanwhile.

Source: slices as in Sentry Relay's cached quotas and Envoy's rate limit quota service; reserve first as `admission.quota`.
When wrong: the slice of a gateway that dies counts as spent, because what it admitted since its last call is unknown: one
slice at most is lost, and its share goes to the others within 5 s. A gateway that alone cannot reach the store admits its
entitlement, and the others the rest and part of it, until its debt is charged. A gateway without traffic for 5 s before the
store is lost has no entitlement of its own, and takes 1/n.
"""

from math import ceil, expm1
from typing import Final, NamedTuple

EVERY_S: Final = 1.0  # a call while there is demand
EXACT_EVERY_S: Final = 0.51  # two calls are more than a second apart at every third
SLICE_S: Final = 2.0  # demand that a slice covers
LOW: Final = 0.3
IDLE_S: Final = 2.0
WAIT_S: Final = 0.05  # of a request that finds too little, for the next call
TTL_S: Final = 5.0  # of a gateway's entitlement without a call
RECENT_S: Final = 1.6  # of its demand; a gateway with demand calls every second
_SLOW_S, _FAST_S = 1.0, 0.2  # time constants of the demand
EXACT_S: Final = 1.0  # demand that a slice covers in exact mode
RISE_S: Final = 1.0
RISES: Final = 2.0  # of the largest rise of the use, that a slice covers
SURPLUS: Final = 1.25  # of a slice; what exceeds it is given back
FIRST: Final = 8.0  # requests that the first slice after idleness covers
_LEAST_WEIGHT: Final = 0.1
_FEW_RATIO: Final = 1e-9  # of the capacity
US: Final = 1_000_000


class CallPace:
    """At most two calls in any second. Pure; instants never go back."""

    __slots__ = ("_before", "last_at")

    def __init__(self) -> None:
        self._before = self.last_at = float("-inf")

    def may_call(self, now: float) -> bool:
        return now - self._before > 1.0

    def is_rested(self, now: float) -> bool:
        """Whether two calls may be made now."""
        return now - self.last_at > 1.0

    def note_call(self, now: float) -> None:
        self._before, self.last_at = self.last_at, now


class LeaseReport(NamedTuple):
    """One limit in a call to the store. Amounts are in us of the bucket: the time in which it refills by as much. `base_*`:
    as of the last reply, for a store that has no record of this gateway.
    """

    capacity_us: int
    spent_us: int  # in total; negative if more was returned than spent
    held_us: int
    base_spent_us: int
    base_held_us: int
    demand_ppm: int  # 1,000,000: as much as the refill
    wanted_us: int
    needed_us: int  # all or nothing, if the share of the level is less
    alone_us: int  # granted to itself without the store out of the refill, since the last reply
    full_at_us: int  # when the bucket will be full, by the store's clock; as of the last reply


class LeaseGrant(NamedTuple):
    """The store's reply for one limit."""

    granted_us: int
    level_us: int  # after the grant; negative: a debt
    full_at_us: int
    entitled_ppm: int
    total_ppm: int  # demand of all gateways
    n_gateways: int  # that called in the last TTL_S


class DemandMeter:
    """The demand of one limit at one gateway: what was spent and refused, a second. Pure; instants never go back."""

    __slots__ = ("_fast", "_lowest", "_observed_at", "_rise", "_rise_before", "_rise_since", "_slow", "_used", "_wanted_at",
                 "_weight", "is_new")

    def __init__(self, now: float) -> None:
        self._slow = self._fast = 0.0  # a second
        self._weight = 0.0  # of the observations in `_fast` since it was idle
        self._used: float | None = None  # in total, as of `_observed_at`
        self._observed_at = self._wanted_at = now
        self.is_new = True  # no call since it was idle
        self._lowest = self._rise = self._rise_before = 0.0  # of `_used`; since `_rise_since`, and in the window before
        self._rise_since = now

    @property
    def per_s(self) -> float:
        """Of the last moments, or of about a second, whichever is more."""
        return max(0.0, self._slow, self._fast / max(_LEAST_WEIGHT, self._weight))

    @property
    def usual_per_s(self) -> float:
        return max(0.0, self._slow)

    @property
    def rise(self) -> float:
        """The most by which the use rose within a window of RISE_S; half of it a window later, and so on. Above the demand,
        if what is reserved is far above what is spent in the end.
        """
        return max(self._rise, self._rise_before)

    def _note_rise(self, used: float, now: float) -> None:
        if now - self._rise_since >= RISE_S:
            self._rise_before = max(self._rise, self._rise_before / 2)
            self._lowest, self._rise, self._rise_since = used, 0.0, now
        self._lowest = min(self._lowest, used)
        self._rise = max(self._rise, used - self._lowest)

    def observe(self, used: float, now: float) -> None:
        """used: in total."""
        before, took_s = self._used, now - self._observed_at
        if before is None:
            self._used = before = self._lowest = used
        if took_s <= 0:
            return
        more = used - before
        self._used, self._observed_at = used, now
        self._note_rise(used, now)
        if more > 0:
            if self.is_idle(now):
                self._weight, self.is_new = 0.0, True
            self._wanted_at = now
        new = -expm1(-took_s / _FAST_S)
        self._slow += (more / took_s - self._slow) * -expm1(-took_s / _SLOW_S)
        self._fast += (more / took_s - self._fast) * new
        self._weight += (1 - self._weight) * new

    def is_idle(self, now: float) -> bool:
        return now - self._wanted_at >= IDLE_S

    def end(self) -> None:
        """It counts as idle from now on."""
        self._wanted_at = float("-inf")


class Lease:
    """One limit of one tenant, at the gateway's only caller of the store. Pure; instants are seconds and never go back.
    Amounts are in the limit's unit. The stock, which this gateway's workers may spend, is the sum of what the methods
    return, minus what was spent. `pending`: granted, and released later.
    """

    __slots__ = ("_alone", "_base", "_correction", "_needed", "_released_at", "_replied_at", "_sent", "capacity", "demand",
                 "grant", "is_exact", "pending", "per_s")

    def __init__(self, capacity: float, per_s: float, now: float, *, spent: float = 0.0, stock: float = 0.0) -> None:
        """spent, stock: as an earlier caller left them."""
        self.capacity = capacity
        self.per_s = per_s
        self.demand = DemandMeter(now)
        self.grant: LeaseGrant | None = None  # the last reply; None: none yet
        self.is_exact = False
        self.pending = 0.0
        self._released_at = now  # when `pending` is 0
        self._replied_at = float("-inf")
        self._base = (self._us(spent), self._us(stock))  # spent and held, as of the last reply
        self._alone = 0.0  # of the refill granted to itself since the last reply
        self._needed = 0.0  # the smallest refused cost, until it is idle
        self._sent = (0, 0)  # the same in the call without a reply
        self._correction = 0.0  # a debt that this call turns into one of the store's bucket

    def is_settled(self, stock: float) -> bool:
        """Whether there is nothing to give back or to charge."""
        return abs(stock + self.pending) <= self.capacity * _FEW_RATIO

    def is_due(self, stock: float, needed: float, pace: CallPace, now: float) -> bool:
        """Whether it needs a call now. needed: the smallest refused cost since the last call; 0: none."""
        if not pace.may_call(now):
            return False
        if self.demand.is_idle(now):
            return pace.is_rested(now) and not self.is_settled(stock)  # one call is left for the next request
        if now - pace.last_at >= (EXACT_EVERY_S if self.is_exact else EVERY_S):
            return True
        return not self.is_exact and (needed > stock or stock < LOW * self._steady_slice())

    def make_report(self, spent: float, stock: float, needed: float, now: float) -> tuple[LeaseReport, float]:
        """What the call reports, and what it adds to the stock now: 0, or less for what is given back."""
        held, is_idle = stock + self.pending, self.demand.is_idle(now)
        if needed or is_idle:
            self._needed = needed
        target = 0.0 if is_idle else max(self._needed, self._next_slice(needed))
        self.demand.is_new = False
        given = 0.0
        if self.is_exact and held < needed:
            given = max(0.0, held)
        elif held > target * SURPLUS and not needed > held:
            given = max(0.0, held - target)
        from_pending = min(self.pending, given)
        self.pending -= from_pending
        held -= given
        needed = max(0.0, needed - max(0.0, held)) if needed and not is_idle else 0.0
        wanted = max(target - max(0.0, held), needed)
        self._sent = (self._us(spent), max(0, ceil(held / self.per_s * US)))
        self._correction = max(0.0, -held)
        known = self.grant
        return LeaseReport(
            self._us(self.capacity), *self._sent, *self._base, self._us(self.demand.usual_per_s),
            0 if is_idle else ceil(wanted / self.per_s * US), ceil(needed / self.per_s * US), self._us(self._alone),
            known.full_at_us if known is not None else 0), from_pending - given

    def _next_slice(self, needed: float) -> float:
        if self.demand.is_new:  # the demand of one request is no measure
            return max(FIRST * needed, min(self.per_s, self.capacity / 60), RISES * self.demand.rise)
        return self.demand.per_s * EXACT_S if self.is_exact else self._steady_slice()

    def _steady_slice(self) -> float:
        return max(self.demand.per_s * SLICE_S, RISES * self.demand.rise)

    def take_grant(self, grant: LeaseGrant, now: float) -> float:
        """The reply; returns what it adds to the stock now."""
        spent_us, held_us = self._sent
        self._base = spent_us, held_us + grant.granted_us
        self.grant, self._replied_at = grant, now
        self.is_exact = not self.demand.is_idle(now) and grant.level_us < grant.total_ppm * SLICE_S
        granted, added = grant.granted_us / US * self.per_s, self._correction
        self._correction = self._alone = 0.0
        if not self.is_exact or granted <= self._needed:
            return added + granted
        self.pending += granted
        self._released_at = now + EXACT_EVERY_S
        return added

    def release(self, before: float, now: float) -> float:
        """What is released of `pending` from `before` to `now`."""
        if not self.pending:
            return 0.0
        left_s = self._released_at - before
        released = self.pending if now >= self._released_at or left_s <= 0 else self.pending * (now - before) / left_s
        self.pending -= released
        return released

    def entitlement(self, n_gateways: int, now: float) -> float:
        """The share of the limit that this gateway may admit without the store. n_gateways: the last known number."""
        if self.grant is None or now - self._replied_at > TTL_S:
            return 1.0 / n_gateways
        return self.grant.entitled_ppm / US

    def level_alone(self, n_gateways: int, now: float) -> float:
        """The part of the last known level that this gateway may admit at once if the store is lost."""
        level = self.capacity
        if self.grant is not None:
            level = min(level, self.grant.level_us / US * self.per_s + (now - self._replied_at) * self.per_s)
        return max(0.0, level) * self.entitlement(n_gateways, now)

    def refill_alone(self, stock: float, share: float, took_s: float) -> float:
        """What a gateway without the store adds to its stock after `took_s`. share: `entitlement` at the loss."""
        room = share * self.capacity - stock - self.pending
        granted = max(0.0, min(room, share * self.per_s * took_s))
        self._alone += granted
        return granted

    def _us(self, amount: float) -> int:
        return round(amount / self.per_s * US)

    def __repr__(self) -> str:
        mode = "exact" if self.is_exact else "slices"
        return (f"<Lease of {self.capacity:g}, {self.per_s:g}/s, {mode}: demand {self.demand.per_s:g}/s, "
                f"{self.pending:g} pending>")
