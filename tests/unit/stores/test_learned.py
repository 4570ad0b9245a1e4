"""The file that outlives a restart: what is written is read again, and what is not whole is not."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.stores import label_store as learned
from stayfast.stores.label_store import SOON_S, LabelStore


def kept(path: Path, of: str = "e1") -> dict[int, bytes]:
    """What a fresh process finds."""
    one = LabelStore(path, of)
    try:
        return one.read()
    finally:
        asyncio.run(closed(one))


async def closed(one: LabelStore) -> None:
    """Closed, on a loop."""
    one.close()


def written(path: Path, write: Callable[[LabelStore], None]) -> None:
    """A process that writes and ends."""
    async def main() -> None:
        one = LabelStore(path, "e1")
        one.read()
        write(one)
        one.close()

    asyncio.run(main())


@given(st.lists(st.tuples(st.integers(-3, 3), st.one_of(st.none(), st.binary(max_size=20))), max_size=30))
def test_the_last_word_on_a_key_holds(tmp_path_factory: pytest.TempPathFactory,
                                      said: list[tuple[int, bytes | None]]) -> None:
    """In the order of the last puts, over two processes."""
    path = tmp_path_factory.mktemp("x") / "sub" / "file"
    expected: dict[int, bytes] = {}

    def write(one: LabelStore) -> None:
        for key, body in said:
            expected.pop(key, None)
            if body is None:
                one.delete(key)
            else:
                one.put(key, body)
                expected[key] = body

    written(path, write)
    written(path, lambda one: one.put(9, b"later"))
    found = kept(path)
    assert list(found.items()) == [*expected.items(), (9, b"later")]


def test_a_file_of_another_embedder_means_nothing(tmp_path: Path) -> None:
    """It is begun anew; so is a file of something else."""
    path = tmp_path / "file"
    written(path, lambda one: one.put(1, b"a"))
    assert kept(path, "e2") == {}
    assert kept(path, "e1") == {}
    path.write_bytes(b"\x00" * 100)
    assert kept(path) == {}


def test_whatever_a_kill_or_a_disk_leaves_is_read_up_to_there(tmp_path: Path) -> None:
    """Cut or changed at every byte: the records before that, and never an error."""
    path = tmp_path / "file"
    def write(one: LabelStore) -> None:
        for key in (1, 2, 3):
            one.put(key, b"body %d" % key)

    written(path, write)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for broken in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1:]):
            path.write_bytes(broken)
            found = kept(path)
            assert list(found) == [1, 2, 3][:len(found)]
            assert len(found) < 3


def test_it_is_written_soon_and_is_nobody_elses_to_read(tmp_path: Path) -> None:
    """Without being closed: a killed process has lost a second."""
    path = tmp_path / "file"

    async def main() -> None:
        one = LabelStore(path, "e1")
        one.read()
        one.put(1, b"a")
        async with asyncio.timeout(SOON_S + 10):
            while b"\xc4\x01a" not in path.read_bytes():
                await asyncio.sleep(0.05)
        one.close()
        one.put(2, b"lost")

    asyncio.run(main())
    assert kept(path) == {1: b"a"}
    assert path.stat().st_mode & 0o077 == 0


def test_what_is_over_is_left_out_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One key put a thousand times takes the room of a few."""
    monkeypatch.setattr(learned, "LEAST_BYTES", 1000)
    path = tmp_path / "file"

    async def main() -> None:
        one = LabelStore(path, "e1")
        one.read()
        for _ in range(100):
            for _ in range(10):
                one.put(1, b"x" * 100)
            one._flush()
        one.close()

    asyncio.run(main())
    assert path.stat().st_size < 4000
    assert kept(path) == {1: b"x" * 100}


def test_a_disk_that_is_gone_breaks_nothing(tmp_path: Path) -> None:
    """What was to be kept is lost."""
    path = tmp_path / "sub" / "file"

    async def main() -> None:
        one = LabelStore(path, "e1")
        one.read()
        path.unlink()
        path.parent.rmdir()
        one.put(1, b"a")
        one.close()

    asyncio.run(main())
    assert not path.exists()
