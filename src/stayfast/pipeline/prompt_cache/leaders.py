"""One goes first: of requests that begin alike, the first has the beginning remembered, and the others read it.

Problem: what a provider remembers can be read from the first token of the answer on, not before. Twenty requests with the
same ten thousand words at once are twenty times the whole price and the whole wait. Rule: as long as one that began alike
waits for its first token, others wait for it, for `wait_s` at most and a quarter of the time that they have; then all go.
When wrong: the one that went first was slow for a reason of its own, and those behind it lost the wait.
"""

import asyncio
from collections.abc import Hashable
from typing import Final

from stayfast.core.clock import Clock

MAX_WARM: Final = 4096


class Leads:
    """Which beginnings are remembered where, and which are about to be. Changed on one loop."""

    __slots__ = ("_clock", "_running", "_warm_until", "n_waited")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[Hashable, asyncio.Future[None]] = {}
        self._warm_until: dict[Hashable, float] = {}
        self.n_waited = 0

    def ahead(self, key: Hashable) -> "asyncio.Future[None] | None":
        """What to wait for; None: nothing, go."""
        running = self._running.get(key)
        return None if running is None or running.done() else running

    def begin(self, key: Hashable) -> "asyncio.Future[None] | None":
        """One goes out. It leads where none does and nothing is remembered; must be given to `end` then."""
        if key in self._running or self._warm_until.get(key, 0.0) > self._clock.now():
            return None
        self._running[key] = lead = asyncio.get_running_loop().create_future()
        return lead

    def warm(self, key: Hashable, keeps_s: float) -> None:
        """A first token came: it is remembered for so long from now on."""
        self._warm_until.pop(key, None)
        self._warm_until[key] = self._clock.now() + keeps_s
        if len(self._warm_until) > MAX_WARM:
            del self._warm_until[next(iter(self._warm_until))]
        lead = self._running.pop(key, None)
        if lead is not None and not lead.done():
            lead.set_result(None)

    def end(self, key: Hashable, lead: "asyncio.Future[None]") -> None:
        """It is over; if it has led nobody anywhere, the next one may."""
        if self._running.get(key) is lead:
            del self._running[key]
        if not lead.done():
            lead.set_result(None)
