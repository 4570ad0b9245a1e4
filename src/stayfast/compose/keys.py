"""Stored keys and spend in one process: the loops between the store of the jobs and what requests use in memory."""

import asyncio
from contextlib import suppress
from typing import cast

from stayfast.compose.jobs import JobsHost, ProcessParts
from stayfast.keys.spend import FLUSH_S, SpendTally, SpendWriter
from stayfast.keys.sync import KeySync
from stayfast.keys.table import NOTE_USE_EVERY_S, LiveKeys
from stayfast.pipeline.admission.tenants import Buckets
from stayfast.pipeline.stages.admit.key_quota import KeyQuotas
from stayfast.settings import Settings
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.keys import KeyStore

START_S = 2.0  # for the keys to be read before the first request; the rest continues in the background
STOP_S = 2.0  # for the last sums to be stored
FIRST_USES_S = 5.0


class KeysHost:
    """Belongs to one loop; outlives reloads."""

    def __init__(self, settings: Settings, jobs: JobsHost, parts: ProcessParts, buckets: Buckets) -> None:
        """parts.warn: gets why the store is lost. buckets: of the keys' quotas, for all workers."""
        self.live = LiveKeys(parts.clock)
        self.tally = SpendTally()
        self.quotas = KeyQuotas(parts.clock, self.live.quota_of, buckets)
        self._jobs = jobs
        self._parts = parts
        self._spend = settings.spend
        store = jobs.lazy.as_store()
        self._store = cast("KeyStore", store)  # every job store is one
        self._sync = KeySync(self.live, store, self._store, jobs.exists, self._report)
        self._writer = SpendWriter(self.tally, self._store)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Read the keys, at most START_S, and begin the loops."""
        self.live.is_known = not self._jobs.exists()
        self._choose_spend()
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                await self._sync.step()
        spawn = self._parts.spawn
        self._tasks = [spawn(self._sync.run()), spawn(self._write_uses()), spawn(self._write_spend())]

    async def stop(self) -> None:
        """End the loops, and store what is left: what is pending, and what came since."""
        for task in self._tasks:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                if await self._writer.flush():
                    await self._writer.flush()
                await self._note_uses()

    def _choose_spend(self) -> None:
        self.tally.is_on = self._spend == "on" or (self._spend == "auto" and self._jobs.exists())

    async def _write_spend(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            self._choose_spend()
            await self._writer.flush()

    async def _write_uses(self) -> None:
        pause_s = FIRST_USES_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = NOTE_USE_EVERY_S
            await self._note_uses()

    async def _note_uses(self) -> None:
        uses = self.live.take_uses()
        if uses:
            with suppress(StoreUnavailable):  # the next use counts
                await self._store.note_key_uses(uses)

    def _report(self, why: str | None) -> None:
        self._parts.warn(f"stored keys: {why}; those in memory stay in force" if why is not None
                         else "stored keys: the store is back")

    def __repr__(self) -> str:
        return f"<KeysHost {self.live!r}, {self.tally!r}>"
