"""Who waits, for how long, and who is turned away.

Problem: an unbounded queue turns overload into time-outs for everybody: each answer comes, after its reader has left. Rule:
the queue is short, sorted by what is urgent, and sheds early. It holds lanes, one for each band and tenant. From lanes
with room goes: the highest band (`priority`); in it the tenant with the least service (`fair`); of its requests the
earliest deadline, with ageing:

    key = min(deadline, queued + ages_within)        so nobody is overtaken by those who come `ages_within` after it

A wait is a burst's or a standing queue's, and only the first will pass. So a lane's patience depends on how long it has
not been empty (CoDel, in the form of "Fail at Scale"):

    patience = max_wait                               if the lane has been empty within the last `max_wait`
             = target_wait                            otherwise; but its first is left until max_wait, for the next place

A newcomer is refused at once where waiting would be in vain. By Little's law, with mean service time S and n in flight:

    predicted wait = (ahead + 1) * S / n,    ahead = those in higher bands + those whose turn comes first in its own

Over `max_queue`, somebody must go: of the lowest band the tenant with most waiting for its weight, and of that the one
with the latest key. That is often the newcomer, and never a quiet tenant's for the sake of a noisy one's.
Source: CoDel (Nichols and Jacobson, 2012) and its server variant ("Fail at Scale", ACM Queue 2015); earliest deadline
first; push-out is ours.
When wrong: at very low rates, or where an answer takes longer than `max_wait`, every queue is a standing one.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Generic, NamedTuple, TypeVar

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.admission.fair_share import TenantShare
from stayfast.policy.admission.priority import BANDS

T = TypeVar("T")
_LEARNS = 0.05  # of each sample of the service time


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Bounds of one queue; seconds."""

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
    """One place in the queue. `item` is its owner's."""

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
    """The requests of one tenant in one band, most urgent first."""

    __slots__ = ("entries", "share", "standing_since")

    def __init__(self, share: TenantShare, now: float) -> None:
        self.share = share
        self.entries: list[_Entry[T]] = []
        self.standing_since = now


class Queue(Generic[T]):
    """All that wait. Pure state; instants never go back. Keeps `n_waiting` of the shares."""

    __slots__ = ("_bands", "_n_in", "_n_pushed", "config", "n", "service_s")

    def __init__(self, config: QueueConfig) -> None:
        self.config = config
        self._bands: list[dict[TenantShare, _Lane[T]]] = [{} for _ in BANDS]
        self._n_in = [0] * len(BANDS)  # of `n`
        self._n_pushed = 0
        self.n = 0
        self.service_s = 0.0  # about how long a place is taken; 0: nothing is known

    def served(self, seconds: float, *, has_left: bool = False) -> None:
        """A place was given back after so long. `has_left`: its client did not wait for an answer, which would have taken
        longer: that never makes the mean less.
        """
        if has_left and seconds < self.service_s:
            return
        self.service_s += (seconds - self.service_s) * (_LEARNS if self.service_s else 1.0)

    def push(self, waiting: QueueEntry[T]) -> QueueEntry[T] | None:
        """Let a request wait; returns the one that has to go instead, which may be itself."""
        lanes, now = self._bands[waiting.band], waiting.queued_at
        lane = lanes.get(waiting.share)
        if lane is None:
            lane = lanes[waiting.share] = _Lane(waiting.share, now)
        self._n_pushed += 1
        key = min(waiting.deadline_at, now + self.config.aging_s)
        insort(lane.entries, _Entry(key, self._n_pushed, waiting))
        waiting.share.queued()
        self._n_in[waiting.band] += 1
        self.n += 1
        if self.n <= self.config.max_queue:
            return None
        band = max(band for band, lanes in enumerate(self._bands) if lanes)
        return self._take(_longest(self._bands[band]), band, -1)

    def pop(self, has_room: Callable[[int], bool]) -> QueueEntry[T] | None:
        """The next to go on among those for whose band there is room; no tenant that waits has less room than another."""
        if not self.n:
            return None
        for band, lanes in enumerate(self._bands):
            if lanes and has_room(band):
                return self._take(_next_turn(lanes), band, 0)
        return None

    def remove(self, waiting: QueueEntry[T]) -> None:
        """Its owner waits no longer. Raises KeyError for one that does not wait."""
        lane = self._bands[waiting.band][waiting.share]
        for index, entry in enumerate(lane.entries):
            if entry.waiting is waiting:
                self._take(lane, waiting.band, index)
                return
        raise KeyError("it does not wait")

    def overdue(self, now: float) -> list[QueueEntry[T]]:
        """Take out all whose lanes have no more patience with them."""
        late = []
        for band, lanes in enumerate(self._bands):
            for lane in list(lanes.values()):
                for index, waiting in reversed(list(self._late_in(lane, now))):
                    self._take(lane, band, index)
                    late.append(waiting)
        return late

    def predicted_s(self, band: int, share: TenantShare, n_in_flight: int) -> float:
        """How long a newcomer would wait; 0 where nothing is known."""
        return (self.n_ahead(band, share) + 1) * self.service_s / max(1, n_in_flight)

    def n_ahead(self, band: int, share: TenantShare) -> float:
        """How many go on before a newcomer, at equal speed of all tenants for their weight."""
        n, own = float(sum(self._n_in[:band])), self._bands[band]
        turns = (len(own[share].entries) + 1 if share in own else 1) / share.weight
        for other, lane in own.items():
            n_waiting, n_turns = len(lane.entries), turns * other.weight
            if n_turns < n_waiting:  # written out: of a thousand tenants, each newcomer counts all
                n += n_turns
            else:
                n += n_waiting
        return n

    def least_served(self) -> float | None:
        """The least service among the tenants that wait; None where nobody does."""
        return None if not self.n else min([share.served for lanes in self._bands for share in lanes])

    def depths(self) -> Iterator[tuple[str, int]]:
        yield from zip(BANDS, self._n_in, strict=True)

    def _late_in(self, lane: _Lane[T], now: float) -> Iterator[tuple[int, QueueEntry[T]]]:
        config = self.config
        is_standing = now - lane.standing_since > config.max_wait_s
        for index, (_, _, waiting) in enumerate(lane.entries):
            patience_s = config.target_wait_s if is_standing and index else config.max_wait_s
            if now - waiting.queued_at >= patience_s:
                yield index, waiting

    def _take(self, lane: _Lane[T], band: int, index: int) -> QueueEntry[T]:
        waiting = lane.entries.pop(index).waiting
        if not lane.entries:
            del self._bands[band][lane.share]
        waiting.share.left_queue()
        self._n_in[band] -= 1
        self.n -= 1
        return waiting

    def __repr__(self) -> str:
        lanes = ", ".join(f"{name} {n}" for name, n in self.depths() if n)
        return f"<Queue {self.n} of {self.config.max_queue} waiting{': ' + lanes if lanes else ''}>"


def _next_turn(lanes: Mapping[TenantShare, _Lane[T]]) -> _Lane[T]:
    """Of the tenant with the least claim; of equal ones, who runs least. Written out: a thousand tenants may wait."""
    found = next(iter(lanes))
    least = found.claim
    for share in lanes:
        claim = share.served + share.due
        if claim < least or (claim == least and share.n_running < found.n_running):
            found, least = share, claim
    return lanes[found]


def _longest(lanes: Mapping[TenantShare, _Lane[T]]) -> _Lane[T]:
    """The one with most waiting for its weight; of equal ones, whose tenant was served most."""
    found, most = next(iter(lanes)), 0.0
    for share, lane in lanes.items():
        n = len(lane.entries) / share.weight
        if n > most or (n == most and share.served > found.served):
            found, most = share, n
    return lanes[found]
