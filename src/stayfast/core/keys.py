"""API keys that are stored, and what requests cost by tenant, key, route, model and day."""

from collections.abc import Mapping

import msgspec

NANO = 1_000_000_000  # costs are whole billionths of a USD: their sums are exact in any order
DAY_S = 86_400.0


class StoredKey(msgspec.Struct, frozen=True):
    """One key, without the key itself. Instants are Unix seconds."""

    id: str
    tenant: str
    name: str  # unique among the tenant's keys that are neither revoked nor expired
    digest: bytes  # SHA-256
    created_at: float
    scopes: tuple[str, ...] = ()  # in the form of `policy.keys.scopes`
    quota: Mapping[str, float] = {}  # limits by their name in the settings: requests_per_minute
    expires_at: float | None = None
    old_digest: bytes = b""  # of the key before the last rotation, valid until `old_until`
    old_until: float = 0.0
    revoked_at: float | None = None
    created_by: str = ""
    version: int = 0  # of the table, when this row was last changed; the store sets it
    used_at: float | None = None  # about: written at intervals

    def is_live(self, now: float) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class KeysPage(msgspec.Struct, frozen=True):
    """Keys in the order of their changes. version: of the table; it grows with each change."""

    keys: tuple[StoredKey, ...]
    version: int


class SpendRow(msgspec.Struct, frozen=True, array_like=True):
    """What requests used. A field by which sums are not grouped is 0 or empty."""

    day: int  # days since 1970-01-01, UTC
    tenant: str = ""  # empty: requests without a key
    key_id: str = ""  # empty: a key of the settings file, or none
    route: str = ""
    model: str = ""  # the upstream's own name for it
    n_requests: int = 0
    n_input: int = 0  # tokens, cached ones included
    n_cached: int = 0
    n_output: int = 0
    nano_usd: int = 0
    nano_usd_list: int = 0  # the part of `nano_usd` from the table of list prices
    n_unpriced: int = 0  # calls with tokens and without a price


class KeyChanged(msgspec.Struct, frozen=True, gc=False):
    """A stored key was created, changed, rotated or revoked."""

    what: str
    key_id: str
    tenant: str
    name: str
    actor: str  # the id or name of the key that did it, or a user of this machine


SPEND_COUNTS = ("n_requests", "n_input", "n_cached", "n_output", "nano_usd", "nano_usd_list", "n_unpriced")
SPEND_GROUPS = ("day", "tenant", "key_id", "route", "model")
