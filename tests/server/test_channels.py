"""workers.channels: requests among workers over private sockets. A worker that does not answer blocks no other."""

import asyncio
import os
import stat
from pathlib import Path

import pytest
import uvloop

from stayfast.core.clock import SystemClock
from stayfast.workers.channels import MAX_QUERY_BYTES, WorkerPeers, lock_directory, runtime_directory

pytestmark = pytest.mark.sockets


async def shout(question: bytes) -> bytes:
    """An answer that shows the question."""
    return question.upper()


def test_worker_peers_query_reaches_all_others() -> None:
    """Each of three gets the answers of the two others, by their numbers, also large ones."""
    async def main(folder: Path) -> None:
        workers = [WorkerPeers(folder, n, 3) for n in range(3)]
        for worker in workers:
            await worker.listen(shout)
        assert await workers[1].query(b"who") == {0: b"WHO", 2: b"WHO"}
        await asyncio.gather(*(worker.query(b"x" * MAX_QUERY_BYTES) for worker in workers))
        for worker in workers:
            worker.close()
        assert await workers[1].query(b"who") == {0: None, 2: None}

    with runtime_directory() as folder:
        assert folder is not None
        uvloop.run(main(Path(folder)))


def test_worker_peers_silent_and_oversized_replies_are_none() -> None:
    """One that takes the question and says nothing, one that breaks off, one that was never there: none of them for long."""
    async def main(folder: Path) -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async def breaking(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\0\0\0\x09half")
            writer.close()

        servers = [await asyncio.start_unix_server(act, str(folder / f"{n}.sock"))
                   for n, act in ((1, silent), (2, breaking))]
        began_at = SystemClock().now()
        assert await WorkerPeers(folder, 0, 4, patience_s=0.1).query(b"who") == {1: None, 2: None, 3: None}
        assert SystemClock().now() - began_at < 1
        for server in servers:
            server.close()

    with runtime_directory() as folder:
        assert folder is not None
        uvloop.run(main(Path(folder)))


def test_worker_peers_malformed_query_is_ignored() -> None:
    """Half a question, a length beyond all bounds: closed without an answer, and the next question is answered."""
    async def main(folder: Path) -> None:
        worker = WorkerPeers(folder, 0, 2, patience_s=0.2)
        await worker.listen(shout)
        for nonsense in (b"\0\0", b"\xff\xff\xff\xffabc"):
            reader, writer = await asyncio.open_unix_connection(str(folder / "0.sock"))
            writer.write(nonsense)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        assert await WorkerPeers(folder, 1, 2).query(b"a") == {0: b"A"}
        worker.close()

    with runtime_directory() as folder:
        assert folder is not None
        uvloop.run(main(Path(folder)))


def test_runtime_directory_is_private_and_removed() -> None:
    """Nobody else can enter it; afterwards it is gone, whatever is in it."""
    with runtime_directory() as folder:
        assert folder is not None
        assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
        Path(folder, "0.counts").write_bytes(b"x")
    assert not Path(folder).exists()


def test_runtime_directory_of_killed_parent_is_removed_by_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not what belongs to a parent or a worker that lives, nor what is too young to be judged, nor other folders."""
    def made(name: str, age_s: float) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "board").write_bytes(b"x")
        at = tmp_path.stat().st_mtime - age_s
        os.utime(folder, (at, at))
        return folder

    monkeypatch.setattr("stayfast.workers.channels.mkdtemp", lambda **_: str(made("stayfast-workers-new", 0)))
    abandoned, young, other = (made("stayfast-workers-a", 3600), made("stayfast-workers-b", 1), made("stayfast-x", 3600))
    of_a_worker, of_a_parent = made("stayfast-workers-c", 3600), made("stayfast-workers-d", 3600)
    worker, lock = WorkerPeers(of_a_worker, 0, 2), lock_directory(of_a_parent)
    assert lock is not None
    with runtime_directory() as folder:
        assert folder is not None
        assert [its.exists() for its in (abandoned, young, other, of_a_worker, of_a_parent)] == [False, *[True] * 4]
    worker.close()
    os.close(lock)
    os.utime(of_a_worker, (0, 0))
    with runtime_directory():
        assert [its.exists() for its in (young, other, of_a_worker)] == [True, True, False]


def test_runtime_directory_without_writable_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system where nothing can be written: no folder, and no error."""
    def refuse(**_: str | None) -> str:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("stayfast.workers.channels.mkdtemp", refuse)
    with runtime_directory() as folder:
        assert folder is None


def test_worker_peers_single_worker_queries_none() -> None:
    """Without a folder there are no others."""
    async def main() -> None:
        alone = WorkerPeers()
        await alone.listen(shout)
        assert await alone.query(b"who") == {}
        alone.close()

    uvloop.run(main())
