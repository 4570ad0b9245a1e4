"""Contents of files on disk: whole or missing, flat memory, no path from an id."""

import asyncio
import hashlib
import os
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from stayfast.core.clock import SystemClock
from stayfast.stores.jobs.base import MAX_CHECKED, StoreFull
from stayfast.stores.jobs.file_bodies import PART_BYTES, DiskFileBodies

MIB = 1024 * 1024


async def store_file(bodies: DiskFileBodies, file_id: str, parts: list[bytes]) -> tuple[int, str]:
    """Write a file."""
    writer = await bodies.create(file_id)
    for part in parts:
        await writer.write(part)
    return await writer.commit()


def names_in(folder: Path) -> list[str]:
    """What a folder contains."""
    return sorted(path.name for path in folder.iterdir())


async def read_all(bodies: DiskFileBodies, file_id: str, at: int = 0) -> bytes:
    """Its bytes."""
    parts = [part async for part in bodies.read(file_id, at)]
    assert all(0 < len(part) <= PART_BYTES for part in parts)
    return b"".join(parts)


def test_file_bodies_store_and_read_from_an_offset(tmp_path: Path) -> None:
    """Size and digest are those of the contents; a file is readable by its owner alone."""
    async def main() -> None:
        bodies = DiskFileBodies(tmp_path / "files", SystemClock())
        data = os.urandom(3 * PART_BYTES + 17)
        assert await store_file(bodies, "file-1", [data[:5], b"", data[5:]]) == (
            len(data), hashlib.sha256(data).hexdigest())
        assert await read_all(bodies, "file-1") == data
        assert await read_all(bodies, "file-1", PART_BYTES + 3) == data[PART_BYTES + 3:]
        assert await read_all(bodies, "file-1", len(data) + 9) == b""
        assert await store_file(bodies, "empty", []) == (0, hashlib.sha256(b"").hexdigest())
        assert await read_all(bodies, "empty") == b""
        assert (tmp_path / "files").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "files" / "file-1").stat().st_mode & 0o777 == 0o600
        await bodies.delete("file-1")
        await bodies.delete("file-1")
        with pytest.raises(KeyError):
            await read_all(bodies, "file-1")
        await bodies.close()

    asyncio.run(main())


@pytest.mark.parametrize("file_id", ["", ".", "..", "../x", "a/b", "a\0b", "a.b", "x" * 129, "ä", "a\n", ".part-1"])
def test_file_bodies_refuse_ids_that_are_no_words(tmp_path: Path, file_id: str) -> None:
    """An id is never a path outside the folder, nor a temporary file."""
    async def main() -> None:
        (tmp_path / "x").write_text("secret")
        bodies = DiskFileBodies(tmp_path / "files", SystemClock())
        with pytest.raises(ValueError, match="letters"):
            await bodies.create(file_id)
        with pytest.raises(KeyError):
            await read_all(bodies, file_id)
        await bodies.delete(file_id)
        assert (tmp_path / "x").exists()

    asyncio.run(main())


def test_file_bodies_are_invisible_until_committed(tmp_path: Path) -> None:
    """An aborted file leaves nothing; a second process that starts meanwhile does not remove what is being written."""
    async def main() -> None:
        bodies = DiskFileBodies(tmp_path, SystemClock())
        writer, aborted = await bodies.create("one"), await bodies.create("two")
        await writer.write(b"x" * PART_BYTES)
        await aborted.write(b"y" * PART_BYTES)
        with pytest.raises(KeyError):
            await read_all(bodies, "one")
        await aborted.abort()
        other = DiskFileBodies(tmp_path, SystemClock())
        with pytest.raises(KeyError):
            await read_all(other, "one")
        await writer.commit()
        await writer.abort()
        assert await read_all(other, "one") == b"x" * PART_BYTES
        assert names_in(tmp_path) == ["one"]

    asyncio.run(main())


def test_file_bodies_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    """At the next start."""
    script = """
import asyncio, sys
from pathlib import Path
from stayfast.core.clock import SystemClock
from stayfast.stores.jobs.file_bodies import DiskFileBodies
async def main():
    writer = await DiskFileBodies(Path(sys.argv[1]), SystemClock()).create("one")
    await writer.write(b"x" * 500_000)
    print("written", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.kill()
    assert len(list(tmp_path.iterdir())) == 1

    async def main() -> None:
        await DiskFileBodies(tmp_path, SystemClock()).delete("other")

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def test_file_bodies_without_a_record_are_removed(tmp_path: Path) -> None:
    """If they are old: a young one may be about to get its record."""
    async def is_known(file_id: str) -> bool:
        return file_id == "known"

    async def main() -> None:
        bodies = DiskFileBodies(tmp_path, SystemClock())
        for name in ("known", "orphan", "young"):
            await store_file(bodies, name, [b"x"])
            if name != "young":
                os.utime(tmp_path / name, (1.0, 1.0))
        assert await bodies.remove_orphans(is_known) == 1
        assert names_in(tmp_path) == ["known", "young"]

    asyncio.run(main())


def test_file_bodies_check_a_bounded_number_at_a_time(tmp_path: Path) -> None:
    """The next call goes on after them, and at the end from the start."""
    checked: list[str] = []

    async def is_known(file_id: str) -> bool:
        checked.append(file_id)
        return True

    async def main() -> None:
        bodies, names = DiskFileBodies(tmp_path, SystemClock()), [f"f{n:04}" for n in range(MAX_CHECKED + 5)]
        for name in names:
            (tmp_path / name).touch()
            os.utime(tmp_path / name, (1.0, 1.0))
        await bodies.remove_orphans(is_known)
        assert checked == names[:MAX_CHECKED]
        await bodies.remove_orphans(is_known)
        assert checked == names
        await bodies.remove_orphans(is_known)
        assert checked[len(names):] == names[:MAX_CHECKED]

    asyncio.run(main())


def test_file_bodies_large_file_needs_little_memory(tmp_path: Path) -> None:
    """64 MiB in, 64 MiB out."""
    async def main() -> None:
        bodies = DiskFileBodies(tmp_path, SystemClock())
        part = os.urandom(PART_BYTES)
        tracemalloc.start()
        await store_file(bodies, "big", [part] * 256)
        n_bytes = 0
        async for read in bodies.read("big"):
            n_bytes += len(read)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert n_bytes == 64 * MIB
        assert peak < 4 * MIB

    asyncio.run(main())


def test_file_bodies_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    async def main() -> None:
        bodies = DiskFileBodies(tmp_path, SystemClock())
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
        try:
            writer = await bodies.create("big")
            with pytest.raises(StoreFull):
                await writer.write(b"x" * 100 * PART_BYTES)
            await writer.abort()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []
