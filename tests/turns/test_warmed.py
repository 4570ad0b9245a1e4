"""What was looked up before anybody asked: renewed, told its age, and found in the store by others, on virtual time."""

import asyncio
from pathlib import Path

import pytest

from stayfast.stores.memory import MemoryStore
from stayfast.stores.remote_store import RemoteStore
from stayfast.testing import SimLoop, run
from stayfast.turns.cached import Cached
from stayfast.turns.kept import store_at
from tests.turns.test_cached import Index


def test_another_process_finds_what_was_renewed_meanwhile() -> None:
    """What it has itself is too old: the store's is newer, and no call is made; a store with nothing newer costs one."""

    async def main(loop: SimLoop) -> None:
        store, there, here = MemoryStore(1 << 20), Index(), Index()
        warm = Cached(there.find, ttl_s=60, store=store, name="kb")
        search = Cached(here.find, ttl_s=60, store=store, name="kb", kind=list[str])
        assert await warm.age_s("a") is None
        assert await warm.renew("a") == ["a-3-1"]
        assert await search("a") == ["a-3-1"]
        await asyncio.sleep(50)
        assert await warm.age_s("a") == pytest.approx(50)
        assert await warm.renew("a") == ["a-3-2"]
        assert await search("a") == ["a-3-1"]  # still fresh here
        await asyncio.sleep(20)
        assert await search("a") == ["a-3-2"]
        assert (there.n_calls, here.n_calls) == (2, 0)
        await asyncio.sleep(100)
        assert await search("a") == ["a-3-1"]
        assert here.n_calls == 1

    run(main)


def test_renewing_shares_a_call_that_runs() -> None:
    """And fails as it fails; what was kept stays."""

    async def main(loop: SimLoop) -> None:
        index = Index()
        search = Cached(index.find, ttl_s=60)
        found = await asyncio.gather(search("a"), search.renew("a"), search.renew("a"))
        assert list(found) == [["a-3-1"]] * 3
        index.is_down = True
        with pytest.raises(ConnectionError):
            await search.renew("a")
        assert await search("a") == ["a-3-1"]
        assert search.ttl_s == 60
        assert not search.is_shared
        await search.aclose()

    run(main)


def test_places(tmp_path: Path) -> None:
    """A file or a server, by what is written; nothing is opened before it is asked."""
    file, server = store_at(str(tmp_path / "none" / "found.db")), store_at("redis://127.0.0.1:1/0")
    assert isinstance(file, RemoteStore)
    assert isinstance(server, RemoteStore)
    assert file.is_shared
    assert repr(file._backend) == f"<SqliteDoor {tmp_path / 'none' / 'found.db'}>"
    assert repr(server._backend).startswith("<RedisDoor")
    assert not (tmp_path / "none").exists()
    with pytest.raises(ValueError, match="max_bytes"):
        store_at("found.db", max_bytes=0)
    with pytest.raises(ValueError, match="timeout_s"):
        store_at("found.db", timeout_s=0)
