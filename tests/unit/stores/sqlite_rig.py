"""A store in an SQLite file, for tests."""

from pathlib import Path
from random import Random

from stayfast.core.clock import SystemClock
from stayfast.stores.remote_store import RemoteStore, SharedConfig
from stayfast.stores.sqlite import SqliteBackend
from stayfast.testing import RecordingSink

ONLY_THERE = SharedConfig(timeout_s=10, local_bytes=0)


def opened(path: Path, max_bytes: int = 1 << 20, seed: int = 1) -> RemoteStore:
    """A store in this file, as one of several processes has it."""
    return RemoteStore("file", SqliteBackend(path, max_bytes, SystemClock()), ONLY_THERE, SystemClock(), RecordingSink(),
                  rng=Random(seed))
