"""A limit of which this gateway holds a slice (`policy.fleet.slices`): the bucket that its workers share.

Problem: each request of each worker checks the limit, and one worker calls the store. Rule: a few numbers per limit are in
memory that all workers share. Any worker spends and refuses; only the caller of the store adds grants:

    stock = granted - spent                 in total, since the start

A request is admitted if the stock has room for it. What clients read as left (`level`) is the stock and the last known level
of the shared bucket.
When wrong: two takes within the same microsecond may count as one.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from stayfast.policy.admission.quota import Bucket
from stayfast.policy.fleet.config import OnLoss
from stayfast.policy.fleet.slices import EXACT_EVERY_S
from stayfast.policy.resilience.cross_process import Cells

_ROUNDING: Final = 1e-6  # of the capacity


class LeaseCells(NamedTuple):
    """Indices into the shared numbers."""

    lost: int  # 1 while the store is lost; one number for all limits
    granted: int
    spent: int
    refused: int  # the cost of refused requests, in total
    needed: int  # the smallest refused cost since the last call; 0: none
    room: int  # level of the shared bucket at `room_at`; 0 in exact mode and without the store
    room_at: int  # 0: unknown


OWN_CELLS: Final = LeaseCells._fields[1:]  # of each limit


class LeasedBucket(Bucket):
    """One limit of several gateways, as this gateway sees it."""

    __slots__ = ("_cells", "_index", "_wake", "on_loss")

    def __init__(self, capacity: float, per_s: float, now: float, cells: Cells, index: LeaseCells, *,
                 on_loss: OnLoss, wake: Callable[[], None]) -> None:
        """wake: makes the caller of the store aware of a refused request that the shared bucket may have room for."""
        super().__init__(capacity, per_s, now)
        self._cells = cells
        self._index = index
        self._wake = wake
        self.on_loss = on_loss

    @property
    def stock(self) -> float:
        """What this gateway may spend now; negative while it has a debt."""
        return self._cells[self._index.granted] - self._cells[self._index.spent]

    @property
    def spent(self) -> float:
        return self._cells[self._index.spent]

    @property
    def used(self) -> float:
        """What was spent and refused in total."""
        return self._cells[self._index.spent] + self._cells[self._index.refused]

    @property
    def needed(self) -> float:
        return self._cells[self._index.needed]

    @property
    def is_known(self) -> bool:
        """Whether the caller of the store handles this limit now."""
        return self._cells[self._index.room_at] > 0

    def level(self, now: float) -> float:
        return min(self.capacity, self.room(now) + self.stock)

    def room(self, now: float) -> float:
        """At most this much is left in the shared bucket; the capacity if unknown."""
        cells, index = self._cells, self._index
        known_at, room = cells[index.room_at], cells[index.room]
        if not known_at:
            return self.capacity
        return min(self.capacity, room + (now - known_at) * self.per_s) if room > 0 else 0.0

    def has_room(self, cost: float, now: float) -> bool:
        if cost <= self.stock + self.capacity * _ROUNDING:
            return True
        return self.on_loss == "open" and self._cells[self._index.lost] > 0

    def take(self, cost: float, now: float) -> bool:
        if self.has_room(cost, now):
            self._cells[self._index.spent] += cost
            return True
        self._refuse(cost, now)
        return False

    def note_need(self, cost: float, now: float) -> None:
        """One call then brings enough of each limit."""
        if not self.has_room(cost, now):
            self._refuse(cost, now)

    def _refuse(self, cost: float, now: float) -> None:
        cells, index = self._cells, self._index
        cells[index.refused] += cost
        needed = cells[index.needed]
        if not needed or cost < needed:
            cells[index.needed] = cost
        if self.room(now) > 0:
            self._wake()

    def wait_s(self, cost: float, now: float) -> float | None:
        """At least until another call, if the slice has too little."""
        least_s = super().wait_s(cost, now)
        return least_s if least_s is None or self.has_room(cost, now) else max(EXACT_EVERY_S, least_s)

    def charge(self, cost: float, now: float) -> None:
        self._cells[self._index.spent] += cost

    def replace(self, before: Bucket, now: float) -> None:
        """Nothing: the shared bucket knows what was used."""

    def add_grant(self, amount: float) -> None:
        """Negative: given back."""
        self._cells[self._index.granted] += amount

    def reset_needed(self) -> None:
        self._cells[self._index.needed] = 0.0

    def set_room(self, room: float, now: float) -> None:
        self._cells[self._index.room] = room
        self._cells[self._index.room_at] = now

    def forget_room(self) -> None:
        self._cells[self._index.room_at] = 0.0

    def __repr__(self) -> str:
        return f"<LeasedBucket of {self.capacity:g}, {self.per_s:g}/s, {self.stock:g} here>"
