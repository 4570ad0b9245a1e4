"""How much may pass in a time: a bucket that refills evenly.

Problem: "so many a minute" as a counter that is reset each minute lets two minutes' worth pass around the reset. Rule: a
bucket holds at most `capacity`, `per_s` of it come back each second, and what is taken must be there:

    level(now) = min(capacity, level(then) + (now - then) * per_s)
    in any window of t seconds, at most capacity + t * per_s is admitted

What a request costs is often known only at its end: `take` an estimate, then `charge` the difference, which may be negative
(something comes back) and may leave a debt (later requests wait longer), but is never refused.
Source: the token bucket of RFC 2697; reserve and reconcile as in GCRA with a signed correction.
When wrong: several processes that share one quota need `CommonBucket`, which is one number in memory that all of them see:
the instant at which it will be full. Two that take within the same microsecond may count only one of both.
"""

from stayfast.policy.resilience.cross_process import Cells

_ROUNDING = 1e-6  # of the capacity: instants of a machine that has been up for months count tenths of microseconds


class Bucket:
    """One limit. Pure state, starting full; changed only by its owner. Instants are seconds and never go backwards."""

    __slots__ = ("capacity", "looked_at", "per_s", "was_left")

    def __init__(self, capacity: float, per_s: float, now: float) -> None:
        if not (capacity > 0 and per_s > 0):
            raise ValueError(f"capacity and per_s must be more than 0, not {capacity} and {per_s}")
        self.capacity = capacity
        self.per_s = per_s
        self.was_left = capacity  # when it was last looked at
        self.looked_at = now

    def level(self, now: float) -> float:
        """What is there; negative while a debt is paid off."""
        if now > self.looked_at:
            self.was_left = min(self.capacity, self.was_left + (now - self.looked_at) * self.per_s)
            self.looked_at = now
        return self.was_left

    def has(self, cost: float, now: float) -> bool:
        """Whether `cost` could be taken."""
        return cost <= self.level(now)

    def take(self, cost: float, now: float) -> bool:
        """Take `cost` (0 or more) if it is there; whether it was."""
        if cost > self.level(now):
            return False
        self.was_left -= cost
        return True

    def charge(self, cost: float, now: float) -> None:
        """Correct an estimate: take `cost` whether it is there or not; what is negative comes back, up to the capacity."""
        self.was_left = min(self.capacity, self.level(now) - cost)

    def wait_s(self, cost: float, now: float) -> float | None:
        """Seconds until `cost` will be there if nothing else is taken; None: it never will, it is above the capacity."""
        if cost > self.capacity:
            return None
        return max(0.0, (cost - self.level(now)) / self.per_s)

    def full_in_s(self, now: float) -> float:
        """Seconds until it is full again."""
        return (self.capacity - self.level(now)) / self.per_s

    def take_over(self, before: "Bucket", now: float) -> None:
        """It stands in the place of one with another capacity: what was used of that counts on, but is no debt here."""
        self.was_left, self.looked_at = self._level_after(before, now), now

    def _level_after(self, before: "Bucket", now: float) -> float:
        level = before.level(now)
        return min(self.capacity, max(level + self.capacity - before.capacity, min(level, 0.0)))

    def __repr__(self) -> str:
        return f"<Bucket {self.was_left:g} of {self.capacity:g}, {self.per_s:g}/s>"


class CommonBucket(Bucket):
    """One limit of several processes, in one cell of `cells`: 0 is full. Instants are of one clock of the machine."""

    __slots__ = ("_cell", "_cells")

    def __init__(self, capacity: float, per_s: float, now: float, cells: Cells, cell: int) -> None:
        super().__init__(capacity, per_s, now)
        self._cells = cells
        self._cell = cell

    def level(self, now: float) -> float:
        """See `Bucket`."""
        return min(self.capacity, self.capacity - (self._cells[self._cell] - now) * self.per_s)

    def has(self, cost: float, now: float) -> bool:
        """See `Bucket`."""
        return cost <= self.level(now) + self.capacity * _ROUNDING

    def take(self, cost: float, now: float) -> bool:
        """See `Bucket`."""
        if not self.has(cost, now):
            return False
        self.charge(cost, now)
        return True

    def charge(self, cost: float, now: float) -> None:
        """See `Bucket`."""
        cells, cell = self._cells, self._cell
        cells[cell] = max(cells[cell], now) + cost / self.per_s

    def take_over(self, before: Bucket, now: float) -> None:
        """See `Bucket`. Each process does it in its turn, and the most that was used counts."""
        cells, cell = self._cells, self._cell
        cells[cell] = max(cells[cell], now + (self.capacity - self._level_after(before, now)) / self.per_s)

    def __repr__(self) -> str:
        return f"<CommonBucket of {self.capacity:g}, {self.per_s:g}/s, full at {self._cells[self._cell]:.1f}>"
