"""The places that requests take while they run, and the queue before them. The thinking is `policy.queue`'s, `.fair`'s,
`.priority`'s and `.admission`'s; here are the futures and the timer.
"""

import asyncio
from collections.abc import Iterator

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.types import Word
from stayfast.policy.admission import AdmissionConfig
from stayfast.policy.fair import Share, Sharing
from stayfast.policy.priority import HoldBack
from stayfast.policy.queue import Queue, Waiting

_LEARNS = 0.05
UNLIMITED = 1_000_000_000


class Why(Word):
    """Why a request is turned away."""

    QUEUE_FULL = "queue_full"  # too many wait, and this is the one to go
    PREDICTED_WAIT = "predicted_wait"  # it would wait in vain
    WAITED = "waited"  # it has waited for as long as it may
    OVERLOADED = "overloaded"  # several signs of overload, and its band is not spared


class Asked(msgspec.Struct, gc=False):
    """What a request for a place is thought to take, and when it must be over. One task's, and its `Places`'."""

    band: int
    tokens: float  # weighted
    ends_at: float  # of the wait
    deadline_at: float  # of everything


class Call:
    """One that waits, and how it is called."""

    __slots__ = ("asked", "is_in", "is_out", "told")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.is_in = False
        self.is_out = False  # of the queue, without a place
        self.told: asyncio.Future[Why | None] = asyncio.get_running_loop().create_future()  # None: come in


class Refused(Exception):
    """No place, and none to wait for. `wait_s` is when there may be one."""

    def __init__(self, why: Why, wait_s: float) -> None:
        super().__init__(why.value)
        self.why = why
        self.wait_s = wait_s


class Places:
    """All places of one gateway. One loop's; only `wait` awaits, and giving back never does."""

    __slots__ = ("_clock", "_config", "_first_s", "_hold", "_late_s", "_sharing", "_timer", "_timer_at", "n_taken", "queue")

    def __init__(self, config: AdmissionConfig, clock: Clock) -> None:
        self._clock = clock
        self._sharing = Sharing()
        self.n_taken = 0
        self._first_s = 0.0  # about how long a request that is in waits for its first token
        self._late_s = 0.0  # how late the loop ran the timer
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.queue: Queue[Call] = Queue(config.queue)
        self.configure(config)

    def configure(self, config: AdmissionConfig) -> None:
        """Other bounds; who waits goes on waiting."""
        self._config = config
        self._hold = HoldBack(config.max_in_flight or UNLIMITED, config.hold_back)
        self.queue.config = config.queue

    @property
    def n_places(self) -> int:
        """How many there are."""
        return self._hold.n_places

    def enter(self, share: Share, asked: Asked, now: float) -> Waiting[Call] | None:
        """Take a place (None), or a place in the queue, to `wait`. Raises Refused."""
        queue, sharing, band = self.queue, self._sharing, asked.band
        sharing.arrive(share, now, queue.least_served() if queue.n else None)
        self._hold.seen(band, now)
        has_room = self._has_room(band, share, now)
        if has_room and not queue.n:
            self.n_taken += 1
            sharing.start(share, asked.tokens)
            return None
        if not has_room:
            self._check_worth(share, asked, now)
        waiting = Waiting(Call(asked), band, share, now, asked.deadline_at)
        gone = queue.push(waiting)
        if gone is waiting:
            raise Refused(Why.QUEUE_FULL, queue.predicted_s(band, share, self.n_taken))
        if gone is not None:
            self._turn_away(gone, Why.QUEUE_FULL)
        self._let_in(now)
        if self._timer is None and queue.n:
            self._late_s = 0.0
            self._arm(now)
        return waiting

    async def wait(self, waiting: Waiting[Call]) -> None:
        """Until there is a place. Raises Refused. Cancelled, it has given back whatever it had."""
        call = waiting.item
        try:
            why = await call.told
        except asyncio.CancelledError:
            if call.is_in:
                self.give_back(waiting.share, call.asked, 0.0, None)
            elif not call.is_out:
                self.queue.remove(waiting)
            raise
        if why is not None:
            raise Refused(why, self.queue.predicted_s(waiting.band, waiting.share, self.n_taken))

    def give_back(self, share: Share, asked: Asked, tokens: float, took_s: float | None) -> None:
        """A place is free again, after `took_s` (None: it was not used) and so many weighted tokens."""
        self.n_taken -= 1
        self._sharing.end(share, asked.tokens, tokens)
        if took_s is not None:
            self.queue.served(took_s)
        if self.queue.n:
            self._let_in(self._clock.now())

    def learn_first(self, seconds: float) -> None:
        """A first token came, so long after its call began."""
        self._first_s += (seconds - self._first_s) * _LEARNS

    def depths(self) -> Iterator[tuple[str, int]]:
        """How many wait, by band."""
        return self.queue.depths()

    def _has_room(self, band: int, share: Share, now: float) -> bool:
        n_kept = self._sharing.n_kept(share, self._hold.n_places, now)
        return self.n_taken + n_kept < self._hold.ceiling(band, now)

    def _check_worth(self, share: Share, asked: Asked, now: float) -> None:
        """Raises Refused for a wait in vain, and under overload for bands that are not spared."""
        config, queue, band = self._config, self.queue, asked.band
        wait_s = queue.predicted_s(band, share, self.n_taken)
        if wait_s > config.queue.max_wait_s or now + wait_s > min(asked.ends_at, asked.deadline_at - self._first_s):
            raise Refused(Why.PREDICTED_WAIT, wait_s)
        if not config.spares(band, queue.n, wait_s, self._late_s):
            raise Refused(Why.OVERLOADED, wait_s)

    def _let_in(self, now: float) -> None:
        while self.n_taken < self._hold.n_places:
            waiting = self.queue.pop(lambda band, share: self._has_room(band, share, now))
            if waiting is None:
                return
            call = waiting.item
            call.is_in = True  # one that is being cancelled, too: its `wait` gives the place back
            self.n_taken += 1
            self._sharing.start(waiting.share, call.asked.tokens)
            if not call.told.done():
                call.told.set_result(None)

    def _turn_away(self, waiting: Waiting[Call], why: Why) -> None:
        waiting.item.is_out = True
        if not waiting.item.told.done():
            waiting.item.told.set_result(why)

    def _arm(self, now: float) -> None:
        self._timer_at = now + self._config.queue.target_wait_s / 2
        self._timer = asyncio.get_running_loop().call_at(self._timer_at, self._look)

    def _look(self) -> None:
        """Shed what has waited too long; let in whom ceilings held back that are no more."""
        now = self._clock.now()
        self._late_s = max(now - self._timer_at, self._late_s / 2)
        self._timer = None
        for waiting in self.queue.overdue(now):
            self._turn_away(waiting, Why.WAITED)
        self._let_in(now)
        if self.queue.n:
            self._arm(now)

    def __repr__(self) -> str:
        return f"<Places {self.n_taken} of {self.n_places} taken, {self.queue!r}>"
