"""A store backend in memory whose delay, failures and size the test sets."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from stayfast.core.clock import Clock
from stayfast.stores.base import (
    AcquireLead,
    Get,
    IsLed,
    Put,
    ReleaseLead,
    Remove,
    StoreCommand,
    StoreReply,
    StoreStats,
    StoreUnavailable,
)
from stayfast.stores.remote_store import decode_answer


@dataclass
class Place:
    """What all doors to it see."""

    data: dict[bytes, bytes] = field(default_factory=dict)
    leads: dict[bytes, tuple[bytes, float]] = field(default_factory=dict)
    told: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    n_told: int = 0


class FakeDoor:
    """One process's door."""

    kind = "fake"

    def __init__(self, place: Place, clock: Clock, takes_s: float = 0.001) -> None:
        self.place = place
        self.takes_s = takes_s
        self.is_gone = False
        self.is_full = False  # of journals: it can be heard, and not told
        self.is_closed = False
        self.carried: list[list[StoreCommand]] = []
        self._clock = clock

    async def execute(self, orders: Sequence[StoreCommand]) -> list[StoreReply]:
        """After `takes_s`, if it is there."""
        self.carried.append(list(orders))
        await self._reach()
        return [self._do(order) for order in orders]

    def _do(self, order: StoreCommand) -> StoreReply:
        place, now, key = self.place, self._clock.now(), order.key
        owner = place.leads[key][0] if key in place.leads and place.leads[key][1] > now else None
        match order:
            case Get():
                return place.data.get(key)
            case Put():
                place.data[key] = order.data
            case Remove():
                place.data.pop(key, None)
            case AcquireLead():
                if owner in (None, order.owner):
                    place.leads[key] = order.owner, now + order.for_s
                    return True
                return False
            case IsLed():
                return owner is not None
            case ReleaseLead():
                if owner == order.owner:
                    del place.leads[key]
        return None

    async def append_log(self, name: str, records: Sequence[bytes], most: int) -> None:
        """Appended after `takes_s`."""
        await self._reach()
        if self.is_full:
            raise StoreUnavailable("full")
        told = self.place.told.setdefault(name, [])
        for record in records:
            self.place.n_told += 1
            told.append((self.place.n_told, record))
        del told[:-most]

    async def read_log(self, name: str, after: str, n: int) -> list[tuple[str, bytes]]:
        """Those with a higher number."""
        await self._reach()
        found = [(str(place), record) for place, record in self.place.told.get(name, []) if place > int(after or 0)]
        return found[:n]

    async def _reach(self) -> None:
        await asyncio.sleep(self.takes_s)
        if self.is_gone:
            raise StoreUnavailable("no such place")

    async def purge(self, route: str | None, tenant: str | None, tag: str | None) -> int:
        """Forget those."""
        if self.is_gone:
            raise StoreUnavailable("no such place")
        data = self.place.data
        found = [key for key, said in data.items() if decode_answer(key, said).matches(route, tenant, tag)]
        for key in found:
            del data[key]
        return len(found)

    async def stats(self) -> StoreStats:
        """How many there are."""
        if self.is_gone:
            raise StoreUnavailable("no such place")
        return StoreStats(self.kind, len(self.place.data), None, None)

    async def close(self) -> None:
        """Remembered."""
        self.is_closed = True
