"""The file of learned labels: what a restart, a kill and a damaged file leave of it."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.stores.label_store import APPLICATION_ID, FLUSH_S, WAL_BYTES, LabelStore

N_KILLS = 4
WRITER = """
import asyncio, sys
from pathlib import Path
from stayfast.stores import label_store

async def main(path, first):
    label_store.FLUSH_S = 0.002
    store = label_store.LabelStore(Path(path), "e1")
    store.read()
    for n in range(first, first + 1_000_000):
        store.put(n, b"%d " % n * 100)
        store.delete(n - 500)
        await asyncio.sleep(0)
        if n % 50 == 0:
            await asyncio.sleep(0.004)
            print(n, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def read_labels(path: Path, embedder: str = "e1") -> dict[int, bytes]:
    """The labels that a new process finds."""
    async def main() -> dict[int, bytes]:
        store = LabelStore(path, embedder)
        try:
            return store.read()
        finally:
            store.close()

    return asyncio.run(main())


def write_labels(path: Path, write: Callable[[LabelStore], None]) -> LabelStore:
    """Open the file, write and close."""
    async def main() -> LabelStore:
        store = LabelStore(path, "e1")
        store.read()
        write(store)
        store.close()
        return store

    return asyncio.run(main())


def write_three(store: LabelStore) -> None:
    """Three labels that fill several pages."""
    for key in (1, 2, 3):
        store.put(key, b"body %d" % key * 500)


@given(st.lists(st.tuples(st.integers(-3, 3), st.one_of(st.none(), st.binary(max_size=20))), max_size=30))
def test_label_store_restart_keeps_last_put_of_each_key_in_order(tmp_path_factory: pytest.TempPathFactory,
                                                                 changes: list[tuple[int, bytes | None]]) -> None:
    """Over two processes, in the order of the last puts."""
    path = tmp_path_factory.mktemp("x") / "sub" / "file"
    expected: dict[int, bytes] = {}

    def write(store: LabelStore) -> None:
        for key, body in changes:
            expected.pop(key, None)
            if body is None:
                store.delete(key)
            else:
                store.put(key, body)
                expected[key] = body

    write_labels(path, write)
    write_labels(path, lambda store: store.put(9, b"later"))
    assert list(read_labels(path).items()) == [*expected.items(), (9, b"later")]


def test_label_store_of_other_embedder_is_emptied(tmp_path: Path) -> None:
    """Labels of another embedder mean nothing."""
    path = tmp_path / "file"
    write_labels(path, lambda store: store.put(1, b"a"))
    assert read_labels(path, "e2") == {}
    assert read_labels(path, "e1") == {}


@pytest.mark.parametrize("at", [0, 18, 100, 4096, 4100])
def test_label_store_damaged_file_is_set_aside_and_new_one_works(tmp_path: Path, at: int) -> None:
    """Damaged in its header or its tree: nothing is read, the file is renamed, later labels are kept."""
    path, damaged = tmp_path / "file", tmp_path / "file.damaged"
    write_labels(path, write_three)
    content = path.read_bytes()
    content = content[:at] + bytes(byte ^ 0x55 for byte in content[at:at + 40]) + content[at + 40:]
    path.write_bytes(content)
    assert write_labels(path, lambda store: store.put(4, b"new")).damaged == damaged
    assert damaged.read_bytes() == content
    assert read_labels(path) == {4: b"new"}


def test_label_store_truncated_file_is_set_aside(tmp_path: Path) -> None:
    """Cut after any of its pages but the last. An empty file is a new one."""
    path = tmp_path / "file"
    write_labels(path, write_three)
    content = path.read_bytes()
    for n_bytes in range(0, len(content), 4096):
        path.write_bytes(content[:n_bytes])
        assert (write_labels(path, write_three).damaged is not None) is (n_bytes > 0)
        assert list(read_labels(path)) == [1, 2, 3]


def test_label_store_file_of_another_kind_is_set_aside(tmp_path: Path) -> None:
    """Text, and a database of another application."""
    path = tmp_path / "file"
    path.write_bytes(b"stayfast learned 1 e1\n")
    assert write_labels(path, write_three).damaged is not None
    with sqlite3.connect(path) as file:
        file.execute(f"PRAGMA application_id = {APPLICATION_ID + 1}")
    file.close()
    assert read_labels(path) == {}


def test_label_store_log_of_damaged_file_is_not_applied_to_new_one(tmp_path: Path) -> None:
    """A killed process leaves a write-ahead log without the first page, which is damaged in the file."""
    path, copy = tmp_path / "file", tmp_path / "copy"
    write_labels(path, write_three)

    async def main() -> None:
        store = LabelStore(path, "e1")
        store.read()
        store.put(9, b"a" * 100)
        async with asyncio.timeout(FLUSH_S + 10):
            while b"a" * 100 not in (tmp_path / "file-wal").read_bytes():
                await asyncio.sleep(0.05)
        copy.write_bytes(b"damaged" + path.read_bytes()[7:])
        shutil.copy(tmp_path / "file-wal", tmp_path / "copy-wal")
        store.close()

    asyncio.run(main())
    assert read_labels(copy) == {}
    assert read_labels(copy) == {}
    assert (tmp_path / "copy.damaged").exists()


def test_label_store_set_aside_starts_empty_file(tmp_path: Path) -> None:
    """For labels that SQLite reads and their user cannot."""
    path = tmp_path / "file"
    write_labels(path, write_three)
    store = write_labels(path, lambda store: store.set_aside())
    assert store.damaged == tmp_path / "file.damaged"
    assert read_labels(path) == {}


def test_label_store_file_that_cannot_be_opened_raises_os_error_and_is_not_renamed(tmp_path: Path) -> None:
    """Such a file is not damaged."""
    path = tmp_path / "file"
    path.mkdir()
    with pytest.raises(OSError, match="file"):
        read_labels(path)
    assert path.exists()


def test_label_store_writes_after_a_second_without_close(tmp_path: Path) -> None:
    """Readable by its owner only; changes after `close` are lost."""
    path, files, modes = tmp_path / "file", tmp_path.iterdir, list[int]()

    async def main() -> None:
        store = LabelStore(path, "e1")
        store.read()
        store.put(1, b"a")
        async with asyncio.timeout(FLUSH_S + 10):
            while not sqlite3.connect(path).execute("SELECT key FROM labels").fetchall():
                await asyncio.sleep(0.05)
        modes.extend([file.stat().st_mode & 0o077 for file in files()])
        store.close()
        store.put(2, b"lost")

    asyncio.run(main())
    assert modes == [0, 0, 0]
    assert read_labels(path) == {1: b"a"}


def test_label_store_file_does_not_grow_with_replaced_labels(tmp_path: Path) -> None:
    """A hundred labels replaced a hundred times take the space of some hundred."""
    path = tmp_path / "file"

    def write(store: LabelStore) -> None:
        for key in range(100):
            store.put(key, b"body" * 250)

    for _ in range(100):
        write_labels(path, write)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 300_000 < WAL_BYTES
    assert len(read_labels(path)) == 100


def test_label_store_missing_disk_loses_labels_only(tmp_path: Path) -> None:
    """No exception, and the process goes on."""
    path = tmp_path / "sub" / "file"

    async def main() -> None:
        store = LabelStore(path, "e1")
        store.read()
        shutil.rmtree(path.parent)
        store.put(1, b"a")
        store.close()

    asyncio.run(main())
    assert not path.exists()


def test_label_store_killed_process_loses_at_most_last_batch(tmp_path: Path) -> None:
    """Several times, at random moments: whole batches are there, in order, and the file is sound."""
    path, first = tmp_path / "file", 1
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(("src", "."))}
    for n_lines in range(3, 3 + N_KILLS):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(first)], stdout=subprocess.PIPE,
                              env=environment, cwd=Path(__file__).parents[3]) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(n_lines)]
            process.kill()
            lines += process.stdout.read().split()
        with sqlite3.connect(path) as file:
            assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        file.close()
        labels = list(read_labels(path).items())
        newest = labels[-1][0]
        assert newest > int(lines[-1]) - 500
        assert labels == [(key, b"%d " % key * 100) for key in range(labels[0][0], newest + 1)]
        assert len(labels) <= 501
        first = newest + 1
    assert not (tmp_path / "file.damaged").exists()
