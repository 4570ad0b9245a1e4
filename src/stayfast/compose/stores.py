"""The stores of a set of settings: where caches keep answers, by name."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from random import Random

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.observe.families import STORE_BYTES, STORE_ENTRIES
from stayfast.observe.totals import Rows
from stayfast.settings import Settings
from stayfast.settings.stores import MemoryStoreSettings, SqliteStoreSettings, StoreSettings
from stayfast.stores.base import Store
from stayfast.stores.door import Door
from stayfast.stores.memory import MemoryStore
from stayfast.stores.shared import Shared
from stayfast.stores.sqlite import SqliteDoor

Stores = Mapping[str, Store]


def stores(settings: Settings, before: tuple[Settings, Stores] | None, *, clock: Clock, sink: Sink, rng: Random) -> Stores:
    """All of them. After a reload those of `before` go on whose settings are the same."""
    known, old = before if before is not None else (settings, {})
    kept = {name: store for name, store in old.items() if known.stores[name] == settings.stores.get(name)}
    return {name: kept.get(name) or _store(name, its, clock, sink, rng) for name, its in settings.stores.items()}


def _store(name: str, its: StoreSettings, clock: Clock, sink: Sink, rng: Random) -> Store:
    if isinstance(its, MemoryStoreSettings):
        return MemoryStore(its.max_bytes)
    if isinstance(its, SqliteStoreSettings):
        door: Door = SqliteDoor(Path(its.path), its.max_bytes, clock)
    else:
        redis = import_module("stayfast.stores.redis")  # here: it needs a package that only an extra brings
        door = redis.RedisDoor(its.url.reveal(), its.prefix, clock)
    return Shared(name, door, its.shared, clock, sink, rng=rng)


def held(stores: Stores) -> Rows:
    """What they have in this process's memory, for gauges."""
    return {STORE_BYTES.name: [((name,), store.n_bytes) for name, store in stores.items()],
            STORE_ENTRIES.name: [((name,), store.n_entries) for name, store in stores.items()]}
