"""Epochs that were left behind, in stores that outlive them."""

import asyncio
from random import Random

from stayfast.compose.caching import Stores, purge_old_epochs, purge_old_epochs_with_retries
from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from stayfast.settings import Settings, SettingsText, load_settings
from stayfast.stores.remote_store import RemoteStore, SharedConfig
from stayfast.testing import RecordingSink, SimLoop, run
from tests.unit.stores.fake_door import FakeDoor, Place
from tests.unit.stores.suite import KEY, OTHER, kept

TEXT = """
upstreams: {u: {kind: simulated}}
stores: {s: {kind: memory}}
routes:
  m: {upstreams: [u], cache: {mode: MODE, store: s, epoch: EPOCH}}
  other: {upstreams: [u], cache: {mode: exact, store: s}}
  own: {upstreams: [u], cache: {mode: exact}}
"""


def settings(epoch: str, mode: str = "exact") -> Settings:
    """With this epoch of the route m."""
    return load_settings(SettingsText("test", TEXT.replace("EPOCH", f'"{epoch}"').replace("MODE", f'"{mode}"')), {},
                         kinds=KINDS)


class Gateway:
    """One process: what it has of the store, and what it logs."""

    def __init__(self, loop: SimLoop, place: Place, seed: int) -> None:
        self.door = FakeDoor(place, loop)
        self.store = RemoteStore("s", self.door, SharedConfig(), loop, RecordingSink(), rng=Random(seed))
        self.log = LogSink(LogConfig(), LineWriter(LogConfig()), loop)
        self.settings: Settings | None = None

    async def apply(self, its: Settings) -> bool:
        """It starts with these settings, or is told them."""
        stores: Stores = {"s": self.store}
        is_done = await purge_old_epochs(its, stores, self.settings, self.log, set())
        self.settings = its
        return is_done

    async def store_answer(self, key: bytes, route: str = "m") -> None:
        """An answer."""
        await self.store.put(key, kept("one", route=route))
        await asyncio.sleep(0.1)

    async def has(self, key: bytes) -> bool:
        """Whether it would be given."""
        return await self.store.get(key) is not None


def test_epoch_set_again_finds_no_answers() -> None:
    """By a restart and by a reload; answers of other routes, and of the same epoch, stay."""
    async def main(loop: SimLoop) -> None:
        place = Place()
        for number, (epoch, mode, is_there) in enumerate((
                ("a", "exact", False), ("a", "exact", True), ("b", "exact", False), ("a", "exact", False),
                ("", "off", False), ("a", "exact", False), ("", "exact", False))):
            started = Gateway(loop, place, number)
            assert await started.apply(settings(epoch, mode))
            assert await started.has(KEY) is is_there
            assert await started.has(OTHER) is bool(number)
            await started.store_answer(KEY)
            await started.store_answer(OTHER, "other")
        for epoch, is_there in (("", True), ("x", False), ("", False), ("x", False)):
            assert await started.apply(settings(epoch))
            assert await started.has(KEY) is is_there
            await started.store_answer(KEY)

    run(main)


def test_epoch_change_purges_answers_of_late_gateways() -> None:
    """One gateway is ahead and goes back; local copies and answers stored by the other one meanwhile are gone."""
    async def main(loop: SimLoop) -> None:
        place = Place()
        first, late = Gateway(loop, place, 1), Gateway(loop, place, 2)
        for gateway in (first, late):
            await gateway.apply(settings("a"))
        await first.store_answer(KEY)
        assert await late.has(KEY)
        await first.apply(settings("b"))
        await late.store_answer(OTHER)  # of a
        await late.apply(settings("b"))
        assert not await late.has(KEY)  # which it had near
        await first.apply(settings("a"))
        assert not await first.has(OTHER)

    run(main)


def test_epoch_purge_is_retried_while_the_store_is_gone() -> None:
    """Nothing waits for it."""
    async def main(loop: SimLoop) -> None:
        gateway = Gateway(loop, Place(), 1)
        await gateway.apply(settings("a"))
        await gateway.store_answer(KEY)
        gateway.door.is_gone = True
        assert not await gateway.apply(settings("b"))
        tried = asyncio.Event()
        stores: Stores = {"s": gateway.store}
        task = loop.create_task(purge_old_epochs_with_retries(settings("b"), stores, None, gateway.log, tried))
        await tried.wait()
        await asyncio.sleep(40)
        assert not task.done()
        assert gateway.door.place.data
        gateway.door.is_gone = False
        await task
        assert not gateway.door.place.data

    run(main)


def test_epoch_purge_that_succeeded_is_not_repeated() -> None:
    """While the store of one route is gone, another route stores answers."""
    async def main(loop: SimLoop) -> None:
        well, gone = Gateway(loop, Place(), 1), Gateway(loop, Place(), 2)
        text = TEXT.replace("stores: {s:", "stores: {t: {kind: memory}, s:").replace("exact, store: s}", "exact, store: t}")
        before, after = (load_settings(SettingsText("test", text.replace("EPOCH", f'"{epoch}"').replace("MODE", '"exact"')),
                                       {},
                              kinds=KINDS)
                         for epoch in "ab")
        stores: Stores = {"s": well.store, "t": gone.store}
        gone.door.is_gone = True
        tried = asyncio.Event()
        task = loop.create_task(purge_old_epochs_with_retries(after, stores, before, well.log, tried))
        await tried.wait()
        await well.store_answer(KEY)
        await asyncio.sleep(60)
        assert not task.done()
        assert await well.has(KEY)
        task.cancel()

    run(main)
