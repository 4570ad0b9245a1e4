"""The interface of a store for API keys and for what requests cost. Job stores implement it.

Errors and durability as in `stores.jobs.base`. The topic KEYS is to be notified after each change of a key.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from stayfast.core.keys import KeysPage, SpendRow, StoredKey

KEYS: Final = "keys"
KEEP_ENDED_S: Final = 90 * 86_400.0  # records of keys that are revoked or expired
KEEP_SPEND_DAYS: Final = 400
KEEP_WRITERS_S: Final = 7 * 86_400.0
MAX_SPEND_ROWS: Final = 10_000  # of one reply
PURGED_AT_ONCE: Final = 100


class KeyStore(Protocol):
    """Keys and spend."""

    async def read_keys(self, after_version: int, limit: int) -> KeysPage:
        """The keys that changed after a version, the earliest change first; revoked ones included, so that a reader learns
        of it. Fewer than `limit`: there are no more now.
        """

    async def create_key(self, key: StoredKey, max_keys: int) -> tuple[StoredKey | None, bool]:
        """The stored key, and whether it is new: else a live key of the tenant has the name already, or this id is stored.
        None: there are `max_keys` live keys.
        """

    async def update_key(self, key: StoredKey, version: int) -> StoredKey | None:
        """Replace a key whose version is `version`. None: it was changed meanwhile, or is unknown."""

    async def find_key(self, key_id: str) -> StoredKey | None: ...

    async def list_keys(self, tenant: str | None, after_id: str | None, limit: int) -> list[StoredKey]:
        """By id, so oldest first. tenant: None: of all."""

    async def note_key_uses(self, uses: Mapping[str, float]) -> None:
        """The latest use of keys, by id. No change: it wakes no reader."""

    async def add_spend(self, writer: str, n: int, rows: Sequence[SpendRow]) -> None:
        """Add to the sums. writer, n: the call's number at its writer, which grows; a repeated call adds nothing."""

    async def read_spend(self, groups: Sequence[str], first_day: int, last_day: int, tenant: str | None) -> list[SpendRow]:
        """Sums by `groups` (of SPEND_GROUPS), the highest cost first, at most MAX_SPEND_ROWS. tenant: None: of all."""


def is_same_key(one: StoredKey, other: StoredKey) -> bool:
    """Whether two records of a key are equal, but for what the store sets itself."""
    return replace(one, version=0, used_at=None) == replace(other, version=0, used_at=None)
