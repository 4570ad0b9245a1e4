"""Changes of stored keys: create, change, rotate, revoke. Endpoints and the command line use the same code.

Problem: two administrators change a key at once, and the later write undoes the earlier one. Rule: a change is a function of
the stored key, written if the key still has the version that was read, and computed again if not. A key is shown once; the
store holds its SHA-256 digest.
"""

import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected, Shed
from stayfast.core.events import Sink
from stayfast.core.keys import KeyChanged, StoredKey
from stayfast.keys.table import MAX_KEYS
from stayfast.policy.keys.quota_text import check_quota
from stayfast.policy.keys.scopes import normalize_scopes
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import JobStore, StoreFull
from stayfast.stores.jobs.keys import KEYS, KeyStore

N_KEY_BYTES = 32
MAX_REPEATS = 20
MAX_LISTED = 1000
MAX_GRACE_S = 30 * 86_400.0
DEFAULT_GRACE_S = 86_400.0
MAX_EXPIRES_S = 100 * 366 * 86_400.0
RETRY_S = 5.0
ID_PREFIX = "key_"


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to be made, as JSON. quota: limits by their name in the settings."""

    tenant: str
    name: str
    scopes: list[str] = []
    quota: dict[str, float] = {}
    expires_in_s: float | None = None


class KeyChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What changes of a key; what is left out stays. expires_in_s: from now; null: never."""

    name: str | UnsetType = UNSET
    scopes: list[str] | UnsetType = UNSET
    quota: dict[str, float] | UnsetType = UNSET
    expires_in_s: float | UnsetType | None = UNSET


class KeyService:
    """The keys of a store. Every method raises StayfastError: 400 for a wrong value, 404 for an unknown key, 409 for a name
    that is taken or a key that has ended, 503 for a store that is unavailable.
    """

    def __init__(self, store: JobStore, keys: KeyStore, clock: Clock, sink: Sink, check_tenant: Callable[[str], bool],
                 *, max_keys: int = MAX_KEYS) -> None:
        """store, keys: the same store. check_tenant: whether a text is the name of a tenant."""
        self._store = store
        self._keys = keys
        self._clock = clock
        self._sink = sink
        self._check_tenant = check_tenant
        self._max_keys = max_keys

    async def create(self, new: NewKey, actor: str) -> tuple[StoredKey, str]:
        """The stored key, and the key itself. actor: made it."""
        now = self._clock.wall()
        self._check_name(new.tenant, "tenant")
        self._check_name(new.name, "name")
        secret, digest = make_secret()
        key = StoredKey(
            id=f"{ID_PREFIX}{int(now * 1e3):012x}{secrets.token_hex(6)}", tenant=new.tenant, name=new.name, digest=digest,
            created_at=now, scopes=_read_scopes(new.scopes), quota=_read_quota(new.quota),
            expires_at=_read_expiry(new.expires_in_s, now), created_by=actor)
        try:
            stored, is_new = await self._keys.create_key(key, self._max_keys)
        except StoreUnavailable as error:
            raise keys_store_error(error) from None
        if stored is None:
            raise Rejected(f"There are {self._max_keys} keys, the limit. Revoke those that are not needed.", status=409,
                           code="too_many_keys")
        if not is_new:
            raise Rejected(f"The tenant {new.tenant} has a key with the name {new.name} already: {stored.id}. Choose "
                           "another name, or rotate that key if it is lost.", status=409, code="key_exists", param="name")
        await self._announce("created", stored, actor)
        return stored, secret

    async def find(self, key_id: str) -> StoredKey:
        """Also a key that has ended, for some time."""
        try:
            key = await self._keys.find_key(key_id)
        except StoreUnavailable as error:
            raise keys_store_error(error) from None
        if key is None:
            raise Rejected("No stored key has this id. GET /admin/keys lists them; keys of the settings file are in "
                           "server.keys.", status=404, code="key_not_found", param="id")
        return key

    async def list(self, tenant: str | None, after_id: str | None, limit: int) -> list[StoredKey]:
        """Oldest first."""
        try:
            return await self._keys.list_keys(tenant, after_id, limit)
        except StoreUnavailable as error:
            raise keys_store_error(error) from None

    async def change(self, key_id: str, change: KeyChange, actor: str) -> StoredKey:
        """Change a key that is not revoked; an expired one can be extended."""
        now, fields = self._clock.wall(), dict[str, Any]()
        if change.name is not UNSET:
            self._check_name(change.name, "name")
            fields["name"] = change.name
        if change.scopes is not UNSET:
            fields["scopes"] = _read_scopes(change.scopes)
        if change.quota is not UNSET:
            fields["quota"] = _read_quota(change.quota)
        if change.expires_in_s is not UNSET:
            fields["expires_at"] = _read_expiry(change.expires_in_s, now)
        return await self._update(key_id, "changed", actor, lambda key: replace(key, **fields))

    async def rotate(self, key_id: str, grace_s: float, actor: str) -> tuple[StoredKey, str]:
        """Give a key a new secret; the one before stays valid for `grace_s`. Returns the new secret."""
        if not 0 <= grace_s <= MAX_GRACE_S:
            raise Rejected(f"grace_s must be from 0 to {MAX_GRACE_S:.0f} seconds.", param="grace_s")
        now = self._clock.wall()
        secret, digest = make_secret()

        def change(key: StoredKey) -> StoredKey:
            if key.digest == digest:
                return key  # an earlier attempt was stored
            return replace(key, digest=digest, old_digest=key.digest if grace_s else b"", old_until=now + grace_s)

        return await self._update(key_id, "rotated", actor, change), secret

    async def revoke(self, key_id: str, actor: str) -> StoredKey:
        """End a key at once; one that is revoked already stays as it is."""
        key = await self.find(key_id)
        if key.revoked_at is not None:
            return key
        now = self._clock.wall()
        return await self._update(key_id, "revoked", actor, lambda key: replace(key, revoked_at=now))

    async def _update(self, key_id: str, what: str, actor: str, change: Callable[[StoredKey], StoredKey]) -> StoredKey:
        for _ in range(MAX_REPEATS):
            key = await self.find(key_id)
            if key.revoked_at is not None:
                if what == "revoked":
                    return key
                raise Rejected("The key is revoked. Make another one.", status=409, code="key_revoked", param="id")
            try:
                stored = await self._keys.update_key(change(key), key.version)
            except StoreUnavailable as error:
                raise keys_store_error(error) from None
            if stored is not None:
                await self._announce(what, stored, actor)
                return stored
        raise Shed("The key is changed by others all the time. Try again.", reason="key_contended", code="key_contended",
                   retry_after_s=RETRY_S)

    async def _announce(self, what: str, key: StoredKey, actor: str) -> None:
        """Wake the readers of all processes, and log the change."""
        self._sink.emit(KeyChanged(what, key.id, key.tenant, key.name, actor))
        try:
            await self._store.notify(KEYS)
        except StoreUnavailable:
            return  # readers poll

    def _check_name(self, name: str, param: str) -> None:
        if not self._check_tenant(name):
            raise Rejected(f"{param} must be 1 to 64 letters, digits, '.', '_', '@', '-'.", param=param)


def make_secret() -> tuple[str, bytes]:
    """A new key, and its SHA-256 digest."""
    secret = "sf-" + secrets.token_urlsafe(N_KEY_BYTES)
    return secret, sha256(secret.encode()).digest()


def keys_store_error(error: StoreUnavailable) -> Shed:
    """The error for a store that cannot be used now."""
    why = "is full" if isinstance(error, StoreFull) else "is unavailable"
    return Shed(f"The store of keys {why}. Nothing was changed. The gateway's log has the cause (keys_store).",
                reason="keys_unavailable", code="keys_unavailable", retry_after_s=RETRY_S)


def _read_scopes(scopes: list[str]) -> tuple[str, ...]:
    try:
        return normalize_scopes(scopes)
    except ValueError as error:
        raise Rejected(f"scopes: {error}.", param="scopes") from None


def _read_quota(limits: dict[str, float]) -> dict[str, float]:
    try:
        return check_quota(limits)
    except ValueError as error:
        raise Rejected(f"quota: {error}.", param="quota") from None


def _read_expiry(expires_in_s: float | None, now: float) -> float | None:
    if expires_in_s is None:
        return None
    if not 1 <= expires_in_s <= MAX_EXPIRES_S:
        raise Rejected(f"expires_in_s must be from 1 to {MAX_EXPIRES_S:.0f} seconds, or null.", param="expires_in_s")
    return now + expires_in_s
