"""Answers in a file."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from stayfast.core.clock import SystemClock
from stayfast.stores.base import (
    AcquireLead,
    CachedAnswer,
    IsLed,
    ReleaseLead,
    Store,
    StoreBackend,
    StoreCommand,
    StoreReply,
    StoreUnavailable,
)
from stayfast.stores.sqlite import SqliteBackend
from tests.unit.stores.journal_suite import JournalSuite
from tests.unit.stores.sqlite_rig import opened
from tests.unit.stores.suite import KEY, OTHER, StoreSuite, filled, kept


class TestSqlite(StoreSuite):
    """All that `Store` promises."""

    folder: Path

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        """Where its file is."""
        self.folder = tmp_path

    def make(self, max_bytes: int) -> Store:
        """An empty one."""
        return opened(self.folder / "answers.db", max_bytes)

    def test_store_note_returns_last_text(self) -> None:
        """Under its name, for all who share it; none under another."""
        async def main() -> None:
            one, other = opened(self.folder / "a.db"), opened(self.folder / "a.db", seed=2)
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


class TestSqliteJournal(JournalSuite):
    """All that is promised of journals."""

    folder: Path

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        """Where its file is."""
        self.folder = tmp_path

    def door(self) -> StoreBackend:
        """One more to the same file."""
        return SqliteBackend(self.folder / "answers.db", 1 << 20, SystemClock())

    def test_backend_closed_raises_unavailable(self) -> None:
        """And raises nothing else."""
        async def story(one: StoreBackend, other: StoreBackend) -> None:
            third = self.door()
            await third.close()
            with pytest.raises(StoreUnavailable):
                await third.append_log("abc", [b"a"], 20)
            with pytest.raises(StoreUnavailable):
                await third.read_log("abc", "", 20)

        self.tell_it(story)


def test_sqlite_answer_larger_than_store_evicts_none(tmp_path: Path) -> None:
    """It is not kept, nor is what it was to replace; all others stay."""
    async def story() -> None:
        store = opened(tmp_path / "a.db", max_bytes=50_000)
        keys = [bytes([n]) * 32 for n in range(20)]
        await filled(store, *[(key, kept("x" * 500)) for key in keys])
        await filled(store, (KEY, kept("x" * 60_000)), (keys[0], kept("x" * 60_000)))
        assert await store.get(KEY) is None
        assert [await store.get(key) is not None for key in keys] == [False] + [True] * 19
        await store.close()

    asyncio.run(story())


def get_once(path: Path, key: bytes = KEY) -> CachedAnswer | None:
    """What a new process finds."""
    async def find() -> CachedAnswer | None:
        store = opened(path)
        try:
            return await store.get(key)
        finally:
            await store.close()

    return asyncio.run(find())


def fill_once(path: Path, *answers: tuple[bytes, CachedAnswer]) -> None:
    """A process that puts these, and ends."""
    async def fill() -> None:
        store = opened(path)
        await filled(store, *answers)
        await store.close()

    asyncio.run(fill())


def test_sqlite_file_survives_process_and_is_private(tmp_path: Path) -> None:
    """And nobody else on the machine may read it."""
    path = tmp_path / "answers.db"
    fill_once(path, (KEY, kept("one")))
    assert get_once(path) == kept("one")

    def is_open_to_others(file: Path) -> bool:
        try:
            return file.stat().st_mode & 0o077 != 0
        except FileNotFoundError:  # SQLite removes its log as the last connection closes, on the store's own thread
            return False

    assert not any(map(is_open_to_others, tmp_path.iterdir()))
    assert not is_open_to_others(path)


def test_store_is_shared_by_two_processes(tmp_path: Path) -> None:
    """What one puts the other has; what one purges the other has no longer."""
    async def story() -> None:
        one, other = opened(tmp_path / "a.db", seed=1), opened(tmp_path / "a.db", seed=2)
        await filled(one, (KEY, kept("one", tags=("x",))))
        assert await other.get(KEY) == kept("one", tags=("x",))
        await filled(other, (OTHER, kept("two")))
        assert (await one.stats()).n_entries == 2
        assert await other.purge(tag="x") == 1
        assert await one.get(KEY) is None
        await one.close()
        await other.close()

    asyncio.run(story())


class ManualClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def now(self) -> float:
        """As set."""
        return self.at

    wall = cpu = now


def test_sqlite_lead_of_a_dead_process_expires_and_passes_to_the_next(tmp_path: Path) -> None:
    """A lead ends with `led`, or after `for_s`; a process that comes back late neither has nor ends the new lead."""
    async def main() -> None:
        clock = ManualClock()
        doors = {name: SqliteBackend(tmp_path / "a.db", 1 << 20, clock) for name in (b"a", b"b")}

        async def send(name: bytes, order: StoreCommand) -> StoreReply:
            (reply,) = await doors[name].execute([order])
            return reply

        async def lead(name: bytes) -> StoreReply:
            return await send(name, AcquireLead(KEY, name, 5.0))

        assert [await lead(b"a"), await lead(b"b"), await lead(b"a")] == [True, False, True]
        assert [await send(b"b", IsLed(KEY)), await send(b"b", IsLed(OTHER))] == [True, False]
        clock.at += 4.9
        assert [await send(b"b", IsLed(KEY)), await lead(b"b")] == [True, False]
        clock.at += 0.2  # a is dead: its 5 s are over
        assert [await send(b"b", IsLed(KEY)), await lead(b"b")] == [False, True]
        await send(b"a", ReleaseLead(KEY, b"a"))
        assert [await lead(b"a"), await send(b"a", IsLed(KEY))] == [False, True]
        await send(b"b", ReleaseLead(KEY, b"b"))
        assert [await send(b"a", IsLed(KEY)), await lead(b"a")] == [False, True]
        for door in doors.values():
            await door.close()

    asyncio.run(main())


@pytest.mark.parametrize("harm", [
    "UPDATE answers SET data = x'0100000000' || substr(data, 6)", "UPDATE answers SET data = x'02' || substr(data, 2)",
    "UPDATE answers SET data = substr(data, 1, 20)", "UPDATE answers SET data = x''",
])
def test_store_unreadable_data_is_a_miss(tmp_path: Path, harm: str) -> None:
    """Broken, of another version, cut off, empty."""
    path = tmp_path / "answers.db"
    fill_once(path, (KEY, kept("one")))
    with sqlite3.connect(path) as file:
        file.execute(harm)
    file.close()
    assert get_once(path) is None


def test_sqlite_answer_of_other_key_is_a_miss(tmp_path: Path) -> None:
    """Even where a file says so."""
    path = tmp_path / "answers.db"
    fill_once(path, (KEY, kept("one")))
    with sqlite3.connect(path) as file:
        file.execute("UPDATE answers SET key = ?", (OTHER,))
    file.close()
    assert get_once(path, OTHER) is None


def test_sqlite_file_of_other_version_is_emptied(tmp_path: Path) -> None:
    """And then used."""
    path = tmp_path / "answers.db"
    fill_once(path, (KEY, kept("one")))
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    file.close()
    assert get_once(path) is None
    fill_once(path, (KEY, kept("two")))
    assert get_once(path) == kept("two")


@pytest.mark.parametrize("what", ["text", "database"])
def test_sqlite_file_of_other_application_is_not_changed(tmp_path: Path, what: str) -> None:
    """It is not a store, and stays what it is."""
    path = tmp_path / "precious"
    if what == "text":
        path.write_bytes(b"my precious notes\n" * 100)
    else:
        with sqlite3.connect(path) as file:
            file.execute("CREATE TABLE precious (x)")
        file.close()
    before = path.read_bytes()

    async def story() -> None:
        store = opened(path)
        assert await store.get(KEY) is None
        await filled(store, (KEY, kept("one")))
        assert await store.get(KEY) is None
        assert "precious" in (await store.stats()).why_not
        with pytest.raises(StoreUnavailable):
            await store.purge()
        await store.close()

    asyncio.run(story())
    assert path.read_bytes() == before


def test_sqlite_missing_folder_is_a_miss(tmp_path: Path) -> None:
    """No folder; when there is one, it is used."""
    async def story() -> None:
        store = opened(tmp_path / "none" / "answers.db")
        await filled(store, (KEY, kept("one")))
        assert await store.get(KEY) is None
        (tmp_path / "none").mkdir()
        await filled(store, (KEY, kept("one")))
        assert await store.get(KEY) == kept("one")
        await store.close()

    asyncio.run(story())
