"""A concurrency limit at an upstream: attempts in flight, and the queue of requests that wait for a permit.

An upstream has one limiter. If admission uses lanes and the limit is adaptive, each lane has its own, so that what long
prompts teach affects long prompts only. A request waits (`LimiterWaiter`) at all limiters that it may use, and takes the
first permit.
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
from stayfast.policy.resilience.cross_process import POLL_EVERY_S, SharedLimit
from stayfast.policy.resilience.limits import AdaptiveLimit, LimitConfig
from stayfast.upstreams.state.job_places import JobPlaces

QUICKEST_GROWS = 1.02  # with every answer, so that a lasting slowdown is learned within some dozens
HELD_WEIGHT = 0.1  # of the newest value in the mean duration of an attempt
_OPEN, _FULL = QueueConfig(max_queue=100_000), QueueConfig(max_queue=0)  # pushing to a full queue evicts an entry
_ROUNDING: Final = 1e-6  # of a sum of shares
_MIN_SHARE: Final = 1e-3


class FastestTtft:
    """About the shortest recent time to a first token of an upstream; shared by its limiters."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0  # 0: unknown

    def learn(self, ttft_s: float) -> None:
        grown_s = self.seconds * QUICKEST_GROWS
        self.seconds = ttft_s if ttft_s < grown_s or not grown_s else grown_s


class LimitOption(NamedTuple):
    """A limiter where a request may wait. `first_s`: time that its first token will take there; 0: unknown."""

    limiter: "ConcurrencyLimiter"
    first_s: float


class _QueuePosition:
    """A waiter in the queue of one limiter."""

    __slots__ = ("entry", "share")

    def __init__(self, share: float, entry: "QueueEntry[LimiterWaiter]") -> None:
        self.share = share  # probability that this limiter serves it, by speed; the sum over all its limiters is 1
        self.entry = entry


class LimiterWaiter:
    """One request that waits at one or more limiters. One task's; the limiters call `grant` or `refuse`. Order: highest
    priority band, then the tenant with the least service, then the earliest `ends_at` (policy/admission/queue.py).
    """

    __slots__ = ("_clock", "_decision", "band", "ends_at", "positions", "queued_at", "tenant", "weight")

    def __init__(self, clock: Clock, ends_at: float, band: int = 0, tenant: str = "", weight: float = 1.0) -> None:
        self._clock = clock
        self.positions: dict[ConcurrencyLimiter, _QueuePosition] = {}  # changed by the limiters
        self._decision: asyncio.Future[ConcurrencyLimiter | Shed | None] = asyncio.get_running_loop().create_future()
        self.band = band
        self.ends_at = ends_at
        self.queued_at = clock.now()
        self.tenant = tenant
        self.weight = weight

    async def wait(self, options: Sequence[LimitOption]) -> "ConcurrencyLimiter | None":
        """The limiter that has a permit; call its `acquire` before the next await. None: a limiter was removed, so choose
        again. Raises Shed at once if all queues are full, or every answer would be too late; later if it is evicted from
        the last queue, or too little time is left for the fastest answer when its turn comes.
        """
        shares = _expected_shares(options)
        waits_s = [choice.limiter.expected_wait_s(self, share) for choice, share in zip(options, shares, strict=True)]
        soonest = min(range(len(options)), key=lambda n: waits_s[n] + options[n].first_s)
        limited, first_s = options[soonest]
        if self._clock.now() + waits_s[soonest] + first_s > self.ends_at:
            raise limited.make_shed(f"a wait of {waits_s[soonest]:.2g} s for a slot plus up to {first_s:.2g} s for a first "
                                    f"token "
                               "exceeds the time left", waits_s[soonest])
        shed: Shed | None = None
        for choice, share in zip(options, shares, strict=True):
            if self._decision.done():
                break
            refusal = choice.limiter.enqueue(self, share)
            if refusal is not None and (shed is None or (refusal.retry_after_s or 0) < (shed.retry_after_s or 0)):
                shed = refusal
        if shed is not None and not self.positions and not self._decision.done():
            raise shed
        self._normalize_shares()
        try:
            decision = await self._decision
        except asyncio.CancelledError:
            self._leave_all()
            if not self._decision.cancelled() and isinstance(limiter := self._decision.result(), ConcurrencyLimiter):
                limiter.fulfil_promise()  # promised in the turn of the cancellation: pass it on
                limiter.grant_waiters()
            raise
        if isinstance(decision, Shed):
            raise decision
        if decision is not None:
            decision.fulfil_promise()
        return decision

    @property
    def is_done(self) -> bool:
        """Whether it was called, refused or cancelled."""
        return self._decision.done()

    def is_late(self, quickest_s: float) -> bool:
        """Whether even the fastest answer would be too late."""
        return self._clock.now() + quickest_s > self.ends_at

    def grant(self, limiter: "ConcurrencyLimiter | None") -> None:
        """It has a permit of this limiter; None: it must choose again. It leaves all queues."""
        self._leave_all()
        if not self._decision.done():
            self._decision.set_result(limiter)

    def refuse(self, shed: Shed) -> None:
        """One limiter has refused it; the last one ends the wait."""
        if self.positions:
            self._normalize_shares()
        elif not self._decision.done():
            self._decision.set_result(shed)

    def _leave_all(self) -> None:
        for limiter in list(self.positions):
            limiter.remove_waiter(self)

    def _normalize_shares(self) -> None:
        total = sum(position.share for position in self.positions.values())
        for limiter, position in self.positions.items():
            share = position.share / total
            limiter.n_waiting_shares += share - position.share
            position.share = share


class ConcurrencyLimiter:
    """The permits of one limit. Changed only on the event loop; nothing here awaits."""

    __slots__ = ("_held_s", "_n_promised", "_name", "_queue", "_rng", "_shares", "job_places", "lane", "limit",
                 "max_waiting", "n_in_flight", "n_waiting_shares", "quickest", "shared_limit")

    def __init__(self, name: str, config: LimitConfig, lane: str = "", rng: Random | None = None,
                 quickest: FastestTtft | None = None) -> None:
        self.lane = lane  # empty: all lanes
        self.limit = AdaptiveLimit(config)
        self.shared_limit: SharedLimit | None = None  # None: this process has the limit for itself
        self.job_places: JobPlaces | None = None  # of the upstream's common limiter; None: no jobs run here
        self.quickest = quickest or FastestTtft()
        self.max_waiting = config.max_waiting
        self.n_in_flight = 0
        self.n_waiting_shares = 0.0  # sum of the shares of its waiters; exactly 0 if there are none
        self._name = name
        self._rng = rng or Random(name)
        self._queue: Queue[LimiterWaiter] = Queue(_OPEN)
        self._shares: dict[str, TenantShare] = {}  # of tenants with waiters
        self._n_promised = 0  # permits of waiters that were called and have not run yet
        self._held_s = 0.0  # mean duration of an attempt; 0: unknown

    @property
    def n_waiting(self) -> int:
        """Requests that wait for a permit. One that waits at several limiters counts once over all of them."""
        return ceil(self.n_waiting_shares - _ROUNDING)

    @property
    def n_queued(self) -> int:
        """Entries in its queue. A request that waits at several limiters has one in each."""
        return self._queue.n

    @property
    def n_waiting_tenants(self) -> int:
        return len(self._shares)

    @property
    def n_taken(self) -> int:
        """Permits in use, or promised to called waiters."""
        return self.n_in_flight + self._n_promised

    @property
    def has_room(self) -> bool:
        if self.n_waiting_shares:
            return False
        return self.n_in_flight + self._n_promised < self.limit.value if self.shared_limit is None else self._has_place()

    @property
    def throughput_per_s(self) -> float:
        """Requests a second at its limit; 0: unknown."""
        return max(1.0, self.limit.value) / self._held_s if self._held_s else 0.0

    def acquire(self) -> int:
        """Take a permit; returns how many are in use. The caller has checked `has_room`."""
        self.n_in_flight = n = self.n_in_flight + 1
        if self.shared_limit is not None:
            self.shared_limit.set_taken(n + self._n_promised)
        return n

    def expected_wait_s(self, waiter: LimiterWaiter, share: float = 1.0) -> float:
        """The expected wait of a request with this share; 0 if unknown."""
        queue, per_s = self._queue, self.throughput_per_s
        if not per_s:
            return 0.0
        n_ahead = queue.n_ahead(waiter.band,
                                self._tenant_share(waiter)) * self.n_waiting_shares / queue.n if queue.n else 0.0
        return (n_ahead + share) / per_s

    def enqueue(self, turn: LimiterWaiter, share: float) -> Shed | None:
        """Add it to the queue; a full queue evicts its lowest entry. Returns the error if that is the new one."""
        tenant = self._tenant_share(turn)
        if not tenant.n_waiting:
            tenant.served = self._queue.least_served() or 0.0
        entry = QueueEntry(turn, turn.band, tenant, turn.queued_at, turn.ends_at)
        n_others = self.n_waiting
        self._queue.config = _FULL if self.n_waiting_shares + share > self.max_waiting + _ROUNDING else _OPEN
        evicted = self._queue.push(entry)
        if evicted is entry:
            return self.make_shed(f"its queue is full ({n_others} waiting)" if n_others else "it has no queue",
                             self.expected_wait_s(turn, share))
        self._shares[turn.tenant] = tenant
        self.n_waiting_shares += share
        turn.positions[self] = _QueuePosition(share, entry)
        if evicted is not None:
            waiter = evicted.item
            self._forget_position(waiter.positions.pop(self))
            waiter.refuse(self.make_shed(f"its queue is full ({n_others} waiting) and others have priority",
                                     self.expected_wait_s(waiter)))
        if self.shared_limit is not None and not self.shared_limit.is_polling:
            self._poll_other_processes(self.shared_limit)
        return None

    def remove_waiter(self, waiter: LimiterWaiter) -> None:
        """Remove a waiter from the queue."""
        position = waiter.positions.pop(self)
        self._queue.remove(position.entry)
        self._forget_position(position)

    def make_shed(self, why: str, wait_s: float) -> Shed:
        """The error for a refused request. Its Retry-After is random, one to two times the wait, to spread retries."""
        return Shed(f"upstream {self._name} is at its concurrency limit: {why}", reason="upstream_busy",
                    code="upstream_busy",
                    retry_after_s=min(MAX_RETRY_AFTER_S, max(1.0, wait_s) * self._rng.uniform(1.0, 2.0)))

    def fulfil_promise(self) -> None:
        """A called waiter runs now, and takes its permit."""
        self._n_promised -= 1

    def release(self, held_s: float, *, has_answered: bool = True) -> None:
        """Return a permit. Without an answer (time-out, cancelled) `held_s` is a lower bound and never lowers the mean."""
        self.n_in_flight -= 1
        if self.shared_limit is not None:
            self.shared_limit.set_taken(self.n_in_flight + self._n_promised)
        before_s = self._held_s
        if has_answered or held_s > before_s:
            self._held_s = before_s + (held_s - before_s) * HELD_WEIGHT if before_s else held_s
        if self.n_waiting_shares:
            self.grant_waiters()

    def grant_waiters(self) -> None:
        """Promise free permits to the next waiters."""
        queue = self._queue
        while queue.n and self._has_place():
            entry = queue.pop(_accept_any)
            if entry is None:
                return
            turn = entry.item
            entry.share.served += 1 / entry.share.weight
            self._forget_position(turn.positions.pop(self))
            if turn.is_done:
                continue
            if turn.is_late(self.quickest.seconds):
                turn.refuse(self.make_shed(f"after its wait less time was left than the {self.quickest.seconds:.2g} s of "
                                           f"its "
                                       "fastest answer", self.expected_wait_s(turn)))
                continue
            self._n_promised += 1
            turn.grant(self)
            if self.shared_limit is not None:
                self.shared_limit.set_taken(self.n_in_flight + self._n_promised)

    def requeue_waiters(self) -> None:
        """Empty the queue; all waiters choose their limiters again."""
        while (entry := self._queue.pop(_accept_any)) is not None:
            self._forget_position(entry.item.positions.pop(self))
            entry.item.grant(None)

    def _tenant_share(self, turn: LimiterWaiter) -> TenantShare:
        return self._shares.get(turn.tenant) or TenantShare(turn.tenant, turn.weight)

    def _forget_position(self, position: _QueuePosition) -> None:
        """Update the totals after an entry has left the queue."""
        tenant = position.entry.share
        if not tenant.n_waiting:
            del self._shares[tenant.name]
        self.n_waiting_shares = self.n_waiting_shares - position.share if self._queue.n else 0.0

    def _has_place(self) -> bool:
        n_taken, limit = self.n_in_flight + self._n_promised, self.limit
        return limit.has_room(n_taken if self.shared_limit is None else self.shared_limit.n_effective(n_taken, limit.value))

    def _poll_other_processes(self, common: SharedLimit) -> None:
        """Poll while there are waiters: no event tells when another process frees a permit."""
        self.grant_waiters()
        common.set_waiting(self.n_waiting)
        common.is_polling = self.n_waiting_shares > 0
        if common.is_polling:
            asyncio.get_running_loop().call_later(POLL_EVERY_S, self._poll_other_processes, common)

    def __repr__(self) -> str:
        lane = f" in lane {self.lane}" if self.lane else ""
        return f"<ConcurrencyLimiter{lane}: {self.n_in_flight} in flight, {self.n_waiting} waiting, {self.limit!r}>"


def _accept_any(*_: object) -> bool:
    return True


def _expected_shares(choices: Sequence[LimitOption]) -> list[float]:
    """The probability of each limiter to serve the request: by speed, if all speeds are known; else equal."""
    speeds = [choice.limiter.throughput_per_s for choice in choices]
    if not all(speeds):
        return [1 / len(choices)] * len(choices)
    total = sum(speeds)
    return [max(_MIN_SHARE, speed / total) for speed in speeds]
