"""Stores in a settings file, and what they become."""

import asyncio
import sys
from pathlib import Path
from random import Random

import pytest

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import SystemClock
from stayfast.lab.load.virtual import check_simulated
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Secret, Settings, SettingsError, SettingsText, load_settings
from stayfast.settings.upstreams import MemoryStoreSettings, RedisStoreSettings, SqliteStoreSettings
from stayfast.stores.memory import MemoryStore
from stayfast.stores.redis import RedisBackend
from stayfast.stores.remote_store import RemoteStore, SharedConfig
from stayfast.testing import SimLoop

UPSTREAMS = 'upstreams: {u: {kind: simulated}}\n'
ROUTES = "routes: {m: {upstreams: [u], cache: {mode: exact, store: s}}}\n"


def read(text: str, variables: dict[str, str] | None = None) -> Settings:
    """The settings of a text."""
    return load_settings(SettingsText("f.yaml", UPSTREAMS + text), variables or {}, kinds=KINDS)


def system(text: str, old: System | None = None) -> System:
    """The system of a text."""
    settings = read(text)
    loop = SimLoop()
    try:
        return build(settings, Observers(settings, loop), {}, loop, Random(1), old=old)
    finally:
        loop.close()


def test_stores_complete_file_is_loaded(tmp_path: Path) -> None:
    """Three kinds; a URL with a password comes by reference, and is not shown."""
    its = read(f"""
stores:
  mem: {{kind: memory, max_bytes: 2000}}
  disk: {{kind: sqlite, path: {tmp_path}/a.db, max_bytes: 100000, timeout_s: 0.5, local_bytes: 0,
          local_ttl_s: 1, coalesce_wait_s: 0}}
  hot: {{kind: redis, url: "${{REDIS_URL}}", prefix: "{{llm}}.one"}}
routes: {{m: {{upstreams: [u], cache: {{mode: exact, store: hot}}}}}}
""", {"REDIS_URL": "rediss://:hush@cache:6379/3"})
    assert its.stores == {
        "mem": MemoryStoreSettings(max_bytes=2000),
        "disk": SqliteStoreSettings("sqlite", f"{tmp_path}/a.db", 100_000, SharedConfig(0.5, 0, 0, 1)),
        "hot": RedisStoreSettings("redis", Secret("rediss://:hush@cache:6379/3"), "{llm}.one")}
    assert "hush" not in repr(its)


@pytest.mark.parametrize(("store", "where", "message"), [
    ("{kind: memory, max_bytes: 5}", "stores.s.max_bytes", "from 1024 to"),
    ("{kind: sqlite}", "stores.s", "`path` is missing"),
    ("{kind: sqlite, path: /no/such/folder/a.db}", "stores.s.path", "no such folder"),
    ("{kind: sqlite, path: ''}", "stores.s.path", "must not be empty"),
    ("{kind: redis}", "stores.s", "`url` is missing"),
    ("{kind: redis, url: 'http://:hush@h/'}", "stores.s.url", "must be like redis://user:password@host:6379/0"),
    ("{kind: redis, url: 'redis://:hu/sh@h'}", "stores.s.url", "%2F"),
    ("{kind: redis, url: 'redis://h?ssl=1'}", "stores.s.url", "must be like"),
    ("{kind: redis, url: 'redis://h:x'}", "stores.s.url", "must be like"),
    ("{kind: redis, url: 'redis://h', timeout_s: 0}", "stores.s.timeout_s", "from 0.001 to 10"),
    ("{kind: redis, url: 'redis://h', prefix: 'a b'}", "stores.s.prefix", "letters, digits"),
    ("{kind: tape}", "stores.s.kind", "memory, sqlite, redis"),
])
def test_stores_invalid_setting_is_refused(store: str, where: str, message: str) -> None:
    """With the place of the setting, and without what is secret."""
    with pytest.raises(SettingsError) as refused:
        read(f"stores: {{s: {store}}}\n{ROUTES}")
    assert where in str(refused.value)
    assert message in str(refused.value)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("url", [
    "redis://h", "redis://[::1]:6379/0", "rediss://u:p%2F%40@cache-1.example.com:6380/15", "unix:///run/redis.sock?db=2",
    "unix://:p@/run/redis.sock", "redis://:p@10.0.0.1/"])
def test_redis_url_forms_are_accepted(url: str) -> None:
    """By us and by the client."""
    assert RedisStoreSettings("redis", Secret(url)).url.reveal() == url
    asyncio.run(RedisBackend(url, "p", SystemClock()).close())


def test_route_unknown_store_is_refused() -> None:
    """Else it is told which one it may have meant."""
    with pytest.raises(SettingsError, match=r'routes\.m\.cache\.store: unknown store "s", did you mean st\?'):
        read(f"stores: {{st: {{kind: memory}}}}\n{ROUTES}")


def test_redis_without_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says how to get it."""
    monkeypatch.setattr(sys.modules["stayfast.settings.consistency"], "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"stores\.s\.kind: needs .* pip install '\.\[redis\]' in "):
        read(f"stores: {{s: {{kind: redis, url: 'redis://h'}}}}\n{ROUTES}")


def test_routes_share_a_store_by_its_name(tmp_path: Path) -> None:
    """And have memory of their own without one."""
    built = system(f"""
stores: {{s: {{kind: sqlite, path: {tmp_path}/a.db}}, m: {{kind: memory}}, r: {{kind: redis, url: "redis://h"}}}}
routes:
  one: {{upstreams: [u], cache: {{mode: exact, store: s}}}}
  two: {{upstreams: [u], cache: {{mode: exact, store: s}}}}
  own: {{upstreams: [u], cache: {{mode: exact}}}}
""")
    of = {name: route.policy.cache.store for name, route in built.gateway.router.routes.items() if route.policy.cache}
    assert of["one"] is of["two"] is built.stores["s"]
    assert isinstance(of["one"], RemoteStore)
    assert isinstance(of["own"], MemoryStore)
    assert isinstance(built.stores["m"], MemoryStore)
    assert isinstance(built.stores["r"], RemoteStore)
    _, text = asyncio.run(built.metrics())
    lines = text.decode().splitlines()
    assert 'stayfast_cache_store_entries{store="s"} 0' in lines
    assert 'stayfast_cache_entries{route="own"} 0' in lines
    assert not any(line.startswith('stayfast_cache_entries{route="one"}') for line in lines)
    for store in built.stores.values():
        asyncio.run(store.close())


@pytest.mark.parametrize(("old", "new", "is_same"), [
    ("ttl_s: 60", "ttl_s: 61", True), ("max_bytes: 5000", "max_bytes: 6000", False), ("kind: memory, ", "", True)])
def test_reload_keeps_unchanged_stores(old: str, new: str, is_same: bool) -> None:
    """What a route says does not touch them; and no route goes on with one that is not there any more."""
    text = ("stores: {s: {kind: memory, max_bytes: 5000}}\n"
            "routes: {m: {upstreams: [u], cache: {mode: exact, store: s, ttl_s: 60}}}")
    before = system(text)
    after = system(text.replace(old, new) if new else text, before)
    assert (after.stores["s"] is before.stores["s"]) is is_same
    caching = after.gateway.router.routes["m"].policy.cache
    assert caching is not None
    assert caching.store is after.stores["s"]


def test_virtual_time_has_memory_only(tmp_path: Path) -> None:
    """What is outside answers in real time."""
    with pytest.raises(ValueError, match=r"stores must be memory, and these are not: s \(kind sqlite\)"):
        check_simulated(read(f"stores: {{s: {{kind: sqlite, path: {tmp_path}/a.db}}}}\n{ROUTES}"))
    check_simulated(read(f"stores: {{s: {{kind: memory}}}}\n{ROUTES}"))
