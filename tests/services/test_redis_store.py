"""Answers in a real Redis."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.events import StoreCallDone, StoreChanged
from stayfast.stores.base import Store, StoreBackend, StoreUnavailable
from stayfast.stores.redis import RedisBackend
from stayfast.stores.remote_store import RemoteStore, SharedConfig
from stayfast.testing import RecordingSink
from tests.services.redis_server import RedisServer, redis_server
from tests.unit.stores.journal_suite import JournalSuite
from tests.unit.stores.suite import KEY, OTHER, StoreSuite, filled, kept

pytestmark = pytest.mark.sockets
ONLY_THERE = SharedConfig(timeout_s=10, local_bytes=0)
QUICK = SharedConfig(timeout_s=0.1, local_bytes=0)


def opened(server: RedisServer, config: SharedConfig = ONLY_THERE, sink: RecordingSink | None = None, seed: int = 1
           ) -> RemoteStore:
    """A store in this server, as one of several processes has it."""
    clock = SystemClock()
    return RemoteStore("hot", RedisBackend(server.url, "test", clock), config, clock, sink or RecordingSink(),
                       rng=Random(seed))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for all tests that do it no harm."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    """The same, empty."""
    running.say(b"FLUSHALL")
    return running


class TestRedis(StoreSuite):
    """All that `Store` promises, but for its room, which is for the server to bound."""

    server: RedisServer

    @pytest.fixture(autouse=True)
    def place(self, server: RedisServer) -> None:
        """Where it is."""
        self.server = server

    def make(self, max_bytes: int) -> Store:
        """An empty one, of this size."""
        self.server.say(b"CONFIG", b"SET", b"maxmemory-policy", b"volatile-ttl")
        return opened(self.server)

    def test_store_size_is_bounded(self) -> None:
        """By the server, which throws away answers and leaves their sets, so that purging still finds the others."""
        async def story(store: Store) -> None:
            base = int(self.server.say(b"INFO", b"memory").split(b"used_memory:")[1].split(b"\r\n")[0])
            self.server.say(b"CONFIG", b"SET", b"maxmemory", str(base + 2_000_000).encode())
            try:
                for n in range(400):
                    await filled(store, (n.to_bytes(32, "big"), kept("x" * 20_000, route="r")))
                keys = [n.to_bytes(32, "big") for n in range(400)]
                n_left = sum([await store.get(key) is not None for key in keys])
                assert 0 < n_left < 120
                assert 0 < await store.purge(route="r") <= n_left  # its answer takes room as well
                assert [key for key in keys if await store.get(key) is not None] == []
            finally:
                self.server.say(b"CONFIG", b"SET", b"maxmemory", b"0")

        self.tell(story)

    def test_store_keeps_used_answers(self) -> None:
        """Not here: what goes first is for the server's settings."""
        assert (self.server.say(b"CONFIG", b"GET", b"maxmemory-policy"))

    def test_store_note_returns_last_text(self) -> None:
        """Under its name, for all who share it; none under another."""
        async def main() -> None:
            one, other = opened(self.server), opened(self.server, seed=2)
            assert await one.read_note("epoch0") is None
            for word in [*(str(n) for n in range(300)), "", "last \u00e9"]:
                await one.write_note("epoch0", word)
                if not word:
                    assert await other.read_note("epoch0") == ""
            assert await other.read_note("epoch0") == "last \u00e9"
            assert await other.read_note("epoch1") is None
            for store in (one, other):
                await store.close()

        asyncio.run(main())


class TestRedisJournal(JournalSuite):
    """All that is promised of journals; the server lets whole nodes of a stream go."""

    slack = 100

    server: RedisServer

    @pytest.fixture(autouse=True)
    def place(self, server: RedisServer) -> None:
        """Where it is."""
        self.server = server

    def door(self) -> StoreBackend:
        """One more to the same server."""
        return RedisBackend(self.server.url, "test", SystemClock())

    def test_redis_log_expires_a_month_after_last_record(self) -> None:
        """The server forgets what nobody adds to; somebody else's key of the name is as if it were gone."""
        async def story(one: StoreBackend, other: StoreBackend) -> None:
            await one.append_log("abc", [b"a"], 20)
            assert 2_591_000 < int(self.server.say(b"TTL", b"test:s:abc")[1:]) <= 2_592_000
            self.server.say(b"SET", b"test:s:abd", b"no stream")
            with pytest.raises(StoreUnavailable):
                await other.read_log("abd", "", 20)
            with pytest.raises(StoreUnavailable):
                await other.append_log("abd", [b"a"], 20)

        self.tell_it(story)


def test_store_is_shared_by_two_processes(server: RedisServer) -> None:
    """What one puts the other has; what one purges the other has no longer."""
    async def story() -> None:
        one, other = opened(server, seed=1), opened(server, seed=2)
        await filled(one, (KEY, kept("one", tags=("x",))))
        assert await other.get(KEY) == kept("one", tags=("x",))
        assert await other.purge(tag="x") == 1
        assert await one.get(KEY) is None
        await one.close()
        await other.close()

    asyncio.run(story())


def test_redis_answer_expires_at_drop_at(server: RedisServer) -> None:
    """The server drops it by itself, and the sets it is in at last."""
    async def story() -> None:
        store, wall = opened(server), SystemClock().wall()
        await filled(store, (KEY, kept("one", route="r")), (OTHER, kept("two", route="r")))
        ends = {key: int(server.say(b"PTTL", key)[1:]) for key in (b"test:a:" + KEY.hex().encode(), b"test:i:route:r")}
        assert 0 < ends[b"test:a:" + KEY.hex().encode()] < ends[b"test:i:route:r"]
        await store.put(KEY, kept("soon", route="r"))
        short = kept("short", route="r")
        await filled(store, (OTHER, type(short)(short.body, short.kept_at, drop_at=wall + 0.2, route="r")))
        gone_by = time.monotonic() + 5
        while server.say(b"EXISTS", b"test:a:" + OTHER.hex().encode()) != b":0\r\n":
            assert time.monotonic() < gone_by
            await asyncio.sleep(0.01)
        assert await store.get(OTHER) is None
        assert (await store.stats()).n_entries == 1
        await store.close()

    asyncio.run(story())


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x00\x00\x00\x00\x80", b"\x02whatever", b"GIF89a", b"\x01" * 100])
def test_store_unreadable_data_is_a_miss(server: RedisServer, data: bytes) -> None:
    """Whatever it is; and it is counted as such, not as an outage."""
    async def story() -> None:
        sink = RecordingSink()
        store = opened(server, sink=sink)
        for _ in range(10):
            server.say(b"SET", b"test:a:" + KEY.hex().encode(), data)
            assert await store.get(KEY) is None
        assert {fact.result for fact in sink.facts_of(StoreCallDone)} == {"unreadable"}
        await store.close()

    asyncio.run(story())


def test_redis_key_of_other_type_is_a_miss(server: RedisServer) -> None:
    """Somebody else's list under our name."""
    async def story() -> None:
        store = opened(server)
        server.say(b"LPUSH", b"test:a:" + KEY.hex().encode(), b"x")
        assert await store.get(KEY) is None
        await store.close()

    asyncio.run(story())


def test_redis_followers_get_answer_of_leader(server: RedisServer) -> None:
    """Nobody else may lead; who waits has the answer soon after it is there; then anybody may lead again."""
    async def story() -> None:
        one, other = opened(server, seed=1), opened(server, seed=2)
        assert await one.acquire_lead(KEY)
        assert await one.acquire_lead(KEY)
        assert not await other.acquire_lead(KEY)
        assert await other.acquire_lead(OTHER)
        clock = SystemClock()
        waiting = asyncio.get_running_loop().create_task(other.wait_for_leader(KEY, clock.now() + 5, 0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await one.put(KEY, kept("made"))
        one.release_lead(KEY)
        assert await waiting == kept("made")
        assert await other.acquire_lead(KEY)
        await one.close()
        await other.close()

    asyncio.run(story())


def test_redis_followers_stop_when_leader_ends_without_answer(server: RedisServer) -> None:
    """One that failed says so; one that died is waited for as long as it may lead, and no longer."""
    async def story() -> None:
        clock = SystemClock()
        config = SharedConfig(timeout_s=10, local_bytes=0, coalesce_wait_s=0.4)
        one, other = opened(server, config, seed=1), opened(server, config, seed=2)
        assert await one.acquire_lead(KEY)
        one.release_lead(KEY)
        assert await other.wait_for_leader(KEY, clock.now() + 60, 0) is None
        assert await one.acquire_lead(OTHER)
        assert not await other.acquire_lead(OTHER)
        began_at = clock.now()
        assert await other.wait_for_leader(OTHER, began_at + 60, 0) is None
        assert clock.now() - began_at < 2
        assert await other.acquire_lead(OTHER)
        await one.close()
        await other.close()

    asyncio.run(story())


def test_redis_unavailable_server_is_a_miss_and_recovers(tmp_path: Path) -> None:
    """Misses, counted; then it is left alone; then it is used again, and empty."""
    async def story(server: RedisServer) -> None:
        sink, clock = RecordingSink(), SystemClock()
        store = opened(server, QUICK, sink)
        await filled(store, (KEY, kept("one")))
        assert await store.get(KEY) is not None
        server.kill()
        for _ in range(20):
            assert await store.get(KEY) is None
        results = [fact.result for fact in sink.facts_of(StoreCallDone) if fact.what == "get"]
        assert results[1:6] == ["unavailable"] * 5
        assert results[6:] == ["suspended"] * 15
        (alone,) = sink.facts_of(StoreChanged)
        assert (alone.store, alone.state) == ("hot", "open")
        assert "Connection" in alone.why
        assert (await store.stats()).why_not
        with pytest.raises(StoreUnavailable):
            await store.purge(tag="x")
        await store.put(KEY, kept("two"))  # not kept, and no error
        assert await store.acquire_lead(KEY)
        await asyncio.to_thread(server.start)
        give_up_at = clock.now() + 10
        while await store.get(KEY) != kept("three"):
            assert clock.now() < give_up_at
            await store.put(KEY, kept("three"))
            await asyncio.sleep(0.02)
        assert [fact.state for fact in sink.facts_of(StoreChanged)] == ["open", "half_open", "closed"]
        await store.close()

    with redis_server(tmp_path) as server:
        asyncio.run(story(server))


def test_redis_full_server_can_be_read(tmp_path: Path) -> None:
    """With `noeviction` nothing more is kept, and what is there is a hit as often as before."""
    async def story(server: RedisServer) -> None:
        server.say(b"CONFIG", b"SET", b"maxmemory-policy", b"noeviction")
        sink = RecordingSink()
        store = opened(server, SharedConfig(timeout_s=1, local_bytes=0), sink)
        keys = [n.to_bytes(32, "big") for n in range(2000)]
        for key in keys[:20]:
            await filled(store, (key, kept("x" * 20_000)))
        base = int(server.say(b"INFO", b"memory").split(b"used_memory:")[1].split(b"\r\n")[0])
        server.say(b"CONFIG", b"SET", b"maxmemory", str(base + 1_000_000).encode())
        for key in keys[20:120]:
            await filled(store, (key, kept("x" * 20_000)))
        hits = 0
        for n, key in enumerate(keys[120:420]):
            hits += await store.get(keys[n % 20]) is not None
            assert await store.get(key) is None
            assert await store.acquire_lead(key)
            await filled(store, (key, kept("x" * 20_000)))
            store.release_lead(key)
        assert hits == 300
        counts = Counter((fact.what, fact.result) for fact in sink.facts_of(StoreCallDone))
        assert counts["put", "unavailable"] > 250
        assert not {("get", "suspended"), ("get", "unavailable"), ("get", "timeout")} & counts.keys()
        (alone,) = sink.facts_of(StoreChanged)
        assert (alone.state, alone.why) == ("open", "writes: 5 failures in a row: OutOfMemoryError")
        await store.close()

    with redis_server(tmp_path) as server:
        asyncio.run(story(server))


def test_redis_hanging_server_costs_timeout_only(tmp_path: Path) -> None:
    """Every look-up is over in time; those of a request with less time, in that; the rest at once."""
    async def story(server: RedisServer) -> None:
        sink, clock = RecordingSink(), SystemClock()
        store = opened(server, SharedConfig(timeout_s=0.4, local_bytes=0), sink)
        await filled(store, (KEY, kept("one")))
        server.freeze()
        began_at = clock.now()
        assert await store.get(KEY, began_at + 0.01) is None
        assert clock.now() - began_at < 0.35
        for _ in range(100):
            began_at = clock.now()
            assert await store.get(KEY) is None
            assert clock.now() - began_at < 2
        results = [fact.result for fact in sink.facts_of(StoreCallDone) if fact.what == "get"]
        assert results[:6] == ["timeout"] * 6
        assert results.count("suspended") > 90
        server.thaw()
        give_up_at = clock.now() + 10
        while await store.get(KEY) is None:
            assert clock.now() < give_up_at
            await asyncio.sleep(0.02)
        await store.close()

    with redis_server(tmp_path) as server:
        asyncio.run(story(server))


def test_redis_cancelled_lookups_break_no_connection(server: RedisServer) -> None:
    """A thousand look-ups, every second of which is given up by its request: the others have their answer."""
    async def story() -> None:
        store = opened(server)
        await filled(store, (KEY, kept("one")))
        for _ in range(5):
            asking = [asyncio.get_running_loop().create_task(store.get(KEY)) for _ in range(200)]
            await asyncio.sleep(0)
            for task in asking[::2]:
                task.cancel()
            had = await asyncio.gather(*asking, return_exceptions=True)
            assert had[1::2] == [kept("one")] * 100
        await store.close()

    asyncio.run(story())
