"""How much a tenant may use: requests, tokens and money, in a minute and in a day.

Problem: what a request costs is known only at its end. Counting at the end lets a burst through; counting an estimate only
is wrong by a factor. Rule: reserve, then reconcile. A request is let in when every limit holds its estimate, all are taken
together or none is; at its end the difference to what it really used is charged, which is never refused:

    reserve    c = (1 request, prompt + most output tokens, most cost)       from every bucket, or from none
    reconcile  charge(used - c)                                              may give back, may leave a debt

Each limit is an evenly refilled bucket. As a counter that is reset each minute it would let two minutes' worth pass around
the reset. A bucket holds at most `capacity`, `per_s` of it come back each second, and what is taken must be there:

    level(now) = min(capacity, level(then) + (now - then) * per_s)
    in any window of t seconds, at most capacity + t * per_s is admitted

A limit of L in T admits at most L at once and L more in each T. So in the first day after a start up to twice a day's limit
can pass, and never more than L + t * L / T in any time t; a debt makes later requests wait. An estimate above a whole limit
is taken for a full bucket: it waits until that is full, and its debt is charged at its end.
Source: the token bucket of RFC 2697; reserve and reconcile as in GCRA with a signed correction; Anthropic's output limits
work alike.
When wrong: a client that says a needlessly large max_tokens reserves it, and waits for it; of answers that come out longer
or dearer than was reserved, a burst passes more than L, by as much. Several processes that share one quota need
`CommonBucket`, which is one number in memory that all of them see: the instant at which it will be full. Two that take
within the same microsecond may count only one of both.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, NamedTuple

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import Allowance
from stayfast.policy.resilience.cross_process import Cells

_ROUNDING = 1e-6  # of the capacity: instants of a machine that has been up for months count tenths of microseconds


class Bucket:
    """One limit. Pure state, starting full; changed only by its owner. Instants are seconds and never go backwards."""

    __slots__ = ("capacity", "per_s", "updated_at", "was_left")

    def __init__(self, capacity: float, per_s: float, now: float) -> None:
        if not (capacity > 0 and per_s > 0):
            raise ValueError(f"capacity and per_s must be more than 0, not {capacity} and {per_s}")
        self.capacity = capacity
        self.per_s = per_s
        self.was_left = capacity  # when it was last looked at
        self.updated_at = now

    def level(self, now: float) -> float:
        """What is there; negative while a debt is paid off."""
        if now > self.updated_at:
            self.was_left = min(self.capacity, self.was_left + (now - self.updated_at) * self.per_s)
            self.updated_at = now
        return self.was_left

    def has(self, cost: float, now: float) -> bool:
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
        return None if cost > self.capacity else max(0.0, (cost - self.level(now)) / self.per_s)

    def full_in_s(self, now: float) -> float:
        return (self.capacity - self.level(now)) / self.per_s

    def take_over(self, before: "Bucket", now: float) -> None:
        """It stands in the place of one with another capacity: what was used of that counts on, but is no debt here."""
        self.was_left, self.updated_at = self._level_after(before, now), now

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
        return min(self.capacity, self.capacity - (self._cells[self._cell] - now) * self.per_s)

    def has(self, cost: float, now: float) -> bool:
        return cost <= self.level(now) + self.capacity * _ROUNDING

    def take(self, cost: float, now: float) -> bool:
        if not self.has(cost, now):
            return False
        self.charge(cost, now)
        return True

    def charge(self, cost: float, now: float) -> None:
        cells, cell = self._cells, self._cell
        cells[cell] = max(cells[cell], now) + cost / self.per_s

    def take_over(self, before: Bucket, now: float) -> None:
        """Each process does it in its turn, and the most that was used counts."""
        cells, cell = self._cells, self._cell
        cells[cell] = max(cells[cell], now + (self.capacity - self._level_after(before, now)) / self.per_s)

    def __repr__(self) -> str:
        return f"<CommonBucket of {self.capacity:g}, {self.per_s:g}/s, full at {self._cells[self._cell]:.1f}>"


MINUTE_S, DAY_S = 60.0, 86_400.0
_MOST = 1e15  # beyond it a float does not count single tokens


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """Limits of one tenant; None: no such limit. Cost is in USD, by the prices in the settings."""

    requests_per_minute: Annotated[float | None, SettingDoc(
        "Requests per minute; also the burst.", minimum=1, maximum=_MOST)] = None
    tokens_per_minute: Annotated[float | None, SettingDoc(
        "Prompt and answer tokens per minute; also the burst.", minimum=1, maximum=_MOST)] = None
    cost_per_minute: Annotated[float | None, SettingDoc(
        "USD per minute by `prices`; also the burst.", minimum=1e-6, maximum=_MOST)] = None
    requests_per_day: Annotated[float | None, SettingDoc(
        "Requests per day; also the burst.", minimum=1, maximum=_MOST)] = None
    tokens_per_day: Annotated[float | None, SettingDoc(
        "Prompt and answer tokens per day; also the burst.", minimum=1, maximum=_MOST)] = None
    cost_per_day: Annotated[float | None, SettingDoc(
        "USD per day by `prices`; also the burst.", minimum=1e-6, maximum=_MOST)] = None

    def __post_init__(self) -> None:
        check_bounds(self)


KINDS = ("requests", "tokens", "cost")
MakeBucket = Callable[[str, float, float, float], Bucket]  # of a limit's name, capacity, rate a second and now
Amount = tuple[float, float, float]  # of each kind, what a request takes or is thought to take
NOTHING: Amount = (0.0, 0.0, 0.0)


class Refusal(NamedTuple):
    """Which limit does not hold an estimate, and when it will."""

    limit: str  # as in the settings: tokens_per_minute
    capacity: float
    level: float
    wanted: float
    wait_s: float


class _Limit(NamedTuple):
    name: str
    kind: int  # of an Amount
    bucket: Bucket


def own_bucket(_: str, capacity: float, per_s: float, now: float) -> Bucket:
    return Bucket(capacity, per_s, now)


class TenantQuota:
    """The buckets of one tenant. Pure state, starting full; instants never go back. `before`: whose place it takes. A limit
    that is the same goes on; of one that was raised the difference is added to what is left, and one that was lowered leaves
    less, but no debt.
    """

    __slots__ = ("_are_own", "_buckets", "_limits", "_shown", "config", "has_cost")

    def __init__(self, config: QuotaConfig, now: float, make: MakeBucket = own_bucket,
                 before: "TenantQuota | None" = None) -> None:
        self.config = config
        known = {limit.name: limit.bucket for limit in before._limits} if before is not None else {}
        found = []
        for field in fields(config):
            limit = getattr(config, field.name)
            if limit is not None:
                kind, _, per = field.name.partition("_per_")
                was = known.get(field.name)
                if was is not None and was.capacity == limit:
                    bucket = was
                else:
                    bucket = make(field.name, limit, limit / (MINUTE_S if per == "minute" else DAY_S), now)
                    if was is not None:
                        bucket.take_over(was, now)
                found.append(_Limit(field.name, KINDS.index(kind), bucket))
        self._limits: tuple[_Limit, ...] = tuple(found)
        self._buckets = tuple([(limit.kind, limit.bucket) for limit in found])
        self.has_cost = any(KINDS[limit.kind] == "cost" for limit in found)
        self._are_own = all(type(limit.bucket) is Bucket for limit in found)
        by_kind = [(kind, tuple(limit.bucket for limit in found if KINDS[limit.kind] == kind)) for kind in KINDS]
        self._shown = tuple((kind, buckets[0], buckets[1:]) for kind, buckets in by_kind if buckets and kind != "cost")

    def reserve(self, amount: Amount, now: float) -> Refusal | None:
        """Take it from every bucket, or from none and say which holds too little, the one with the longest wait."""
        are_own = self._are_own
        for kind, bucket in self._buckets:
            wanted, most = amount[kind], bucket.capacity
            if are_own:  # `take`, written out: each request takes from several, and pays for each call
                left = bucket.was_left + (now - bucket.updated_at) * bucket.per_s
                if left >= most:
                    bucket.was_left = most - wanted if wanted < most else 0.0
                elif wanted <= left:
                    bucket.was_left = left - wanted
                else:
                    return self._refuse(amount, bucket, now)
                bucket.updated_at = now
            elif not bucket.take(min(wanted, most), now):
                return self._refuse(amount, bucket, now)
        return None

    def reconcile(self, reserved: Amount, used: Amount, now: float) -> None:
        """Charge what was really used in place of what was reserved."""
        are_own = self._are_own
        for kind, bucket in self._buckets:
            held, most = reserved[kind], bucket.capacity
            more = used[kind] - held if held <= most else used[kind] - most
            if not more:
                continue
            if are_own:
                left = bucket.was_left + (now - bucket.updated_at) * bucket.per_s
                if left >= most:
                    bucket.was_left = most - more if more > 0 else most
                else:
                    bucket.was_left = min(most, left - more)
                bucket.updated_at = now
            else:
                bucket.charge(more, now)

    def bucket(self, limit: str) -> Bucket:
        """The bucket of one limit, by its name in the settings. Raises KeyError where there is none."""
        return {name: bucket for name, _, bucket in self._limits}[limit]

    def left(self, now: float) -> dict[str, tuple[float, float]]:
        """What is left of each limit, and the limit, by its name in the settings."""
        return {name: (bucket.level(now), bucket.capacity) for name, _, bucket in self._limits}

    def allowances(self, now: float) -> tuple[Allowance, ...]:
        """What is left of requests and of tokens; of several limits of one kind, the one with the least left of it."""
        found = []
        for kind, first, others in self._shown:
            bucket, left, capacity = first, first.level(now), first.capacity
            for other in others:
                level = other.level(now)
                if level * capacity < left * other.capacity:
                    bucket, left, capacity = other, level, other.capacity
            found.append(Allowance(kind, int(capacity), int(left) if left > 0 else 0, (capacity - left) / bucket.per_s))
        return tuple(found)

    def _refuse(self, amount: Amount, by: Bucket, now: float) -> Refusal:
        """Put back what was taken before this bucket was asked."""
        for kind, bucket in self._buckets:
            if bucket is by:
                break
            bucket.charge(-min(amount[kind], bucket.capacity), now)
        short = []
        for name, kind, bucket in self._limits:
            wanted = min(amount[kind], bucket.capacity)
            short.append(Refusal(name, bucket.capacity, bucket.level(now), wanted, bucket.wait_s(wanted, now) or 0.0))
        return max(short, key=lambda each: each.wait_s)

    def __repr__(self) -> str:
        return f"<TenantQuota {', '.join(f'{name} {bucket!r}' for name, _, bucket in self._limits) or 'without limits'}>"
