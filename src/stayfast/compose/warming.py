"""Keeps the path of a request in the core's caches while requests come, but rarely.

The problem: what a request runs through is far larger than a core's near caches. Asked a thousand times a second it stays
there; asked fifty times a second, it is fetched anew each time, and the same code takes two to four times as long, all of
it before the first token. The rule: time is cut into looks of `LOOK_S`. In a look that follows one with `AT_LEAST`
requests, a twin of the gateway (twin.py) answers a made-up request `keep_warm_per_s` times a second, but for the gaps in
which a real one came; so it does in the first look after the start. Requests are those that the edge let in: no health
check, no scrape and nobody without a key wakes the twin. It gives way where its CPU is somebody else's: where within the
last `SPAN_S` the process used `BUSY` of a core, or the kernel let it wait for one for `WAITED` of the time (because of
other processes, or of a CPU limit that is used up), it pauses for `PAUSE_S`, `LONGER` each time, until it ran for a whole
`SPAN_S` without. A pass that fails is told of once, and the next is tried after the longest pause. What it gains and costs
is in docs/benchmarks.md. When wrong: where CPU is paid for by use, and where the first token takes seconds in any case.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from stayfast.core.clock import Clock
from stayfast.core.events import PathWarmed
from stayfast.http.server.tasks import Tasks
from stayfast.server.edge import Edge

LOOK_S = 0.25
SPAN_S = 2.0  # of which it is judged whether there is room: one look is too short, as anything may take a few milliseconds
AT_LEAST = 2  # requests in a look
BUSY = 0.5  # of a core: beside so much work of its own the path is warm enough
WAITED = 0.01  # of the time; 2 to 6 % on a core with another process that never sleeps, 0.01 to 0.5 % on one without
PAUSE_S = 5.0
LONGER = 4.0  # times, each time
LONGEST_PAUSE_S = 320.0
_PASS_S = 1.0  # what is more has gone astray
_SCHEDSTAT = Path("/proc/self/schedstat")


class Passes(Protocol):
    """Who runs the path."""

    async def ask(self) -> object:
        """Once, to the end of the answer."""
        ...


def waited_s() -> float:
    """For how long this process's main thread has been ready to run and had no core, as Linux counts it; elsewhere 0."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, IndexError):  # another system, or a sandbox without this file
        return 0.0


class _Room:
    """Whether there is CPU that nobody else has a use for, by the last `SPAN_S`."""

    def __init__(self, clock: Clock, waited_s: Callable[[], float]) -> None:
        self._clock = clock
        self._waited_s = waited_s
        self._seen: deque[tuple[float, float]] = deque(maxlen=round(SPAN_S / LOOK_S) + 1)

    @property
    def is_sure(self) -> bool:
        """Whether it has looked for so long."""
        return len(self._seen) == self._seen.maxlen

    def look(self) -> bool:
        """At the end of each look."""
        cpu_s, waited_s = self._clock.cpu(), self._waited_s()
        self._seen.append((cpu_s, waited_s))
        first_cpu_s, first_waited_s = self._seen[0]
        return cpu_s - first_cpu_s < BUSY * SPAN_S and waited_s - first_waited_s < WAITED * SPAN_S

    def forget(self) -> None:
        """After a pause."""
        self._seen.clear()


class Warming:
    """Has a twin of `edge` answer while it is asked now and then, and never while it is asked more often."""

    def __init__(self, edge: Edge, clock: Clock, make: Callable[[], Passes],
                 waited_s: Callable[[], float] = waited_s) -> None:
        self._edge = edge
        self._clock = clock
        self._make = make
        self._room = _Room(clock, waited_s)
        self._tasks = Tasks(edge.tasks.report)
        self._twin: Passes | None = None

    async def run(self) -> None:
        """Until cancelled."""
        edge, room = self._edge, self._room
        is_warm, pause_s = True, PAUSE_S
        while True:
            n_served, per_s = edge.n_served, edge.current.config.keep_warm_per_s if is_warm else 0
            if not per_s:
                await asyncio.sleep(LOOK_S)
            elif not await self._is_well(per_s):
                self._twin, is_warm = None, False
                await asyncio.sleep(LONGEST_PAUSE_S)
                continue
            has_room, is_warm = room.look(), edge.n_served - n_served >= AT_LEAST
            if is_warm and not has_room:
                is_warm = False
                await asyncio.sleep(pause_s)
                pause_s = min(LONGER * pause_s, LONGEST_PAUSE_S)
                room.forget()
            elif per_s and room.is_sure:
                pause_s = PAUSE_S

    async def _is_well(self, per_s: int) -> bool:
        """A look with passes: whether they came to their end. What went wrong is told."""
        passes = self._tasks.spawn(self._passes(per_s))
        try:
            ended, _ = await asyncio.wait({passes}, timeout=LOOK_S + _PASS_S)
        finally:
            passes.cancel()
        if not ended:
            self._tasks.report(TimeoutError())
        return bool(ended) and passes.exception() is None

    async def _passes(self, per_s: int) -> None:
        edge, clock, n_passes = self._edge, self._clock, 0
        self._twin = twin = self._twin or self._make()
        ends_at = clock.now() + LOOK_S
        while clock.now() < ends_at:
            n_served = edge.n_served
            await asyncio.sleep(1 / per_s)
            if edge.n_served == n_served:
                await twin.ask()
                n_passes += 1
        if n_passes:
            edge.sink.emit(PathWarmed(n_passes))
