"""Shared stores: calls of the last 5 minutes, and once a minute what their servers report of their memory.

Only one worker of a gateway reads the servers; each counts its own calls. A call failed if there was no reply (a miss is a
reply). The evicted keys of the window are the growth of the server's count; after a restart of the server, its count.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.events import JobStoreCalled, StoreCallDone, StoreChanged
from stayfast.core.snapshot import StoreRow
from stayfast.observe.snapshot.tallies import PackedTally, RowTally, TallyWindow, merge_tallies

SPAN_S: Final = 300.0
SLOT_S: Final = 15.0
READ_EVERY_S: Final = 60.0
JOBS: Final = "jobs"  # the name of the store of jobs
_FAILED: Final = frozenset(("timeout", "unavailable", "suspended", "full"))
_UNSENT: Final = frozenset(("local_hit",))


class ServerMemory(msgspec.Struct, frozen=True):
    """As the server reports it. n_evicted: since its start. max_bytes: 0: not limited."""

    n_evicted: int
    eviction_policy: str
    used_bytes: int
    max_bytes: int


class StoreSite(msgspec.Struct, frozen=True):
    """A store in the settings. read_memory: None: it has no server to ask; it returns None if the server does not answer."""

    kind: str
    purposes: tuple[str, ...]
    read_memory: Callable[[], Awaitable[ServerMemory | None]] | None = None


class StorePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """One store as one worker sees it."""

    kind: str
    purposes: tuple[str, ...]
    tally: PackedTally = PackedTally()
    why_not: str = ""
    n_evicted: int | None = None
    memory: ServerMemory | None = None


StoreParts = Mapping[str, StorePart]


class StoreProbe:
    """For one event loop."""

    __slots__ = ("_clock", "_closed", "_read", "_sites", "_window")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sites: Mapping[str, StoreSite] = {}
        self._window = TallyWindow(SPAN_S, SLOT_S)
        self._closed: dict[str, str] = {}  # by store that is not used now: why
        self._read: dict[str, deque[tuple[float, ServerMemory]]] = {}

    def begin(self, sites: Mapping[str, StoreSite]) -> None:
        """Watch these stores, at the start and after a reload."""
        self._sites = sites
        self._closed = {name: why for name, why in self._closed.items() if name in sites}
        self._read = {name: read for name, read in self._read.items() if name in sites}

    async def run(self) -> None:
        """Read the servers until cancelled."""
        while True:
            await self.read_servers()
            await asyncio.sleep(READ_EVERY_S)

    async def read_servers(self) -> None:
        for name, site in list(self._sites.items()):
            memory = await site.read_memory() if site.read_memory is not None else None
            if memory is not None:
                now = self._clock.now()
                read = self._read.setdefault(name, deque())
                read.append((now, memory))
                while len(read) > 2 and read[1][0] <= now - SPAN_S:
                    read.popleft()

    def note_calls(self, calls: Sequence[StoreCallDone]) -> None:
        for fact in calls:
            self._add_call(fact.store, fact.result, fact.seconds)

    def note_job_call(self, fact: JobStoreCalled) -> None:
        self._add_call(JOBS, fact.result, fact.seconds)

    def note_change(self, fact: StoreChanged) -> None:
        if fact.state == "closed":
            self._closed.pop(fact.store, None)
        else:
            self._closed[fact.store] = fact.why

    def collect(self, now: float) -> StoreParts:
        tallies = self._window.collect(now)
        return {name: StorePart(site.kind, site.purposes, tallies.get(name, PackedTally()), self._closed.get(name, ""),
                                *self._memory_of(name)) for name, site in self._sites.items()}

    def _add_call(self, store: str, result: str, seconds: float) -> None:
        if result in _UNSENT:
            return
        tally = self._window.at(store, self._clock.now())
        tally.counts["n"] += 1
        tally.histograms["call_s"].add(seconds)
        if result in _FAILED:
            tally.counts["n_failed"] += 1

    def _memory_of(self, name: str) -> tuple[int | None, ServerMemory | None]:
        read = self._read.get(name)
        if not read:
            return None, None
        last = read[-1][1]
        grown = last.n_evicted - read[0][1].n_evicted
        return (grown if grown >= 0 else last.n_evicted), last


def merge_stores(parts: Iterable[StoreParts]) -> tuple[StoreRow, ...]:
    """The rows of all workers' calls. The store of jobs has a row only if it was called."""
    known = list(parts)
    tallies = merge_tallies({name: part.tally for name, part in one.items()} for one in known)
    names = dict.fromkeys(name for one in known for name in one)
    return tuple([_store_row(name, tallies[name], [one[name] for one in known if name in one]) for name in names
                  if name != JOBS or tallies[name].n()])


def _store_row(name: str, tally: RowTally, parts: Sequence[StorePart]) -> StoreRow:
    why_not = next((part.why_not for part in parts if part.why_not), "")
    read = next((part for part in parts if part.memory is not None), parts[0])
    memory = read.memory
    return StoreRow(name, parts[0].kind, parts[0].purposes, not why_not, why_not, tally.n(), tally.n("n_failed"),
                    tally.spread("call_s"), read.n_evicted, memory.eviction_policy if memory is not None else "",
                    memory.used_bytes / memory.max_bytes if memory is not None and memory.max_bytes else None)
