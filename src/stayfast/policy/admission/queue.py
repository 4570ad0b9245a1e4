"""The admission queue: its order, how long a request may wait, and which requests are rejected.

Problem: an unbounded queue turns overload into time-outs for all: each answer comes after its reader has left. Rule: the
queue is short, sorted by urgency, and sheds early. The next request is from the highest band (`priority`), in it from the
tenant with the least service (`fair_share`), and of its requests the one with the earliest deadline, with ageing:

    key = min(deadline, queued_at + aging_s)      no request is overtaken by one that comes `aging_s` later

A queue caused by a burst drains; a standing queue does not. So the longest wait depends on how long the tenant's queue in
its band has not been empty (CoDel, in the form of "Fail at Scale"):

    longest wait = max_wait_s                    if it was empty within the last `max_wait_s`
                 = target_wait_s                 otherwise, except for its first request if no higher band waits: it gets
                                                 one of the next places

The short wait empties the queue every now and then. That is no drain: a standing queue stays one if its next request comes
within `max_wait_s` (the last one was rejected) or `target_wait_s` (it got a place) of its latest one.

A new request is rejected at once if it would wait too long. By Little's law, with mean service time S and n in flight:

    predicted wait = (ahead + 1) * S / n,    ahead = requests of higher bands + requests that go first in its own band

Beyond `max_queue` one request is pushed out: in the lowest band, of the tenant with the most waiting requests for its
weight, the one with the latest key.
Source: CoDel (Nichols and Jacobson, 2012) and its server variant ("Fail at Scale", ACM Queue 2015); earliest deadline
first; the push-out rule and the memory of standing queues are ours.
When wrong: at very low rates, or if an answer takes longer than `max_wait_s`, every queue is a standing one.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Generic, NamedTuple, TypeVar

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.admission.fair_share import TenantShare
from stayfast.policy.admission.priority import BANDS

T = TypeVar("T")
_LEARNING_RATE = 0.05  # of the mean service time


@dataclass(frozen=True, slots=True)
class QueueConfig:
    max_queue: Annotated[int, SettingDoc(
        "Most queued requests; beyond it the lowest priority is rejected.", minimum=0, maximum=100_000)] = 1000
    max_wait_s: Annotated[float, SettingDoc(
        "Longest wait; a longer predicted wait is rejected at once.", minimum=0.001, maximum=3600)] = 2.0
    target_wait_s: Annotated[float, SettingDoc(
        "Longest wait once a tenant's queue has not been empty for `max_wait_s`.", minimum=0.001, maximum=3600)] = 0.1
    aging_s: Annotated[float, SettingDoc(
        "After this wait, later requests of the tenant no longer overtake, whatever their priority.",
        minimum=0, maximum=3600)] = 10.0

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.target_wait_s > self.max_wait_s:
            raise ValueError(f"target_wait_s must be at most max_wait_s ({self.max_wait_s:g}), not {self.target_wait_s:g}")


class QueueEntry(Generic[T]):
    """A request in the queue. `item` belongs to the owner."""

    __slots__ = ("band", "deadline_at", "item", "queued_at", "share")

    def __init__(self, item: T, band: int, share: TenantShare, queued_at: float, deadline_at: float) -> None:
        self.item = item
        self.band = band
        self.share = share
        self.queued_at = queued_at
        self.deadline_at = deadline_at


class _Entry(NamedTuple, Generic[T]):
    key: float
    number: int
    waiting: QueueEntry[T]


class _Lane(Generic[T]):
    __slots__ = ("entries", "last_at", "share", "standing_since", "was_rejected")

    def __init__(self, share: TenantShare, now: float) -> None:
        self.share = share
        self.entries: list[_Entry[T]] = []
        self.standing_since = self.last_at = now  # last_at: of the latest request
        self.was_rejected = False  # the last request that left the lane, because it waited too long

    def continues(self, now: float, config: QueueConfig) -> bool:
        """Whether a request at `now` joins the queue that stood here before the lane was empty."""
        gap_s = config.max_wait_s if self.was_rejected else config.target_wait_s
        return self.last_at - self.standing_since > config.max_wait_s and now - self.last_at < gap_s


class Queue(Generic[T]):
    """The waiting requests. Pure state; instants never go back. Maintains `n_waiting` of the shares."""

    __slots__ = ("_bands", "_empty", "_n_in", "_n_pushed", "config", "n", "service_s")

    def __init__(self, config: QueueConfig) -> None:
        self.config = config
        self._bands: list[dict[TenantShare, _Lane[T]]] = [{} for _ in BANDS]
        self._empty: list[dict[TenantShare, _Lane[T]]] = [{} for _ in BANDS]  # lanes that may continue
        self._n_in = [0] * len(BANDS)  # `n` by band
        self._n_pushed = 0
        self.n = 0
        self.service_s = 0.0  # mean time for which a place is taken; 0: unknown

    def record_service_time(self, seconds: float, *, has_left: bool = False) -> None:
        """A place was released after `seconds`. `has_left`: its client disconnected before the answer, so that the true
        service time is longer; such a sample never lowers the mean.
        """
        if has_left and seconds < self.service_s:
            return
        self.service_s += (seconds - self.service_s) * (_LEARNING_RATE if self.service_s else 1.0)

    def push(self, waiting: QueueEntry[T]) -> QueueEntry[T] | None:
        """Add a request. Returns the request that is evicted for it (possibly itself), if any."""
        lanes, now = self._bands[waiting.band], waiting.queued_at
        lane = lanes.get(waiting.share)
        if lane is None:
            lane = self._empty[waiting.band].pop(waiting.share, None)
            if lane is None or not lane.continues(now, self.config):
                lane = _Lane(waiting.share, now)
            lanes[waiting.share] = lane
        lane.last_at = now
        self._n_pushed += 1
        key = min(waiting.deadline_at, now + self.config.aging_s)
        insort(lane.entries, _Entry(key, self._n_pushed, waiting))
        waiting.share.enter_queue()
        self._n_in[waiting.band] += 1
        self.n += 1
        if self.n <= self.config.max_queue:
            return None
        band = max(band for band, lanes in enumerate(self._bands) if lanes)
        return self._remove_at(_longest_lane(self._bands[band]), band, -1)

    def pop(self, has_room: Callable[[int], bool]) -> QueueEntry[T] | None:
        """Remove and return the next request of a band that has room; None if there is none."""
        if not self.n:
            return None
        for band, lanes in enumerate(self._bands):
            if lanes and has_room(band):
                lane = _next_lane(lanes)
                lane.was_rejected = False
                return self._remove_at(lane, band, 0)
        return None

    def remove(self, waiting: QueueEntry[T]) -> None:
        """Remove a request whose owner stopped waiting. Raises KeyError if it is not in the queue."""
        lane = self._bands[waiting.band][waiting.share]
        for index, entry in enumerate(lane.entries):
            if entry.waiting is waiting:
                self._remove_at(lane, waiting.band, index)
                return
        raise KeyError("the request is not in the queue")

    def pop_overdue(self, now: float) -> list[QueueEntry[T]]:
        """Remove and return all requests that have waited too long."""
        late, is_next = [], True
        for band, lanes in enumerate(self._bands):
            for lane in list(lanes.values()):
                for index, waiting in reversed(list(self._overdue_in(lane, now, is_next=is_next))):
                    lane.was_rejected = True
                    self._remove_at(lane, band, index)
                    late.append(waiting)
            is_next = is_next and not lanes
            empty = self._empty[band]
            for share in [share for share, lane in empty.items() if not lane.continues(now, self.config)]:
                del empty[share]
        return late

    def predict_wait_s(self, band: int, share: TenantShare, n_in_flight: int) -> float:
        """The predicted wait of a new request in seconds; 0 if the service time is unknown."""
        return (self.n_ahead(band, share) + 1) * self.service_s / max(1, n_in_flight)

    def n_ahead(self, band: int, share: TenantShare) -> float:
        """How many requests go before a new one, if tenants are served in proportion to their weights."""
        n, own = float(sum(self._n_in[:band])), self._bands[band]
        turns = (len(own[share].entries) + 1 if share in own else 1) / share.weight
        for other, lane in own.items():
            n_waiting, n_turns = len(lane.entries), turns * other.weight
            if n_turns < n_waiting:  # `min` written out: this runs for each of a thousand tenants
                n += n_turns
            else:
                n += n_waiting
        return n

    def least_served(self) -> float | None:
        """The least service of the waiting tenants; None if none waits."""
        return None if not self.n else min([share.served for lanes in self._bands for share in lanes])

    def depths(self) -> Iterator[tuple[str, int]]:
        yield from zip(BANDS, self._n_in, strict=True)

    def _overdue_in(self, lane: _Lane[T], now: float, *, is_next: bool) -> Iterator[tuple[int, QueueEntry[T]]]:
        """is_next: no request of a higher band waits."""
        config = self.config
        is_standing = now - lane.standing_since > config.max_wait_s
        for index, (_, _, waiting) in enumerate(lane.entries):
            gets_next_place = is_next and index == 0
            patience_s = config.target_wait_s if is_standing and not gets_next_place else config.max_wait_s
            if now - waiting.queued_at >= patience_s:
                yield index, waiting

    def _remove_at(self, lane: _Lane[T], band: int, index: int) -> QueueEntry[T]:
        waiting = lane.entries.pop(index).waiting
        if not lane.entries:
            self._empty[band][lane.share] = self._bands[band].pop(lane.share)
        waiting.share.leave_queue()
        self._n_in[band] -= 1
        self.n -= 1
        return waiting

    def __repr__(self) -> str:
        lanes = ", ".join(f"{name} {n}" for name, n in self.depths() if n)
        return f"<Queue {self.n} of {self.config.max_queue} waiting{': ' + lanes if lanes else ''}>"


def _next_lane(lanes: Mapping[TenantShare, _Lane[T]]) -> _Lane[T]:
    """The lane of the tenant with the least claim; on a tie, with the fewest running. Written out for speed."""
    found = next(iter(lanes))
    least = found.claim
    for share in lanes:
        claim = share.served + share.due
        if claim < least or (claim == least and share.n_running < found.n_running):
            found, least = share, claim
    return lanes[found]


def _longest_lane(lanes: Mapping[TenantShare, _Lane[T]]) -> _Lane[T]:
    """The lane with the most waiting requests for its weight; on a tie, of the tenant with the most service."""
    found, most = next(iter(lanes)), 0.0
    for share, lane in lanes.items():
        n = len(lane.entries) / share.weight
        if n > most or (n == most and share.served > found.served):
            found, most = share, n
    return lanes[found]
