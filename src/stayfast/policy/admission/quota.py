"""Quotas of a tenant: requests, tokens and cost, per minute and per day.

Problem: the cost of a request is known only at its end. Counting at the end lets a burst through; counting only an estimate
is wrong by a factor. Rule: reserve, then reconcile. A request is admitted if every limit has room for its estimate; the
difference to its real use is charged at its end, which is never refused:

    reserve    c = (1 request, prompt + most output tokens, highest cost)    from every bucket, or from none
    reconcile  charge(used - c)                                              may return tokens, may leave a debt

Each limit is a token bucket of at most `capacity`, refilled evenly by `per_s` a second:

    level(now) = min(capacity, level(then) + (now - then) * per_s)
    in any window of t seconds, at most capacity + t * per_s is admitted

So up to twice a day's limit may pass in the first day after a start; a debt delays later requests. An estimate above a whole
limit waits for a full bucket, and the rest is charged as a debt.
Source: the token bucket of RFC 2697; reserve and reconcile as in GCRA with a signed correction.
When wrong: a client with a needlessly large max_tokens reserves it all, and waits for it. If answers use more than their
estimates, a burst exceeds the limit. Processes that share a quota need `SharedBucket`: one number in shared memory, the
instant at which the bucket will be full. Two takes within the same microsecond may count as one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Annotated, NamedTuple

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import Allowance
from stayfast.policy.fleet.config import OnLoss
from stayfast.policy.resilience.cross_process import Cells

_ROUNDING = 1e-6  # of the capacity: after months of uptime, instants have a precision of tenths of microseconds


class Bucket:
    """One limit. Pure state, initially full; changed only by its owner. Instants never go back."""

    __slots__ = ("capacity", "last_level", "per_s", "updated_at")

    def __init__(self, capacity: float, per_s: float, now: float) -> None:
        if not (capacity > 0 and per_s > 0):
            raise ValueError(f"capacity and per_s must be more than 0, not {capacity} and {per_s}")
        self.capacity = capacity
        self.per_s = per_s
        self.last_level = capacity  # the level at `updated_at`
        self.updated_at = now

    def level(self, now: float) -> float:
        """What is left; negative while there is a debt."""
        if now > self.updated_at:
            self.last_level = min(self.capacity, self.last_level + (now - self.updated_at) * self.per_s)
            self.updated_at = now
        return self.last_level

    def has_room(self, cost: float, now: float) -> bool:
        return cost <= self.level(now)

    def take(self, cost: float, now: float) -> bool:
        """Take `cost` (0 or more) if there is enough; whether it was taken."""
        if not self.has_room(cost, now):
            return False
        self.charge(cost, now)
        return True

    def note_need(self, cost: float, now: float) -> None:
        """Another limit refused a request that costs `cost` here."""

    def charge(self, cost: float, now: float) -> None:
        """Take `cost` even if there is not enough; a negative cost is returned, up to the capacity."""
        self.last_level = min(self.capacity, self.level(now) - cost)

    def wait_s(self, cost: float, now: float) -> float | None:
        """Seconds until there is enough, if nothing else is taken; None: `cost` is above the capacity."""
        return None if cost > self.capacity else max(0.0, (cost - self.level(now)) / self.per_s)

    def full_in_s(self, now: float) -> float:
        return (self.capacity - self.level(now)) / self.per_s

    def replace(self, before: "Bucket", now: float) -> None:
        """Replace a bucket of another capacity: what was used of it still counts, but leaves no debt."""
        self.last_level, self.updated_at = self._level_after(before, now), now

    def _level_after(self, before: "Bucket", now: float) -> float:
        level = before.level(now)
        return min(self.capacity, max(level + self.capacity - before.capacity, min(level, 0.0)))

    def __repr__(self) -> str:
        return f"<Bucket {self.last_level:g} of {self.capacity:g}, {self.per_s:g}/s>"


class SharedBucket(Bucket):
    """One limit of several processes, in one cell of `cells`, which is 0 if it is full. All use the same clock."""

    __slots__ = ("_cell", "_cells")

    def __init__(self, capacity: float, per_s: float, now: float, cells: Cells, cell: int) -> None:
        super().__init__(capacity, per_s, now)
        self._cells = cells
        self._cell = cell

    def level(self, now: float) -> float:
        return min(self.capacity, self.capacity - (self._cells[self._cell] - now) * self.per_s)

    def has_room(self, cost: float, now: float) -> bool:
        return cost <= self.level(now) + self.capacity * _ROUNDING

    def charge(self, cost: float, now: float) -> None:
        cells, cell = self._cells, self._cell
        cells[cell] = max(cells[cell], now) + cost / self.per_s

    def replace(self, before: Bucket, now: float) -> None:
        """Each process calls it; the largest use counts."""
        cells, cell = self._cells, self._cell
        cells[cell] = max(cells[cell], now + (self.capacity - self._level_after(before, now)) / self.per_s)

    def __repr__(self) -> str:
        return f"<SharedBucket of {self.capacity:g}, {self.per_s:g}/s, full at {self._cells[self._cell]:.1f}>"


MINUTE_S, DAY_S = 60.0, 86_400.0
_MOST = 1e15  # above it a float cannot count single tokens


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """Limits of one tenant; None: no limit. Cost is in USD, by the prices in the settings."""

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
    on_loss: Annotated[Mapping[str, OnLoss], SettingDoc(
        "What a limit does while `fleet.url` is unreachable, by its name: local, open or closed. Unset: fleet.on_loss."
    )] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        check_bounds(self)
        names = [name for name, _, _ in self.limits()]
        for name in self.on_loss:
            if name not in names:
                raise ValueError(f"on_loss.{name} is no limit of this quota: there are {', '.join(names) or 'none'}")

    def limits(self) -> Iterator[tuple[str, float, float]]:
        """The name, capacity and refill per second of each limit."""
        for declared in fields(self):
            _, _, window = declared.name.partition("_per_")
            limit = getattr(self, declared.name)
            if window and limit is not None:
                yield declared.name, limit, limit / (MINUTE_S if window == "minute" else DAY_S)


KINDS = ("requests", "tokens", "cost")
MakeBucket = Callable[[str, float, float, float], Bucket]  # from a limit's name, capacity, rate per second and now
Amount = tuple[float, float, float]  # requests, tokens and cost of one request
NOTHING: Amount = (0.0, 0.0, 0.0)


class Refusal(NamedTuple):
    """The limit that an estimate exceeds, and the wait until it fits."""

    limit: str  # its name in the settings: tokens_per_minute
    capacity: float
    level: float
    wanted: float
    wait_s: float


class _Limit(NamedTuple):
    name: str
    kind: int  # index into an Amount
    bucket: Bucket


def make_local_bucket(_: str, capacity: float, per_s: float, now: float) -> Bucket:
    return Bucket(capacity, per_s, now)


class TenantQuota:
    """The buckets of one tenant. Pure state, initially full; instants never go back. `before` is the quota that it replaces:
    an unchanged limit keeps its bucket, a raised one adds the difference, and a lowered one leaves no debt.
    """

    __slots__ = ("_by_kind", "_limits", "config", "has_cost")

    def __init__(self, config: QuotaConfig, now: float, make: MakeBucket = make_local_bucket,
                 before: "TenantQuota | None" = None) -> None:
        self.config = config
        known = {limit.name: limit.bucket for limit in before._limits} if before is not None else {}
        found = []
        for name, limit, per_s in config.limits():
            was = known.get(name)
            if was is not None and was.capacity == limit:
                bucket = was
            else:
                bucket = make(name, limit, per_s, now)
                if was is not None:
                    bucket.replace(was, now)
            found.append(_Limit(name, KINDS.index(name.partition("_per_")[0]), bucket))
        self._limits: tuple[_Limit, ...] = tuple(found)
        by_kind = {kind: [limit.bucket for limit in found if KINDS[limit.kind] == kind] for kind in KINDS}
        self.has_cost = bool(by_kind.pop("cost"))
        self._by_kind = [(kind, buckets) for kind, buckets in by_kind.items() if buckets]

    def reserve(self, amount: Amount, now: float) -> Refusal | None:
        """Take the amount from every bucket; or from none, and return the limit with the longest wait."""
        for _, kind, bucket in self._limits:
            if not bucket.take(min(amount[kind], bucket.capacity), now):
                return self._refuse(amount, bucket, now)
        return None

    def reconcile(self, reserved: Amount, used: Amount, now: float) -> None:
        for _, kind, bucket in self._limits:
            more = used[kind] - min(reserved[kind], bucket.capacity)
            if more:
                bucket.charge(more, now)

    def bucket_for(self, limit: str) -> Bucket:
        """The bucket of one limit, by its name in the settings. Raises KeyError if there is none."""
        return {name: bucket for name, _, bucket in self._limits}[limit]

    def levels(self, now: float) -> dict[str, tuple[float, float]]:
        return {name: (bucket.level(now), bucket.capacity) for name, _, bucket in self._limits}

    def allowances(self, now: float) -> tuple[Allowance, ...]:
        """What is left of requests and tokens; if a kind has several limits, of the one with the smallest share left."""
        found = []
        for kind, buckets in self._by_kind:
            bucket = min(buckets, key=lambda bucket: bucket.level(now) / bucket.capacity)
            left = bucket.level(now)
            found.append(Allowance(kind, int(bucket.capacity), max(0, int(left)), (bucket.capacity - left) / bucket.per_s))
        return tuple(found)

    def _refuse(self, amount: Amount, by: Bucket, now: float) -> Refusal:
        """Return what was taken from the buckets before `by`, and find the limit with the longest wait."""
        refusals, is_taken = [], True
        for name, kind, bucket in self._limits:
            wanted = min(amount[kind], bucket.capacity)
            if bucket is by:
                is_taken = False
            elif is_taken:
                bucket.charge(-wanted, now)
            else:
                bucket.note_need(wanted, now)
            refusals.append(Refusal(name, bucket.capacity, bucket.level(now), wanted, bucket.wait_s(wanted, now) or 0.0))
        return max(refusals, key=lambda refusal: refusal.wait_s)

    def __repr__(self) -> str:
        return f"<TenantQuota {', '.join(f'{name} {bucket!r}' for name, _, bucket in self._limits) or 'without limits'}>"
