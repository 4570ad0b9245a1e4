"""What may be asked of upstreams beyond what clients asked: one budget for retries, hedges and fallbacks.

Problem: a maximum of attempts a request bounds nothing. When everything fails at once, three attempts a request are three
times the load, on an upstream that is down because of load; SDK, gateway and application multiply. Rule: extra attempts are
a share of live traffic. Each request pays in its weight, each extra attempt takes out the weight of its request, both
forgotten after a minute:

    room(failures) = floor + (retry_share + lifted) * paid in - all taken out
    room(hedges)   = min(floor + hedge_share * paid in - taken out by hedges, room(failures))
    lifted         = max(0, hedge_share - retry_share / 2)          half of the retry share is out of the hedges' reach
    floor          = FLOOR_CALLS * mean weight of the last minute   so that a gateway with one request a minute may retry

A weight is the tokens that an attempt may cost: what its prompt comes to, and a usual answer. So a hedge of a long prompt
costs what it costs. It is charged in full, though a loser mostly ends before its answer: the budget is an upper bound.
An empty budget means no extra attempt, never an error of its own: a request whose attempt failed gets that failure.
A fallback that the settings declare is charged, but never refused: it goes elsewhere, once a request, instead of failing.
Source: tower `retry::budget` (after Finagle): deposits and withdrawals in a sliding window.
Workers of one machine tell each other what they counted (`export_counts`, `add_counts`), and so have one budget.
When wrong: a share of traffic on one gateway; N gateways have N floors.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from stayfast.core.constants import BYTES_A_TOKEN

WINDOW_S = 60.0
SLOT_S = 5.0
FLOOR_CALLS = 10.0
SPREAD = 2.0
ANSWER_TOKENS = 150.0  # the median of Azure's conversation trace of 2023


def weight_of(n_body_bytes: int) -> float:
    """Tokens that one attempt may cost, estimated."""
    return ANSWER_TOKENS + n_body_bytes / BYTES_A_TOKEN


@dataclass(slots=True)
class _Slot:
    ends_at: float
    n_requests: int = 0
    paid_in: float = 0.0
    hedged: float = 0.0
    retried: float = 0.0
    missed: float = 0.0


Counted = tuple[float, float, float, float]  # requests, and weights paid in, hedged and retried


class Meant(NamedTuple):
    """What requests of the last minute pay for."""

    n_requests: int
    paid_in: float  # weight
    n_extra: float  # attempts


class RetryBudget:
    """One route's. Instants must not go back; changed on one loop, nothing here awaits."""

    __slots__ = ("_hedge_share", "_open", "_past", "_pool_share", "_slots", "_whole")

    def __init__(self, retry_share: float, hedge_share: float) -> None:
        self._hedge_share = hedge_share
        self._pool_share = retry_share + max(0.0, hedge_share - retry_share / 2)
        self._open = _Slot(float("-inf"))
        self._slots: deque[_Slot] = deque()
        self._whole = _Slot(0.0)
        self._past = (0.0, 0.0, 0.0, 0.0)  # all that was counted here before the open slot, less what was heard

    def request(self, weight: float, now: float) -> None:
        """A client's request comes: it pays in."""
        if now >= self._open.ends_at:
            self._turn(now)
        slot, whole = self._open, self._whole
        slot.n_requests += 1
        slot.paid_in += weight
        whole.n_requests += 1
        whole.paid_in += weight

    def may_retry(self, weight: float, now: float) -> bool:
        """Whether there is room for an attempt after a failure."""
        self._turn_if_due(now)
        return self._pool_room() >= weight

    def may_hedge(self, weight: float, now: float, n_more: int = 0) -> bool:
        """Whether there is room for a hedge; `n_more` further ones must still fit behind it."""
        self._turn_if_due(now)
        room = self._allowance(self._hedge_share) - self._whole.hedged
        return min(room, self._pool_room()) >= weight * (1 + n_more)

    def take_retry(self, weight: float, now: float) -> None:
        self._turn_if_due(now)
        self._open.retried += weight
        self._whole.retried += weight

    def take_hedge(self, weight: float, now: float) -> None:
        self._turn_if_due(now)
        self._open.hedged += weight
        self._whole.hedged += weight

    def miss_hedge(self, weight: float, now: float) -> None:
        """A hedge was due that there was no room for."""
        self._turn_if_due(now)
        self._open.missed += weight
        self._whole.missed += weight

    def wanted_share(self, now: float) -> float:
        """What hedges took and would have taken, as a share of what was paid in during the last minute."""
        self._turn_if_due(now)
        whole = self._whole
        return (whole.hedged + whole.missed) / whole.paid_in if whole.paid_in else 0.0

    def hedged_share(self, now: float) -> float:
        """What hedges took, as a share of what was paid in during the last minute."""
        self._turn_if_due(now)
        return self._whole.hedged / self._whole.paid_in if self._whole.paid_in else 0.0

    def extra_share(self, now: float) -> float:
        """What all extra attempts took, as a share of what was paid in during the last minute."""
        self._turn_if_due(now)
        whole = self._whole
        return (whole.hedged + whole.retried) / whole.paid_in if whole.paid_in else 0.0

    @property
    def share(self) -> float:
        """Of live traffic, what all extra attempts may come to."""
        return self._pool_share

    def export_counts(self) -> Counted:
        """Requests, and weights paid in, hedged and retried, since the start, by this process alone."""
        return self._past_with(self._open)

    def add_counts(self, more: Counted, now: float) -> None:
        """What another process counted since it was last heard."""
        self._turn_if_due(now)
        for slot in (self._open, self._whole):
            slot.n_requests += int(more[0])
            slot.paid_in += more[1]
            slot.hedged += more[2]
            slot.retried += more[3]
        past = self._past
        self._past = (past[0] - more[0], past[1] - more[1], past[2] - more[2], past[3] - more[3])

    @property
    def meant(self) -> Meant:
        """What the last minute's requests allow: how many, what they weigh, and the share of extra attempts they pay for."""
        whole = self._whole
        return Meant(whole.n_requests, whole.paid_in, self._pool_share * whole.n_requests)

    def turn(self, now: float) -> None:
        """Forget what is a minute old."""
        self._turn_if_due(now)

    @property
    def taken(self) -> float:
        """The weight of all extra attempts of the last minute."""
        return self._whole.hedged + self._whole.retried

    def _pool_room(self) -> float:
        whole = self._whole
        return self._allowance(self._pool_share) - whole.hedged - whole.retried

    def _allowance(self, share: float) -> float:
        whole = self._whole
        if not whole.n_requests:
            return FLOOR_CALLS * ANSWER_TOKENS
        n_meant = share * whole.n_requests
        return (n_meant + max(FLOOR_CALLS, SPREAD * sqrt(n_meant))) * whole.paid_in / whole.n_requests

    def _turn_if_due(self, now: float) -> None:
        if now >= self._open.ends_at:
            self._turn(now)

    def _turn(self, now: float) -> None:
        """Open the slot of `now` and forget those that are a minute old."""
        self._past = self._past_with(self._open)
        self._open = _Slot((now // SLOT_S + 1) * SLOT_S)
        slots = self._slots
        slots.append(self._open)
        while slots[0].ends_at + WINDOW_S <= now:
            slots.popleft()
        self._whole = _Slot(0.0, sum(slot.n_requests for slot in slots), sum(slot.paid_in for slot in slots),
                            sum(slot.hedged for slot in slots), sum(slot.retried for slot in slots),
                            sum(slot.missed for slot in slots))

    def _past_with(self, slot: _Slot) -> Counted:
        past = self._past
        return past[0] + slot.n_requests, past[1] + slot.paid_in, past[2] + slot.hedged, past[3] + slot.retried

    def __repr__(self) -> str:
        whole = self._whole
        shares = (share / whole.paid_in if whole.paid_in else 0.0 for share in (whole.hedged, whole.retried))
        hedged, retried = shares
        return (f"<RetryBudget: hedges {hedged:.1%} of {self._hedge_share:.0%}, all {hedged + retried:.1%} of "
                f"{self._pool_share:.0%}>")


class UpstreamRetryBudget:
    """One upstream's: what all routes together may ask of it beyond what clients asked. Each attempt draws on the pool of
    whom it asks; `routes` are the budgets of those that name it, whose requests pay in. Changed on one loop.
    """

    __slots__ = ("budget", "routes")

    def __init__(self) -> None:
        self.budget = RetryBudget(0.0, 0.0)  # counts what was taken
        self.routes: tuple[RetryBudget, ...] = ()

    def set_routes(self, budgets: Iterable[RetryBudget]) -> None:
        self.routes = tuple(dict.fromkeys(budgets))

    def has_room(self, weight: float, now: float) -> bool:
        """Whether one more attempt fits. Without routes there is nothing to go by."""
        if not self.routes:
            return True
        n_requests, paid_in, n_meant = 0, 0.0, 0.0
        for route in self.routes:
            route.turn(now)
            meant = route.meant
            n_requests, paid_in, n_meant = n_requests + meant.n_requests, paid_in + meant.paid_in, n_meant + meant.n_extra
        mean = paid_in / n_requests if n_requests else ANSWER_TOKENS
        self.budget.turn(now)
        return (n_meant + max(FLOOR_CALLS, SPREAD * sqrt(n_meant))) * mean - self.budget.taken >= weight

    def take(self, weight: float, now: float) -> None:
        self.budget.take_retry(weight, now)

    def __repr__(self) -> str:
        return f"<UpstreamRetryBudget of {len(self.routes)} routes: {self.budget.taken:.0f} tokens in the last minute>"
