"""Refreshed results: renewed before their use, with their age, and shared through a store; in virtual time."""

import asyncio
from pathlib import Path

import pytest

from stayfast.stores.memory import MemoryStore
from stayfast.stores.remote_store import RemoteStore
from stayfast.testing import SimLoop, run
from stayfast.turns.cached import CachedFunction
from stayfast.turns.shared_store import open_shared_store
from tests.turns.rig import Index


def test_refreshed_result_is_found_by_another_process() -> None:
    async def main(loop: SimLoop) -> None:
        store, there, here = MemoryStore(1 << 20), Index(), Index()
        warm = CachedFunction(there.find, ttl_s=60, store=store, name="kb")
        search = CachedFunction(here.find, ttl_s=60, store=store, name="kb", kind=list[str])
        assert await warm.age_s("a") is None
        assert await warm.refresh("a") == ["a-3-1"]
        assert await search("a") == ["a-3-1"]
        await asyncio.sleep(50)
        assert await warm.age_s("a") == pytest.approx(50)
        assert await warm.refresh("a") == ["a-3-2"]
        assert await search("a") == ["a-3-1"]  # still fresh here
        await asyncio.sleep(20)
        assert await search("a") == ["a-3-2"]
        assert (there.n_calls, here.n_calls) == (2, 0)
        await asyncio.sleep(100)
        assert await search("a") == ["a-3-1"]
        assert here.n_calls == 1

    run(main)


def test_refresh_joins_a_call_in_flight() -> None:
    async def main(loop: SimLoop) -> None:
        index = Index()
        search = CachedFunction(index.find, ttl_s=60)
        found = await asyncio.gather(search("a"), search.refresh("a"), search.refresh("a"))
        assert list(found) == [["a-3-1"]] * 3
        index.is_down = True
        with pytest.raises(ConnectionError):
            await search.refresh("a")
        assert await search("a") == ["a-3-1"]
        assert search.ttl_s == 60
        assert not search.is_shared
        await search.aclose()

    run(main)


def test_open_shared_store_by_path_or_url(tmp_path: Path) -> None:
    file, server = open_shared_store(str(tmp_path / "none" / "found.db")), open_shared_store("redis://127.0.0.1:1/0")
    assert isinstance(file, RemoteStore)
    assert isinstance(server, RemoteStore)
    assert file.is_shared
    assert f"<SqliteBackend {tmp_path / 'none' / 'found.db'}>" in repr(file)
    assert "<RedisBackend" in repr(server)
    assert not (tmp_path / "none").exists()
    with pytest.raises(ValueError, match="max_bytes"):
        open_shared_store("found.db", max_bytes=0)
    with pytest.raises(ValueError, match="timeout_s"):
        open_shared_store("found.db", timeout_s=0)
