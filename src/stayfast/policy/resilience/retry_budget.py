"""Budget for extra attempts: retries, hedges and fallbacks.

Problem: a maximum of attempts per request limits nothing. If everything fails at once, three attempts per request are three
times the load on an upstream that is down because of load. Rule: extra attempts are limited to a share of live traffic. Each
request deposits its weight, each extra attempt withdraws the weight of its request; both are forgotten after a minute:

    room(failures) = floor + (retry_share + lifted) * deposited - all withdrawn
    room(hedges)   = min(floor + hedge_share * deposited - withdrawn by hedges, room(failures))
    lifted         = max(0, hedge_share - retry_share / 2)          so hedges leave half of the retry share to retries
    floor          = FLOOR_CALLS * mean weight of the last minute   a gateway with one request a minute may retry

A weight is the tokens that an attempt may cost: its prompt and a typical answer, charged in full. An empty budget means no
extra attempt; the request then gets the first attempt's failure. A declared fallback is charged but never refused.
Source: tower `retry::budget` (after Finagle): deposits and withdrawals in a sliding window.
Workers of one machine exchange their counts (`export_counts`, `add_counts`) and so share one budget.
When wrong: N gateways have N floors.
"""

from collections import deque
from collections.abc import Collection, Iterable
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
    return ANSWER_TOKENS + n_body_bytes / BYTES_A_TOKEN


@dataclass(slots=True)
class _Slot:
    ends_at: float
    n_requests: int = 0
    paid_in: float = 0.0
    hedged: float = 0.0
    retried: float = 0.0
    missed: float = 0.0


def _add_slots(slots: Collection[_Slot]) -> _Slot:
    return _Slot(0.0, sum(slot.n_requests for slot in slots), sum(slot.paid_in for slot in slots),
                 sum(slot.hedged for slot in slots), sum(slot.retried for slot in slots),
                 sum(slot.missed for slot in slots))


Counted = tuple[float, float, float, float]  # requests; weights deposited, hedged and retried


class Deposits(NamedTuple):
    """The deposits of the last minute."""

    n_requests: int
    deposited: float  # weight
    n_extra: float  # extra attempts that they allow


class RetryBudget:
    """The budget of one route. Instants must not go back; used on one event loop, nothing here awaits."""

    __slots__ = ("_closed", "_hedge_share", "_open", "_past", "_pool_share", "_slots")

    def __init__(self, retry_share: float, hedge_share: float) -> None:
        self._hedge_share = hedge_share
        self._pool_share = retry_share + max(0.0, hedge_share - retry_share / 2)
        self._open = _Slot(float("-inf"))
        self._slots: deque[_Slot] = deque()  # of the last minute, the open one included
        self._closed = _Slot(0.0)  # their sum without the open one
        self._past = (0.0, 0.0, 0.0, 0.0)  # this process's own counts before the open slot

    def deposit(self, weight: float, now: float) -> None:
        self.expire(now)
        slot = self._open
        slot.n_requests += 1
        slot.paid_in += weight

    def may_retry(self, weight: float, now: float) -> bool:
        self.expire(now)
        return self._pool_room() >= weight

    def may_hedge(self, weight: float, now: float, n_more: int = 0) -> bool:
        """Whether there is room for a hedge and `n_more` further ones."""
        self.expire(now)
        room = self._allowance(self._hedge_share) - self._whole.hedged
        return min(room, self._pool_room()) >= weight * (1 + n_more)

    def withdraw_retry(self, weight: float, now: float) -> None:
        self.expire(now)
        self._open.retried += weight

    def withdraw_hedge(self, weight: float, now: float) -> None:
        self.expire(now)
        self._open.hedged += weight

    def record_blocked_hedge(self, weight: float, now: float) -> None:
        """Count a hedge that was due but had no room."""
        self.expire(now)
        self._open.missed += weight

    def hedge_demand(self, now: float) -> float:
        """The hedges of the last minute, sent or without room, as a share of the deposits."""
        self.expire(now)
        whole = self._whole
        return self._share_of_deposits(whole.hedged + whole.missed)

    def hedged_share(self, now: float) -> float:
        """The hedges of the last minute as a share of the deposits."""
        self.expire(now)
        return self._share_of_deposits(self._whole.hedged)

    def extra_share(self, now: float) -> float:
        """All extra attempts of the last minute as a share of the deposits."""
        self.expire(now)
        return self._share_of_deposits(self.withdrawn)

    @property
    def max_share(self) -> float:
        """The limit of all extra attempts, as a share of live traffic."""
        return self._pool_share

    def export_counts(self) -> Counted:
        """This process's own counts since the start: requests; weights deposited, hedged and retried."""
        return self._past_with(self._open)

    def add_counts(self, more: Counted, now: float) -> None:
        """Add another process's counts since the last call."""
        self.expire(now)
        slot, past = self._open, self._past
        slot.n_requests += int(more[0])
        slot.paid_in += more[1]
        slot.hedged += more[2]
        slot.retried += more[3]
        self._past = (past[0] - more[0], past[1] - more[1], past[2] - more[2], past[3] - more[3])

    @property
    def deposits(self) -> Deposits:
        """The deposits of the last minute, and the extra attempts that they allow."""
        whole = self._whole
        return Deposits(whole.n_requests, whole.paid_in, self._pool_share * whole.n_requests)

    @property
    def withdrawn(self) -> float:
        whole = self._whole
        return whole.hedged + whole.retried

    @property
    def _whole(self) -> _Slot:
        """The last minute. Added up when it is read, as most requests only deposit."""
        return _add_slots((self._closed, self._open))

    def _share_of_deposits(self, weight: float) -> float:
        paid_in = self._whole.paid_in
        return weight / paid_in if paid_in else 0.0

    def _pool_room(self) -> float:
        return self._allowance(self._pool_share) - self.withdrawn

    def _allowance(self, share: float) -> float:
        whole = self._whole
        if not whole.n_requests:
            return FLOOR_CALLS * ANSWER_TOKENS
        n_meant = share * whole.n_requests
        return (n_meant + max(FLOOR_CALLS, SPREAD * sqrt(n_meant))) * whole.paid_in / whole.n_requests

    def expire(self, now: float) -> None:
        if now >= self._open.ends_at:
            self._open_slot(now)

    def _open_slot(self, now: float) -> None:
        """Open the slot of `now`, and drop the slots older than a minute."""
        self._past = self._past_with(self._open)
        slots = self._slots
        while slots and slots[0].ends_at + WINDOW_S <= now:
            slots.popleft()
        self._closed = _add_slots(slots)
        self._open = _Slot((now // SLOT_S + 1) * SLOT_S)
        slots.append(self._open)

    def _past_with(self, slot: _Slot) -> Counted:
        past = self._past
        return past[0] + slot.n_requests, past[1] + slot.paid_in, past[2] + slot.hedged, past[3] + slot.retried

    def __repr__(self) -> str:
        return (f"<RetryBudget: hedges {self._share_of_deposits(self._whole.hedged):.1%} of {self._hedge_share:.0%}, "
                f"all {self._share_of_deposits(self.withdrawn):.1%} of {self._pool_share:.0%}>")


class UpstreamRetryBudget:
    """The budget of one upstream: the extra attempts that all routes together may send it. Each attempt is charged to its
    target; the requests of the routes that use this upstream (`routes`) deposit. Used on one event loop.
    """

    __slots__ = ("budget", "routes")

    def __init__(self) -> None:
        self.budget = RetryBudget(0.0, 0.0)  # counts withdrawals only
        self.routes: tuple[RetryBudget, ...] = ()

    def set_routes(self, budgets: Iterable[RetryBudget]) -> None:
        self.routes = tuple(dict.fromkeys(budgets))

    def has_room(self, weight: float, now: float) -> bool:
        """Whether one more attempt fits; always True without routes."""
        if not self.routes:
            return True
        n_requests, paid_in, n_meant = 0, 0.0, 0.0
        for route in self.routes:
            route.expire(now)
            meant = route.deposits
            n_requests, paid_in, n_meant = n_requests + meant.n_requests, paid_in + meant.deposited, n_meant + meant.n_extra
        mean = paid_in / n_requests if n_requests else ANSWER_TOKENS
        self.budget.expire(now)
        return (n_meant + max(FLOOR_CALLS, SPREAD * sqrt(n_meant))) * mean - self.budget.withdrawn >= weight

    def withdraw(self, weight: float, now: float) -> None:
        self.budget.withdraw_retry(weight, now)
