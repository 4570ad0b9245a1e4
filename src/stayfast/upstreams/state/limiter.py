"""The places at one upstream that one limit gives out: who has one, who waits for one, and for how long.

An upstream has one of these. Where admission keeps lanes and the limit learns, each lane has its own, so that what long
prompts teach holds nobody up but them. A request waits (`LimiterWaiter`) at every limit where it may go, and the first
place is its.
"""

import asyncio
from collections.abc import Sequence
from math import ceil
from random import Random
from typing import Final, NamedTuple

from stayfast.core.clock import Clock
from stayfast.core.constants import MAX_RETRY_AFTER_S
from stayfast.core.errors import Shed
from stayfast.policy.admission.fair_share import TenantShare
from stayfast.policy.admission.queue import Queue, QueueConfig, QueueEntry
from stayfast.policy.resilience.cross_process import LOOK_ELSEWHERE_S, SharedLimit
from stayfast.policy.resilience.limits import AdaptiveLimit, LimitConfig

QUICKEST_GROWS = 1.02  # with every answer: an upstream that has become slow for good is known as such after some dozens
HELD_WEIGHT = 0.1  # of the newest in the mean time that a place is held
_OPEN, _FULL = QueueConfig(max_queue=100_000), QueueConfig(max_queue=0)  # in a full one somebody has to go
_ROUNDING: Final = 1e-6  # of parts, in sum
_LEAST_PART: Final = 1e-3


class QuickestTtft:
    """About the shortest of an upstream's recent times to a first token. All its limits share one."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0  # 0: none is known

    def learn(self, ttft_s: float) -> None:
        forgiven_s = self.seconds * QUICKEST_GROWS
        self.seconds = ttft_s if ttft_s < forgiven_s or not forgiven_s else forgiven_s


class LimitOption(NamedTuple):
    """One limit at which a request may wait. `first_s` must be left for its first token there; 0: not known."""

    limited: "ConcurrencyLimiter"
    first_s: float


class _Stand:
    """One turn in one queue."""

    __slots__ = ("part", "waiting")

    def __init__(self, part: float, waiting: "QueueEntry[LimiterWaiter]") -> None:
        self.part = part  # of the request that is this limit's to serve, by its speed; 1 in sum over all where it waits
        self.waiting = waiting


class LimiterWaiter:
    """One request's wait, at one limit or several. One task's; changed by the limits, which call it or turn it away. Of
    those that wait goes: the highest band, then the tenant with the least, then the earliest `ends_at`
    (policy/admission/queue.py).
    """

    __slots__ = ("_clock", "_decision", "_stands", "band", "ends_at", "queued_at", "tenant", "weight")

    def __init__(self, clock: Clock, ends_at: float, band: int = 0, tenant: str = "", weight: float = 1.0) -> None:
        self._clock = clock
        self._stands: dict[ConcurrencyLimiter, _Stand] = {}
        self._decision: asyncio.Future[ConcurrencyLimiter | Shed | None] = asyncio.get_running_loop().create_future()
        self.band = band
        self.ends_at = ends_at
        self.queued_at = clock.now()
        self.tenant = tenant
        self.weight = weight

    async def wait(self, choices: Sequence[LimitOption]) -> "ConcurrencyLimiter | None":
        """Who has a place, for `take` before anything else is awaited; None: a limit is no more, choose again. Raises Shed
        at once where all have too many waiting, or an answer would come too late from any of them; later where others go
        first, or there is no time left for the quickest answer when its turn comes.
        """
        parts = _parts(choices)
        waits_s = [choice.limited.wait_s(self, part) for choice, part in zip(choices, parts, strict=True)]
        soonest = min(range(len(choices)), key=lambda n: waits_s[n] + choices[n].first_s)
        limited, first_s = choices[soonest]
        if self._clock.now() + waits_s[soonest] + first_s > self.ends_at:
            raise limited.shed(f"a wait of {waits_s[soonest]:.2g} s for a place and up to {first_s:.2g} s for a first token "
                               "are more than there is time for", waits_s[soonest])
        shed: Shed | None = None
        for choice, part in zip(choices, parts, strict=True):
            if self._decision.done():
                break
            queue_place = choice.limited.line_up(self, part)
            if queue_place is not None and (shed is None or (queue_place.retry_after_s or 0) < (shed.retry_after_s or 0)):
                shed = queue_place
        if shed is not None and not self._stands and not self._decision.done():
            raise shed
        self._share_out()
        try:
            decision = await self._decision
        except asyncio.CancelledError:
            self._leave()
            if not self._decision.cancelled() and isinstance(called := self._decision.result(), ConcurrencyLimiter):
                called.come()  # the place came with the cancellation
                called.call_up()
            raise
        if isinstance(decision, Shed):
            raise decision
        if decision is not None:
            decision.come()
        return decision

    @property
    def is_over(self) -> bool:
        """Whether it was called or turned away, or whoever waited has left and does not know it yet."""
        return self._decision.done()

    def is_late(self, quickest_s: float) -> bool:
        """Whether not even the quickest answer would come in time."""
        return self._clock.now() + quickest_s > self.ends_at

    def called(self, by: "ConcurrencyLimiter | None") -> None:
        """A place is its; None: it has to choose again. It waits nowhere any more."""
        self._leave()
        if not self._decision.done():
            self._decision.set_result(by)

    def refused(self, shed: Shed) -> None:
        """One limit has turned it away, and has forgotten it; the last one ends the wait."""
        if self._stands:
            self._share_out()
        elif not self._decision.done():
            self._decision.set_result(shed)

    def stands(self, limited: "ConcurrencyLimiter", stand: _Stand) -> None:
        self._stands[limited] = stand

    def stands_no_more(self, limited: "ConcurrencyLimiter") -> _Stand:
        """A limit takes it out of its queue."""
        return self._stands.pop(limited)

    def _leave(self) -> None:
        for limited in list(self._stands):
            limited.forget(self)

    def _share_out(self) -> None:
        whole = sum(stand.part for stand in self._stands.values())
        for limited, stand in self._stands.items():
            part = stand.part / whole
            limited.n_due += part - stand.part
            stand.part = part


class ConcurrencyLimiter:
    """One limit's places. Changed only on the event loop; nothing here awaits."""

    __slots__ = ("_held_s", "_n_promised", "_name", "_queue", "_rng", "_shares", "common", "lane", "limit", "max_waiting",
                 "n_due", "n_in_flight", "quickest")

    def __init__(self, name: str, config: LimitConfig, lane: str = "", rng: Random | None = None,
                 quickest: QuickestTtft | None = None) -> None:
        self.lane = lane  # empty: all
        self.limit = AdaptiveLimit(config)
        self.common: SharedLimit | None = None  # the limit is shared with other processes
        self.quickest = quickest or QuickestTtft()
        self.max_waiting = config.max_waiting
        self.n_in_flight = 0
        self.n_due = 0.0  # who waits, by parts; 0: nobody
        self._name = name
        self._rng = rng or Random(name)
        self._queue: Queue[LimiterWaiter] = Queue(_OPEN)
        self._shares: dict[str, TenantShare] = {}  # of the tenants that wait; by requests
        self._n_promised = 0  # places of those who waited and have not been told yet
        self._held_s = 0.0  # how long a place is held, about; 0: not known

    @property
    def n_waiting(self) -> int:
        """Requests that wait for a place. One that waits elsewhere as well counts in part: over all limits, once."""
        return ceil(self.n_due - _ROUNDING)

    @property
    def n_taken(self) -> int:
        """Places that are taken here, or promised to who waited."""
        return self.n_in_flight + self._n_promised

    @property
    def has_room(self) -> bool:
        if self.n_due:
            return False
        return self.n_in_flight + self._n_promised < self.limit.value if self.common is None else self._has_place()

    @property
    def per_s(self) -> float:
        """Requests that it serves in a second when it is full; 0: not known."""
        return max(1.0, self.limit.value) / self._held_s if self._held_s else 0.0

    def take(self) -> int:
        """An attempt begins; how many run now. Whether there is room is asked before."""
        self.n_in_flight = n = self.n_in_flight + 1
        if self.common is not None:
            self.common.taken(n + self._n_promised)
        return n

    def wait_s(self, turn: LimiterWaiter, part: float = 1.0) -> float:
        """How long it would wait, as a part of one; 0 where nothing is known."""
        queue, per_s = self._queue, self.per_s
        if not per_s:
            return 0.0
        n_ahead = queue.n_ahead(turn.band, self._share(turn)) * self.n_due / queue.n if queue.n else 0.0
        return (n_ahead + part) / per_s

    def line_up(self, turn: LimiterWaiter, part: float) -> Shed | None:
        """Let it wait; the least deserving goes where too many do. Returns why it may not."""
        share = self._share(turn)
        if not share.n_waiting:
            share.served = self._queue.least_served() or 0.0
        waiting = QueueEntry(turn, turn.band, share, turn.queued_at, turn.ends_at)
        n_others = self.n_waiting
        self._queue.config = _FULL if self.n_due + part > self.max_waiting + _ROUNDING else _OPEN
        gone = self._queue.push(waiting)
        if gone is waiting:
            return self.shed(f"{n_others} waiting, which is as many as may" if n_others else "none may wait",
                             self.wait_s(turn, part))
        self._shares[turn.tenant] = share
        self.n_due += part
        turn.stands(self, _Stand(part, waiting))
        if gone is not None:
            self._turn_away(gone, f"{n_others} waiting, which is as many as may, and others go first")
        if self.common is not None and not self.common.is_watched:
            self._poll_other_processes(self.common)
        return None

    def forget(self, turn: LimiterWaiter) -> None:
        stand = turn.stands_no_more(self)
        self._queue.remove(stand.waiting)
        self._lighten(stand)

    def shed(self, why: str, wait_s: float) -> Shed:
        """What is told to who may not wait. Whoever is told to come back is spread over as long again."""
        return Shed(f"upstream {self._name} has as many requests as it takes, and {why}", reason="upstream_busy",
                    code="upstream_busy",
                    retry_after_s=min(MAX_RETRY_AFTER_S, max(1.0, wait_s) * self._rng.uniform(1.0, 2.0)))

    def come(self) -> None:
        """Whoever was promised a place knows it now."""
        self._n_promised -= 1

    def left(self, held_s: float, *, has_answered: bool = True) -> None:
        """A place is free again. Where no answer came, for a time-out or for its client's leaving, it was for at least so
        long: that never makes the mean less.
        """
        self.n_in_flight -= 1
        if self.common is not None:
            self.common.taken(self.n_in_flight + self._n_promised)
        before_s = self._held_s
        if has_answered or held_s > before_s:
            self._held_s = before_s + (held_s - before_s) * HELD_WEIGHT if before_s else held_s
        if self.n_due:
            self.call_up()

    def call_up(self) -> None:
        """Promise free places to those whose turn it is."""
        queue = self._queue
        while queue.n and self._has_place():
            waiting = queue.pop(_anybody)
            if waiting is None:
                return
            turn = waiting.item
            waiting.share.served += 1 / waiting.share.weight
            stand = turn.stands_no_more(self)
            self._lighten(stand)
            if turn.is_over:
                continue
            if turn.is_late(self.quickest.seconds):
                turn.refused(self._shed_late(turn))
                continue
            self._n_promised += 1
            turn.called(self)
            if self.common is not None:
                self.common.taken(self.n_in_flight + self._n_promised)

    def send_on(self) -> None:
        """Nobody waits here any more: all of them go on, to ask again where they belong now."""
        while (waiting := self._queue.pop(_anybody)) is not None:
            self._lighten(waiting.item.stands_no_more(self))
            waiting.item.called(None)

    def _share(self, turn: LimiterWaiter) -> TenantShare:
        return self._shares.get(turn.tenant) or TenantShare(turn.tenant, turn.weight)

    def _shed_late(self, turn: LimiterWaiter) -> Shed:
        return self.shed(f"when its turn came there was less time left than the {self.quickest.seconds:.2g} s that the "
                         "quickest answer takes", self.wait_s(turn))

    def _turn_away(self, gone: "QueueEntry[LimiterWaiter]", why: str) -> None:
        turn = gone.item
        self._lighten(turn.stands_no_more(self))
        turn.refused(self.shed(why, self.wait_s(turn)))

    def _lighten(self, stand: _Stand) -> None:
        """One that waited is out of the queue."""
        share = stand.waiting.share
        if not share.n_waiting:
            del self._shares[share.name]
        self.n_due = self.n_due - stand.part if self._queue.n else 0.0

    def _has_place(self) -> bool:
        n_taken, limit = self.n_in_flight + self._n_promised, self.limit
        return limit.has_room(n_taken if self.common is None else self.common.n_seen(n_taken, limit.value))

    def _poll_other_processes(self, common: SharedLimit) -> None:
        """As long as somebody waits here: nobody tells us of places that become free elsewhere."""
        self.call_up()
        common.waiting(self.n_waiting)
        common.is_watched = self.n_due > 0
        if common.is_watched:
            asyncio.get_running_loop().call_later(LOOK_ELSEWHERE_S, self._poll_other_processes, common)

    def __repr__(self) -> str:
        lane = f" in lane {self.lane}" if self.lane else ""
        return f"<ConcurrencyLimiter{lane}: {self.n_in_flight} in flight, {self.n_waiting} waiting, {self.limit!r}>"


def _anybody(*_: object) -> bool:
    return True


def _parts(choices: Sequence[LimitOption]) -> list[float]:
    """What part of one request each of these may expect to serve: by how quick they are, where all of that is known."""
    speeds = [choice.limited.per_s for choice in choices]
    if not all(speeds):
        return [1 / len(choices)] * len(choices)
    whole = sum(speeds)
    return [max(_LEAST_PART, speed / whole) for speed in speeds]
