"""A store that several processes share, for `CachedFunction`: a file on this machine, or a server.

    search = CachedFunction(find, ttl_s=300, store=open_shared_store("found.db"), name="acme search")
"""

import os
from importlib import import_module
from pathlib import Path
from random import Random

from stayfast.core.clock import SystemClock
from stayfast.core.events import Fanout
from stayfast.stores.base import Store, StoreBackend
from stayfast.stores.remote_store import RemoteStore, SharedConfig
from stayfast.stores.sqlite import SqliteBackend
from stayfast.turns.validation import argument_error, is_count, is_seconds

_REDIS = ("redis://", "rediss://", "unix://")


def open_shared_store(where: str, *, max_bytes: int = 1 << 30, timeout_s: float = 0.05) -> Store:
    """`where`: the path of a file (SQLite, up to `max_bytes`), or a Redis or Valkey URL, as in redis://host:6379/0.

    Connects on first use. Operations of the store never raise: a slow or unreachable store is a cache miss. A server needs
    `pip install '.[redis]'` in Stayfast's checkout. Raises ValueError for values out of range.
    """
    if not is_count(max_bytes, 1):
        raise argument_error(f"max_bytes={max_bytes!r:.80}: the maximum size of the file, an integer, 1 or more", max_bytes)
    if not is_seconds(timeout_s):
        raise argument_error(f"timeout_s={timeout_s!r:.80}: seconds per access, above 0, as in timeout_s=0.05", timeout_s)
    clock = SystemClock()
    if where.startswith(_REDIS):
        backend: StoreBackend = import_module("stayfast.stores.redis").RedisBackend(where, "stayfast", clock)
    else:
        backend = SqliteBackend(Path(where).expanduser(), max_bytes, clock)
    return RemoteStore("turns", backend, SharedConfig(timeout_s=timeout_s), clock, Fanout(), rng=Random(os.urandom(16)))
