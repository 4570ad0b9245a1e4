"""stores.remote_store in virtual time: local copies, slow and failed commands, and the queue."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from stayfast.core.clock import SystemClock
from stayfast.core.events import StoreChanged
from stayfast.stores import remote_store as shared
from stayfast.stores.base import (
    AcquireLead,
    CachedAnswer,
    Get,
    Put,
    ReleaseLead,
    Store,
    StoreCommand,
    StoreReply,
    StoreUnavailable,
)
from stayfast.stores.remote_store import VERSION, RemoteStore, SharedConfig, decode_answer, encode_answer
from stayfast.testing import RecordingSink, SimLoop, run
from tests.unit.stores.fake_door import FakeDoor, Place
from tests.unit.stores.shared_rig import Rig
from tests.unit.stores.suite import KEY, OTHER, StoreSuite, filled, kept


class TestShared(StoreSuite):
    """All that `Store` promises, with a door that is there."""

    def make(self, max_bytes: int) -> Store:
        """An empty one."""
        clock = SystemClock()
        return RemoteStore("s", FakeDoor(Place(), clock), SharedConfig(timeout_s=10), clock, RecordingSink(), rng=Random(1))

    def test_store_size_is_bounded(self) -> None:
        """What is near is."""
        async def main(loop: SimLoop) -> None:
            rig = Rig(loop, SharedConfig(local_bytes=50_000))
            await filled(rig.store, *[(n.to_bytes(32, "big"), kept("x" * 500)) for n in range(1000)])
            assert 0 < rig.store.n_bytes <= 50_000
            assert 0 < rig.store.n_entries < 1000
            assert (await rig.store.stats()).n_near == rig.store.n_entries

        run(main)

    def test_store_keeps_used_answers(self) -> None:
        """A look-up counts near as well as there."""
        async def main(loop: SimLoop) -> None:
            rig = Rig(loop, SharedConfig(local_bytes=50_000, local_ttl_s=3600))
            for n in range(500):
                await rig.store.put(n.to_bytes(32, "big"), kept("x" * 500))
                await rig.store.get((0).to_bytes(32, "big"))
            assert rig.counts() == {"local_hit": 500}

        run(main)


def test_remote_store_look_up_distinguishes_miss_from_no_reply() -> None:
    """Only a reply of the store proves that an answer is not stored; a time-out, an error or an open breaker does not."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, SharedConfig(local_ttl_s=10))
        await filled(rig.store, (KEY, kept("one")))
        await asyncio.sleep(20)
        assert await rig.store.find(KEY) == (kept("one"), True)
        assert await rig.store.find(KEY) == (kept("one"), True)
        assert await rig.store.find(OTHER) == (None, True)
        assert await rig.store.find(OTHER, loop.now()) == (None, False)
        rig.door.takes_s = 60
        assert await rig.store.find(OTHER) == (None, False)
        rig.door.takes_s = 0.001
        await asyncio.sleep(120)
        rig.door.is_gone = True
        for _ in range(8):
            assert await rig.store.find(OTHER) == (None, False)
        assert await rig.store.find(KEY) == (None, False)
        assert rig.counts().keys() >= {"hit", "local_hit", "miss", "timeout", "unavailable", "suspended"}
        rig.door.is_gone = False
        await asyncio.sleep(60)
        assert await rig.store.find(OTHER) == (None, True)
        assert await rig.store.find(KEY) == (kept("one"), True)

    run(main)


def test_remote_store_expired_answer_is_a_miss() -> None:
    """From `drop_at` on, whether the backend has removed it or not."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop)
        answer = replace(kept("one"), drop_at=loop.wall() + 10)
        await filled(rig.store, (KEY, answer))
        await asyncio.sleep(9)
        assert await rig.store.find(KEY) == (answer, True)
        await asyncio.sleep(1)
        assert await rig.store.find(KEY) == (None, True)
        assert await rig.store.inspect(KEY) is None
        assert KEY in rig.door.place.data

    run(main)


def test_remote_store_local_copy_is_used_for_local_ttl_s() -> None:
    """For `local_ttl_s` nobody is asked for it; then the store is, which others may have changed."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Rig(loop, SharedConfig(local_ttl_s=10), place), Rig(loop, SharedConfig(local_ttl_s=10), place, seed=2)
        await filled(one.store, (KEY, kept("one")))
        assert await one.store.get(KEY) == kept("one")
        assert await other.store.get(KEY) == kept("one")
        assert await other.store.get(KEY) == kept("one")
        assert other.counts() == {"hit": 1, "local_hit": 1}
        await filled(one.store, (KEY, kept("two")))
        assert await other.store.get(KEY) == kept("one")
        await asyncio.sleep(10)
        assert await other.store.get(KEY) == kept("two")
        assert await one.store.purge() == 1
        assert await one.store.get(KEY) is None
        assert await other.store.get(KEY) == kept("two")
        await asyncio.sleep(10)
        assert await other.store.get(KEY) is None
        assert other.store.n_entries == 0

    run(main)


def test_remote_store_slow_backend_opens_breaker_after_five_timeouts() -> None:
    """Five misses of `timeout_s`; then none for a second; then one at a time until it is well."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop)
        await filled(rig.store, (KEY, kept("one")))
        rig.door.takes_s = 5
        took_s = []
        for _ in range(8):
            began_at = loop.now()
            assert await rig.store.get(KEY) is None
            took_s.append(round(loop.now() - began_at, 6))
        assert took_s == [0.02] * 5 + [0.0] * 3
        assert rig.counts() == {"timeout": 5, "suspended": 3}
        rig.door.takes_s = 0.001
        assert await rig.store.get(KEY) is None
        await asyncio.sleep(6)
        assert await rig.store.get(KEY) == kept("one")
        assert await rig.store.get(KEY) == kept("one")
        assert [(fact.state, fact.why) for fact in rig.sink.facts_of(StoreChanged)] == [
            ("open", "5 failures in a row: no answer in 0.02 s"), ("half_open", "a probe was good: no answer in 0.02 s"),
            ("closed", "2 probes were good")]

    run(main)


def test_remote_store_failing_writes_do_not_stop_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders that write are left alone while they fail, and told of; look-ups go on, and nobody may not lead."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop)
        await filled(rig.store, (KEY, kept("one")))
        carry = rig.door.execute
        async def full(orders: Sequence[StoreCommand]) -> list[StoreReply]:
            if any(isinstance(order, Put | AcquireLead) for order in orders):
                raise StoreUnavailable("OutOfMemoryError")
            return await carry(orders)

        monkeypatch.setattr(rig.door, "execute", full)
        for n in range(50):
            assert await rig.store.get(KEY) == kept("one")
            assert await rig.store.acquire_lead(n.to_bytes(32, "big"))
            await rig.store.put(n.to_bytes(32, "big"), kept("two"))
        assert (rig.counts(), rig.counts("lead")) == ({"hit": 50}, {"unavailable": 5, "suspended": 45})
        monkeypatch.setattr(rig.door, "execute", carry)
        await asyncio.sleep(2)
        assert [await rig.store.acquire_lead(KEY) for _ in range(3)] == [True] * 3
        assert rig.counts("lead")["led"] == 3
        told = rig.sink.facts_of(StoreChanged)
        assert told[0].why == "writes: 5 failures in a row: OutOfMemoryError"
        assert [fact.state for fact in told] == ["open", "half_open", "closed"]

    run(main)


def test_remote_store_short_deadline_does_not_count_as_failure() -> None:
    """It is not the store's fault."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop)
        rig.door.takes_s = 0.01
        for _ in range(20):
            began_at = loop.now()
            assert await rig.store.get(KEY, began_at + 0.005) is None
            assert loop.now() - began_at == pytest.approx(0.005)
        assert await rig.store.get(KEY, loop.now()) is None
        assert rig.counts() == {"timeout": 21}
        await asyncio.sleep(1)
        await filled(rig.store, (KEY, kept("one")))
        assert await rig.store.get(KEY) == kept("one")
        assert rig.sink.facts_of(StoreChanged) == []

    run(main)


def test_remote_store_burst_is_sent_in_few_round_trips() -> None:
    """Whatever waits goes together; puts have their turn."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop)
        await filled(rig.store, (KEY, kept("one")))
        rig.door.carried.clear()
        asking = [loop.create_task(rig.store.get(KEY)) for _ in range(200)]
        await asyncio.sleep(0)
        await rig.store.put(OTHER, kept("two"))
        assert await asyncio.gather(*asking) == [kept("one")] * 200
        await asyncio.sleep(0.1)
        assert [len(orders) for orders in rig.door.carried] == [64, 1, 64, 64, 8]
        assert isinstance(rig.door.carried[1][0], Put)

    run(main)


def test_remote_store_cancelled_lookup_is_not_sent() -> None:
    """A look-up whose request is gone before it is carried costs the store nothing."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop)
        first = loop.create_task(rig.store.get(KEY))
        await asyncio.sleep(0)
        others = [loop.create_task(rig.store.get(OTHER)) for _ in range(10)]
        await asyncio.sleep(0)
        for task in others[1:]:
            task.cancel()
        await asyncio.gather(first, *others, return_exceptions=True)
        assert [order for orders in rig.door.carried for order in orders] == [Get(KEY), Get(OTHER)]

    run(main)


def test_remote_store_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-ups by number, puts by bytes; what is too much is told at once, and there is room again later."""
    monkeypatch.setattr(shared, "MAX_QUEUED", 10)
    monkeypatch.setattr(shared, "MAX_QUEUED_BYTES", 5000)

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop)
        asking = [loop.create_task(rig.store.get(KEY)) for _ in range(30)]
        await asyncio.gather(*asking)
        assert rig.counts() == {"miss": 10, "full": 20}
        for n in range(10):
            await rig.store.put(bytes([n]) * 32, kept("x" * 1000))
        await asyncio.sleep(1)
        assert rig.counts("put") == {"stored": 4, "full": 6}
        await rig.store.put(KEY, kept("x" * 1000))
        await asyncio.sleep(1)
        assert rig.counts("put") == {"stored": 5, "full": 6}

    run(main)


def test_remote_store_unavailable_backend_is_a_miss() -> None:
    """A miss, a put that is not kept, a call that is led, an answer that is near; but purging says that it was not done."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, SharedConfig())
        rig.door.is_gone = True
        await rig.store.put(KEY, kept("one"))
        assert await rig.store.get(KEY) == kept("one")
        assert await rig.store.inspect(KEY) == kept("one")
        assert await rig.store.get(OTHER) is None
        assert await rig.store.inspect(OTHER) is None
        assert await rig.store.acquire_lead(OTHER)
        assert await rig.store.wait_for_leader(OTHER, loop.now() + 1, 0) is None
        assert not await rig.store.remove(OTHER)
        stats = await rig.store.stats()
        assert (stats.n_entries, stats.n_near, stats.why_not) == (None, 1, "no such place")
        with pytest.raises(StoreUnavailable, match="no such place"):
            await rig.store.purge(tag="a")
        await asyncio.sleep(1)
        assert rig.counts("put") == {"unavailable": 1}
        assert rig.counts("lead") == {"unavailable": 1}

    run(main)


def test_remote_store_unexpected_backend_error_blocks_no_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of ours in it: whoever waits goes on in time, the loop is told, and the next one is carried."""

    async def main(loop: SimLoop) -> None:
        told: list[object] = []
        loop.set_exception_handler(lambda _, context: told.append(context.get("exception")))
        rig = Rig(loop)
        carry = rig.door.execute
        monkeypatch.setattr(rig.door, "execute", lambda orders: 1 / 0)
        assert await rig.store.get(KEY) is None
        monkeypatch.setattr(rig.door, "execute", carry)
        await filled(rig.store, (KEY, kept("one")))
        assert await rig.store.get(KEY) == kept("one")
        assert [type(error) for error in told] == [ZeroDivisionError]

    run(main)


def test_remote_store_close_sends_queued_writes() -> None:
    """Then it has nothing any more, and nothing runs."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop)
        for n in range(100):
            await rig.store.put(bytes([n]) * 32, kept("x"))
        await rig.store.close()
        assert len(rig.door.place.data) == 100
        assert rig.door.is_closed
        assert await rig.store.get(KEY) is None
        await rig.store.put(KEY, kept("one"))
        assert await rig.store.acquire_lead(KEY)
        rig.store.release_lead(KEY)
        assert len(rig.door.place.data) == 100

    run(main)


def test_remote_store_close_is_bounded_in_time() -> None:
    """For a store that hangs."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop)
        rig.door.takes_s = 1000
        await rig.store.put(KEY, kept("one"))
        await rig.store.close()
        assert loop.now() == pytest.approx(shared.CLOSE_S)
        assert rig.door.is_closed

    run(main)


def test_remote_store_leads_without_release_are_dropped() -> None:
    """A lead that is not released expires after `coalesce_wait_s`, and takes no memory then."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, SharedConfig(local_bytes=0, coalesce_wait_s=1))
        for n in range(100):
            assert await rig.store.acquire_lead(n.to_bytes(32, "big"))
            await asyncio.sleep(0.1)
        assert rig.store.n_leads <= 11

    run(main)


def test_remote_store_led_without_lead_sends_nothing() -> None:
    """And what it has put is there before."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop)
        rig.store.release_lead(KEY)
        assert await rig.store.acquire_lead(KEY)
        await rig.store.put(KEY, kept("one"))
        rig.store.release_lead(KEY)
        rig.store.release_lead(KEY)
        await asyncio.sleep(1)
        assert [type(order) for orders in rig.door.carried for order in orders][1:] == [Put, ReleaseLead]
        assert rig.counts("lead") == {"led": 1}

    run(main)


@pytest.mark.parametrize(("wrong", "field"), [
    ({"timeout_s": 0}, "timeout_s"), ({"timeout_s": 11}, "timeout_s"), ({"coalesce_wait_s": -1}, "coalesce_wait_s"),
    ({"local_bytes": -1}, "local_bytes"), ({"local_ttl_s": 0}, "local_ttl_s")])
def test_shared_config_out_of_bounds_is_rejected(wrong: dict[str, Any], field: str) -> None:
    """By the field."""
    with pytest.raises(ValueError, match=f"^{field} must be"):
        SharedConfig(**wrong)


@given(st.binary(), st.booleans())
@example(b"\x81\xa1x" + b"\x91" * 100_000, True)
def test_unpacked_random_bytes_raise_value_error(said: bytes, is_signed: bool) -> None:
    """Whatever they are, and even with a checksum that is right: of a version that says other things."""
    data = VERSION + crc32(said, crc32(KEY)).to_bytes(4, "big") + said if is_signed else said
    with pytest.raises(ValueError, match=r"written by|wrong|not an answer"):
        decode_answer(KEY, data)


def test_unpacked_ignores_fields_of_newer_version() -> None:
    """What is not known of it is left out."""
    said = msgspec.msgpack.encode({"body": b"x", "kept_at": 1.0, "colour": "red"})
    assert decode_answer(KEY, VERSION + crc32(said, crc32(KEY)).to_bytes(4, "big") + said) == CachedAnswer(b"x", 1.0)


def test_packed_answer_round_trips_and_detects_changes() -> None:
    """With all its members; and no other bytes are an answer."""
    one = CachedAnswer(b"\x00body", 1.5, None, None, 9.5, "r", "t", ("a",))
    data = encode_answer(KEY, one)
    assert decode_answer(KEY, data) == one
    with pytest.raises(ValueError, match="wrong checksum"):
        decode_answer(OTHER, data)
    for at in range(len(data)):
        with pytest.raises(ValueError, match=r"another version|wrong checksum"):
            decode_answer(KEY, data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
        with pytest.raises(ValueError, match=r"another version|wrong checksum"):
            decode_answer(KEY, data[:at])
