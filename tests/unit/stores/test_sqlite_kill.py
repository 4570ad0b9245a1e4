"""A process killed while it writes: committed answers are stored, and the file is valid."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

from tests.unit.stores.sqlite_rig import opened

N_KILLS = 4
WRITER = """
import asyncio, sys
from pathlib import Path
from tests.unit.stores.suite import kept
from tests.unit.stores.sqlite_rig import opened

async def main(path, first):
    store = opened(Path(path), max_bytes=4_000_000)
    for n in range(first, first + 1_000_000):
        for part in range(5):
            await store.put((5 * n + part).to_bytes(32, "big"), kept(f"{5 * n + part} " * 200, tags=(f"t{n % 7}",)))
        await store.remove(b"n" * 32)  # comes after what was put
        print(n, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def last_told(path: Path, first: int, n_lines: int) -> int:
    """Have a process write from `first` on, and kill it after so many lines; the last number that it said was kept."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(("src", "."))}
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(first)], stdout=subprocess.PIPE, env=environment,
                          cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        for _ in range(n_lines):
            assert process.stdout.readline(), "it ended by itself"
        process.kill()
        rest = process.stdout.read().split()
    return int(rest[-1]) if rest else first + n_lines - 1


def check(path: Path) -> None:
    """The file is well, and its own sums are true."""
    file = sqlite3.connect(path)
    assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert file.execute("PRAGMA foreign_key_check").fetchall() == []
    counted = file.execute("SELECT count(*), coalesce(sum(n_bytes), 0) FROM answers").fetchone()
    assert file.execute("SELECT n_entries, n_bytes FROM room").fetchone() == counted
    file.close()


def test_sqlite_killed_process_loses_no_committed_answer(tmp_path: Path) -> None:
    """Several times, at moments of chance, in the middle of transactions and evictions."""
    path = tmp_path / "answers.db"
    first = 0
    for n in range(N_KILLS):
        last = last_told(path, first, 20 + 37 * n)

        async def newest(last: int = last) -> None:
            store = opened(path)
            for number in range(5 * last - 20 if last > 10 else 0, 5 * last + 5):
                kept = await store.get(number.to_bytes(32, "big"))
                assert kept is not None, (number, last)
                assert kept.body.startswith(f"{number} ".encode())
            stats = await store.stats()
            assert stats.n_bytes is not None
            assert stats.n_bytes <= 4_000_000 + 1_000_000
            await store.close()

        asyncio.run(newest())
        check(path)
        first = last + 1
