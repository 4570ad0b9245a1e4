"""The places at one upstream that one limit gives out: who has one, who waits for one, and for how long.

An upstream has one of these. Where admission keeps lanes and the limit learns, each lane has its own, so that what long
prompts teach holds nobody up but them.
"""

import asyncio
from collections import deque

from stayfast.core.errors import Shed
from stayfast.policy.common import LOOK_ELSEWHERE_S, Common
from stayfast.policy.limits import Limit, LimitConfig

HELD_WEIGHT = 0.1  # of the newest in the mean time that a place is held
MAX_RETRY_AFTER_S = 60.0


class Limited:
    """One limit's places. Changed only on the event loop; only `room` awaits."""

    __slots__ = ("_held_s", "_n_promised", "_name", "_waiting", "common", "lane", "limit", "max_waiting", "n_in_flight")

    def __init__(self, name: str, config: LimitConfig, lane: str = "") -> None:
        self.lane = lane  # empty: all
        self.limit = Limit(config)
        self.common: Common | None = None  # the limit is shared with other processes
        self.max_waiting = config.max_waiting
        self.n_in_flight = 0
        self._name = name
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._n_promised = 0  # places of those who waited and have not been told yet
        self._held_s = 0.0  # how long a place is held, about; 0: not known

    @property
    def n_waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether an attempt may begin at once."""
        if self._waiting:
            return False
        return self.n_in_flight + self._n_promised < self.limit.value if self.common is None else self._has_place()

    def take(self) -> int:
        """An attempt begins; how many run now. Whether there is room is asked before."""
        self.n_in_flight = n = self.n_in_flight + 1
        if self.common is not None:
            self.common.taken(n + self._n_promised)
        return n

    async def room(self, within_s: float) -> None:
        """Wait, in turn, until there is a place; then `take` before anything else is awaited.

        Raises Shed at once where that would take longer than `within_s`, or too many wait already.
        """
        if self.has_room:
            return
        wait_s = (len(self._waiting) + 1) * self._held_s / max(1.0, self.limit.value)
        if len(self._waiting) >= self.max_waiting or wait_s > within_s:
            raise Shed(f"upstream {self._name} has as many requests as it takes, and {self._why_no_wait(wait_s)}",
                       reason="upstream_busy", code="upstream_busy", retry_after_s=min(MAX_RETRY_AFTER_S, max(1.0, wait_s)))
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if self.common is not None and not self.common.is_watched:
            self._look_elsewhere(self.common)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the place came with the cancellation
                self._n_promised -= 1
                self.call_up()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise
        self._n_promised -= 1

    def _why_no_wait(self, wait_s: float) -> str:
        n = len(self._waiting)
        if n < self.max_waiting:
            return f"the wait for a place would be {wait_s:.2g} s, which is more than there is time for"
        return f"{n} waiting, which is as many as may" if n else "none may wait"

    def left(self, held_s: float) -> None:
        """A place is free again."""
        self.n_in_flight -= 1
        if self.common is not None:
            self.common.taken(self.n_in_flight + self._n_promised)
        self._held_s += (held_s - self._held_s) * HELD_WEIGHT if self._held_s else held_s
        if self._waiting:
            self.call_up()

    def call_up(self) -> None:
        """Promise free places to those who have waited longest."""
        waiting = self._waiting
        while waiting and self._has_place():
            turn = waiting.popleft()
            if not turn.done():  # else whoever waited has left, and does not know it yet
                self._n_promised += 1
                turn.set_result(None)
                if self.common is not None:
                    self.common.taken(self.n_in_flight + self._n_promised)

    def send_on(self) -> None:
        """Nobody waits here any more: all of them go on, to ask again where they belong now."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self._n_promised += 1
                turn.set_result(None)

    def _has_place(self) -> bool:
        n_taken, limit = self.n_in_flight + self._n_promised, self.limit
        return limit.has_room(n_taken if self.common is None else self.common.n_seen(n_taken, limit.value))

    def _look_elsewhere(self, common: Common) -> None:
        """As long as somebody waits here: nobody tells us of places that become free elsewhere."""
        self.call_up()
        common.waiting(len(self._waiting))
        common.is_watched = bool(self._waiting)
        if common.is_watched:
            asyncio.get_running_loop().call_later(LOOK_ELSEWHERE_S, self._look_elsewhere, common)

    def __repr__(self) -> str:
        lane = f" in lane {self.lane}" if self.lane else ""
        return f"<Limited{lane}: {self.n_in_flight} in flight, {len(self._waiting)} waiting, {self.limit!r}>"
