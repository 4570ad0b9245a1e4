"""Where what is looked up can be kept for several processes: a file on this machine, or a server.

    search = CachedFunction(find, ttl_s=300, store=store_at("found.db"), name="acme search")
"""

import os
from importlib import import_module
from pathlib import Path
from random import Random

from stayfast.core.clock import SystemClock
from stayfast.core.events import Fanout
from stayfast.stores.base import Store, StoreBackend
from stayfast.stores.remote_store import RemoteStore, SharedConfig
from stayfast.stores.sqlite import SqliteDoor
from stayfast.turns.validation import argument_error, is_count, is_seconds

_REDIS = ("redis://", "rediss://", "unix://")


def open_shared_store(where: str, *, max_bytes: int = 1 << 30, timeout_s: float = 0.05) -> Store:
    """A path of a file (SQLite, at most `max_bytes`), or the URL of a Redis or Valkey server, as in redis://host:6379/0.

    Nothing is opened yet; nothing it does raises: a place that is slow or gone has nothing. Needs `pip install
    '.[redis]'` in Stayfast's checkout for a server. Raises ValueError for values out of bounds.
    """
    if not is_count(max_bytes, 1):
        raise argument_error(f"max_bytes={max_bytes!r:.80}: how large the file may get, a whole number, 1 or more",
                             max_bytes)
    if not is_seconds(timeout_s):
        raise argument_error(f"timeout_s={timeout_s!r:.80}: seconds that one look may take, more than 0, as in "
                             f"timeout_s=0.05",
                    timeout_s)
    clock = SystemClock()
    if where.startswith(_REDIS):
        door: StoreBackend = import_module("stayfast.stores.redis").RedisDoor(where, "stayfast", clock)
    else:
        door = SqliteDoor(Path(where).expanduser(), max_bytes, clock)
    return RemoteStore("turns", door, SharedConfig(timeout_s=timeout_s), clock, Fanout(), rng=Random(os.urandom(16)))
