"""The exchange of times to the first token between the processes of all gateways, every EXCHANGE_S.

The process that speaks for a gateway collects the export of each worker, writes their sum to the store, reads the sums of
the other gateways, and gives each worker the sum of all processes but itself. Merging is in steps, so that no request waits.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from stayfast.core.clock import Clock
from stayfast.policy.merged_times import MergedTimes, TimesByKind, bound_times, merge_in_steps
from stayfast.stores.fleet.base import FleetStore, FleetUnavailable
from stayfast.workers.fleet.records import encode_message, read_times

EXCHANGE_S: Final = 5.0
STALE_S: Final = 30.0  # after it, times of other gateways are not used


class TimesHost(Protocol):
    """This gateway, as the exchange needs it."""

    def is_speaker(self) -> bool:
        """Whether this process speaks for the gateway now."""

    async def swap_times(self, given: Callable[[int], TimesByKind]) -> Mapping[int, TimesByKind]:
        """Give each worker the times of all other processes, by its number; returns what each exports."""


class TimesExchange:
    """One process's part. Belongs to one loop."""

    __slots__ = ("_clock", "_elsewhere", "_elsewhere_at", "_gateway", "_given", "_store")

    def __init__(self, gateway: str, store: FleetStore, clock: Clock) -> None:
        self._gateway = gateway
        self._store = store
        self._clock = clock
        self._given: dict[int, TimesByKind] = {}  # by worker: what it gets at the next exchange
        self._elsewhere: dict[str, MergedTimes] = {}  # of other gateways
        self._elsewhere_at = float("-inf")

    async def run(self, host: TimesHost) -> None:
        """Exchange until cancelled."""
        while True:
            await asyncio.sleep(EXCHANGE_S)
            if host.is_speaker():
                await self.exchange(host)

    async def exchange(self, host: TimesHost) -> None:
        """Exchange once."""
        exported = await host.swap_times(lambda worker: self._given.get(worker, {}))
        own = await _merge_in_steps(exported.values())
        try:
            received = await self._store.exchange_times(self._gateway, encode_message(own))
        except FleetUnavailable:
            received = None
        if received is not None:
            self._elsewhere = await _merge_in_steps([read_times(data) for gateway, data in received.items()
                                                     if gateway != self._gateway])
            self._elsewhere_at = self._clock.now()
        elif self._clock.now() - self._elsewhere_at > STALE_S:
            self._elsewhere = {}
        self._given = {worker: await _merge_in_steps([self._elsewhere, *(times for other, times in exported.items()
                                                                        if other != worker)]) for worker in exported}

    def __repr__(self) -> str:
        return f"<TimesExchange of {len(self._given)} workers, {len(self._elsewhere)} kinds elsewhere>"


async def _merge_in_steps(exports: Iterable[TimesByKind]) -> dict[str, MergedTimes]:
    whole: dict[str, MergedTimes] = {}
    for _ in merge_in_steps(exports, whole):
        await asyncio.sleep(0)
    return bound_times(whole)
