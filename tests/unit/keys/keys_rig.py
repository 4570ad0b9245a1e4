"""Stored keys for tests: records, a table, and a service on an embedded store without threads."""

from hashlib import sha256
from pathlib import Path
from typing import Any

from stayfast.core.clock import SystemClock
from stayfast.core.keys import StoredKey
from stayfast.keys.service import KeyService
from stayfast.keys.table import LiveKeys
from stayfast.server.config import is_tenant_name
from stayfast.stores.jobs.sqlite import SqliteJobStore
from stayfast.testing import RecordingSink
from tests.services.sqlite_jobs_rig import MovedClock

SECRET = "sf-a-secret-that-is-long-enough"


def digest_of(secret: str) -> bytes:
    """As the store has it."""
    return sha256(secret.encode()).digest()


def stored_key(key_id: str = "key_1", secret: str = SECRET, **fields: Any) -> StoredKey:
    """A live key of acme for all routes."""
    return StoredKey(key_id, **{"tenant": "acme", "name": key_id, "digest": digest_of(secret), "created_at": 0.0,
                                "scopes": ("routes:*",), "version": 1, **fields})


def live_keys(*keys: StoredKey) -> LiveKeys:
    """A table with keys, by the real clock."""
    live = LiveKeys(SystemClock())
    live.apply(keys)
    return live


class KeyServiceRig:
    """A service on an empty store, with a clock that is moved by hand."""

    def __init__(self, folder: Path, *, max_keys: int = 100) -> None:
        self.clock = MovedClock()
        folder.mkdir(exist_ok=True)
        self.store: Any = SqliteJobStore(folder, self.clock, reserve_bytes=0, is_inline=True)
        self.sink = RecordingSink()
        self.service = KeyService(self.store, self.store, self.clock, self.sink, is_tenant_name, max_keys=max_keys)
        self.live = LiveKeys(self.clock)
