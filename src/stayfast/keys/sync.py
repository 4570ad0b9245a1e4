"""Brings the changes of the store's keys into the table of this process.

Problem: a key that is revoked at one gateway must be refused by all workers of all gateways, and a query for each request
costs too much. Rule: a loop reads what changed since the version that it has, and waits for a notification, at most POLL_S.
So a change is in force everywhere after a notification and a query (milliseconds), or, if the notification is lost, after
POLL_S and a query.
A store that cannot be read leaves the table in force; keys still expire by the clock.
"""

import asyncio
from collections.abc import Callable

from stayfast.keys.table import LiveKeys
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import JobStore
from stayfast.stores.jobs.keys import KEYS, KeyStore

POLL_S = 1.0
PAGE = 2000
SWEEP_EVERY = 60  # rounds


class KeySync:
    """The loop of one process. report_change: gets why the store is lost, and None when it is back."""

    def __init__(self, live: LiveKeys, store: JobStore, keys: KeyStore, exists: Callable[[], bool],
                 report_change: Callable[[str | None], None]) -> None:
        """store, keys: the same store. exists: whether there is one: it is not made for the sake of keys."""
        self._live = live
        self._store = store
        self._keys = keys
        self._exists = exists
        self._report_change = report_change
        self._is_lost = False

    async def run(self) -> None:
        """Until cancelled."""
        n_rounds = 0
        while True:
            if await self.step():
                await self._wait()
            else:
                await asyncio.sleep(POLL_S)
            n_rounds += 1
            if n_rounds % SWEEP_EVERY == 0:
                self._live.remove_expired()

    async def step(self) -> bool:
        """Apply all changes; False without a store that can be read."""
        live = self._live
        if not self._exists():
            live.is_known = True
            return False
        try:
            while True:
                page = await self._keys.read_keys(live.version, PAGE)
                if page.version < live.version:
                    live.clear()  # another store, or an older copy of it
                    continue
                live.apply(page.keys)
                if len(page.keys) < PAGE:
                    break
        except StoreUnavailable as error:
            self._lose(str(error))
            return False
        live.is_known = True
        if self._is_lost:
            self._is_lost = False
            self._report_change(None)
        return True

    async def _wait(self) -> None:
        try:
            await self._store.wait(KEYS, POLL_S)
        except StoreUnavailable:
            await asyncio.sleep(POLL_S)

    def _lose(self, why: str) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._report_change(why)
