"""When running requests want to be looked at.

Problem: a timer of the event loop costs two microseconds to set and to cancel, a request wants several, and nearly every
request is over before any of them rings. Rule: instants are kept in slots of SLOT_S, and the loop has one timer for each
slot that is not empty. A request that is over by then costs nothing more; for one that still runs, and whose instant falls
into the slot, a timer of its own is set, so that it rings on time. Nothing is kept for longer than AHEAD_S: what is due
later is put down again then. A request that begins is looked at for the first time a slot's time after the loop has done
what was at hand: on a machine that has slept, whatever runs before its call is sent costs it a wait for memory.
Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987), with the exact timer at the end of it.
"""

import asyncio
from typing import Protocol

from stayfast.core.clock import Clock

SLOT_S = 0.01
_PER_S = 100.0
AHEAD_S = 1.0
NEW_S = 2 * SLOT_S  # by when one that begins is looked at


class Watched(Protocol):
    """Who is looked at."""

    def turn(self, ends_at: float) -> None:
        """The slot that ends at this instant has begun."""
        ...


class Alarms:
    """All slots of one loop. Nothing here awaits."""

    __slots__ = ("_loop", "_new", "_slots", "clock")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._new: list[Watched] = []
        self._slots: dict[int, list[Watched]] = {}

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that this is of: the one that ran when it was first asked."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def begin(self, watched: Watched) -> float:
        """Have `turn` called for one that begins; returns by when."""
        new = self._new
        if not new:
            self.loop.call_soon(self._wait)
        new.append(watched)
        return self.clock.now() + NEW_S

    def put(self, watched: Watched, at: float) -> float:
        """Have `turn` called about that instant, or earlier; returns when. 0: that is within this slot, set a timer."""
        now = self.clock.now()
        at = min(at, now + AHEAD_S)
        slot = int(at * _PER_S)
        waiting = self._slots.get(slot)
        if waiting is not None:
            waiting.append(watched)
            return at
        begins_at = slot / _PER_S
        if begins_at <= now:
            return 0.0
        self._slots[slot] = [watched]
        self.loop.call_at(begins_at, self._turn, slot)
        return at

    def _wait(self) -> None:
        self.loop.call_at(self.clock.now() + SLOT_S, self._look)

    def _look(self) -> None:
        new, self._new = self._new, []
        ends_at = self.clock.now() + NEW_S
        for watched in new:
            watched.turn(ends_at)

    def _turn(self, slot: int) -> None:
        ends_at = (slot + 1) / _PER_S
        for watched in self._slots.pop(slot):
            watched.turn(ends_at)

    def __repr__(self) -> str:
        return f"<Alarms: {len(self._new)} new, {sum(map(len, self._slots.values()))} in {len(self._slots)} slots>"
