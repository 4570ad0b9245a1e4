"""What gateways exchange, in a real Redis."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from stayfast.core.clock import SystemClock
from stayfast.policy.merged_times import MergedTimes, TimesByKind
from stayfast.stores.fleet.base import FleetUnavailable
from stayfast.stores.fleet.gateways import RedisGateways
from stayfast.workers.fleet.times import TimesExchange
from tests.services.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.sockets
Story = Callable[[RedisGateways], Awaitable[None]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for all tests that leave it well."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


def play(server: RedisServer, story: Story) -> None:
    """Run a story with one process's store, on an empty server."""
    server.say(b"FLUSHALL")

    async def main() -> None:
        store = RedisGateways(server.url, "test")
        try:
            await story(store)
        finally:
            await store.close()

    asyncio.run(main())


def test_store_lists_gateways_until_they_are_gone(running: RedisServer) -> None:
    """By the server's clock; a record and histograms end with their gateway."""
    async def story(store: RedisGateways) -> None:
        assert [(one.id, one.record) for one in await store.beat("a", b"1", 30)] == [("a", b"1")]
        await store.exchange_times("b", b"times")
        found = await store.beat("b", b"2", 0.05)
        assert {one.id: one.record for one in found} == {"a": b"1", "b": b"2"}
        assert all(0 <= one.seen_s_ago < 5 for one in found)
        await asyncio.sleep(0.1)
        assert [one.id for one in await store.list_gateways(30)] == ["a"]
        assert [one.id for one in await store.beat("a", b"3", 30)] == ["a"]
        assert await store.exchange_times("a", b"t") == {"a": b"t"}
        await store.leave("a")
        assert await store.list_gateways(30) == []

    play(running, story)


def test_store_keys_expire_and_share_a_cluster_node(running: RedisServer) -> None:
    """Nothing stays forever: an hour after the last event, a minute after the last heartbeat."""
    async def story(store: RedisGateways) -> None:
        await store.beat("a", b"1", 3)
        await store.exchange_times("a", b"t")
        await store.beat("a", b"1", 3)
        await store.publish(b"event")
        await store.reply("c", b"done")
        for name in (b"alive", b"records", b"times", b"events", b"reply:c"):
            left_s = int(running.say(b"TTL", b"{test:fleet}:" + name)[1:])
            assert 0 < left_s <= 3600, name

    play(running, story)


def test_store_events_are_read_in_order_and_once(running: RedisServer) -> None:
    """Also the ones that were published while this process was not connected."""
    async def story(store: RedisGateways) -> None:
        await store.publish(b"1")
        position = await store.position_before(10)
        first = await store.read_events(position)
        assert [event.data for event in first] == [b"1"]
        await store.publish(b"2")
        await store.publish(b"3")
        found = await store.read_events(first[-1].position)
        assert [event.data for event in found] == [b"2", b"3"]
        began_at = time.monotonic()
        waiting = asyncio.create_task(store.read_events(found[-1].position))
        await asyncio.sleep(0.1)
        await store.publish(b"4")
        assert [event.data for event in await waiting] == [b"4"]
        assert time.monotonic() - began_at < 0.9  # it was pushed

    play(running, story)


def test_store_replies_are_taken_once(running: RedisServer) -> None:
    async def story(store: RedisGateways) -> None:
        assert await store.take_replies("c") == []
        await store.reply("c", b"1")
        await store.reply("c", b"2")
        await store.reply("d", b"3")
        assert await store.take_replies("c") == [b"1", b"2"]
        assert await store.take_replies("c") == []

    play(running, story)


def test_store_epoch_is_claimed_by_the_first(running: RedisServer) -> None:
    async def story(store: RedisGateways) -> None:
        assert [await store.claim_epoch("r", epoch) for epoch in ("1", "1", "2", "2", "1")] == [
            False, False, True, False, True]
        assert await store.claim_epoch("other", "1") is False

    play(running, story)


def test_store_without_server_fails_in_time(tmp_path: Path) -> None:
    """Frozen: 0.1 s a call, once more for a pooled connection. Killed: at once."""
    with redis_server(tmp_path) as server:
        async def story(store: RedisGateways) -> None:
            await store.beat("a", b"1", 3)
            for harm in (server.freeze, server.kill):
                harm()
                for call in (lambda: store.beat("a", b"1", 3), lambda: store.publish(b"1"), lambda: store.list_gateways(3)):
                    began_at = time.monotonic()
                    with pytest.raises(FleetUnavailable):
                        await call()
                    assert time.monotonic() - began_at < 1.5
                began_at = time.monotonic()
                with pytest.raises(FleetUnavailable):
                    await store.read_events("0-0")
                assert time.monotonic() - began_at < 3
                server.thaw()
            server.start()
            assert [one.id for one in await store.beat("a", b"1", 3)] == ["a"]

        play(server, story)


class GatewayOfTwo:
    """Two workers with histograms of their own."""

    def __init__(self, *exports: TimesByKind) -> None:
        self.exports = dict(enumerate(exports))
        self.given: dict[int, TimesByKind] = {}

    def is_speaker(self) -> bool:
        return True

    async def swap_times(self, given: Callable[[int], TimesByKind]) -> dict[int, TimesByKind]:
        self.given = {worker: given(worker) for worker in self.exports}
        return self.exports


def times_of(bucket: int, n: int) -> MergedTimes:
    """`n` values in one bucket."""
    return MergedTimes((bucket, n), ())


def test_times_reach_every_other_process(running: RedisServer) -> None:
    """Each worker gets the sum of all others, of its own gateway, too; never its own."""
    async def story(store: RedisGateways) -> None:
        here = GatewayOfTwo({"k": times_of(900, 1)}, {"k": times_of(900, 10)})
        there = GatewayOfTwo({"k": times_of(900, 100), "rare": times_of(950, 1)})
        one, other = (TimesExchange(name, store, SystemClock()) for name in ("here", "there"))
        for _ in range(3):
            await one.exchange(here)
            await other.exchange(there)
        assert here.given == {0: {"k": times_of(900, 110), "rare": times_of(950, 1)},
                              1: {"k": times_of(900, 101), "rare": times_of(950, 1)}}
        assert there.given == {0: {"k": times_of(900, 11)}}
        running.say(b"HSET", b"{test:fleet}:times", b"there", b"damaged")
        await one.exchange(here)
        await one.exchange(here)
        assert here.given[0] == {"k": times_of(900, 10)}

    play(running, story)
