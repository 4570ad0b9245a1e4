"""stores.journal: records that processes exchange through a shared store, in virtual time."""

import asyncio
from collections import Counter
from random import Random

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.events import StoreCallDone
from stayfast.stores import journal
from stayfast.stores.base import StoreBackend
from stayfast.stores.journal import POLL_MAX_S, POLL_S
from stayfast.stores.remote_store import RemoteStore, SharedConfig
from stayfast.testing import RecordingSink, SimLoop, run
from tests.unit.stores.fake_door import FakeDoor, Place
from tests.unit.stores.journal_suite import JournalSuite


class TestFake(JournalSuite):
    """The one of the other tests keeps the promises as well."""

    @pytest.fixture(autouse=True)
    def place(self) -> None:
        """Where it is."""
        self.where = Place()

    def door(self) -> StoreBackend:
        """One more."""
        return FakeDoor(self.where, SystemClock())


class Process:
    """One that tells and hears."""

    def __init__(self, loop: SimLoop, place: Place, who: bytes, most: int = 1000) -> None:
        self.sink = RecordingSink()
        self.door = FakeDoor(place, loop)
        self.store = RemoteStore("hot", self.door, SharedConfig(), loop, self.sink, rng=Random(1))
        self.journal = self.store.open_journal("abc", most, who)
        self.heard: list[tuple[int, bytes]] = []
        self.own: list[tuple[int, bytes]] = []
        self.broken: Exception | None = None
        self.journal.start(self.hear)

    def hear(self, key: int, body: bytes, is_own: bool) -> None:
        """Remember it; what begins with a question mark cannot be read."""
        if self.broken is not None:
            raise self.broken
        if is_own:
            self.own.append((key, body))
            return
        if body.startswith(b"?"):
            raise ValueError
        self.heard.append((key, body))

    def counts(self, what: str) -> Counter[str]:
        """What came of it."""
        return Counter(fact.result for fact in self.sink.facts_of(StoreCallDone) if fact.what == what)


def test_journal_record_reaches_all_processes() -> None:
    """Soon, in its order, once, one's own as such; and who comes later hears all that was told before."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Process(loop, place, b"1" * 8), Process(loop, place, b"2" * 8)
        told = [(7, b"seven"), (-3, b"minus three"), (2**63 - 1, b""), (7, b"again")]
        for key, body in told:
            one.journal.put(key, body)
        other.journal.put(1, b"mine")
        await asyncio.sleep(3 * POLL_S)
        assert (one.heard, other.heard) == ([(1, b"mine")], told)
        assert (one.own, other.own) == (told, [(1, b"mine")])
        late = Process(loop, place, b"3" * 8)
        await asyncio.sleep(POLL_S)
        assert sorted(late.heard) == sorted([*told, (1, b"mine")])
        await asyncio.sleep(10 * POLL_S)
        assert (one.heard, other.heard) == ([(1, b"mine")], told)
        assert (one.counts("append_log"), one.counts("read_log")) == ({"stored": 4}, {"read": 1})
        for process in (one, other, late):
            await process.store.close()

    run(main)


def test_journal_unavailable_store_gets_records_later() -> None:
    """Nobody waits and nothing fails; it is asked more and more seldom, and hears all once it is back."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Process(loop, place, b"1" * 8), Process(loop, place, b"2" * 8)
        one.door.is_gone = other.door.is_gone = True
        one.journal.put(1, b"while it was gone")
        await asyncio.sleep(100)
        n_tries = one.counts("read_log")["unavailable"]
        assert 100 / POLL_MAX_S < n_tries < 20
        assert other.heard == []
        one.door.is_gone = other.door.is_gone = False
        await asyncio.sleep(2 * POLL_MAX_S)
        assert other.heard == [(1, b"while it was gone")]
        one.journal.put(2, b"as ever")
        await asyncio.sleep(3 * POLL_S)
        assert other.heard[1:] == [(2, b"as ever")]
        assert one.counts("read_log")["unavailable"] == n_tries
        await one.store.close()
        await other.store.close()

    run(main)


def test_journal_full_store_is_still_read() -> None:
    """One that keeps nothing more still tells what it has."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Process(loop, place, b"1" * 8), Process(loop, place, b"2" * 8)

        one.door.is_full = True
        one.journal.put(1, b"no room")
        other.journal.put(2, b"there was room")
        await asyncio.sleep(2 * POLL_MAX_S)
        assert one.heard == [(2, b"there was room")]
        assert one.counts("append_log")["unavailable"] > 1
        assert one.counts("read_log") == {"read": 1}
        await one.store.close()
        await other.store.close()

    run(main)


def test_journal_crash_of_task_is_reported() -> None:
    """An error that nobody expected ends it, and not in silence."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Process(loop, place, b"1" * 8), Process(loop, place, b"2" * 8)
        told: list[object] = []
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        one.broken = ZeroDivisionError()
        other.journal.put(1, b"one")
        await asyncio.sleep(3 * POLL_S)
        assert told == [one.broken]
        assert one.journal.is_closed
        await one.store.close()
        await other.store.close()

    run(main)


def test_journal_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it nothing is told, which is counted; once it is told there is room again."""
    monkeypatch.setattr(journal, "MAX_QUEUED_BYTES", 1000)

    async def main(loop: SimLoop) -> None:
        place = Place()
        one = Process(loop, place, b"1" * 8)
        one.door.is_gone = True
        for n in range(30):
            one.journal.put(n, b"x" * 100)
        await asyncio.sleep(1)
        assert one.counts("append_log")["full"] == 20
        one.door.is_gone = False
        await asyncio.sleep(2 * POLL_MAX_S)
        one.journal.put(30, b"x" * 1000)
        await asyncio.sleep(2 * POLL_S)
        assert (one.counts("append_log")["full"], one.counts("append_log")["stored"]) == (20, 11)
        assert len(place.told["abc"]) == 11
        await one.store.close()

    run(main)


def test_journal_unreadable_record_is_skipped() -> None:
    """Whatever somebody wrote there; it is counted, and what comes after it is heard."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one = Process(loop, place, b"1" * 8)
        await one.door.append_log("abc", [b"", b"short", b"2" * 8 + bytes(7), b"2" * 8 + bytes(8) + b"?",
                                          b"2" * 8 + bytes(8)], 10)
        await asyncio.sleep(2 * POLL_S)
        assert one.heard == [(0, b"")]
        assert one.counts("read_log") == {"unreadable": 4, "read": 1}
        await one.store.close()

    run(main)


def test_journal_reads_one_record_per_loop_turn() -> None:
    """A thousand that were told before leave everybody else his turn of the loop."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        await FakeDoor(place, loop).append_log("abc", [b"2" * 8 + n.to_bytes(8, "big") for n in range(1000)], 5000)
        one = Process(loop, place, b"1" * 8)
        one.door.takes_s = n_turns = 0
        while len(one.heard) < 1000:
            await asyncio.sleep(0)
            n_turns += 1
        assert n_turns >= 1000
        assert [key for key, _ in one.heard] == list(range(1000))
        await one.store.close()

    run(main)


def test_journal_close_writes_queue() -> None:
    """At once; a store that hangs is waited for no longer than for its answers. After that nothing is told."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Process(loop, place, b"1" * 8), Process(loop, place, b"2" * 8)
        one.journal.put(1, b"last words")
        one.journal.close()
        await asyncio.sleep(0.1)
        assert one.journal.is_closed
        one.journal.put(2, b"too late")
        assert one.counts("append_log") == {"stored": 1, "full": 1}
        await asyncio.sleep(2 * POLL_S)
        assert other.heard == [(1, b"last words")]
        other.door.takes_s = 3600
        other.journal.put(3, b"to nobody")
        began_at = loop.now()
        await other.store.close()
        assert loop.now() - began_at < 10
        assert other.door.is_closed
        await asyncio.sleep(0.1)
        assert other.journal.is_closed
        await one.store.close()

    run(main)


def test_store_drops_closed_journals() -> None:
    """A reload opens another journal; the closed one is dropped."""

    async def main(loop: SimLoop) -> None:
        one = Process(loop, Place(), b"1" * 8)
        for n in range(5):
            one.journal.close()
            await asyncio.sleep(0.1)
            one.journal = one.store.open_journal("abc", 10, bytes([n]) * 8)
            one.journal.start(one.hear)
        assert one.store.n_journals == 1
        await one.store.close()

    run(main)
